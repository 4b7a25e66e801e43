// Command go-relay is the rival that the relay yardstick divides by: one datagram a
// system call, as a Go relay of the published design does it.
//
// The design: each worker owns one SO_REUSEPORT socket and one goroutine locked to an
// operating system thread; a datagram is read into a buffer that was allocated at start;
// the flow map, which only this worker touches, says where it goes; a miss is answered by
// reading the USERNAME of a STUN Binding request, whose server ufrag names the
// transceiver; the datagram goes on behind a small header that tells the transceiver the
// client's address, and what comes back from a transceiver is sent to the address that
// its header names.
//
// Within that design everything that costs time was taken out: IPv4 clients are looked up
// by one machine word, nothing is allocated per datagram, and the garbage collector is off.
// There are two sockets to choose from: package net's, by its calls that do not allocate,
// and one that goes past package net and, where a call does not wait, past the scheduler.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:3578", "client-side address, IPv4")
	peers := flag.String("transceivers", "127.0.0.1:3590",
		"transceivers, comma separated, in the order that ufrags number them")
	how := flag.String("io", "net", "net: package net; raw: system calls past the runtime")
	workers := flag.Int("workers", 1, "sockets and locked threads")
	flows := flag.Int("flows", 1<<16, "most flows a worker keeps")
	version := flag.Bool("version", false, "say which Go built this, and end")
	flag.Parse()
	if *version {
		fmt.Println(runtime.Version())
		return
	}

	// Nothing is allocated once the workers run, so there is nothing to collect.
	debug.SetGCPercent(-1)
	at, err := netip.ParseAddrPort(*listen)
	if err != nil {
		log.Fatalf("-listen %s: %v", *listen, err)
	}
	transceivers, err := parseTransceivers(*peers)
	if err != nil {
		log.Fatalf("-transceivers %s: %v", *peers, err)
	}
	// A worker blocks its thread, so the main goroutine needs a processor of its own.
	runtime.GOMAXPROCS(*workers + 1)
	for i := 0; i < *workers; i++ {
		socket, err := open(*how, at)
		if err != nil {
			log.Fatalf("worker %d: %v", i, err)
		}
		go newWorker(socket, transceivers, *flows).run()
	}
	fmt.Println("ready", at)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}

// parseTransceivers reads a comma separated list of IPv4 addresses with ports.
func parseTransceivers(list string) ([]endpoint, error) {
	var out []endpoint
	for _, text := range strings.Split(list, ",") {
		at, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, err
		}
		if !at.Addr().Is4() {
			return nil, fmt.Errorf("%s is not IPv4", text)
		}
		out = append(out, endpointOf(at))
	}
	return out, nil
}

// endpoint is an IPv4 address and port as one machine word, address above port.
type endpoint uint64

func endpointOf(at netip.AddrPort) endpoint {
	ip := at.Addr().As4()
	return endpoint(uint64(binary.BigEndian.Uint32(ip[:]))<<16 | uint64(at.Port()))
}
