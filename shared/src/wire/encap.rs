//! The inner leg: relay to transceiver, and relay to relay.
//!
//! The relay must say which client a datagram came from and get the answer back to the core that
//! owns the flow. Both ends are ours, so many client datagrams share one UDP datagram: voice
//! packets are 80 to 200 bytes, and the kernel's cost is by the datagram.
//!
//! ```text
//! bundle   := preamble record{count} padding*
//!
//! preamble   byte 0     0x0c
//!            byte 1     version (high nibble, 1) | flags (low nibble, 0)
//!            byte 2     destination shard       a classic BPF program steers by it
//!            byte 3     source shard            where the answer goes
//!            bytes 4..6 sender id, big endian
//!            byte 6     record count
//!            byte 7     zero
//!
//! record     bytes 0..2   payload length, big endian
//!            byte 2       direction (bits 0-1) | ECN (bits 2-3) | TCP (bit 4) | zero (bits 5-7)
//!            byte 3       DSCP (6 bits)
//!            byte 4       local endpoint
//!            byte 5       zero
//!            bytes 6..8   client port, big endian
//!            bytes 8..24  client address, IPv4 as ::ffff:a.b.c.d
//!            bytes 24..32 session reference
//!            bytes 32..40 cookie
//!            bytes 40..   payload
//! ```
//!
//! The count says where the records end; what follows is padding to the stride of a train
//! ([`crate::wire::train`]). A transceiver answers by prepending the header it was given with the
//! direction flipped ([`return_header`]): to it the header is an opaque way back.

use std::ops::Range;

use crate::keys::Cookie;
use crate::route::{ClientSocket, LocalEndpoint, SessionRef, ShardIndex, Transport};
use crate::wire::demux::INNER_LEG_FIRST_BYTE;

/// Length of a bundle's preamble.
pub const PREAMBLE_BYTES: usize = 8;
/// Length of a record's header.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Where the destination shard stands in a bundle: what the steering program reads.
pub const DESTINATION_SHARD_OFFSET: usize = 2;
/// The most records in one bundle: the count is one byte.
pub const RECORDS_MAX: usize = 255;
/// The largest payload of a record: its length is 16 bits, and a bundle must fit a UDP datagram
/// (65,507 bytes over IPv4, RFC 768).
pub const PAYLOAD_BYTES_MAX: usize = 65_507 - PREAMBLE_BYTES - RECORD_HEADER_BYTES;

const VERSION: u8 = 1;

const LENGTH: Range<usize> = 0..2;
const FLAGS: usize = 2;
const DSCP: usize = 3;
const ENDPOINT: usize = 4;
const RESERVED: usize = 5;
const PORT: Range<usize> = 6..8;
const ADDRESS: Range<usize> = 8..24;
const SESSION: Range<usize> = 24..32;
const COOKIE: Range<usize> = 32..40;
const _: () = assert!(COOKIE.end == RECORD_HEADER_BYTES);

const DIRECTION_MASK: u8 = 0b11;
const ECN_SHIFT: u32 = 2;
const ECN_MASK: u8 = 0b11;
const TCP_BIT: u8 = 1 << 4;
const FLAGS_USED: u8 = 0b1_1111;
const DSCP_MASK: u8 = 0b11_1111;

/// A record's header as it stands on the wire.
pub type RawHeader = [u8; RECORD_HEADER_BYTES];

/// Which way a record travels, or that it is between the two ends themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A client's datagram on its way to the session.
    ToTransceiver,
    /// The session's datagram on its way to the client.
    ToClient,
    /// A [`Control`] message about the flow that the header names.
    Control,
}

/// The two marks that the IP header carries and both legs preserve (RFC 2474, RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    ecn: u8,
    dscp: u8,
}

impl Marks {
    /// Splits a TOS or traffic class byte.
    pub fn from_traffic_class(byte: u8) -> Self {
        Self {
            ecn: byte & ECN_MASK,
            dscp: byte >> 2,
        }
    }

    /// The TOS or traffic class byte.
    pub fn traffic_class(self) -> u8 {
        self.dscp << 2 | self.ecn
    }
}

/// A record's header, decoded: every value is valid by its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Which way it travels.
    pub direction: Direction,
    /// ECN and DSCP of the client's leg.
    pub marks: Marks,
    /// How the client reached the relay.
    pub transport: Transport,
    /// Which of the relay's public addresses the client used.
    pub endpoint: LocalEndpoint,
    /// The client, as the relay saw it.
    pub client: ClientSocket,
    /// The session, as decoded from the ufrag.
    pub session: SessionRef,
    /// Proof that a holder of the cluster keys made the flow.
    pub cookie: Cookie,
}

