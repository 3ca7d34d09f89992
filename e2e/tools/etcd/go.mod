// Pins go.etcd.io/etcd/server/v3 for the end-to-end harness; built by e2e/src/tools.rs, never imported.
module tools/etcd

go 1.26.0

require go.etcd.io/etcd/server/v3 v3.6.13
