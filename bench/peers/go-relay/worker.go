package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"unsafe"
)

const (
	// A datagram larger than this is cut by the read and dropped.
	datagramBytesMax = 2048
	// What the worker asks of the kernel for each socket buffer.
	socketBufferBytes = 8 << 20
	// Linux, not in package syscall: asm-generic/socket.h.
	soReusePort   = 15
	soRcvBufForce = 33
	soSndBufForce = 32
)

// worker owns one socket, one thread and the flows that reach it.
type worker struct {
	fd           int
	flows        map[endpoint]endpoint
	flowsMax     int
	transceivers []endpoint
	buffer       [headerBytes + datagramBytesMax]byte
	from         syscall.RawSockaddrInet4
	to           syscall.RawSockaddrInet4
	fromLength   uint32
}

func newWorker(at netip.AddrPort, transceivers []endpoint, flowsMax int) (*worker, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, soReusePort, 1); err != nil {
		return nil, fmt.Errorf("SO_REUSEPORT: %w", err)
	}
	growBuffer(fd, soRcvBufForce, syscall.SO_RCVBUF)
	growBuffer(fd, soSndBufForce, syscall.SO_SNDBUF)
	bind := &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	if err := syscall.Bind(fd, bind); err != nil {
		return nil, fmt.Errorf("bind %s: %w", at, err)
	}
	w := &worker{
		fd:           fd,
		flows:        make(map[endpoint]endpoint, flowsMax),
		flowsMax:     flowsMax,
		transceivers: transceivers,
	}
	w.to.Family = syscall.AF_INET
	return w, nil
}

// growBuffer asks for a large buffer past the system's limit, else up to the limit.
func growBuffer(fd, force, polite int) {
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, force, socketBufferBytes) != nil {
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, polite, socketBufferBytes)
	}
}

// run forwards until the process ends.
func (w *worker) run() {
	runtime.LockOSThread()
	for {
		n, from, ok := w.receive()
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
	w.send(w.buffer[:headerBytes+n], to)
}

// toClient sends what stands behind the header to the client that the header names.
func (w *worker) toClient(n int) {
	datagram := w.buffer[headerBytes : headerBytes+n]
	client, ok := takeHeader(datagram)
	if !ok || n == headerBytes {
		return
	}
	w.send(datagram[headerBytes:], client)
}

// receive reads one datagram behind room for the header. It first asks without waiting,
// past the scheduler; only an empty socket costs the runtime's full system call.
func (w *worker) receive() (int, endpoint, bool) {
	n, errno := w.recvfrom(syscall.MSG_DONTWAIT | syscall.MSG_TRUNC)
	if errno == syscall.EAGAIN {
		n, errno = w.recvfromWaiting(syscall.MSG_TRUNC)
	}
	if errno != 0 || n > datagramBytesMax {
		return 0, 0, false
	}
	port := (*[2]byte)(unsafe.Pointer(&w.from.Port))
	ip := binary.BigEndian.Uint32(w.from.Addr[:])
	return n, endpoint(uint64(ip)<<16 | uint64(binary.BigEndian.Uint16(port[:]))), true
}

func (w *worker) recvfrom(flags uintptr) (int, syscall.Errno) {
	w.fromLength = syscall.SizeofSockaddrInet4
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(w.fd),
		uintptr(unsafe.Pointer(&w.buffer[headerBytes])), datagramBytesMax, flags,
		uintptr(unsafe.Pointer(&w.from)), uintptr(unsafe.Pointer(&w.fromLength)))
	return int(n), errno
}

func (w *worker) recvfromWaiting(flags uintptr) (int, syscall.Errno) {
	w.fromLength = syscall.SizeofSockaddrInet4
	n, _, errno := syscall.Syscall6(syscall.SYS_RECVFROM, uintptr(w.fd),
		uintptr(unsafe.Pointer(&w.buffer[headerBytes])), datagramBytesMax, flags,
		uintptr(unsafe.Pointer(&w.from)), uintptr(unsafe.Pointer(&w.fromLength)))
	return int(n), errno
}

// send gives one datagram to the kernel; one that it does not take is dropped, as UDP may.
func (w *worker) send(datagram []byte, to endpoint) {
	port := (*[2]byte)(unsafe.Pointer(&w.to.Port))
	binary.BigEndian.PutUint16(port[:], uint16(to))
	binary.BigEndian.PutUint32(w.to.Addr[:], uint32(to>>16))
	syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(w.fd),
		uintptr(unsafe.Pointer(&datagram[0])), uintptr(len(datagram)), syscall.MSG_DONTWAIT,
		uintptr(unsafe.Pointer(&w.to)), syscall.SizeofSockaddrInet4)
}
