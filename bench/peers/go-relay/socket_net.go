package main

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
)

// netSocket is package net's socket, by the calls that allocate nothing.
type netSocket struct {
	conn *net.UDPConn
}

func openNet(at netip.AddrPort) (*netSocket, error) {
	var prepared error
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		if err := raw.Control(func(fd uintptr) { prepared = prepare(fd) }); err != nil {
			return err
		}
		return prepared
	}}
	conn, err := config.ListenPacket(context.Background(), "udp4", at.String())
	if err != nil {
		return nil, err
	}
	return &netSocket{conn: conn.(*net.UDPConn)}, nil
}

func (s *netSocket) receive(buffer []byte) (int, endpoint, bool) {
	n, from, err := s.conn.ReadFromUDPAddrPort(buffer)
	// A datagram that fills the buffer may have been cut: this call does not tell.
	if err != nil || n >= len(buffer) {
		return 0, 0, false
	}
	return n, endpointOf(from), true
}

func (s *netSocket) send(datagram []byte, to endpoint) {
	var ip [4]byte
	binary.BigEndian.PutUint32(ip[:], uint32(to>>16))
	at := netip.AddrPortFrom(netip.AddrFrom4(ip), uint16(to))
	_, _ = s.conn.WriteToUDPAddrPort(datagram, at)
}
