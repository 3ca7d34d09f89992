package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"tailscale.com/ipn/ipnlocal"
)

// Classes of error in events; 0 is none. The Rust side has the same list.
const (
	classNone     uint32 = 0
	classNoRoute  uint32 = 1
	classTimeout  uint32 = 2
	classRefused  uint32 = 3
	classReset    uint32 = 4
	classResolve  uint32 = 5
	classOther    uint32 = 6
	classShutdown uint32 = 7
	classAborted  uint32 = 8
)

// classed is an error with its class.
type classed struct {
	class uint32
	err   error
}

func (c *classed) Error() string { return c.err.Error() }
func (c *classed) Unwrap() error { return c.err }

func withClass(class uint32, format string, args ...any) error {
	return &classed{class: class, err: fmt.Errorf(format, args...)}
}

// maxCandidates bounds the addresses of a name that are tried.
const maxCandidates = 4

// candidate is an address that a peer serves.
type candidate struct {
	addr  netip.Addr
	peer  string
	route netip.Prefix
}

func splitAddr(addr string) (host string, port uint16, err error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, withClass(classOther, "address %q is not host:port: %w", addr, err)
	}
	p, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || p == 0 {
		return "", 0, withClass(classOther, "address %q has no port between 1 and 65535", addr)
	}
	return host, uint16(p), nil
}

// candidates gives the addresses of host that a peer serves. It is the only way to an address for a dial, so nothing ever
// leaves by the host's own network: what no peer serves is an error.
func (n *node) candidates(ctx context.Context, host string) ([]candidate, error) {
	lb := n.backend.Load()
	if lb == nil {
		return nil, withClass(classShutdown, "the node has not joined the tailnet")
	}
	addrs, err := n.addresses(ctx, lb, host)
	if err != nil {
		return nil, err
	}
	var found []candidate
	var refused []string
	for _, addr := range addrs {
		c, err := n.served(lb, addr)
		if err != nil {
			refused = append(refused, err.Error())
			continue
		}
		if found = append(found, c); len(found) == maxCandidates {
			break
		}
	}
	if len(found) == 0 {
		return nil, withClass(classNoRoute, "%s", strings.Join(refused[:min(len(refused), maxCandidates)], "; "))
	}
	return found, nil
}

// served says which peer the netmap gives for addr.
func (n *node) served(lb *ipnlocal.LocalBackend, addr netip.Addr) (candidate, error) {
	addr = addr.Unmap().WithZone("")
	if why := forbidden(addr); why != "" {
		return candidate{}, fmt.Errorf("%v is a %s address, which is never on a tailnet", addr, why)
	}
	peer, ok := lb.PeerForIP(addr)
	if !ok {
		return candidate{}, fmt.Errorf("no tailnet peer routes %v", addr)
	}
	if peer.IsSelf {
		return candidate{}, fmt.Errorf("%v is this node's own address", addr)
	}
	return candidate{addr: addr, peer: label(peer.Node.Name()), route: peer.Route}, nil
}

func forbidden(addr netip.Addr) string {
	switch {
	case !addr.IsValid(), addr.IsUnspecified():
		return "unspecified"
	case addr.IsLoopback():
		return "loopback"
	case addr.IsLinkLocalUnicast(), addr.IsLinkLocalMulticast(), addr.IsInterfaceLocalMulticast():
		return "link-local"
	case addr.IsMulticast():
		return "multicast"
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "broadcast"
	}
	return ""
}

// addresses resolves host: a literal, then the tailnet's own names, then the resolver of the machine.
func (n *node) addresses(ctx context.Context, lb *ipnlocal.LocalBackend, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "" {
		return nil, withClass(classResolve, "the host name is empty")
	}
	if tailnetName(lb, name) {
		// With a known tailnet name, this answers from the netmap alone.
		dialer := n.server.Sys().Dialer.Get()
		if ipp, _, err := dialer.UserDialPlan(ctx, "tcp", net.JoinHostPort(name, "1")); err == nil {
			return []netip.Addr{ipp.Addr()}, nil
		}
	}
	query := name
	if strings.Contains(name, ".") {
		query += "." // absolute: no detour through the Pod's search list
	}
	resolver := net.Resolver{PreferGo: true}
	addrs, err := resolver.LookupNetIP(ctx, "ip", query)
	if err != nil {
		var dns *net.DNSError
		if errors.As(err, &dns) && dns.IsNotFound {
			return nil, withClass(classResolve, "%s does not exist in DNS, nor in the tailnet", name)
		}
		return nil, withClass(classResolve, "resolving %s: %w", name, err)
	}
	return addrs, nil
}

// tailnetName says whether name can be one that the netmap answers.
func tailnetName(lb *ipnlocal.LocalBackend, name string) bool {
	nm := lb.NetMapNoPeers()
	if nm == nil {
		return false
	}
	if !strings.Contains(name, ".") {
		return true
	}
	if suffix := strings.ToLower(strings.Trim(nm.MagicDNSSuffix(), ".")); suffix != "" && strings.HasSuffix(name, "."+suffix) {
		return true
	}
	for _, record := range nm.DNS.ExtraRecords {
		if strings.EqualFold(strings.TrimSuffix(record.Name, "."), name) {
			return true
		}
	}
	return false
}

// label is the first label of a full name.
func label(fqdn string) string {
	first, _, _ := strings.Cut(fqdn, ".")
	return first
}
