package main

import (
	"fmt"
	"net/netip"
	"syscall"
)

const (
	// What the worker asks of the kernel for each socket buffer.
	socketBufferBytes = 8 << 20
	// Linux, not in package syscall: asm-generic/socket.h.
	soReusePort   = 15
	soSndBufForce = 32
	soRcvBufForce = 33
)

// open opens a worker's socket, by package net or past it.
func open(how string, at netip.AddrPort) (datagrams, error) {
	switch how {
	case "net":
		return openNet(at)
	case "raw":
		return openRaw(at)
	default:
		return nil, fmt.Errorf("-io %s: net or raw", how)
	}
}

// prepare shares the port with the other workers and asks for large buffers.
func prepare(fd uintptr) error {
	if err := syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soReusePort, 1); err != nil {
		return fmt.Errorf("SO_REUSEPORT: %w", err)
	}
	growBuffer(int(fd), soRcvBufForce, syscall.SO_RCVBUF)
	growBuffer(int(fd), soSndBufForce, syscall.SO_SNDBUF)
	return nil
}

// growBuffer asks for a large buffer past the system's limit, else up to the limit.
func growBuffer(fd, force, polite int) {
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, force, socketBufferBytes) != nil {
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, polite, socketBufferBytes)
	}
}
