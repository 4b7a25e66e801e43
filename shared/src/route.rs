//! The nouns of routing: who a datagram is for, who it came from, and when.
//!
//! Each is a type of its own, so that a client's address can never be passed where a relay's is
//! meant, nor a slot where a shard is. All of it is plain data with a fixed encoding; nothing here
//! reads a clock or a socket.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Instant;

/// A cluster: relays and transceivers that share one set of cluster keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub u16);

/// One transceiver process within its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransceiverId(pub u16);

/// One worker's share of a process, on either side of the inner leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardIndex(pub u8);

/// Which time a slot is being used for; it advances each time the slot is given out again, so
/// that a late packet of an ended session never reaches its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u16);

impl Generation {
    /// The generation that follows, wrapping at 65,536.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Index of a session in its shard's slab: 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// The largest slot: the ufrag carries 24 bits of it.
    pub const MAX: u32 = (1 << 24) - 1;

    /// A slot, or `None` when `value` exceeds [`Slot::MAX`].
    pub fn new(value: u32) -> Option<Self> {
        (value <= Self::MAX).then_some(Self(value))
    }

    /// The slot as a number, at most [`Slot::MAX`].
    pub fn value(self) -> u32 {
        self.0
    }

    /// The slot as an index into a slab.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which generation of keys a ufrag was minted with: 0 to 6. The value 7 is reserved for
/// *unroutable*, as in QUIC-LB (draft-ietf-quic-load-balancers, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(u8);

impl Epoch {
    /// How many epochs can be live at once.
    pub const COUNT: usize = 7;

    /// An epoch, or `None` when `value` is 7 (unroutable) or more.
    pub fn new(value: u8) -> Option<Self> {
        (usize::from(value) < Self::COUNT).then_some(Self(value))
    }

    /// The epoch as a number, 0 to 6.
    pub fn value(self) -> u8 {
        self.0
    }

    /// The epoch as an index into a table of [`Epoch::COUNT`] entries.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Names one session for its whole life: the place in a shard's slab, and the generation that
/// tells it from the slot's earlier and later tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionRef {
    /// The process that owns the session.
    pub transceiver: TransceiverId,
    /// The worker within that process.
    pub shard: ShardIndex,
    /// The place in the worker's slab.
    pub slot: Slot,
    /// The tenancy of that place.
    pub generation: Generation,
}

impl SessionRef {
    /// Encoded length in bytes.
    pub const BYTES: usize = 8;

    /// `transceiver u16 | shard u8 | slot u24 | generation u16`, big endian.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let [t0, t1] = self.transceiver.0.to_be_bytes();
        let [_, s0, s1, s2] = self.slot.0.to_be_bytes();
        let [g0, g1] = self.generation.0.to_be_bytes();
        [t0, t1, self.shard.0, s0, s1, s2, g0, g1]
    }

    /// The inverse of [`SessionRef::to_bytes`]; every value of eight bytes is a reference.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [t0, t1, shard, s0, s1, s2, g0, g1] = bytes;
        Self {
            transceiver: TransceiverId(u16::from_be_bytes([t0, t1])),
            shard: ShardIndex(shard),
            slot: Slot(u32::from_be_bytes([0, s0, s1, s2])),
            generation: Generation(u16::from_be_bytes([g0, g1])),
        }
    }
}

impl fmt::Display for SessionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            transceiver,
            shard,
            slot,
            generation,
        } = self;
        write!(
            f,
            "{}/{}/{}.{}",
            transceiver.0, shard.0, slot.0, generation.0
        )
    }
}

/// The text is not `transceiver/shard/slot.generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not of the form transceiver/shard/slot.generation")]
pub struct SessionRefError;

impl FromStr for SessionRef {
    type Err = SessionRefError;

    /// The inverse of `Display`.
    fn from_str(text: &str) -> Result<Self, SessionRefError> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| SessionRefError);
        let mut parts = text.splitn(3, '/');
        let mut part = || parts.next().ok_or(SessionRefError);
        let (transceiver, shard, rest) = (number(part()?)?, number(part()?)?, part()?);
        let (slot, generation) = rest.split_once('.').ok_or(SessionRefError)?;
        let generation = number(generation)?;
        Ok(Self {
            transceiver: TransceiverId(transceiver.try_into().map_err(|_| SessionRefError)?),
            shard: ShardIndex(shard.try_into().map_err(|_| SessionRefError)?),
            slot: Slot::new(number(slot)?).ok_or(SessionRefError)?,
            generation: Generation(generation.try_into().map_err(|_| SessionRefError)?),
        })
    }
}

/// A client's address and port as the relay's public socket saw them, canonical: an IPv4 address
/// that arrived mapped into IPv6 (`::ffff:a.b.c.d`) is the IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientSocket(SocketAddr);

impl ClientSocket {
    /// Canonicalises `addr`; the flow label and scope of an IPv6 address are dropped.
    pub fn new(addr: SocketAddr) -> Self {
        Self(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
    }

    /// The canonical address.
    pub fn addr(self) -> SocketAddr {
        self.0
    }

    /// The address as 16 bytes: IPv4 as `::ffff:a.b.c.d` (RFC 4291, 2.5.5.2).
    pub fn octets(self) -> [u8; 16] {
        match self.0.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    }

    /// The inverse of [`ClientSocket::octets`].
    pub fn from_octets(octets: [u8; 16], port: u16) -> Self {
        Self::new(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(octets)), port))
    }
}

impl fmt::Display for ClientSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which of a relay's public addresses the client used: an index into that relay's own table,
/// meaningless to anyone else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalEndpoint(pub u8);

/// How the client's datagram reached the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Plain UDP.
    Udp,
    /// A TCP connection with RFC 4571 framing (ICE-TCP, RFC 6544).
    Tcp,
}

/// Minutes since the Unix epoch: the resolution in which ufrags are dated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixMinutes(pub u32);

/// The moment at which something is handled, read once a batch by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time: time-outs, expiry, pacing.
    pub mono: Instant,
    /// Wall-clock time: only the age of a ufrag is judged by it.
    pub wall: UnixMinutes,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn folds_mapped_ipv4_and_drops_the_scope() {
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:9".parse().unwrap();
        let plain: SocketAddr = "192.0.2.7:9".parse().unwrap();
        assert_eq!(ClientSocket::new(mapped), ClientSocket::new(plain));
        let scoped: SocketAddr = "[fe80::1%3]:9".parse().unwrap();
        assert_eq!(
            ClientSocket::new(scoped).addr(),
            "[fe80::1]:9".parse().unwrap()
        );
    }

    #[test]
    fn refuses_the_unroutable_epoch_and_a_25_bit_slot() {
        assert_eq!(Epoch::new(7), None);
        assert_eq!(Epoch::new(6).map(Epoch::index), Some(6));
        assert_eq!(Slot::new(1 << 24), None);
        assert_eq!(Slot::new(Slot::MAX).map(Slot::value), Some(0xff_ffff));
    }

    proptest! {
        #[test]
        fn session_reference_round_trips(bytes: [u8; 8]) {
            let session = SessionRef::from_bytes(bytes);
            prop_assert_eq!(session.to_bytes(), bytes);
            prop_assert_eq!(session.to_string().parse(), Ok(session));
        }

        #[test]
        fn client_socket_round_trips(octets: [u8; 16], port: u16) {
            let socket = ClientSocket::from_octets(octets, port);
            prop_assert_eq!(ClientSocket::from_octets(socket.octets(), port), socket);
        }
    }
}
