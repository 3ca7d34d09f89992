// Pins github.com/coredns/coredns for the end-to-end harness; built by e2e/src/tools.rs, never imported.
module tools/coredns

go 1.26.0

require github.com/coredns/coredns v1.15.0
