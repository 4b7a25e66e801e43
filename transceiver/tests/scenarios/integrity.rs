//! Checks whose integrity is of the younger kind (RFC 8489): MESSAGE-INTEGRITY-SHA256 instead of
//! MESSAGE-INTEGRITY or beside it, and USERHASH instead of USERNAME.

use super::support::*;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha256;
use std::time::Duration;
use syrinx_shared::wire::encap::RecordHeader;
use syrinx_transceiver::session::EndReason;

const HEADER_BYTES: usize = 20;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const SHA256_INTEGRITY: u16 = 0x001c;
const USERHASH: u16 = 0x001e;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const PRIORITY: u16 = 0x0024;
const FINGERPRINT: u16 = 0x8028;
const ICE_CONTROLLED: u16 = 0x8029;
const ICE_CONTROLLING: u16 = 0x802a;

/// The attributes of a STUN message: where each starts, its kind, its value.
fn attributes(message: &[u8]) -> Vec<(usize, u16, &[u8])> {
    let (mut at, mut found) = (HEADER_BYTES, Vec::new());
    while at < message.len() {
        let kind = u16::from_be_bytes([message[at], message[at + 1]]);
        let bytes = usize::from(u16::from_be_bytes([message[at + 2], message[at + 3]]));
        found.push((at, kind, &message[at + 4..at + 4 + bytes]));
        at += 4 + bytes.next_multiple_of(4);
    }
    found
}

fn kinds(message: &[u8]) -> Vec<u16> {
    let kinds = attributes(message).into_iter().map(|(_, kind, _)| kind);
    kinds.collect()
}

/// Closes a message that is not closed by an attribute of `kind`, as RFC 8489 (14.5, 14.6) says.
fn close<M: Mac + KeyInit>(
    mut message: Vec<u8>,
    kind: u16,
    password: &[u8],
    bytes: usize,
) -> Vec<u8> {
    let length = u16::try_from(message.len() - HEADER_BYTES + 4 + bytes).unwrap();
    message[2..4].copy_from_slice(&length.to_be_bytes());
    let mut mac = <M as KeyInit>::new_from_slice(password).unwrap();
    mac.update(&message);
    message.extend(kind.to_be_bytes());
    message.extend(u16::try_from(bytes).unwrap().to_be_bytes());
    message.extend(&mac.finalize().into_bytes()[..bytes]);
    message
}

/// A check up to where it is closed.
fn open_check(world: &World, client: usize, nominate: bool) -> Vec<u8> {
    let password = world.clients[client].password;
    let mut message = check(world, client, &password, nominate);
    message.truncate(message.len() - 24);
    message
}

fn sha256(message: Vec<u8>, password: &[u8]) -> Vec<u8> {
    close::<Hmac<Sha256>>(message, SHA256_INTEGRITY, password, 32)
}

fn sha1(message: Vec<u8>, password: &[u8]) -> Vec<u8> {
    close::<Hmac<Sha1>>(message, MESSAGE_INTEGRITY, password, 20)
}

/// The one answer to a check: to the address it came from, closed by `integrity` and nothing else.
fn assert_answered(sent: &[Sent], header: &RecordHeader, password: &[u8], integrity: u16) {
    let [answer] = sent else {
        panic!("one answer to one check: {sent:?}");
    };
    let payload = &answer.payload;
    assert_eq!(answer.header.client, header.client);
    assert_eq!(payload[..2], [1, 1], "a Binding success response");
    assert_eq!(payload[8..20], *b"abcdefghijkl");
    assert_eq!(kinds(payload), [XOR_MAPPED_ADDRESS, integrity, FINGERPRINT]);
    let [(_, _, mapped), (at, _, _), (end, _, fingerprint)] = attributes(payload)[..] else {
        panic!("three attributes");
    };
    // Family and port of IPv4, the port combined with the cookie's upper half (14.2).
    let port = header.client.addr().port() ^ 0x2112;
    assert_eq!(mapped[..4], [&[0, 1], &port.to_be_bytes()[..]].concat());
    let open = payload[..at].to_vec();
    let closed = match integrity {
        SHA256_INTEGRITY => sha256(open, password),
        _ => sha1(open, password),
    };
    assert_eq!(payload[at..end], closed[at..], "its integrity holds");
    let sum = crc32fast::hash(&payload[..end]) ^ 0x5354_554e;
    assert_eq!(fingerprint, sum.to_be_bytes());
}

fn header(world: &World, client: usize) -> RecordHeader {
    world.header(world.clients[client].session, world.clients[client].addr)
}

/// A call of which nothing has come yet.
fn called() -> (World, usize, [u8; 32], RecordHeader) {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let header = header(&world, client);
    let password = world.clients[client].password;
    (world, client, password, header)
}

#[test]
fn a_check_closed_by_sha256_alone_is_answered_in_kind_and_admits() {
    let (mut world, client, password, header) = called();
    for (nominate, bytes) in [(false, 32), (true, 32), (true, 16)] {
        let open = open_check(&world, client, nominate);
        // It may be cut to 16 bytes (14.6).
        let closed = close::<Hmac<Sha256>>(open, SHA256_INTEGRITY, &password, bytes);
        let sent = world.inject(&header, &closed);
        assert_answered(&sent, &header, &password, SHA256_INTEGRITY);
    }
    world.connect();
    assert_eq!(world.dropped(), []);
}

