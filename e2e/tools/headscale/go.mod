// Pins github.com/juanfont/headscale for the end-to-end harness; built by e2e/src/tools.rs, never imported.
module tools/headscale

go 1.26.5

require github.com/juanfont/headscale v0.29.3