impl RecordHeader {
    /// Writes the header with a payload length of zero; the packer fills the length in.
    pub fn to_raw(&self) -> RawHeader {
        let mut raw = [0; RECORD_HEADER_BYTES];
        raw[FLAGS] = direction_bits(self.direction)
            | self.marks.ecn << ECN_SHIFT
            | if self.transport == Transport::Tcp {
                TCP_BIT
            } else {
                0
            };
        raw[DSCP] = self.marks.dscp;
        raw[ENDPOINT] = self.endpoint.0;
        raw[PORT].copy_from_slice(&self.client.addr().port().to_be_bytes());
        raw[ADDRESS].copy_from_slice(&self.client.octets());
        raw[SESSION].copy_from_slice(&self.session.to_bytes());
        raw[COOKIE].copy_from_slice(&self.cookie.0);
        raw
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`BundleError::Reserved`] for a direction or a reserved bit that this version does not know.
    pub fn from_raw(raw: &RawHeader) -> Result<Self, BundleError> {
        let flags = raw[FLAGS];
        if flags & !FLAGS_USED != 0 || raw[DSCP] & !DSCP_MASK != 0 || raw[RESERVED] != 0 {
            return Err(BundleError::Reserved);
        }
        Ok(Self {
            direction: match flags & DIRECTION_MASK {
                0 => Direction::ToTransceiver,
                1 => Direction::ToClient,
                2 => Direction::Control,
                _ => return Err(BundleError::Reserved),
            },
            marks: Marks {
                ecn: flags >> ECN_SHIFT & ECN_MASK,
                dscp: raw[DSCP],
            },
            transport: if flags & TCP_BIT != 0 {
                Transport::Tcp
            } else {
                Transport::Udp
            },
            endpoint: LocalEndpoint(raw[ENDPOINT]),
            client: ClientSocket::from_octets(
                field(raw, ADDRESS),
                u16::from_be_bytes(field(raw, PORT)),
            ),
            session: SessionRef::from_bytes(field(raw, SESSION)),
            cookie: Cookie(field(raw, COOKIE)),
        })
    }
}

fn field<const N: usize>(raw: &RawHeader, range: Range<usize>) -> [u8; N] {
    raw[range]
        .try_into()
        .expect("invariant: the range has the field's length")
}

fn direction_bits(direction: Direction) -> u8 {
    match direction {
        Direction::ToTransceiver => 0,
        Direction::ToClient => 1,
        Direction::Control => 2,
    }
}

/// The way back: `raw` with the direction set to `direction` and the marks to `marks`. All that
/// addresses the flow, cookie included, stays as it was.
pub fn return_header(raw: &RawHeader, direction: Direction, marks: Marks) -> RawHeader {
    let mut back = *raw;
    back[LENGTH].fill(0);
    back[FLAGS] = raw[FLAGS] & TCP_BIT | direction_bits(direction) | marks.ecn << ECN_SHIFT;
    back[DSCP] = marks.dscp;
    back
}

/// Whether two raw headers name the same flow: all but length, direction and marks agree.
pub fn same_flow(a: &RawHeader, b: &RawHeader) -> bool {
    a[FLAGS] & TCP_BIT == b[FLAGS] & TCP_BIT && a[ENDPOINT..] == b[ENDPOINT..]
}

/// What opens a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// The receiving process's shard, which steers the bundle to its worker.
    pub destination: ShardIndex,
    /// The sending process's shard, where answers go.
    pub source: ShardIndex,
    /// The sending process, as its configuration numbers it.
    pub sender: u16,
    /// How many records follow.
    pub count: u8,
}

impl Preamble {
    /// The preamble's bytes.
    pub fn to_bytes(self) -> [u8; PREAMBLE_BYTES] {
        let [s0, s1] = self.sender.to_be_bytes();
        let Self {
            destination,
            source,
            count,
            ..
        } = self;
        [
            INNER_LEG_FIRST_BYTE,
            VERSION << 4,
            destination.0,
            source.0,
            s0,
            s1,
            count,
            0,
        ]
    }
}

/// Why a datagram on the inner port is not a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// The first byte, the version or the length is not a bundle's.
    #[error("not a bundle of this version")]
    Preamble,
    /// A record runs past the end of the datagram.
    #[error("a record runs past the end of the bundle")]
    Truncated,
    /// A reserved bit is set, or the direction is unknown.
    #[error("a reserved bit is set")]
    Reserved,
    /// A control message of an unknown kind or length.
    #[error("unknown control message")]
    Control,
}

/// A checked view of a bundle: all its records lie within the datagram.
#[derive(Debug, Clone, Copy)]
pub struct BundleView<'a> {
    preamble: Preamble,
    records: &'a [u8],
}

/// One record of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The header, decoded.
    pub header: RecordHeader,
    /// The header as it came: the way back.
    pub raw_header: &'a RawHeader,
    /// The client's datagram, or a [`Control`] message.
    pub payload: &'a [u8],
}

