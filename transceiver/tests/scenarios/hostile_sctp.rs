//! A client that proves who it is, and then speaks nonsense inside DTLS: it harms only itself. And
//! one that is only in a hurry.
//!
//! The client is made by hand: one check, `dimpl` for the handshake, and SCTP (RFC 9260) written
//! byte by byte, before an association exists and within one.

use std::net::SocketAddr;
use std::sync::Arc;

use super::support::*;
use dimpl::Dtls;
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use str0m::crypto::dtls::DtlsOutput;
use syrinx_shared::route::SessionRef;
use syrinx_shared::wire::encap::Direction;
use syrinx_shared::wire::stun::{Integrity, RequestWriter};
use syrinx_transceiver::backend::echo::Echo;
use syrinx_transceiver::engine::MESSAGE_IN_BYTES_MAX;
use syrinx_transceiver::session::EndReason;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
/// The parameter of an INIT ACK that the cookie is in.
const STATE_COOKIE: u16 = 7;
const OUR_TAG: u32 = 0x5eed_1234;

struct Impostor {
    dtls: Dtls,
    session: SessionRef,
    addr: SocketAddr,
    connected: bool,
}

impl Impostor {
    /// Opens a call, and comes as far as the end of the DTLS handshake.
    fn connect(world: &mut World) -> Self {
        let addr = "192.0.2.66:6000".parse().unwrap();
        let crypto = str0m::crypto::from_feature_flags();
        let certificate = crypto.dtls_provider.generate_certificate().unwrap();
        let digest = Sha256::digest(&certificate.certificate);
        let digest: Vec<_> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        let mut offer = Client::new(world.now, "192.0.2.66:6000").offer;
        let stated = attribute(&offer, "a=fingerprint:").to_owned();
        offer = offer.replace(&stated, &format!("sha-256 {}", digest.join(":")));

        let session = world.reference();
        let (opening, answer) = world.opening(session, &offer, Box::new(Echo::default()));
        let password = opening.password;
        let now = world.now();
        let mut wire = Wire::default();
        world.shard.open(now, opening, &mut wire).unwrap();
        let check = RequestWriter {
            server_ufrag: attribute(&answer, "a=ice-ufrag:").as_bytes(),
            client_ufrag: attribute(&offer, "a=ice-ufrag:").as_bytes(),
            password: &password,
            transaction_id: [7; 12],
            nominate: true,
            integrity: Integrity::Sha1,
        };
        let header = world.header(session, addr);
        assert_eq!(world.inject(&header, &check.to_bytes()).len(), 1);

        let config = Arc::new(dimpl::Config::builder().build().unwrap());
        let mut dtls = Dtls::new_12(config, certificate, world.now);
        dtls.set_active(true);
        let mut impostor = Self {
            dtls,
            session,
            addr,
            connected: false,
        };
        impostor.pump(world);
        assert!(impostor.connected, "the handshake ends");
        impostor
    }

    /// Exchanges datagrams until neither side has any; gives what came inside of DTLS.
    fn pump(&mut self, world: &mut World) -> Vec<Vec<u8>> {
        let header = world.header(self.session, self.addr);
        let (mut came, mut buffer) = (Vec::new(), vec![0; 4_096]);
        loop {
            // A DTLS that the other side has ended takes nothing any more.
            let _ = self.dtls.handle_timeout(world.now);
            let mut packets = Vec::new();
            loop {
                match self.dtls.poll_output(&mut buffer) {
                    DtlsOutput::Packet(packet) => packets.push(packet.to_vec()),
                    DtlsOutput::ApplicationData(data) => came.push(data.to_vec()),
                    DtlsOutput::Connected => self.connected = true,
                    DtlsOutput::Timeout(_) => break,
                    _ => {}
                }
            }
            if packets.is_empty() {
                return came;
            }
            for packet in packets {
                for sent in world.inject(&header, &packet) {
                    let is_dtls = (20..64).contains(&sent.payload[0]);
                    if sent.header.direction == Direction::ToClient && is_dtls {
                        let _ = self.dtls.handle_packet(&sent.payload);
                    }
                }
            }
        }
    }

    fn send(&mut self, world: &mut World, inside: &[u8]) -> Vec<Vec<u8>> {
        let _ = self.dtls.send_application_data(inside);
        self.pump(world)
    }

