package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/ipn/ipnlocal"
	"tailscale.com/ipn/store/mem"
	"tailscale.com/tsnet"
	"tailscale.com/types/logger"
)

// node is one tailnet node with what runs on it. Its state is in memory; it is ephemeral and logs out on close.
type node struct {
	config nodeConfig
	events *eventWriter
	logs   *logWriter
	server *tsnet.Server

	ctx    context.Context // done when the node closes
	cancel context.CancelFunc

	// lifecycle serialises up and close: tsnet forbids Close beside Start.
	lifecycle sync.Mutex
	started   bool
	closing   atomic.Bool

	backend atomic.Pointer[ipnlocal.LocalBackend] // nil until started
	netmap  atomic.Int64                          // unix ms of the last netmap
	pace    dialPace

	// working counts splices, so that close can let resets leave before the tunnel goes.
	working atomic.Int64
	splices sync.Map // token -> *splice
	conns   connTable
	ports   listenTable
}

func newNode(c nodeConfig, events, logs *os.File) (*node, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := checkEndpointField(); err != nil {
		return nil, err
	}
	if events == nil {
		return nil, errors.New("no event socket")
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{
		config: c,
		events: &eventWriter{file: events},
		logs:   &logWriter{secret: c.AuthKey, verbose: c.Verbose, file: logs},
		ctx:    ctx,
		cancel: cancel,
	}
	newest.Store(n.logs)
	n.server = &tsnet.Server{
		Hostname:   c.Hostname,
		ControlURL: c.ControlURL,
		AuthKey:    c.AuthKey,
		Ephemeral:  true,
		Store:      new(mem.Store),
		Logf:       logger.Logf(n.logs.logf),
		UserLogf:   logger.Logf(n.logs.logf),
	}
	return n, nil
}

// goRecovering starts f on a goroutine whose panic ends f alone; failed is told the panic, and must end what f had begun.
func (n *node) goRecovering(f func(), failed func(text string)) {
	go func() {
		defer func() {
			if p := recover(); p != nil {
				text := fmt.Sprintf("panic in the tailnet client: %v", p)
				n.logs.logf("%s", text)
				if failed != nil {
					failed(text)
				}
			}
		}()
		f()
	}()
}

func (n *node) up(limit time.Duration) error {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	if n.closing.Load() {
		return errNoNode
	}
	ctx, cancel := context.WithTimeout(n.ctx, limit)
	defer cancel()
	if err := n.start(); err != nil {
		return n.clean(err)
	}
	if _, err := n.server.Up(ctx); err != nil {
		if n.ctx.Err() != nil {
			return errNoNode
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w after %v: %s", errDeadline, limit, n.loginTrouble())
		}
		return n.clean(err)
	}
	return nil
}

// start starts tsnet once. tsnet insists on a directory for the configuration of its log upload, which is not even compiled
// in; it gets one for the moment that the start takes, so that the process needs no writable directory of its own.
func (n *node) start() error {
	if n.started {
		return nil
	}
	dir, err := momentaryDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n.server.Dir = dir
	n.started = true // Close is allowed, and needed, even after a Start that failed half way
	if err := n.server.Start(); err != nil {
		n.started = false // tsnet has cleaned up itself
		return err
	}
	lb := takeBackend(n.server.Sys())
	if lb == nil {
		return errors.New("this version of tsnet does not show its backend to extensions")
	}
	n.backend.Store(lb)
	_, err = lb.EditPrefs(&ipn.MaskedPrefs{
		Prefs:              ipn.Prefs{RouteAll: n.config.AcceptRoutes, AdvertiseRoutes: n.config.AdvertiseRoutes},
		RouteAllSet:        true,
		AdvertiseRoutesSet: len(n.config.AdvertiseRoutes) > 0,
	})
	if err != nil {
		return fmt.Errorf("setting accept-routes: %w", err)
	}
	n.goRecovering(func() { n.watch(lb) }, nil)
	n.goRecovering(n.reportProgress, nil)
	return nil
}

func momentaryDir() (string, error) {
	var errs []error
	// /dev/shm is writable in a container with a read-only root file system.
	for _, parent := range []string{"/dev/shm", os.TempDir()} {
		dir, err := os.MkdirTemp(parent, "tsnet-*")
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no directory for tsnet's start: %w", errors.Join(errs...))
}

// watch reports changes of state until the node closes.
func (n *node) watch(lb *ipnlocal.LocalBackend) {
	warm := newWarm()
	if n.config.AcceptRoutes {
		n.goRecovering(func() { warm.run(n.ctx, lb) }, nil)
	}
	lb.WatchNotifications(n.ctx, ipn.NotifyInitialState|ipn.NotifyInitialNetMap, nil, func(notify *ipn.Notify) bool {
		if notify.NetMap != nil || notify.SelfChange != nil || len(notify.PeerChangedPatch) > 0 {
			n.netmap.Store(time.Now().UnixMilli())
			warm.changed()
		}
		if notify.State != nil {
			n.events.send(evState, 0, 0, 0, 0, 0, notify.State.String())
		}
		if notify.ErrMessage != nil {
			n.events.send(evControlError, 0, 0, 0, 0, 0, n.logs.redact(*notify.ErrMessage))
		}
		return n.ctx.Err() == nil
	})
}

// loginTrouble says why the node has not joined, in the client's words.
func (n *node) loginTrouble() string {
	lb := n.backend.Load()
	if lb == nil {
		return "the client has not started"
	}
	st := lb.StatusWithoutPeers()
	if len(st.Health) == 0 {
		return "state " + st.BackendState
	}
	text := "state " + st.BackendState
	for _, h := range st.Health {
		text += "; " + h
	}
	return n.logs.redact(text)
}

func (n *node) clean(err error) error { return errors.New(n.logs.redact(err.Error())) }

// resetTime bounds how long close waits for open connections to be reset.
const resetTime = 250 * time.Millisecond

func (n *node) close(limit time.Duration) error {
	if !n.closing.CompareAndSwap(false, true) {
		return errNoNode
	}
	done := make(chan error, 1)
	n.goRecovering(func() {
		n.cancel() // ends a running up, every dial and every splice
		n.conns.closeAll()
		n.letResetsLeave()
		n.forgetKeyIfDeleted(min(limit/4, time.Second))
		n.lifecycle.Lock()
		defer n.lifecycle.Unlock()
		var err error
		if n.started {
			err = n.server.Close()
		}
		done <- err
	}, func(text string) { done <- errors.New(text) })
	defer n.logs.close()
	defer n.events.close()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%w: the client did not stop within %v", errDeadline, limit)
	}
}

// letResetsLeave waits until every splice has been reset, and then for the tunnel to send what that gave.
func (n *node) letResetsLeave() {
	const step = 5 * time.Millisecond
	if n.working.Load() == 0 {
		return
	}
	for waited := time.Duration(0); waited < resetTime && n.working.Load() > 0; waited += step {
		time.Sleep(step)
	}
	time.Sleep(4 * step)
}