impl<'a> BundleView<'a> {
    /// Checks the preamble and that every record fits; the headers are judged one by one as they
    /// are iterated, so that one bad record costs no other.
    ///
    /// # Errors
    /// [`BundleError::Preamble`] or [`BundleError::Truncated`].
    pub fn parse(datagram: &'a [u8]) -> Result<Self, BundleError> {
        let (head, records) = datagram
            .split_first_chunk::<PREAMBLE_BYTES>()
            .ok_or(BundleError::Preamble)?;
        let [first, version, destination, source, s0, s1, count, reserved] = *head;
        if first != INNER_LEG_FIRST_BYTE || version != VERSION << 4 || reserved != 0 {
            return Err(BundleError::Preamble);
        }
        let mut rest = records;
        for _ in 0..count {
            (_, rest) = split_record(rest).ok_or(BundleError::Truncated)?;
        }
        let used = records.len() - rest.len();
        let preamble = Preamble {
            destination: ShardIndex(destination),
            source: ShardIndex(source),
            sender: u16::from_be_bytes([s0, s1]),
            count,
        };
        Ok(Self {
            preamble,
            records: &records[..used],
        })
    }

    /// The bundle's preamble.
    pub fn preamble(&self) -> Preamble {
        self.preamble
    }

    /// The records, in the order in which the sender received them.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'a>, BundleError>> + use<'a> {
        let mut rest = self.records;
        std::iter::from_fn(move || {
            let ((raw_header, payload), behind) = split_record(rest)?;
            rest = behind;
            Some(RecordHeader::from_raw(raw_header).map(|header| Record {
                header,
                raw_header,
                payload,
            }))
        })
    }
}

type RawRecord<'a> = (&'a RawHeader, &'a [u8]);

fn split_record(bytes: &[u8]) -> Option<(RawRecord<'_>, &[u8])> {
    let (raw_header, behind) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let payload_bytes = usize::from(u16::from_be_bytes([raw_header[0], raw_header[1]]));
    let (payload, rest) = behind.split_at_checked(payload_bytes)?;
    Some(((raw_header, payload), rest))
}

/// Appends one record to `bundle`, and returns how many bytes it took.
///
/// # Panics
/// When `payload` exceeds [`PAYLOAD_BYTES_MAX`]; callers check before.
pub fn push_record(bundle: &mut Vec<u8>, raw_header: &RawHeader, payload: &[u8]) -> usize {
    assert!(
        payload.len() <= PAYLOAD_BYTES_MAX,
        "invariant: the caller checked the length"
    );
    let length = (payload.len() as u16).to_be_bytes();
    bundle.extend_from_slice(&length);
    bundle.extend_from_slice(&raw_header[LENGTH.end..]);
    bundle.extend_from_slice(payload);
    RECORD_HEADER_BYTES + payload.len()
}

/// What the two ends of the inner leg say to each other about one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// The session ended: the flow can be freed at once.
    FlowClosed,
}

impl Control {
    const FLOW_CLOSED: u8 = 1;

    /// The message's payload.
    pub fn to_bytes(self) -> [u8; 1] {
        match self {
            Self::FlowClosed => [Self::FLOW_CLOSED],
        }
    }

    /// Reads the payload of a control record.
    ///
    /// # Errors
    /// [`BundleError::Control`] for a kind that this version does not know.
    pub fn parse(payload: &[u8]) -> Result<Self, BundleError> {
        match payload {
            [Self::FLOW_CLOSED] => Ok(Self::FlowClosed),
            _ => Err(BundleError::Control),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PREAMBLE: Preamble = Preamble {
        destination: ShardIndex(3),
        source: ShardIndex(1),
        sender: 0x0a0b,
        count: 2,
    };

    fn header() -> RecordHeader {
        RecordHeader {
            direction: Direction::ToTransceiver,
            marks: Marks::from_traffic_class(0xba),
            transport: Transport::Udp,
            endpoint: LocalEndpoint(4),
            client: ClientSocket::new("192.0.2.1:4660".parse().unwrap()),
            session: SessionRef::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]),
            cookie: Cookie([0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7]),
        }
    }

    fn bundle(payloads: &[&[u8]]) -> Vec<u8> {
        let preamble = Preamble {
            count: payloads.len() as u8,
            ..PREAMBLE
        };
        let mut bytes = Vec::from(preamble.to_bytes());
        for payload in payloads {
            push_record(&mut bytes, &header().to_raw(), payload);
        }
        bytes
    }

