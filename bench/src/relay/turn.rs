//! As much TURN (RFC 8656) as it takes to use coturn as a reference: Allocate, ChannelBind and
//! ChannelData over UDP, without credentials, as a client.

use std::net::{IpAddr, SocketAddr};

/// STUN's magic cookie (RFC 8489 section 5).
pub const MAGIC_COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
/// Length of the header of ChannelData (RFC 8656 section 12.4).
pub const CHANNEL_HEADER_BYTES: usize = 4;

const ALLOCATE: u16 = 0x0003;
const CHANNEL_BIND: u16 = 0x0009;
/// The class bits of a success response (RFC 8489 section 5).
const SUCCESS: u16 = 0x0100;
const CHANNEL_NUMBER: u16 = 0x000c;
const XOR_PEER_ADDRESS: u16 = 0x0012;
const REQUESTED_TRANSPORT: u16 = 0x0019;
/// UDP's protocol number, in the first byte of REQUESTED-TRANSPORT.
const UDP: [u8; 4] = [17, 0, 0, 0];
/// Each client has one channel, and may give it the first number there is.
const CHANNEL: u16 = 0x4000;

/// What the server granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// An allocation.
    Allocated,
    /// A channel.
    Bound,
}

/// An Allocate request for a UDP relay address.
pub fn allocate(transaction: [u8; 12]) -> Vec<u8> {
    message(
        ALLOCATE,
        transaction,
        &[(REQUESTED_TRANSPORT, UDP.to_vec())],
    )
}

/// A ChannelBind request for `peer`.
///
/// # Panics
/// When `peer` is not IPv4: the yardstick runs on 127.0.0.0/8.
pub fn bind_channel(transaction: [u8; 12], peer: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(address) = peer.ip() else {
        panic!("invariant: the sink's address is IPv4")
    };
    let [cookie_0, cookie_1, ..] = MAGIC_COOKIE;
    let port = peer.port() ^ u16::from_be_bytes([cookie_0, cookie_1]);
    let mut xored = vec![0, 1];
    xored.extend(port.to_be_bytes());
    xored.extend(
        address
            .octets()
            .iter()
            .zip(MAGIC_COOKIE)
            .map(|(octet, mask)| octet ^ mask),
    );
    let mut number = CHANNEL.to_be_bytes().to_vec();
    number.extend([0, 0]);
    message(
        CHANNEL_BIND,
        transaction,
        &[(CHANNEL_NUMBER, number), (XOR_PEER_ADDRESS, xored)],
    )
}

/// What `datagram` grants, when it is a success response to one of our requests.
pub fn success_of(datagram: &[u8]) -> Option<Success> {
    let (kind, rest) = datagram.split_first_chunk::<2>()?;
    if rest.get(2..6)? != MAGIC_COOKIE {
        return None;
    }
    match u16::from_be_bytes(*kind) ^ SUCCESS {
        ALLOCATE => Some(Success::Allocated),
        CHANNEL_BIND => Some(Success::Bound),
        _ => None,
    }
}

/// Writes `datagram` as ChannelData to the front of `to` and returns the length. Over UDP there
/// is no padding.
///
/// # Panics
/// When `to` is too short.
pub fn put_channel_data(to: &mut [u8], datagram: &[u8]) -> usize {
    let length = CHANNEL_HEADER_BYTES + datagram.len();
    to[..2].copy_from_slice(&CHANNEL.to_be_bytes());
    to[2..4].copy_from_slice(&(datagram.len() as u16).to_be_bytes());
    to[CHANNEL_HEADER_BYTES..length].copy_from_slice(datagram);
    length
}

/// The datagram within ChannelData on our channel; some servers pad it to four bytes.
pub fn channel_data(framed: &[u8]) -> Option<&[u8]> {
    let (header, rest) = framed.split_first_chunk::<CHANNEL_HEADER_BYTES>()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    (header[..2] == CHANNEL.to_be_bytes())
        .then(|| rest.get(..length))
        .flatten()
}

fn message(kind: u16, transaction: [u8; 12], attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in attributes {
        body.extend(name.to_be_bytes());
        body.extend((value.len() as u16).to_be_bytes());
        body.extend(value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let mut message = kind.to_be_bytes().to_vec();
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(MAGIC_COOKIE);
    message.extend(transaction);
    message.extend(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_a_udp_allocation() {
        let request = allocate([9; 12]);
        assert_eq!(request[..8], [0, 3, 0, 8, 0x21, 0x12, 0xa4, 0x42]);
        assert_eq!(request[20..], [0, 0x19, 0, 4, 17, 0, 0, 0]);
    }

    #[test]
    fn binds_its_channel_to_the_xored_peer() {
        let request = bind_channel([0; 12], ([127, 0, 0, 1], 0x2112).into());
        assert_eq!(request[20..28], [0, 0x0c, 0, 4, 0x40, 0, 0, 0]);
        let address = [0, 1, 0, 0, 0x7f ^ 0x21, 0x12, 0xa4, 0x43];
        assert_eq!(
            request[28..],
            [[0, 0x12, 0, 8].as_slice(), &address].concat()
        );
    }

    #[test]
    fn frames_and_unframes() {
        let mut framed = [0; 16];
        let length = put_channel_data(&mut framed, b"voice");
        assert_eq!(channel_data(&framed[..length]), Some(b"voice".as_slice()));
        assert_eq!(channel_data(&framed[..length - 1]), None);
        assert_eq!(channel_data(&allocate([0; 12])), None);
    }

    #[test]
    fn knows_success_from_error() {
        let mut answer = allocate([0; 12]);
        assert_eq!(success_of(&answer), None);
        answer[0] = 1;
        assert_eq!(success_of(&answer), Some(Success::Allocated));
        answer[1] = 0x13;
        assert_eq!(success_of(&answer), None);
    }
}
