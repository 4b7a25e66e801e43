//! Keys are rotated under a running relay, by the operator's own commands and SIGHUP: the epoch
//! that was added is accepted, the one that was retired is not, and calls notice neither.

use std::process::Command;

use nix::sys::signal::Signal;
use syrinx_bench::process::binary;

use crate::caller::Caller;
use crate::ground::{Ground, Options, drops, total};

/// Runs `syrinx-relay keys`, and says whether it did what it was told.
fn keys(ground: &Ground, arguments: &[&str]) -> bool {
    let output = Command::new(binary("syrinx-relay").unwrap())
        .arg("keys")
        .args(arguments)
        .arg("--file")
        .arg(&ground.keys_file)
        .output()
        .unwrap();
    output.status.success()
}

/// Sends SIGHUP, and waits until the log says what came of it for the `count`-th time.
fn reload(ground: &mut Ground, outcome: &str, count: usize) {
    ground.signal(Signal::SIGHUP);
    let said = ground.relay.wait(outcome, |relay| {
        let lines = relay.log();
        lines.iter().filter(|line| line.contains(outcome)).count() == count
    });
    said.unwrap();
}

const READ: &str = "keys and routes were read again";
const KEPT: &str = "keys and routes are kept as they were";

#[test]
fn keys_rotate_under_a_running_relay_and_no_call_notices() {
    let mut ground = Ground::start(&Options::default());
    let veteran = ground.caller(1);
    veteran.connect(&mut ground.transceivers[0]);
    veteran.converse(&mut ground.transceivers[0], 1);
    let of_the_first_epoch = ground.caller(2);

    // A transceiver that mints before the relay has learned the epoch is ahead of its time.
    assert!(keys(&ground, &["add"]));
    assert!(keys(&ground, &["mint", "--epoch", "1"]));
    let of_the_second_epoch = ground.caller(3);
    of_the_second_epoch.check();
    assert_eq!(drops(&ground.settle_clients(3), "ufrag_epoch"), 1.0);

    reload(&mut ground, READ, 1);
    let all = [&veteran, &of_the_second_epoch, &of_the_first_epoch];
    let converse = |ground: &mut Ground, callers: &[&Caller], number| {
        for caller in callers {
            caller.converse(&mut ground.transceivers[0], number);
        }
    };
    converse(&mut ground, &all[..1], 2);
    for caller in &all[1..] {
        caller.connect(&mut ground.transceivers[0]);
    }
    converse(&mut ground, &all, 3);

    // Retiring waits for the ufrags that live, unless it is forced.
    let retire = ["retire", "--epoch", "0"];
    assert!(!keys(&ground, &retire));
    assert!(keys(&ground, &[&retire[..], &["--force"]].concat()));
    reload(&mut ground, READ, 2);
    veteran.check();
    converse(&mut ground, &all, 4);

    // A file that cannot be read changes nothing.
    let good = std::fs::read_to_string(&ground.keys_file).unwrap();
    std::fs::write(&ground.keys_file, "mint = 9\n").unwrap();
    reload(&mut ground, KEPT, 1);
    std::fs::write(&ground.keys_file, good).unwrap();
    of_the_second_epoch.connect(&mut ground.transceivers[0]);
    converse(&mut ground, &all, 5);

    let exposition = ground.settle_clients(2 + 1 + 1 + 2 + 3 + 1 + 3 + 1 + 3);
    assert_eq!(drops(&exposition, "ufrag_epoch"), 2.0);
    assert_eq!(exposition.sum("syrinx_relay_drops_total", &[]), 2.0);
    assert_eq!(total(&exposition, "flows_created"), 3.0);
    assert!(ground.relay.stop().unwrap().success());
}
