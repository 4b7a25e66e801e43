//! Clients that state another hash of their certificate than SHA-256.

use super::support::*;
use sha2::{Digest, Sha384, Sha512};
use syrinx_transceiver::backend::echo::Echo;
use syrinx_transceiver::session::EndReason;

fn call_stating(world: &mut World, fingerprint: impl FnOnce(&[u8]) -> String) -> usize {
    let session = world.reference();
    let mut client = Client::new(world.now, "192.0.2.10:5000");
    let offered = client
        .offer
        .lines()
        .find(|line| line.starts_with("a=fingerprint:"));
    let offered = offered.unwrap().to_owned();
    let stated = format!("a=fingerprint:{}", fingerprint(&client.certificate));
    client.offer = client.offer.replace(&offered, &stated);
    world.call_with(session, client, Box::new(Echo::default()))
}

fn hex(digest: &[u8]) -> String {
    let bytes: Vec<_> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

#[test]
fn the_right_certificate_is_recognised_by_each_hash() {
    type Stated = fn(&[u8]) -> String;
    let all: [Stated; 2] = [
        |certificate| format!("sha-384 {}", hex(&Sha384::digest(certificate))),
        |certificate| {
            format!(
                "SHA-512 {}",
                hex(&Sha512::digest(certificate)).to_uppercase()
            )
        },
    ];
    for stated in all {
        let mut world = World::new();
        let client = call_stating(&mut world, stated);
        world.connect();
        let now = world.now;
        world.clients[client].speak(now, &opus(1));
        world.run(PACKET);
        assert_eq!(world.clients[client].heard.len(), 1);
    }
}

#[test]
fn another_certificate_is_refused_by_each_hash() {
    type Stated = fn(&[u8]) -> String;
    let all: [Stated; 3] = [
        |_| format!("sha-384 {}", hex(&Sha384::digest(b"another"))),
        |_| format!("sha-512 {}", hex(&Sha512::digest(b"another"))),
        // The right digest of the other function, cut to length.
        |certificate| format!("sha-384 {}", hex(&Sha512::digest(certificate)[..48])),
    ];
    for stated in all {
        let mut world = World::new();
        call_stating(&mut world, stated);
        world.run_until("it is refused", |world| world.shard.session_count() == 0);
        assert_eq!(world.shard.counters().ended(EndReason::HandshakeFailed), 1);
    }
}
