// Reads JSON strings from standard input, one a line, and writes for each how Go and the C library read it.
package main

/*
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

// The address in network order, or 0 with *ok = 0.
static unsigned int aton(const char *text, int *ok) {
	struct in_addr a;
	memset(&a, 0, sizeof a);
	*ok = inet_aton(text, &a);
	return ntohl(a.s_addr);
}

static int pton6(const char *text, unsigned char *out) { return inet_pton(AF_INET6, text, out); }
*/
import "C"

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"log"
	"net"
	"net/netip"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/net/idna"
)

// Reading is what everybody made of one text; an empty field means that it was refused.
type Reading struct {
	// netip.ParseAddr, as it prints.
	Addr string `json:"addr"`
	// The same without zone and with IPv4 inside IPv6 as IPv4.
	Plain string `json:"plain"`
	// netip.ParsePrefix, as it prints.
	Prefix string `json:"prefix"`
	// The same without host bits and with IPv4 inside IPv6 as IPv4.
	PlainPrefix string `json:"plainPrefix"`
	// net.ParseCIDR's network.
	CIDR string `json:"cidr"`
	// inet_aton of the C library.
	Aton string `json:"aton"`
	// inet_pton of the C library for IPv6, as netip prints it.
	Pton string `json:"pton"`
	// The A-labels of a name, lower case.
	ASCII string `json:"ascii"`
}

var names = idna.New(
	idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.CheckJoiners(true),
	idna.CheckHyphens(false), idna.StrictDomainName(true), idna.VerifyDNSLength(true),
)

func plainPrefix(prefix netip.Prefix) netip.Prefix {
	addr := prefix.Addr()
	if addr.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked()
}

func read(text string) (r Reading) {
	if addr, err := netip.ParseAddr(text); err == nil {
		r.Addr, r.Plain = addr.String(), addr.WithZone("").Unmap().String()
	}
	if prefix, err := netip.ParsePrefix(text); err == nil {
		r.Prefix, r.PlainPrefix = prefix.String(), plainPrefix(prefix).String()
	}
	if _, network, err := net.ParseCIDR(text); err == nil {
		r.CIDR = network.String()
	}
	if !strings.ContainsRune(text, 0) {
		c := C.CString(text)
		defer C.free(unsafe.Pointer(c))
		var ok C.int
		value := C.aton(c, &ok)
		if ok != 0 {
			var bytes [4]byte
			binary.BigEndian.PutUint32(bytes[:], uint32(value))
			r.Aton = netip.AddrFrom4(bytes).String()
		}
		var bytes [16]byte
		if C.pton6(c, (*C.uchar)(&bytes[0])) == 1 {
			r.Pton = netip.AddrFrom16(bytes).String()
		}
	}
	if ascii, err := names.ToASCII(text); err == nil {
		r.ASCII = strings.ToLower(ascii)
	}
	return r
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var text string
		if err := json.Unmarshal(in.Bytes(), &text); err != nil {
			log.Fatalf("%q: %v", in.Text(), err)
		}
		if err := encoder.Encode(read(text)); err != nil {
			log.Fatal(err)
		}
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}
