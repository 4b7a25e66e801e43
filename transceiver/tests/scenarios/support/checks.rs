//! Connectivity checks made by hand.

use syrinx_shared::route::ClusterId;
use syrinx_shared::wire::stun::{Integrity, RequestWriter};
use syrinx_shared::wire::ufrag::mint;

use super::World;

/// A check as a client that knows `password` would send it.
pub(crate) fn check(world: &World, client: usize, password: &[u8], nominate: bool) -> Vec<u8> {
    let client = &world.clients[client];
    let minted = mint(
        &world.keys,
        ClusterId(1),
        client.session,
        world.now().wall,
        77,
    )
    .unwrap();
    let client_ufrag = client
        .offer
        .lines()
        .find_map(|line| line.strip_prefix("a=ice-ufrag:"));
    RequestWriter {
        server_ufrag: minted.ufrag.as_bytes(),
        client_ufrag: client_ufrag.unwrap().as_bytes(),
        password,
        transaction_id: *b"abcdefghijkl",
        nominate,
        integrity: Integrity::Sha1,
    }
    .to_bytes()
}
