package main

/*
#include <stdint.h>
#include <stdlib.h>
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Return codes of the C ABI. On anything but rcOK, *out is the error's text; on rcOK it is the result, or empty.
const (
	rcOK       C.int = 0
	rcError    C.int = -1
	rcNoNode   C.int = -2 // the handle is unknown or closed
	rcDeadline C.int = -3
	rcPanic    C.int = -4
)

var (
	errNoNode   = errors.New("the node is closed")
	errDeadline = errors.New("deadline exceeded")
)

var nodes struct {
	mu   sync.Mutex
	last uint64
	byID map[uint64]*node
}

func lookup(handle C.uint64_t) (*node, error) {
	nodes.mu.Lock()
	defer nodes.mu.Unlock()
	n := nodes.byID[uint64(handle)]
	if n == nil {
		return nil, errNoNode
	}
	return n, nil
}

// call runs f with recover, and turns its result into a return code and a C string that the caller frees.
func call(out **C.char, f func() (string, error)) (rc C.int) {
	defer func() {
		if p := recover(); p != nil {
			*out = C.CString(fmt.Sprintf("panic in the tailnet client: %v", p))
			rc = rcPanic
		}
	}()
	text, err := f()
	switch {
	case err == nil:
		*out = C.CString(text)
		return rcOK
	case errors.Is(err, errNoNode):
		rc = rcNoNode
	case errors.Is(err, errDeadline):
		rc = rcDeadline
	default:
		rc = rcError
	}
	*out = C.CString(bounded(err.Error(), 2048))
	return rc
}

func milliseconds(ms C.int64_t) time.Duration { return time.Duration(ms) * time.Millisecond }

// tsn_new makes a node from a JSON nodeConfig; nothing is started. eventFD is a SOCK_SEQPACKET socket, logFD a pipe or -1;
// both belong to Go from here on. The handle is written to *handle.
//
//export tsn_new
func tsn_new(config *C.char, length C.int64_t, eventFD C.int, logFD C.int, handle *C.uint64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		events := ownedFile(int(eventFD), "tsnet-events")
		logs := ownedFile(int(logFD), "tsnet-log")
		var c nodeConfig
		if err := json.Unmarshal([]byte(C.GoStringN(config, C.int(length))), &c); err != nil {
			closeFiles(events, logs)
			return "", fmt.Errorf("the node configuration is not valid JSON: %w", err)
		}
		n, err := newNode(c, events, logs)
		if err != nil {
			closeFiles(events, logs)
			return "", err
		}
		nodes.mu.Lock()
		defer nodes.mu.Unlock()
		if nodes.byID == nil {
			nodes.byID = map[uint64]*node{}
		}
		nodes.last++
		nodes.byID[nodes.last] = n
		*handle = C.uint64_t(nodes.last)
		return "", nil
	})
}

// tsn_up starts the node and waits until it has joined.
//
//export tsn_up
func tsn_up(handle C.uint64_t, ms C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return "", n.up(milliseconds(ms))
	})
}

// tsn_close ends every connection, logs out and stops the node. The handle is invalid from here on, also when the deadline
// passes; what is left then goes on in the background.
//
//export tsn_close
func tsn_close(handle C.uint64_t, ms C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		nodes.mu.Lock()
		delete(nodes.byID, uint64(handle))
		nodes.mu.Unlock()
		return "", n.close(milliseconds(ms))
	})
}

// tsn_splice_dial dials addr ("host:port") on the tailnet, writes prefix to it and then carries bytes between it and the
// socket fd until both directions have ended. Events: dialed or dialFailed, then (after dialed) spliced. When the dial
// fails, the peer of fd gets a reset.
//
//export tsn_splice_dial
func tsn_splice_dial(handle C.uint64_t, token C.uint64_t, fd C.int, addr *C.char, addrLen C.int64_t,
	prefix *C.char, prefixLen C.int64_t, ms C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		local, err := ownedTCP(int(fd))
		if err != nil {
			return "", err
		}
		n, err := lookup(handle)
		if err != nil {
			abortLocal(local)
			return "", err
		}
		var head []byte
		if prefixLen > 0 {
			head = C.GoBytes(unsafe.Pointer(prefix), C.int(prefixLen))
		}
		n.spliceDial(uint64(token), local, C.GoStringN(addr, C.int(addrLen)), head, milliseconds(ms))
		return "", nil
	})
}

// tsn_splice_abort resets both legs of the connection that tsn_splice_dial or tsn_splice_conn made with token, for the reason
// in why. One that has ended already is no error; one that is still being dialled goes on.
//
//export tsn_splice_abort
func tsn_splice_abort(handle C.uint64_t, token C.uint64_t, why *C.char, whyLen C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		n.abortSplice(uint64(token), C.GoStringN(why, C.int(whyLen)))
		return "", nil
	})
}

// tsn_dial dials like tsn_splice_dial; the dialed event carries a connection handle for tsn_conn_fd, tsn_splice_conn or
// tsn_conn_close.
//
//export tsn_dial
func tsn_dial(handle C.uint64_t, token C.uint64_t, addr *C.char, addrLen C.int64_t, ms C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		n.dialHandle(uint64(token), C.GoStringN(addr, C.int(addrLen)), milliseconds(ms))
		return "", nil
	})
}

// tsn_listen accepts connections to a port of the node's own addresses, or, with port 0, every connection to an address in
// an advertised route. Each is an accepted event with a connection handle.
//
//export tsn_listen
func tsn_listen(handle C.uint64_t, port C.int, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return "", n.listen(int(port))
	})
}

// tsn_unlisten ends tsn_listen; accepted connections go on.
//
//export tsn_unlisten
func tsn_unlisten(handle C.uint64_t, port C.int, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return "", n.unlisten(int(port))
	})
}

// tsn_conn_fd gives the connection to the caller as one end of a stream socket pair, written to *fd. The caller owns it.
//
//export tsn_conn_fd
func tsn_conn_fd(handle C.uint64_t, conn C.uint64_t, token C.uint64_t, fd *C.int, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		theirs, err := n.connFD(uint64(conn), uint64(token))
		if err != nil {
			return "", err
		}
		*fd = C.int(theirs)
		return "", nil
	})
}

// tsn_splice_conn carries bytes between the connection and the socket fd; the end is a spliced event.
//
//export tsn_splice_conn
func tsn_splice_conn(handle C.uint64_t, conn C.uint64_t, token C.uint64_t, fd C.int, out **C.char) C.int {
	return call(out, func() (string, error) {
		local, err := ownedTCP(int(fd))
		if err != nil {
			return "", err
		}
		n, err := lookup(handle)
		if err == nil {
			err = n.spliceConn(uint64(conn), uint64(token), local)
		}
		if err != nil {
			abortLocal(local)
		}
		return "", err
	})
}

// tsn_conn_close resets a connection that nobody wants.
//
//export tsn_conn_close
func tsn_conn_close(handle C.uint64_t, conn C.uint64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return "", n.connClose(uint64(conn))
	})
}

// tsn_status gives a nodeStatus as JSON, with the peers when peers is not 0.
//
//export tsn_status
func tsn_status(handle C.uint64_t, peers C.int, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return asJSON(n.status(peers != 0))
	})
}

// tsn_route says as JSON which peer, if any, would serve a dial to host.
//
//export tsn_route
func tsn_route(handle C.uint64_t, host *C.char, hostLen C.int64_t, ms C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return asJSON(n.route(C.GoStringN(host, C.int(hostLen)), milliseconds(ms)))
	})
}

// tsn_whois says as JSON which node and user have a tailnet address ("ip:port").
//
//export tsn_whois
func tsn_whois(handle C.uint64_t, addr *C.char, addrLen C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return asJSON(n.whois(C.GoStringN(addr, C.int(addrLen))))
	})
}

// tsn_probe asks the control server whether it still knows this node. JSON probeResult; an error when it could not be asked.
//
//export tsn_probe
func tsn_probe(handle C.uint64_t, ms C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		n, err := lookup(handle)
		if err != nil {
			return "", err
		}
		return asJSON(n.probe(n.ctx, milliseconds(ms)))
	})
}

// tsn_memory_limit sets the soft limit of the Go heap for the whole process, in bytes.
//
//export tsn_memory_limit
func tsn_memory_limit(bytes C.int64_t, out **C.char) C.int {
	return call(out, func() (string, error) {
		if bytes > 0 {
			debug.SetMemoryLimit(int64(bytes))
		}
		return "", nil
	})
}

// tsn_version gives the version of the tailscale.com module.
//
//export tsn_version
func tsn_version(out **C.char) C.int {
	return call(out, func() (string, error) { return clientVersion(), nil })
}

// tsn_free frees a text that another function gave.
//
//export tsn_free
func tsn_free(text *C.char) { C.free(unsafe.Pointer(text)) }

func asJSON[T any](value T, err error) (string, error) {
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(value)
	return string(text), err
}

func bounded(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return text[:limit] + "…"
}

// ownedFile takes an fd; nil for a negative one.
func ownedFile(fd int, name string) *os.File {
	if fd < 0 {
		return nil
	}
	syscall.CloseOnExec(fd)
	_ = syscall.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
