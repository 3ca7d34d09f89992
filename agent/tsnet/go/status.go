package main

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"tailscale.com/ipn/ipnstate"
	"tailscale.com/types/views"
)

// nodeStatus is the JSON of tsn_status.
type nodeStatus struct {
	State string `json:"state"`
	// Online says whether the control connection is up.
	Online bool `json:"online"`
	// NetmapAgeMS is the time since the last change of the netmap; -1 before the first.
	NetmapAgeMS int64        `json:"netmap_age_ms"`
	Health      []string     `json:"health"`
	Self        *peerStatus  `json:"self"`
	Peers       []peerStatus `json:"peers"`
	HeapBytes   uint64       `json:"heap_bytes"`
	Goroutines  int          `json:"goroutines"`
}

// peerStatus is one node as this node sees it.
type peerStatus struct {
	ID            string   `json:"id"`
	Name          string   `json:"name"`
	DNSName       string   `json:"dns_name"`
	IPs           []string `json:"ips"`
	Tags          []string `json:"tags"`
	Online        bool     `json:"online"`
	AllowedIPs    []string `json:"allowed_ips"`
	PrimaryRoutes []string `json:"primary_routes"`
	// CurAddr is the direct address in use, Relay the relay's region code; both can be empty.
	CurAddr string `json:"cur_addr"`
	Relay   string `json:"relay"`
	Expired bool   `json:"expired"`
}

func (n *node) status(withPeers bool) (nodeStatus, error) {
	out := nodeStatus{State: "NoState", NetmapAgeMS: -1, Health: []string{}, Peers: []peerStatus{}, Goroutines: runtime.NumGoroutine()}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	out.HeapBytes = mem.Sys - mem.HeapReleased
	lb := n.backend.Load()
	if lb == nil {
		return out, nil
	}
	var st *ipnstate.Status
	if withPeers {
		st = lb.Status()
	} else {
		st = lb.StatusWithoutPeers()
	}
	out.State = st.BackendState
	for _, h := range st.Health {
		out.Health = append(out.Health, n.logs.redact(h))
	}
	if at := n.netmap.Load(); at > 0 {
		out.NetmapAgeMS = time.Now().UnixMilli() - at
	}
	if st.Self != nil {
		out.Online = st.Self.Online
		if st.Self.InNetworkMap {
			self := peer(st.Self)
			out.Self = &self
		}
	}
	for _, p := range st.Peer {
		out.Peers = append(out.Peers, peer(p))
	}
	slices.SortFunc(out.Peers, func(a, b peerStatus) int { return strings.Compare(a.DNSName, b.DNSName) })
	return out, nil
}

func peer(p *ipnstate.PeerStatus) peerStatus {
	out := peerStatus{
		ID: string(p.ID), DNSName: strings.TrimSuffix(p.DNSName, "."), Name: label(p.DNSName), Online: p.Online,
		CurAddr: p.CurAddr, Relay: p.Relay, Expired: p.Expired,
		IPs: []string{}, Tags: []string{}, AllowedIPs: prefixes(p.AllowedIPs), PrimaryRoutes: prefixes(p.PrimaryRoutes),
	}
	for _, ip := range p.TailscaleIPs {
		out.IPs = append(out.IPs, ip.String())
	}
	if p.Tags != nil {
		out.Tags = append(out.Tags, p.Tags.AsSlice()...)
	}
	return out
}

func prefixes(p *views.Slice[netip.Prefix]) []string {
	out := []string{}
	if p != nil {
		for _, prefix := range p.All() {
			out = append(out, prefix.String())
		}
	}
	return out
}

// routeResult is the JSON of tsn_route.
type routeResult struct {
	Routed  bool   `json:"routed"`
	Address string `json:"address"`
	Peer    string `json:"peer"`
	Prefix  string `json:"prefix"`
	// Why is set when it is not routed.
	Why   string `json:"why"`
	Class uint32 `json:"class"`
}

func (n *node) route(host string, limit time.Duration) (routeResult, error) {
	ctx, cancel := context.WithTimeout(n.ctx, limit)
	defer cancel()
	cands, err := n.candidates(ctx, host)
	if err != nil {
		class, _ := classify(err)
		return routeResult{Why: err.Error(), Class: class}, nil
	}
	c := cands[0]
	return routeResult{Routed: true, Address: c.addr.String(), Peer: c.peer, Prefix: c.route.String()}, nil
}

// whoisResult is the JSON of tsn_whois.
type whoisResult struct {
	Node  string `json:"node"`
	Login string `json:"login"`
	// Name is the user's display name.
	Name string   `json:"name"`
	Tags []string `json:"tags"`
}

func (n *node) whois(addr string) (whoisResult, error) {
	ipp, err := netip.ParseAddrPort(addr)
	if err != nil {
		return whoisResult{}, fmt.Errorf("address %q is not ip:port", addr)
	}
	lb := n.backend.Load()
	if lb == nil {
		return whoisResult{}, errNoNode
	}
	who, user, ok := lb.WhoIs("tcp", ipp)
	if !ok {
		return whoisResult{}, fmt.Errorf("no node has the address %v", ipp.Addr())
	}
	return whoisResult{Node: label(who.Name()), Login: user.LoginName, Name: user.DisplayName, Tags: append([]string{}, who.Tags().AsSlice()...)}, nil
}

func clientVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "tailscale.com" {
				return dep.Version
			}
		}
	}
	return "unknown"
}
