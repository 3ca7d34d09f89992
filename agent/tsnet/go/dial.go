package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// maxSYNs bounds the connection attempts of one dial. More than one is needed: a peer that runs in user space keeps the
// 4-tuple of a connection that it closed first for 60 s and swallows a SYN that hits it, and the ports are drawn at random.
const maxSYNs = 4

// hedgeMax bounds the step between two SYNs, so that a slow path still gets its second one within a usual deadline.
const hedgeMax = 2 * time.Second

// recently is how long after a connection to a peer a second SYN makes sense: only a connection that ended there in the last
// minute can be what swallows one. Before the first, a SYN without an answer waits for the path, and its copies would wait
// with it and then all arrive.
const recently = 90 * time.Second

// dialPace remembers how long dials take, so that a far peer does not get a second SYN for nothing, and to whom.
type dialPace struct {
	microseconds atomic.Int64
	last         sync.Map // peer's label -> time of the last connection
}

func (p *dialPace) took(peer string, d time.Duration) {
	p.last.Store(peer, time.Now())
	old := p.microseconds.Load()
	if old == 0 {
		p.microseconds.Store(d.Microseconds())
		return
	}
	p.microseconds.Store(old + (d.Microseconds()-old)/8)
}

// hedges says whether, and after how long, a second SYN is sent.
func (p *dialPace) hedges(peer string, least time.Duration) (time.Duration, bool) {
	usual := time.Duration(p.microseconds.Load()) * time.Microsecond
	step := min(max(least, 3*usual), hedgeMax)
	at, known := p.last.Load(peer)
	return step, known && least > 0 && time.Since(at.(time.Time)) < recently
}

// dialed is an open connection and what led to it.
type dialed struct {
	conn   net.Conn
	to     candidate
	hedges uint32 // SYNs sent beside the first
}

// dial connects to addr ("host:port") on the tailnet.
func (n *node) dial(ctx context.Context, addr string) (dialed, error) {
	host, port, err := splitAddr(addr)
	if err != nil {
		return dialed{}, err
	}
	cands, err := n.candidates(ctx, host)
	if err != nil {
		return dialed{}, err
	}
	start := time.Now()
	d, err := n.race(ctx, cands, port)
	if err != nil {
		return dialed{}, n.dialError(ctx, err, cands, port, time.Since(start))
	}
	n.pace.took(d.to.peer, time.Since(start))
	return d, nil
}

type attempt struct {
	index int
	conn  net.Conn
	err   error
}

// race sends a SYN to the first candidate, and further ones, to the candidates in turn, while none has answered.
func (n *node) race(ctx context.Context, cands []candidate, port uint16) (dialed, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialer := n.server.Sys().Dialer.Get()
	results := make(chan attempt, maxSYNs)
	launched := 0
	launch := func() {
		i := launched % len(cands)
		launched++
		to := netip.AddrPortFrom(cands[i].addr, port)
		n.goRecovering(func() {
			// The netmap can have changed since the candidates were found; dialing an address that is not in it would not
			// leave by the host's network here, but it would wait for nothing.
			if dialer.UseNetstackForIP == nil || !dialer.UseNetstackForIP(to.Addr()) {
				results <- attempt{i, nil, withClass(classNoRoute, "no tailnet peer routes %v any more", to.Addr())}
				return
			}
			conn, err := dialer.NetstackDialTCP(ctx, to)
			results <- attempt{i, conn, err}
		}, func(text string) { results <- attempt{i, nil, errors.New(text)} })
	}
	launch()
	step, hedging := n.pace.hedges(cands[0].peer, time.Duration(n.config.HedgeMS)*time.Millisecond)
	// Another address is worth a try even when the first may only be slow.
	hedging = hedging || len(cands) > 1
	timer := time.NewTimer(step)
	defer timer.Stop()
	failed := map[int]error{}
	for received := 0; ; {
		select {
		case r := <-results:
			received++
			if r.err == nil {
				n.discard(results, launched-received)
				return dialed{conn: r.conn, to: cands[r.index], hedges: uint32(launched - 1)}, nil
			}
			if failed[r.index] = r.err; len(failed) == len(cands) {
				n.discard(results, launched-received)
				return dialed{}, r.err
			}
			if launched < maxSYNs {
				launch() // launched counts up through the candidates, so an untried one comes first
			}
		case <-timer.C:
			if hedging && launched < maxSYNs {
				launch()
				step *= 2
				timer.Reset(step)
			}
		case <-ctx.Done():
			n.discard(results, launched-received)
			return dialed{}, ctx.Err()
		}
	}
}

// discard resets the connections of attempts that came too late.
func (n *node) discard(results <-chan attempt, outstanding int) {
	if outstanding == 0 {
		return
	}
	n.goRecovering(func() {
		for range outstanding {
			if r := <-results; r.err == nil {
				abortRemote(r.conn)
			}
		}
	}, nil)
}

// dialError gives err its class, and words that say what was tried.
func (n *node) dialError(ctx context.Context, err error, cands []candidate, port uint16, took time.Duration) error {
	var has *classed
	if errors.As(err, &has) {
		return err
	}
	if n.ctx.Err() != nil {
		return withClass(classShutdown, "the node is closing")
	}
	c := cands[0]
	to := fmt.Sprintf("%v by way of peer %s (%v)", netip.AddrPortFrom(c.addr, port), c.peer, c.route)
	class, why := classify(err)
	if ctx.Err() != nil {
		class = classTimeout
	}
	if class == classTimeout {
		return withClass(class, "no answer from %s within %v: the peer is away, nothing answers there, or the tailnet's policy does not grant this port",
			to, took.Round(time.Millisecond))
	}
	return withClass(class, "%s: %s", to, why)
}

// classify reads the class of a connection's error, of the kernel's or of the user-space stack's, whose errors are only texts.
func classify(err error) (uint32, string) {
	text := err.Error()
	var has *classed
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		text = op.Err.Error()
	}
	switch {
	case errors.As(err, &has):
		return has.class, text
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		strings.Contains(text, "connection reset by peer"), strings.Contains(text, "connection aborted"),
		strings.Contains(text, "endpoint is closed for send"):
		return classReset, text
	case errors.Is(err, syscall.ECONNREFUSED), strings.Contains(text, "connection was refused"):
		return classRefused, text
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded), strings.Contains(text, "operation timed out"):
		return classTimeout, text
	case strings.Contains(text, "no route to host"), strings.Contains(text, "network is unreachable"):
		return classNoRoute, text
	}
	return classOther, text
}

// dialHandle is tsn_dial.
func (n *node) dialHandle(token uint64, addr string, limit time.Duration) {
	start := time.Now()
	fail := func(class uint32, text string) {
		n.events.send(evDialFailed, class, token, 0, 0, time.Since(start), text)
	}
	n.goRecovering(func() {
		ctx, cancel := context.WithTimeout(n.ctx, limit)
		defer cancel()
		d, err := n.dial(ctx, addr)
		if err != nil {
			class, _ := classify(err)
			fail(class, err.Error())
			return
		}
		id := n.conns.add(newTailConn(d.conn))
		n.events.send(evDialed, d.hedges, token, id, 0, time.Since(start), d.to.addr.String()+" "+d.to.peer)
	}, func(text string) { fail(classOther, text) })
}
