// Pins github.com/cloudnativelabs/kube-router/v2 for the end-to-end harness; built by e2e/src/tools.rs, never imported.
module tools/kube-router

go 1.26.0

require github.com/cloudnativelabs/kube-router/v2 v2.1.0
