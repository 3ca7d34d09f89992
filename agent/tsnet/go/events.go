package main

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"time"
)

// Kinds of event. One SEQPACKET message each: a header of eventHeader bytes, little endian, then UTF-8 text.
//
//	0  u32 kind    4 u32 class    8 u64 token    16 u64 a    24 u64 b    32 u64 microseconds    40 text
const (
	// evDialed: class = SYNs sent beside the first, a = connection handle (tsn_dial) or 0, text = "address peer".
	evDialed uint32 = 1
	// evDialFailed: class = class of the error, text = the error.
	evDialFailed uint32 = 2
	// evSpliced: class = class of the error (0 = both directions ended in order), a = bytes to the tailnet,
	// b = bytes from the tailnet, text = the error.
	evSpliced uint32 = 3
	// evAccepted: a = connection handle, b = port of tsn_listen, text = "source destination".
	evAccepted uint32 = 4
	// evState: text = state of the client (Running, NeedsLogin, …).
	evState uint32 = 5
	// evControlError: text = what the control server answered.
	evControlError uint32 = 6
	// evProgress: a, b = bytes of a splice so far, as in evSpliced.
	evProgress uint32 = 7
)

const (
	eventHeader  = 40
	eventTextMax = 1024
)

// eventWriter sends events. A slow reader blocks the goroutine that reports, not a thread; after close, events are dropped.
type eventWriter struct {
	file   *os.File
	closed atomic.Bool
}

func (w *eventWriter) send(kind, class uint32, token, a, b uint64, took time.Duration, text string) {
	if w.closed.Load() {
		return
	}
	text = bounded(text, eventTextMax)
	message := make([]byte, eventHeader, eventHeader+len(text))
	le := binary.LittleEndian
	le.PutUint32(message[0:], kind)
	le.PutUint32(message[4:], class)
	le.PutUint64(message[8:], token)
	le.PutUint64(message[16:], a)
	le.PutUint64(message[24:], b)
	le.PutUint64(message[32:], uint64(took.Microseconds()))
	// An error means that the reader is gone, and then nobody is left to be told.
	_, _ = w.file.Write(append(message, text...))
}

func (w *eventWriter) close() {
	if w.closed.CompareAndSwap(false, true) {
		_ = w.file.Close()
	}
}
