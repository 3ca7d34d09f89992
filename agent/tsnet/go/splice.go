package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const bufferSize = 32 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

func takeBuffer() *[]byte { return buffers.Get().(*[]byte) }
func putBuffer(b *[]byte) { buffers.Put(b) }

// splice carries bytes between a socket of this machine and a tailnet connection until both directions have ended. An end in
// one direction is passed on and leaves the other alone; an error in one resets both.
type splice struct {
	local  localConn
	remote net.Conn
	up     atomic.Uint64 // bytes to the tailnet
	down   atomic.Uint64 // bytes from the tailnet

	reported uint64 // bytes in the last evProgress; only reportProgress uses it

	abortOnce sync.Once
	cause     error // set by the first abort
}

// abort resets both legs; the first cause counts.
func (s *splice) abort(cause error) {
	s.abortOnce.Do(func() {
		s.cause = cause
		abortLocal(s.local)
		abortRemote(s.remote)
	})
}

// run blocks until the end, and gives nil when both directions ended in order.
func (s *splice) run(ctx context.Context, prefix []byte) error {
	stop := context.AfterFunc(ctx, func() { s.abort(withClass(classShutdown, "the node is closing")) })
	defer stop()
	keepRemoteAlive(s.remote)
	var both sync.WaitGroup
	direction := func(f func() error) {
		both.Add(1)
		go func() {
			defer both.Done()
			defer func() {
				if p := recover(); p != nil {
					s.abort(fmt.Errorf("panic in the tailnet client: %v", p))
				}
			}()
			if err := f(); err != nil {
				s.abort(err)
			}
		}()
	}
	direction(func() error { return s.copyUp(prefix) })
	direction(s.copyDown)
	both.Wait()
	s.abortOnce.Do(func() {
		_ = s.local.Close()
		_ = s.remote.Close()
	})
	return s.cause
}

func (s *splice) copyUp(prefix []byte) error {
	if len(prefix) > 0 {
		count, err := s.remote.Write(prefix)
		s.up.Add(uint64(count))
		if err != nil {
			return legError("target", err)
		}
	}
	raw, err := s.local.SyscallConn()
	if err != nil {
		return legError("client", err)
	}
	reader := localReader{raw}
	for {
		buf, length, err := reader.read()
		if errors.Is(err, io.EOF) {
			closeWrite(s.remote)
			return nil
		}
		if err != nil {
			return legError("client", err)
		}
		count, err := s.remote.Write((*buf)[:length])
		putBuffer(buf)
		s.up.Add(uint64(count))
		if err != nil {
			return legError("target", err)
		}
	}
}

func (s *splice) copyDown() error {
	buf := takeBuffer()
	defer putBuffer(buf)
	for {
		length, err := s.remote.Read(*buf)
		if length > 0 {
			count, werr := s.local.Write((*buf)[:length])
			s.down.Add(uint64(count))
			if werr != nil {
				return legError("client", werr)
			}
		}
		if errors.Is(err, io.EOF) {
			// An error here means that the client is gone; the other direction will see it.
			_ = s.local.CloseWrite()
			return nil
		}
		if err != nil {
			return legError("target", err)
		}
	}
}

func legError(leg string, err error) error {
	class, why := classify(err)
	return withClass(class, "%s: %s", leg, why)
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// newSplice makes a splice that abortSplice finds from now on; runSplice must follow.
func (n *node) newSplice(token uint64, local localConn, remote net.Conn) *splice {
	s := &splice{local: local, remote: remote}
	n.splices.Store(token, s)
	return s
}

// abortSplice resets both legs of a splice for a reason of the caller's; one that has ended is no error.
func (n *node) abortSplice(token uint64, why string) {
	if value, found := n.splices.Load(token); found {
		value.(*splice).abort(withClass(classAborted, "%s", why))
	}
}

// runSplice runs a splice to its end and reports it.
func (n *node) runSplice(token uint64, s *splice, prefix []byte) {
	n.working.Add(1)
	defer n.working.Add(-1)
	start := time.Now()
	err := s.run(n.ctx, prefix)
	n.splices.Delete(token)
	class, text := classNone, ""
	if err != nil {
		class, _ = classify(err)
		text = err.Error()
	}
	n.events.send(evSpliced, class, token, s.up.Load(), s.down.Load(), time.Since(start), text)
}

// spliceDial is tsn_splice_dial, after it has taken the socket.
func (n *node) spliceDial(token uint64, local localConn, addr string, prefix []byte, limit time.Duration) {
	start := time.Now()
	n.goRecovering(func() {
		ctx, cancel := context.WithTimeout(n.ctx, limit)
		d, err := n.dial(ctx, addr)
		cancel()
		if err != nil {
			abortLocal(local)
			class, _ := classify(err)
			n.events.send(evDialFailed, class, token, 0, 0, time.Since(start), err.Error())
			return
		}
		// Before the event: who hears of the connection may want its end at once.
		s := n.newSplice(token, local, d.conn)
		n.events.send(evDialed, d.hedges, token, 0, 0, time.Since(start), d.to.addr.String()+" "+d.to.peer)
		n.runSplice(token, s, prefix)
	}, func(text string) {
		abortLocal(local)
		n.events.send(evDialFailed, classOther, token, 0, 0, time.Since(start), text)
	})
}

// progressEvery is how often the bytes of open connections are reported.
const progressEvery = 5 * time.Second

// reportProgress reports every open connection whose bytes have changed, until the node closes.
func (n *node) reportProgress() {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
		n.splices.Range(func(token, value any) bool {
			s := value.(*splice)
			up, down := s.up.Load(), s.down.Load()
			if up+down != s.reported {
				s.reported = up + down
				n.events.send(evProgress, 0, token.(uint64), up, down, 0, "")
			}
			return true
		})
	}
}
