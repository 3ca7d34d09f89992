package main

import (
	"context"
	"net/netip"
	"time"

	"tailscale.com/ipn/ipnlocal"
	"tailscale.com/tailcfg"
)

const (
	// warmMax bounds the routers whose paths are made ready.
	warmMax = 32
	// warmTries and warmWait bound the work for one router. A first handshake that gets lost is repeated after 5 s.
	warmTries = 4
	warmWait  = 4 * time.Second
	// warmDelay lets the control server tell the routers about this node: one that does not know it drops its handshake.
	warmDelay = 2 * time.Second
)

// warm makes the paths to the routers of the netmap ready before the first connection needs them: a first packet finds no
// session and perhaps a relay that is still connecting, and what is lost then costs that connection seconds.
type warm struct {
	done map[tailcfg.StableNodeID]bool // routers that answered or were given up
	kick chan struct{}
}

func newWarm() *warm {
	return &warm{done: map[tailcfg.StableNodeID]bool{}, kick: make(chan struct{}, 1)}
}

// changed tells that the netmap has changed.
func (w *warm) changed() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run works until the node closes.
func (w *warm) run(ctx context.Context, lb *ipnlocal.LocalBackend) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(warmDelay):
		}
		for id, addr := range w.missing(lb) {
			for range warmTries {
				if ctx.Err() != nil || reached(ctx, lb, addr) {
					break
				}
			}
			w.done[id] = true
		}
	}
}

// missing gives an address of every router that has not been tried.
func (w *warm) missing(lb *ipnlocal.LocalBackend) map[tailcfg.StableNodeID]netip.Addr {
	found := map[tailcfg.StableNodeID]netip.Addr{}
	for _, peer := range lb.Status().Peer {
		routes := peer.PrimaryRoutes != nil && peer.PrimaryRoutes.Len() > 0
		if routes && peer.Online && !w.done[peer.ID] && len(peer.TailscaleIPs) > 0 && len(w.done)+len(found) < warmMax {
			found[peer.ID] = peer.TailscaleIPs[0]
		}
	}
	return found
}

// reached sends a ping through the tunnel, which every node answers whatever the policy says, and waits for the answer.
func reached(ctx context.Context, lb *ipnlocal.LocalBackend, addr netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, warmWait)
	defer cancel()
	answer, err := lb.Ping(ctx, addr, tailcfg.PingTSMP, 0)
	return err == nil && answer.Err == ""
}