    /// Makes an association; gives the tag that the other side wants to see.
    fn associate(&mut self, world: &mut World) -> u32 {
        let mut init = OUR_TAG.to_be_bytes().to_vec();
        init.extend([0, 1, 0, 0, 0, 16, 0, 16, 0, 0, 0, 1]);
        let answers = self.send(world, &packet(0, &[chunk(INIT, 0, &init)]));
        let answer = answers
            .iter()
            .find(|answer| answer[12] == INIT_ACK)
            .expect("an INIT is answered");
        let tag = u32::from_be_bytes(answer[16..20].try_into().unwrap());
        let cookie = cookie_in(&answer[32..]).expect("with a cookie");
        let answers = self.send(world, &packet(tag, &[chunk(COOKIE_ECHO, 0, cookie)]));
        assert!(answers.iter().any(|answer| answer[12] == COOKIE_ACK));
        tag
    }
}

fn attribute<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.expect("the text has the attribute")
}

/// The cookie among the parameters of an INIT ACK.
fn cookie_in(mut parameters: &[u8]) -> Option<&[u8]> {
    while let Some((head, rest)) = parameters.split_first_chunk::<4>() {
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let bytes = usize::from(u16::from_be_bytes([head[2], head[3]])).checked_sub(4)?;
        if kind == STATE_COOKIE {
            return rest.get(..bytes);
        }
        parameters = rest.get(bytes.next_multiple_of(4)..)?;
    }
    None
}

/// Type, flags, length, value, and padding to four bytes.
fn chunk(kind: u8, flags: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap().to_be_bytes();
    let mut chunk = vec![kind, flags, length[0], length[1]];
    chunk.extend(value);
    chunk.resize(chunk.len().next_multiple_of(4), 0);
    chunk
}

