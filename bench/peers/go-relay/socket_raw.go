package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"
)

// rawSocket goes straight to the kernel: past package net, and past the scheduler's hooks where a
// call does not wait. Addresses are filled in place.
type rawSocket struct {
	fd         int
	from       syscall.RawSockaddrInet4
	to         syscall.RawSockaddrInet4
	fromLength uint32
}

func openRaw(at netip.AddrPort) (*rawSocket, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := prepare(uintptr(fd)); err != nil {
		return nil, err
	}
	bind := &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	if err := syscall.Bind(fd, bind); err != nil {
		return nil, fmt.Errorf("bind %s: %w", at, err)
	}
	return &rawSocket{fd: fd, to: syscall.RawSockaddrInet4{Family: syscall.AF_INET}}, nil
}

// receive first asks without waiting; only an empty socket costs the runtime's full system call.
func (s *rawSocket) receive(buffer []byte) (int, endpoint, bool) {
	n, errno := s.recvfrom(buffer, syscall.MSG_DONTWAIT|syscall.MSG_TRUNC)
	if errno == syscall.EAGAIN {
		n, errno = s.recvfromWaiting(buffer, syscall.MSG_TRUNC)
	}
	if errno != 0 || n > len(buffer) {
		return 0, 0, false
	}
	port := (*[2]byte)(unsafe.Pointer(&s.from.Port))
	ip := binary.BigEndian.Uint32(s.from.Addr[:])
	return n, endpoint(uint64(ip)<<16 | uint64(binary.BigEndian.Uint16(port[:]))), true
}

func (s *rawSocket) recvfrom(buffer []byte, flags uintptr) (int, syscall.Errno) {
	s.fromLength = syscall.SizeofSockaddrInet4
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(s.fd),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), flags,
		uintptr(unsafe.Pointer(&s.from)), uintptr(unsafe.Pointer(&s.fromLength)))
	return int(n), errno
}

func (s *rawSocket) recvfromWaiting(buffer []byte, flags uintptr) (int, syscall.Errno) {
	s.fromLength = syscall.SizeofSockaddrInet4
	n, _, errno := syscall.Syscall6(syscall.SYS_RECVFROM, uintptr(s.fd),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), flags,
		uintptr(unsafe.Pointer(&s.from)), uintptr(unsafe.Pointer(&s.fromLength)))
	return int(n), errno
}

func (s *rawSocket) send(datagram []byte, to endpoint) {
	port := (*[2]byte)(unsafe.Pointer(&s.to.Port))
	binary.BigEndian.PutUint16(port[:], uint16(to))
	binary.BigEndian.PutUint32(s.to.Addr[:], uint32(to>>16))
	syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(s.fd),
		uintptr(unsafe.Pointer(&datagram[0])), uintptr(len(datagram)), syscall.MSG_DONTWAIT,
		uintptr(unsafe.Pointer(&s.to)), syscall.SizeofSockaddrInet4)
}
