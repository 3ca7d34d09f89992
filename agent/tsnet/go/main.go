// Package main is the Go half of the crate `tsnet`: Tailscale's tsnet behind a C ABI, built as a C archive by build.rs.
//
// Rules that every file here keeps:
//   - Go never calls into Rust. What happens asynchronously is a message on the node's event socket (events.go).
//   - Every exported function and every goroutine recovers: a panic that leaves Go aborts the whole process.
//   - A file descriptor belongs to Go from the moment of the call, also when the call fails.
//   - Every call that can block takes a deadline in milliseconds.
//   - No text that leaves Go contains the auth key (log.go).
package main

func main() {}