/// Ports, tag, checksum (CRC32c, RFC 9260, appendix A), and the chunks.
fn packet(tag: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut packet = vec![0x13, 0x88, 0x13, 0x88];
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(chunks.concat());
    let mut crc = u32::MAX;
    for byte in &packet {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    packet[8..12].copy_from_slice(&(!crc).to_le_bytes());
    packet
}

/// A whole user message in one DATA chunk (RFC 9260, 3.3.1) on stream 0.
fn data(tsn: u32, sequence: u16, protocol: u32, message: &[u8]) -> Vec<u8> {
    let mut value = tsn.to_be_bytes().to_vec();
    value.extend([0, 0]);
    value.extend(sequence.to_be_bytes());
    value.extend(protocol.to_be_bytes());
    value.extend(message);
    chunk(0, 3, &value)
}

#[test]
fn a_message_right_behind_the_opening_of_its_channel_is_heard() {
    let mut world = World::new();
    let mut client = Impostor::connect(&mut world);
    let tag = client.associate(&mut world);
    // DATA_CHANNEL_OPEN (RFC 8832, 5.1) of a reliable channel named "x"; nothing is waited for.
    let open = [3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, b'x'];
    let (dcep, text) = (50, 51);
    let chunks = [
        data(1, 0, dcep, &open),
        data(2, 1, text, br#"{"type":"first.words"}"#),
    ];
    let answers = client.send(&mut world, &packet(tag, &chunks)).concat();
    let says = |word: &[u8]| answers.windows(word.len()).any(|window| window == word);
    assert!(says(b"session.created") && says(b"first.words"));
}

/// A part of a user message on stream 0: the first, one between or the last.
fn part(tsn: u32, sequence: u16, (is_first, is_last): (bool, bool), message: &[u8]) -> Vec<u8> {
    let mut value = tsn.to_be_bytes().to_vec();
    value.extend([0, 0]);
    value.extend(sequence.to_be_bytes());
    value.extend(51u32.to_be_bytes());
    value.extend(message);
    let flags = u8::from(is_first) << 1 | u8::from(is_last);
    chunk(0, flags, &value)
}

impl Impostor {
    /// Opens a channel named "x", on an association made for it.
    fn open_channel(&mut self, world: &mut World) -> Sender {
        let tag = self.associate(world);
        let open = [3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, b'x'];
        self.send(world, &packet(tag, &[data(1, 0, 50, &open)]));
        Sender {
            tag,
            tsn: 2,
            sequence: 1,
        }
    }

    /// Sends a message in parts, with time for it, and gives what was answered.
    fn say(&mut self, world: &mut World, sender: &mut Sender, message: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        let count = message.chunks(1_000).count();
        for (n, bytes) in message.chunks(1_000).enumerate() {
            let ends = (n == 0, n + 1 == count);
            let part = part(sender.tsn, sender.sequence, ends, bytes);
            answers.extend(self.send(world, &packet(sender.tag, &[part])).concat());
            sender.tsn += 1;
        }
        sender.sequence += 1;
        world.run(TICK * 100);
        answers.extend(self.pump(world).concat());
        answers
    }
}

/// The numbers that are next.
struct Sender {
    tag: u32,
    tsn: u32,
    sequence: u16,
}

/// An event of so many bytes.
fn event_of(bytes: usize) -> String {
    format!("{{\"type\":\"x\",\"pad\":\"{}\"}}", "y".repeat(bytes - 21))
}

#[test]
fn a_message_as_large_as_announced_is_taken_and_a_larger_one_ends_its_senders_call_only() {
    for bytes in [MESSAGE_IN_BYTES_MAX, MESSAGE_IN_BYTES_MAX + 1, 3 << 20] {
        let mut world = World::new();
        let bystander = world.call("192.0.2.10:5000");
        world.connect();
        let mut client = Impostor::connect(&mut world);
        let mut sender = client.open_channel(&mut world);
        let event = event_of(bytes);
        assert_eq!(event.len(), bytes);
        let answers = client.say(&mut world, &mut sender, event.as_bytes());
        // More than may wait for a client, so the echo of it is an error.
        let code = b"event_too_large";
        let is_answered = answers.windows(code.len()).any(|window| window == code);
        let is_taken = bytes == MESSAGE_IN_BYTES_MAX;
        assert_eq!(is_answered, is_taken, "{bytes}");
        assert_eq!(world.shard.session_count(), 1 + usize::from(is_taken));
        let ended = world.shard.counters().ended(EndReason::ClientClosed);
        assert_eq!(ended, u64::from(!is_taken), "{bytes}");
        let now = world.now;
        world.clients[bystander].speak(now, &opus(1));
        world.clients[bystander].say(now, br#"{"type":"x"}"#, false);
        world.run(PACKET * 5);
        assert_eq!(world.clients[bystander].heard.len(), 1);
        assert_eq!(world.clients[bystander].messages.len(), 2);
    }
}

#[derive(Debug, Clone)]
enum Nonsense {
    /// No SCTP at all.
    Bytes(Vec<u8>),
    /// Chunks of known types with any value, the length of the last bent or not.
    Chunks {
        right_tag: bool,
        chunks: Vec<(u8, u8, Vec<u8>)>,
        bent_length: Option<u16>,
    },
}

impl Nonsense {
    fn write(&self, tag: u32) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Chunks {
                right_tag,
                chunks,
                bent_length,
            } => {
                let mut written: Vec<_> = chunks
                    .iter()
                    .map(|(kind, flags, value)| chunk(*kind, *flags, value))
                    .collect();
                if let (Some(length), Some(last)) = (bent_length, written.last_mut()) {
                    last[2..4].copy_from_slice(&length.to_be_bytes());
                }
                packet(if *right_tag { tag } else { !tag }, &written)
            }
        }
    }
}

fn any_nonsense() -> impl Strategy<Value = Nonsense> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    // DATA to SHUTDOWN COMPLETE, RE-CONFIG, PAD, FORWARD TSN, I-DATA, and one that nobody knows.
    let kind = prop::sample::select(vec![
        0u8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 64, 130, 132, 192, 194, 255,
    ]);
    let chunks = prop::collection::vec((kind, any::<u8>(), bytes(60)), 1..4);
    let bent = prop::option::weighted(0.3, any::<u16>());
    prop_oneof![
        1 => bytes(100).prop_map(Nonsense::Bytes),
        6 => (prop::bool::weighted(0.8), chunks, bent).prop_map(
            |(right_tag, chunks, bent_length)| Nonsense::Chunks { right_tag, chunks, bent_length }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nonsense_inside_dtls_harms_only_its_sender(
        associated: bool,
        nonsense in prop::collection::vec(any_nonsense(), 1..60),
    ) {
        let mut world = World::new();
        let bystander = world.call("192.0.2.10:5000");
        world.connect();
        let mut impostor = Impostor::connect(&mut world);
        let tag = if associated { impostor.associate(&mut world) } else { 0 };
        for nonsense in &nonsense {
            impostor.send(&mut world, &nonsense.write(tag));
        }
        for n in 0..5 {
            let now = world.now;
            world.clients[bystander].speak(now, &opus(n));
            world.run(PACKET * 10);
        }
        prop_assert_eq!(world.clients[bystander].heard.len(), 5);
        prop_assert_eq!(world.shard.counters().ended(EndReason::Panicked), 0);
        prop_assert_eq!(world.shard.counters().ended(EndReason::Runaway), 0);
    }
}
