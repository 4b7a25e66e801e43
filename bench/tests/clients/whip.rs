//! The same calls opened by WHIP (RFC 9725), as broadcasting programs open them.

use std::process::Command;

use syrinx_bench::namespace::with_namespaces;

use crate::ground::{Api, on_ground};
use crate::libraries::sends_frames;
use crate::program::{prepare, sources};

/// OBS Studio publishes with this library.
#[test]
fn libdatachannel_gets_its_payloads_back_by_whip() {
    with_namespaces(
        "whip::libdatachannel_gets_its_payloads_back_by_whip",
        || {
            let _ = prepare("node");
            on_ground(|ground| {
                ground.api = Api::Whip;
                let program = sources().join("programs/libdatachannel.mjs");
                sends_frames(ground, Command::new("node").arg(program));
            });
        },
    );
}
