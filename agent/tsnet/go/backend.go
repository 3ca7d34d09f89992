package main

import (
	"sync"

	"tailscale.com/ipn/ipnext"
	"tailscale.com/ipn/ipnlocal"
	"tailscale.com/net/netns"
	"tailscale.com/tsd"
	"tailscale.com/types/logger"
)

// tsnet hides its LocalBackend, but extensions get it: this one remembers it by its system, which tsnet.Server.Sys gives.
const extensionName = "tailnet-operator"

var backends sync.Map // *tsd.System -> *ipnlocal.LocalBackend

func init() {
	// Sockets of the client must not be tied to the interface of the default route, which is meant for a node whose own
	// routes could catch them. In user space there are none, and a Pod may have no default route, or several interfaces.
	netns.SetEnabled(false)
	ipnext.RegisterExtension(extensionName, func(_ logger.Logf, b ipnext.SafeBackend) (ipnext.Extension, error) {
		if lb, ok := b.(*ipnlocal.LocalBackend); ok {
			backends.Store(b.Sys(), lb)
		}
		return backendExtension{}, nil
	})
}

type backendExtension struct{}

func (backendExtension) Name() string           { return extensionName }
func (backendExtension) Init(ipnext.Host) error { return nil }
func (backendExtension) Shutdown() error        { return nil }

func takeBackend(sys *tsd.System) *ipnlocal.LocalBackend {
	lb, ok := backends.LoadAndDelete(sys)
	if !ok {
		return nil
	}
	return lb.(*ipnlocal.LocalBackend)
}
