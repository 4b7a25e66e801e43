//! A caller, played by the test: one socket that checks as an ICE agent does and speaks RTP whose
//! every byte is known.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

use syrinx_shared::route::SessionRef;
use syrinx_shared::wire::stun::{Integrity, RequestWriter};
use syrinx_shared::wire::ufrag::Minted;

use crate::transceiver::{Arrival, PATIENCE, Transceiver};

/// ICMP errors of an earlier datagram that one send or receive may be told of.
const REFUSALS_MAX: usize = 1_000;
/// A voice packet's payload, in bytes.
const SPEECH_BYTES: usize = 120;

/// One caller of one session.
pub(crate) struct Caller {
    pub(crate) socket: UdpSocket,
    session: SessionRef,
    minted: Minted,
}

/// A Binding request as an ICE agent with these credentials sends it, unlike every one before.
pub(crate) fn check(minted: &Minted, password: &[u8]) -> Vec<u8> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut transaction_id = [0; 12];
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    transaction_id[..4].copy_from_slice(&count.to_be_bytes());
    RequestWriter {
        server_ufrag: minted.ufrag.as_bytes(),
        client_ufrag: b"abcd",
        password,
        transaction_id,
        nominate: true,
        integrity: Integrity::Sha1,
    }
    .to_bytes()
}

/// RTP of version 2 and a dynamic payload type, all of whose bytes follow from `number`.
pub(crate) fn speech(number: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 111];
    packet.extend_from_slice(&number.to_be_bytes());
    let pattern = number.wrapping_mul(0x9e37_79b1).to_le_bytes();
    packet.extend(pattern.iter().cycle().take(SPEECH_BYTES));
    packet
}

impl Caller {
    /// A caller at `from` who reaches the relay at `to`, and hears nobody else.
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, named: (SessionRef, Minted)) -> Self {
        let socket = UdpSocket::bind(from).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (session, minted) = named;
        Self {
            socket,
            session,
            minted,
        }
    }

    /// Sends a check, and gives its bytes.
    pub(crate) fn check(&self) -> Vec<u8> {
        let request = check(&self.minted, &self.minted.password);
        self.speak(&request);
        request
    }

    /// Checks, and gives what the transceiver makes of it: the way back.
    pub(crate) fn connect(&self, transceiver: &mut Transceiver) -> Arrival {
        let arrival = transceiver.receive_payload(&self.check());
        assert_eq!(arrival.header.session, self.session);
        arrival
    }

    pub(crate) fn speak(&self, payload: &[u8]) {
        for _ in 0..REFUSALS_MAX {
            match self.socket.send(payload) {
                Ok(bytes) => return assert_eq!(bytes, payload.len()),
                // The error of a datagram before this one, which was not sent for it.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => panic!("{error}"),
            }
        }
        panic!("refused {REFUSALS_MAX} times");
    }

    /// The next datagram that comes.
    pub(crate) fn hear(&self) -> Vec<u8> {
        let mut bytes = [0; 1 << 16];
        for _ in 0..REFUSALS_MAX {
            match self.socket.recv(&mut bytes) {
                Ok(count) => return bytes[..count].to_vec(),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => panic!("nothing reaches the caller: {error}"),
            }
        }
        panic!("refused {REFUSALS_MAX} times");
    }

    /// Passes over everything that is here already, and says how many datagrams that were.
    pub(crate) fn drain(&self) -> usize {
        self.socket.set_nonblocking(true).unwrap();
        let mut count = 0;
        let mut bytes = [0; 2_048];
        for _ in 0..usize::MAX {
            match self.socket.recv(&mut bytes) {
                Ok(_) => count += 1,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.socket.set_nonblocking(false).unwrap();
        count
    }

    /// One packet each way on the flow as it is, without a check: both arrive, whole, in the
    /// session of this caller, and nothing else is heard before the answer.
    pub(crate) fn converse(&self, transceiver: &mut Transceiver, number: u32) -> Arrival {
        let uplink = speech(number);
        self.speak(&uplink);
        let arrival = transceiver.receive_payload(&uplink);
        assert_eq!(arrival.header.session, self.session);
        let downlink = speech(!number);
        transceiver.send(&arrival, &downlink);
        assert_eq!(self.hear(), downlink);
        arrival
    }
}
