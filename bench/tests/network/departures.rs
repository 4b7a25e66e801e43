//! Peers that leave without a word: a transceiver whose port closes under load, a thousand clients
//! that vanish. Their ICMP errors hurt nobody else, their flows are freed, the relay goes on.

use std::net::SocketAddr;

use crate::caller::{check, speech};
use crate::ground::{Ground, Options, flows, total};
use crate::strangers::Strangers;
use crate::transceiver::{Arrival, Transceiver};

const VANISHING: u32 = 1_000;

fn loses_a_transceiver_under_load(io_model: &'static str) {
    let mut ground = Ground::start(&Options {
        io_model,
        transceivers: 2,
        ..Options::default()
    });
    let of_the_dead = ground.caller_of(1, 1);
    let of_the_living = ground.caller_of(2, 1);
    let mut living = ground.transceivers.pop().unwrap();
    let mut dead = ground.transceivers.pop().unwrap();
    of_the_dead.connect(&mut dead);
    of_the_living.connect(&mut living);
    of_the_dead.converse(&mut dead, 0);

    let address: SocketAddr = dead.address();
    drop(dead);
    for number in 0..500 {
        for _ in 0..20 {
            of_the_dead.speak(&speech(number));
        }
        of_the_living.converse(&mut living, number);
    }
    // Back at its address, it is served at once: its clients' flows outlived it.
    let mut back = Transceiver::bind(address);
    of_the_dead.converse(&mut back, 1_000_000);
    of_the_living.converse(&mut living, 1_000_000);

    // One check and one word of each first, then the load, then the last words.
    let exposition = ground.settle_clients(2 + 1 + 500 * 21 + 2);
    assert_eq!(flows(&exposition), 2.0);
    assert_eq!(total(&exposition, "records"), 1.0 + 500.0 + 2.0);
    assert!(ground.relay.stop().unwrap().success());
}

#[test]
fn a_transceiver_that_dies_under_load_takes_nobody_with_it_on_the_ring() {
    loses_a_transceiver_under_load("ring");
}

#[test]
fn a_transceiver_that_dies_under_load_takes_nobody_with_it_on_sendmmsg() {
    loses_a_transceiver_under_load("mmsg");
}

#[test]
fn a_thousand_clients_that_vanish_are_forgotten_and_the_call_goes_on() {
    let mut ground = Ground::start(&Options {
        flows: "idle_timeout_ms = 1_000",
        ..Options::default()
    });
    let caller = ground.caller(0);
    let strangers = Strangers::new(ground.public());
    let mut paths: Vec<Arrival> = Vec::new();
    for index in 0..VANISHING {
        let (_, minted) = ground.session(1, 1 + index);
        let request = check(&minted, &minted.password);
        strangers.send(index, &request);
        let transceiver = &mut ground.transceivers[0];
        let path = transceiver.receive_payload(&request);
        transceiver.send(&path, b"an answer");
        paths.push(path);
        if index % 50 == 0 {
            caller.connect(transceiver);
            caller.converse(transceiver, index);
        }
    }
    // The last answer has passed the relay when the caller's, sent after it, has come.
    caller.connect(&mut ground.transceivers[0]);
    caller.converse(&mut ground.transceivers[0], VANISHING);
    let answered = strangers.answers();
    assert!(answered > 0, "the clients were there");

    drop(strangers);
    let Ground {
        relay,
        transceivers,
        ..
    } = &mut ground;
    let transceiver = &mut transceivers[0];
    for path in &paths {
        transceiver.send(path, b"to a closed port");
    }
    let mut number = VANISHING;
    let forgotten = relay.wait("the flows' end", |relay| {
        number += 1;
        caller.connect(transceiver);
        caller.converse(transceiver, number);
        let exposition = relay.metrics().unwrap();
        let expired = total(&exposition, "flows_expired");
        flows(&exposition) == 1.0 && expired >= f64::from(VANISHING)
    });
    forgotten.unwrap();
    assert!(ground.relay.stop().unwrap().success());
}
