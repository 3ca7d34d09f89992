// Pins helm.sh/helm/v4 for the end-to-end harness; built by e2e/src/tools.rs, never imported.
module tools/helm

go 1.26.0

require helm.sh/helm/v4 v4.3.1
