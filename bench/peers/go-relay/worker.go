package main

import "runtime"

// datagramBytesMax is the longest datagram that the relay carries; a longer one is dropped.
const datagramBytesMax = 2048

// datagrams is the worker's socket, one datagram a call either way.
type datagrams interface {
	// receive reads one datagram into buffer, and says who sent it.
	receive(buffer []byte) (int, endpoint, bool)
	// send gives one datagram to the kernel; one that it does not take is dropped, as UDP may.
	send(datagram []byte, to endpoint)
}

// worker owns one socket, one thread and the flows that reach it.
type worker struct {
	socket       datagrams
	flows        map[endpoint]endpoint
	flowsMax     int
	transceivers []endpoint
	buffer       [headerBytes + datagramBytesMax]byte
}

func newWorker(socket datagrams, transceivers []endpoint, flowsMax int) *worker {
	return &worker{
		socket:       socket,
		flows:        make(map[endpoint]endpoint, flowsMax),
		flowsMax:     flowsMax,
		transceivers: transceivers,
	}
}

// run forwards until the process ends.
func (w *worker) run() {
	runtime.LockOSThread()
	for {
		n, from, ok := w.socket.receive(w.buffer[headerBytes:])
		if !ok {
			continue
		}
		if w.isTransceiver(from) {
			w.toClient(n)
		} else {
			w.toTransceiver(n, from)
		}
	}
}

func (w *worker) isTransceiver(from endpoint) bool {
	for _, t := range w.transceivers {
		if t == from {
			return true
		}
	}
	return false
}

// toTransceiver sends the client's datagram, which lies behind room for the header.
func (w *worker) toTransceiver(n int, from endpoint) {
	to, known := w.flows[from]
	if !known {
		route, ok := routeOf(w.buffer[headerBytes : headerBytes+n])
		if !ok || route >= len(w.transceivers) || len(w.flows) >= w.flowsMax {
			return
		}
		to = w.transceivers[route]
		w.flows[from] = to
	}
	putHeader(w.buffer[:], from)
	w.socket.send(w.buffer[:headerBytes+n], to)
}

// toClient sends what stands behind the header to the client that the header names.
func (w *worker) toClient(n int) {
	datagram := w.buffer[headerBytes : headerBytes+n]
	client, ok := takeHeader(datagram)
	if !ok || n == headerBytes {
		return
	}
	w.socket.send(datagram[headerBytes:], client)
}
