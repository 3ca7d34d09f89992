package main

import (
	"errors"
	"net"
	"reflect"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Keepalive on both legs: a peer that is gone without a word is noticed after about two minutes.
const (
	keepaliveIdle     = 60 * time.Second
	keepaliveInterval = 15 * time.Second
	keepaliveCount    = 4
)

// userTimeout ends a connection whose bytes stay unacknowledged. Long enough for a router to be replaced.
const userTimeout = 5 * time.Minute

const endpointField = "ep"

// checkEndpointField says whether endpoint works with the gonet that this was built with.
func checkEndpointField() error {
	field, ok := reflect.TypeFor[gonet.TCPConn]().FieldByName(endpointField)
	if !ok || field.Type != reflect.TypeFor[tcpip.Endpoint]() {
		return errors.New("gonet.TCPConn of this build has no endpoint field; resets could not be passed on")
	}
	return nil
}

// endpoint reaches the user-space TCP endpoint under conn, which gonet keeps to itself: only the endpoint can send a reset,
// and only it has keepalive. A reset must be passed on as one: as an orderly end it would turn a broken upload into a
// complete one. nil when conn is something else, or a later gonet is built differently (a test watches that).
func endpoint(conn net.Conn) tcpip.Endpoint {
	stream, ok := conn.(*gonet.TCPConn)
	if !ok || stream == nil {
		return nil
	}
	field := reflect.ValueOf(stream).Elem().FieldByName(endpointField)
	return *(*tcpip.Endpoint)(unsafe.Pointer(field.UnsafeAddr()))
}

// abortRemote resets a tailnet connection.
func abortRemote(conn net.Conn) {
	if conn == nil {
		return
	}
	if ep := endpoint(unwrap(conn)); ep != nil {
		ep.Abort()
	}
	_ = conn.Close()
}

// keepRemoteAlive turns on keepalive for a tailnet connection.
func keepRemoteAlive(conn net.Conn) {
	ep := endpoint(unwrap(conn))
	if ep == nil {
		return
	}
	idle, interval := tcpip.KeepaliveIdleOption(keepaliveIdle), tcpip.KeepaliveIntervalOption(keepaliveInterval)
	timeout := tcpip.TCPUserTimeoutOption(userTimeout)
	_ = ep.SetSockOpt(&idle)
	_ = ep.SetSockOpt(&interval)
	_ = ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepaliveCount)
	_ = ep.SetSockOpt(&timeout)
	ep.SocketOptions().SetKeepAlive(true)
}

// waitAcknowledged waits until the peer has everything that was written before conn was closed, its end included, or is given
// up on.
func waitAcknowledged(conn net.Conn) {
	ep := endpoint(conn)
	if ep == nil {
		return
	}
	const step = 20 * time.Millisecond
	for waited := time.Duration(0); waited < userTimeout; waited += step {
		switch tcp.EndpointState(ep.State()) {
		case tcp.StateEstablished, tcp.StateCloseWait, tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
			time.Sleep(step)
		default:
			return
		}
	}
}
