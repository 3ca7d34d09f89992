package main

import (
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// newest is the log of the newest node; it also gets what libraries write to Go's standard log, which would otherwise go to
// standard error between the lines of the Rust side.
var newest atomic.Pointer[logWriter]

func init() {
	log.SetFlags(0)
	log.SetOutput(standardLog{})
}

type standardLog struct{}

func (standardLog) Write(line []byte) (int, error) {
	if w := newest.Load(); w != nil {
		w.logf("%s", line)
	}
	return len(line), nil
}

// logWriter sends the client's log, one line per write, to a pipe. When the reader is slow, lines are dropped: a log must not
// stop a connection.
type logWriter struct {
	secret  string
	verbose bool

	mu   sync.Mutex
	file *os.File // nil: discard
}

func (w *logWriter) logf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !w.verbose && (strings.Contains(line, "[v1]") || strings.Contains(line, "[v2]")) {
		return
	}
	if strings.Contains(line, "[v\x00JSON]") {
		return // meant for the log upload, which is not compiled in
	}
	// The client never prints the key, as far as it is known; the product must not depend on that.
	line = w.redact(line)
	line = bounded(strings.ReplaceAll(strings.TrimSpace(line), "\n", " "), 2000) + "\n"
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		_, _ = syscall.Write(int(fd), []byte(line))
		return true // written or dropped, never waited for
	})
}

func (w *logWriter) redact(text string) string {
	if w.secret == "" {
		return text
	}
	return strings.ReplaceAll(text, w.secret, "<auth key>")
}

func (w *logWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}