#[test]
fn a_call_whose_checks_are_all_closed_by_sha256_goes_on_for_as_long_as_they_come() {
    let (mut world, client, password, mut header) = called();
    world.connect();
    world.clients[client].loses = Loses::Everything;
    for _ in 0..10 {
        world.run(Duration::from_secs(5));
        let closed = sha256(open_check(&world, client, false), &password);
        let sent = world.inject(&header, &closed);
        assert_answered(&sent, &header, &password, SHA256_INTEGRITY);
    }
    assert_eq!(world.shard.session_count(), 1);
    // It nominates another address.
    header = world.header(
        world.clients[client].session,
        "198.51.100.7:7000".parse().unwrap(),
    );
    let closed = sha256(open_check(&world, client, true), &password);
    let sent = world.inject(&header, &closed);
    assert_answered(&sent, &header, &password, SHA256_INTEGRITY);
    let session = world.clients[client].session;
    let summary = world.shard.inspect(world.now, session).unwrap();
    assert_eq!(summary.client, Some(header.client));
    // One of the older kind is answered in its own.
    let closed = sha1(open_check(&world, client, true), &password);
    let sent = world.inject(&header, &closed);
    assert_answered(&sent, &header, &password, MESSAGE_INTEGRITY);
    assert_eq!(world.shard.counters().ended(EndReason::ClientSilent), 0);
}

#[test]
fn of_both_kinds_the_stronger_one_counts_and_is_answered_in() {
    let (mut world, client, password, header) = called();
    let open = open_check(&world, client, true);
    let both = sha256(sha1(open.clone(), &password), &password);
    let sent = world.inject(&header, &both);
    assert_answered(&sent, &header, &password, SHA256_INTEGRITY);

    let forged = sha256(sha1(open.clone(), &password), b"another");
    assert!(world.inject(&header, &forged).is_empty());
    assert_eq!(world.dropped(), [("bad_integrity", 1)]);
}

#[test]
fn sha256_made_without_the_password_changes_nothing() {
    let (mut world, client, password, header) = called();
    let open = open_check(&world, client, true);
    let good = sha256(open.clone(), &password);
    let short = close::<Hmac<Sha256>>(open.clone(), SHA256_INTEGRITY, &password, 12);
    let odd = close::<Hmac<Sha256>>(open.clone(), SHA256_INTEGRITY, &password, 30);
    let bare = {
        let mut bare = open.clone();
        let length = u16::try_from(bare.len() - HEADER_BYTES).unwrap();
        bare[2..4].copy_from_slice(&length.to_be_bytes());
        bare
    };
    for forged in [sha256(open, b"another"), short, odd, bare] {
        assert!(world.inject(&header, &forged).is_empty());
    }
    for at in HEADER_BYTES..good.len() {
        let mut bent = good.clone();
        bent[at] ^= 1;
        assert!(world.inject(&header, &bent).is_empty(), "byte {at}");
    }
    assert_nothing_has_come(&world, client);
}

#[test]
fn a_user_who_is_named_by_a_hash_is_counted_and_not_answered() {
    let (mut world, client, password, header) = called();
    let mut open = open_check(&world, client, true);
    let username = attributes(&open)[0].2.len();
    open[HEADER_BYTES..HEADER_BYTES + 2].copy_from_slice(&USERHASH.to_be_bytes());
    assert!(username >= 32, "as long as a USERHASH at least");
    for hashed in [sha256(open.clone(), &password), sha1(open, &password)] {
        assert!(world.inject(&header, &hashed).is_empty());
    }
    assert_eq!(world.dropped(), [("malformed_stun", 2)]);
    assert_nothing_has_come(&world, client);
}

#[test]
fn authenticated_checks_are_answered_whatever_else_is_in_them_or_is_not() {
    let (mut world, client, password, header) = called();
    let open = open_check(&world, client, false);
    let (priority, ..) = attributes(&open)
        .into_iter()
        .find(|(_, kind, _)| *kind == PRIORITY)
        .unwrap();
    let mut without_priority = open.clone();
    without_priority.drain(priority..priority + 8);
    let (role, ..) = attributes(&open)
        .into_iter()
        .find(|(_, kind, _)| *kind == ICE_CONTROLLING)
        .unwrap();
    let mut controlled = open.clone();
    controlled[role..role + 2].copy_from_slice(&ICE_CONTROLLED.to_be_bytes());
    let mut unknown = open;
    unknown.extend([0x7f, 0xff, 0, 4, 1, 2, 3, 4, 0xff, 0xff, 0, 1, 9, 0, 0, 0]);
    for odd in [without_priority, controlled, unknown] {
        let sent = world.inject(&header, &sha1(odd, &password));
        assert_answered(&sent, &header, &password, MESSAGE_INTEGRITY);
    }
    world.connect();
    assert_eq!(world.dropped(), []);
}

fn assert_nothing_has_come(world: &World, client: usize) {
    let session = world.clients[client].session;
    let summary = world.shard.inspect(world.now, session).unwrap();
    assert_eq!((summary.phases.first_check, summary.client), (None, None));
    assert_eq!(summary.counts.datagrams_in, 0);
}
