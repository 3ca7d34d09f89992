package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// routedPort stands for "every connection to an address in an advertised route".
const routedPort = 0

// listenTable holds what ends each listener.
type listenTable struct {
	mu   sync.Mutex
	stop map[int]func()
}

func (t *listenTable) add(port int, stop func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.stop[port]; taken {
		return fmt.Errorf("port %d is already being listened on", port)
	}
	if t.stop == nil {
		t.stop = map[int]func(){}
	}
	t.stop[port] = stop
	return nil
}

func (n *node) listen(port int) error {
	if n.backend.Load() == nil {
		return errors.New("the node has not been started")
	}
	if port < 0 || port > 65535 {
		return fmt.Errorf("port %d is not between 0 and 65535", port)
	}
	if port == routedPort {
		return n.listenRouted()
	}
	listener, err := n.server.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return n.clean(err)
	}
	if err := n.ports.add(port, func() { _ = listener.Close() }); err != nil {
		_ = listener.Close()
		return err
	}
	n.goRecovering(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			src, dst := "unknown", "unknown"
			if a := conn.RemoteAddr(); a != nil {
				src = a.String()
			}
			if a := conn.LocalAddr(); a != nil {
				dst = a.String()
			}
			n.accepted(newTailConn(conn), port, src, dst)
		}
	}, nil)
	return nil
}

func (n *node) listenRouted() error {
	var routed []netip.Prefix
	for _, p := range n.config.AdvertiseRoutes {
		routed = append(routed, p.Masked())
	}
	deregister := n.server.RegisterFallbackTCPHandler(func(src, dst netip.AddrPort) (func(net.Conn), bool) {
		for _, p := range routed {
			if p.Contains(dst.Addr()) {
				return func(conn net.Conn) {
					defer func() {
						if p := recover(); p != nil {
							n.logs.logf("panic in the tailnet client: %v", p)
							_ = conn.Close()
						}
					}()
					c := newTailConn(conn)
					n.accepted(c, routedPort, src.String(), dst.String())
					select {
					case <-c.done:
					case <-n.ctx.Done():
					}
				}, true
			}
		}
		return nil, false
	})
	if err := n.ports.add(routedPort, deregister); err != nil {
		deregister()
		return err
	}
	return nil
}

func (n *node) accepted(conn *tailConn, port int, src, dst string) {
	id := n.conns.add(conn)
	n.events.send(evAccepted, 0, 0, id, uint64(port), 0, src+" "+dst)
}

func (n *node) unlisten(port int) error {
	n.ports.mu.Lock()
	stop, ok := n.ports.stop[port]
	delete(n.ports.stop, port)
	n.ports.mu.Unlock()
	if !ok {
		return fmt.Errorf("port %d is not being listened on", port)
	}
	stop()
	return nil
}
