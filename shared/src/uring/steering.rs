//! Which socket of a `SO_REUSEPORT` group gets a datagram: chosen by one byte of its payload.
//!
//! A two-instruction classic BPF program, run by the kernel for each datagram of the group:
//!
//! ```text
//! ldb [offset]    A = payload[offset]
//! ret a           the socket that was bound A-th
//! ```
//!
//! Offset 0 is the first byte of the payload. A result past the group's end falls back to the
//! kernel's hash; a datagram too short for the load goes to socket 0; closing a socket moves the
//! last of the group into its place. So steering is for the inner leg, where the senders are our
//! own and the group lives as long as its process: on a public port a client could choose its core.

use super::socket::UdpSocket;
use super::syscall::attach_reuseport_filter;
use std::io;
use std::os::fd::AsFd;

/// Classic BPF codes of `linux/filter.h`: load a byte at a fixed offset; return the accumulator.
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

/// Steers by the payload byte at `offset` to the socket with that index in `group`.
///
/// `group` must be the whole group in the order of binding, as [`super::open_udp_group`] returns
/// it. Errors: what the kernel says to `SO_ATTACH_REUSEPORT_CBPF`; `InvalidInput` for an empty
/// group.
pub fn attach_shard_steering(group: &[UdpSocket], offset: u32) -> io::Result<()> {
    let Some(first) = group.first() else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "steering an empty socket group",
        ));
    };
    let mut program = [
        libc::sock_filter {
            code: LOAD_BYTE,
            jt: 0,
            jf: 0,
            k: offset,
        },
        libc::sock_filter {
            code: RETURN_ACCUMULATOR,
            jt: 0,
            jf: 0,
            k: 0,
        },
    ];
    attach_reuseport_filter(first.as_fd(), &mut program)
}
