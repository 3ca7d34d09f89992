// Pins tailscale.com for the end-to-end harness; built by e2e/src/tools.rs, never imported.
module tools/tailscale

go 1.26.6

require tailscale.com v1.102.5
