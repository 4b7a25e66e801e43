package main

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// headerBytes is what stands before each datagram between relay and transceiver:
//
//	type u8 (0x0E) | version u8 (1) | client port u16 | client address 16 bytes
//
// big endian, IPv4 as ::ffff:a.b.c.d. A first byte of 4 to 15 is free in RFC 7983.
const (
	headerBytes   = 20
	headerType    = 0x0E
	headerVersion = 1
)

// putHeader writes the header of a client's datagram.
func putHeader(to []byte, client endpoint) {
	_ = to[headerBytes-1]
	to[0], to[1] = headerType, headerVersion
	binary.BigEndian.PutUint16(to[2:], uint16(client))
	binary.BigEndian.PutUint64(to[4:], 0)
	binary.BigEndian.PutUint32(to[12:], 0x0000ffff)
	binary.BigEndian.PutUint32(to[16:], uint32(client>>16))
}

// takeHeader reads the client that a transceiver's datagram is for.
func takeHeader(from []byte) (endpoint, bool) {
	if len(from) < headerBytes || from[0] != headerType || from[1] != headerVersion {
		return 0, false
	}
	if binary.BigEndian.Uint64(from[4:]) != 0 || binary.BigEndian.Uint32(from[12:]) != 0xffff {
		return 0, false
	}
	ip := binary.BigEndian.Uint32(from[16:])
	return endpoint(uint64(ip)<<16 | uint64(binary.BigEndian.Uint16(from[2:]))), true
}

const (
	stunHeaderBytes   = 20
	stunBindingReq    = 0x0001
	stunMagicCookie   = 0x2112A442
	stunUsernameAttr  = 0x0006
	ufragRoutePrefix  = "go"
	ufragRouteDigits  = 4
	ufragMinimumBytes = len(ufragRoutePrefix) + ufragRouteDigits
)

// routeOf reads the transceiver's number out of a STUN Binding request (RFC 8489 5): the
// server half of USERNAME is "go", four hexadecimal digits, and whatever makes it unique.
func routeOf(datagram []byte) (int, bool) {
	if len(datagram) < stunHeaderBytes ||
		binary.BigEndian.Uint16(datagram) != stunBindingReq ||
		binary.BigEndian.Uint32(datagram[4:]) != stunMagicCookie {
		return 0, false
	}
	end := stunHeaderBytes + int(binary.BigEndian.Uint16(datagram[2:]))
	if end > len(datagram) {
		return 0, false
	}
	for at := stunHeaderBytes; at+4 <= end; {
		kind := binary.BigEndian.Uint16(datagram[at:])
		length := int(binary.BigEndian.Uint16(datagram[at+2:]))
		value := at + 4
		if value+length > end {
			return 0, false
		}
		if kind == stunUsernameAttr {
			return routeOfUsername(datagram[value : value+length])
		}
		at = value + (length+3)&^3
	}
	return 0, false
}

func routeOfUsername(username []byte) (int, bool) {
	colon := bytes.IndexByte(username, ':')
	if colon < ufragMinimumBytes || string(username[:len(ufragRoutePrefix)]) != ufragRoutePrefix {
		return 0, false
	}
	digits := string(username[len(ufragRoutePrefix):ufragMinimumBytes])
	route, err := strconv.ParseUint(digits, 16, 16)
	return int(route), err == nil
}
