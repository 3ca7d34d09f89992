package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// localConn is the leg on this machine: a TCP socket, or one end of a socket pair.
type localConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// ownedTCP takes a connected stream socket. The fd is closed also on error.
func ownedTCP(fd int) (localConn, error) {
	file := ownedFile(fd, "tsnet-local")
	if file == nil {
		return nil, errors.New("the file descriptor is negative")
	}
	defer file.Close() // FileConn works on a duplicate
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("the file descriptor is no connected stream socket: %w", err)
	}
	local, ok := conn.(localConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("a %T cannot carry a stream", conn)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount,
		})
		setUserTimeout(tcp)
	}
	return local, nil
}

func setUserTimeout(tcp *net.TCPConn) {
	const tcpUserTimeout = 18 // TCP_USER_TIMEOUT of linux/tcp.h; package syscall lacks it
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(userTimeout.Milliseconds()))
	})
}

// abortLocal resets the leg on this machine, so that its peer sees an error and not an end.
func abortLocal(conn localConn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// localReader reads from a socket without holding a buffer while there is nothing to read.
type localReader struct{ raw syscall.RawConn }

// read takes a buffer from the pool once bytes are there; the caller puts it back. io.EOF at the end.
func (r localReader) read() (buf *[]byte, length int, err error) {
	var failure error
	waitErr := r.raw.Read(func(fd uintptr) bool {
		b := takeBuffer()
		for {
			count, e := syscall.Read(int(fd), *b)
			switch {
			case e == syscall.EINTR:
				continue
			case e == syscall.EAGAIN:
				putBuffer(b)
				return false
			case e != nil:
				putBuffer(b)
				failure = os.NewSyscallError("read", e)
			case count == 0:
				putBuffer(b)
				failure = io.EOF
			default:
				buf, length = b, count
			}
			return true
		}
	})
	if waitErr != nil {
		return nil, 0, waitErr
	}
	return buf, length, failure
}
