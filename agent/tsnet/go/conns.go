package main

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// tailConn is a tailnet connection that tells when it is over: the stack forgets a routed address when the handler of its
// connection returns, and with it what was written and not yet sent. So the handler waits.
type tailConn struct {
	net.Conn
	once sync.Once
	done chan struct{} // closed once the connection is closed and everything has been acknowledged
}

func newTailConn(conn net.Conn) *tailConn { return &tailConn{Conn: conn, done: make(chan struct{})} }

func (c *tailConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		go func() {
			defer close(c.done)
			defer func() { _ = recover() }() // nothing to save: the connection is closed already
			waitAcknowledged(c.Conn)
		}()
	})
	return err
}

func (c *tailConn) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}

// unwrap gives the connection under a tailConn.
func unwrap(conn net.Conn) net.Conn {
	if c, ok := conn.(*tailConn); ok {
		return c.Conn
	}
	return conn
}

// connTable holds connections that Rust has not yet decided about.
type connTable struct {
	mu     sync.Mutex
	last   uint64
	byID   map[uint64]*tailConn
	closed bool
}

// add gives conn a handle; when the node is closing, conn is reset and the handle leads nowhere.
func (t *connTable) add(conn *tailConn) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	if t.closed {
		go abortRemote(conn)
		return t.last
	}
	if t.byID == nil {
		t.byID = map[uint64]*tailConn{}
	}
	t.byID[t.last] = conn
	return t.last
}

func (t *connTable) take(id uint64) (*tailConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	conn, ok := t.byID[id]
	if !ok {
		return nil, fmt.Errorf("connection %d does not exist or was already taken", id)
	}
	delete(t.byID, id)
	return conn, nil
}

func (t *connTable) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, conn := range t.byID {
		abortRemote(conn)
	}
	t.byID = nil
}

// connFD is tsn_conn_fd: the other end of the pair is spliced to the connection.
func (n *node) connFD(id, token uint64) (int, error) {
	conn, err := n.conns.take(id)
	if err != nil {
		return -1, err
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		abortRemote(conn)
		return -1, os.NewSyscallError("socketpair", err)
	}
	local, err := ownedTCP(pair[0])
	if err != nil {
		_ = syscall.Close(pair[1])
		abortRemote(conn)
		return -1, err
	}
	n.startSplice(token, local, conn)
	return pair[1], nil
}

func (n *node) spliceConn(id, token uint64, local localConn) error {
	conn, err := n.conns.take(id)
	if err != nil {
		return err
	}
	n.startSplice(token, local, conn)
	return nil
}

func (n *node) startSplice(token uint64, local localConn, conn *tailConn) {
	n.goRecovering(func() { n.runSplice(token, n.newSplice(token, local, conn), nil) }, func(text string) {
		abortLocal(local)
		abortRemote(conn)
		n.events.send(evSpliced, classOther, token, 0, 0, 0, text)
	})
}

func (n *node) connClose(id uint64) error {
	conn, err := n.conns.take(id)
	if err != nil {
		return err
	}
	abortRemote(conn)
	return nil
}