    #[test]
    fn a_bundle_of_two_records_has_the_golden_bytes() {
        let mut want = vec![0x0c, 0x10, 0x03, 0x01, 0x0a, 0x0b, 0x02, 0x00];
        for payload in [&b"hi"[..], b""] {
            want.extend([0, payload.len() as u8, 0b0000_1000, 0x2e, 4, 0, 0x12, 0x34]);
            want.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
            want.extend([
                1, 2, 3, 4, 5, 6, 7, 8, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7,
            ]);
            want.extend(payload);
        }
        assert_eq!(bundle(&[b"hi", b""]), want);
    }

    #[test]
    fn reads_back_every_record_and_ignores_the_padding() {
        let mut bytes = bundle(&[b"hi", b"", b"there"]);
        bytes.resize(400, 0);
        let view = BundleView::parse(&bytes).unwrap();
        assert_eq!(
            view.preamble(),
            Preamble {
                count: 3,
                ..PREAMBLE
            }
        );
        let records: Vec<_> = view.records().map(Result::unwrap).collect();
        assert_eq!(records.len(), 3);
        assert!(records.iter().all(|record| record.header == header()));
        let payloads: Vec<_> = records.iter().map(|record| record.payload).collect();
        assert_eq!(payloads, [&b"hi"[..], b"", b"there"]);
    }

    #[test]
    fn refuses_each_kind_of_invalid_bundle_by_its_own_reason() {
        let good = bundle(&[b"hi"]);
        let parse = |bytes: &[u8]| BundleView::parse(bytes).map(|_| ()).unwrap_err();
        assert_eq!(parse(&[]), BundleError::Preamble);
        assert_eq!(parse(&good[..7]), BundleError::Preamble);
        assert_eq!(parse(&good[..good.len() - 1]), BundleError::Truncated);
        assert_eq!(parse(&good[..20]), BundleError::Truncated);
        for (at, value) in [(0, 0x80), (1, 0x20), (1, 0x11), (7, 1)] {
            let mut bent = good.clone();
            bent[at] = value;
            assert_eq!(parse(&bent), BundleError::Preamble, "byte {at}");
        }
        for (at, value) in [(2, 0b11), (2, 0b10_0000), (3, 0x40), (5, 1)] {
            let mut bent = good.clone();
            bent[PREAMBLE_BYTES + at] = value;
            let view = BundleView::parse(&bent).unwrap();
            let records: Vec<_> = view.records().collect();
            assert_eq!(records, [Err(BundleError::Reserved)], "byte {at}");
        }
    }

    #[test]
    fn the_way_back_keeps_the_addressing_and_takes_its_own_marks() {
        let raw = header().to_raw();
        let back = return_header(&raw, Direction::ToClient, Marks::default());
        assert!(same_flow(&raw, &back));
        let decoded = RecordHeader::from_raw(&back).unwrap();
        let want = RecordHeader {
            direction: Direction::ToClient,
            marks: Marks::default(),
            ..header()
        };
        assert_eq!(decoded, want);
        let mut other = raw;
        other[39] ^= 1;
        assert!(!same_flow(&raw, &other));
    }

    #[test]
    fn control_messages_round_trip_and_unknown_ones_are_refused() {
        assert_eq!(
            Control::parse(&Control::FlowClosed.to_bytes()),
            Ok(Control::FlowClosed)
        );
        assert_eq!(Control::parse(&[]), Err(BundleError::Control));
        assert_eq!(Control::parse(&[0]), Err(BundleError::Control));
        assert_eq!(Control::parse(&[1, 1]), Err(BundleError::Control));
    }

    fn any_header() -> impl Strategy<Value = RecordHeader> {
        let direction = prop_oneof![
            Just(Direction::ToTransceiver),
            Just(Direction::ToClient),
            Just(Direction::Control)
        ];
        (
            direction,
            any::<(u8, bool, u8, [u8; 16], u16, [u8; 8], [u8; 8])>(),
        )
            .prop_map(
                |(direction, (class, tcp, endpoint, octets, port, session, cookie))| RecordHeader {
                    direction,
                    marks: Marks::from_traffic_class(class),
                    transport: if tcp { Transport::Tcp } else { Transport::Udp },
                    endpoint: LocalEndpoint(endpoint),
                    client: ClientSocket::from_octets(octets, port),
                    session: SessionRef::from_bytes(session),
                    cookie: Cookie(cookie),
                },
            )
    }

    proptest! {
        #[test]
        fn headers_round_trip(header in any_header()) {
            prop_assert_eq!(RecordHeader::from_raw(&header.to_raw()), Ok(header));
        }

        #[test]
        fn no_bytes_make_parsing_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = bytes.first_mut() {
                *first = INNER_LEG_FIRST_BYTE;
            }
            if let Ok(view) = BundleView::parse(&bytes) {
                prop_assert_eq!(view.records().count(), usize::from(view.preamble().count));
            }
        }
    }
}
