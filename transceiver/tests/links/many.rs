//! Many links at once, and what is left of them: nothing.

use std::thread;
use std::time::{Duration, Instant};

use syrinx_transceiver::backend::link::LinkEvent;

use crate::backend::{Listener, echo};
use crate::worker::{PATIENCE, Worker, alone, audio, config, descriptor_count, session};

/// Waits until the process has no more descriptors than this.
fn wait_for_descriptors(count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while descriptor_count() > count {
        let left = descriptor_count() - count;
        assert!(
            Instant::now() < deadline,
            "{left} descriptors are left over"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sessions_that_leave_while_they_connect_leave_nothing_behind() {
    let _alone = alone();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let start = descriptor_count();
    // Nobody accepts: some are in the kernel's queue and wait for an answer to their handshake,
    // some are not even connected.
    for slot in 0..200 {
        worker.open(session(slot));
    }
    let deadline = Instant::now() + PATIENCE;
    while descriptor_count() < start + 200 {
        assert!(Instant::now() < deadline, "they should be connecting");
        thread::sleep(Duration::from_millis(1));
    }
    for slot in 0..200 {
        worker.close(session(slot), 1000, "hung up");
    }
    worker.wait_for_no_links();
    wait_for_descriptors(start);
    assert!(
        worker.is_quiet_for(Duration::ZERO),
        "and nobody is told anything"
    );
}

#[test]
fn a_thousand_links_work_side_by_side_and_leave_nothing_behind() {
    const COUNT: u32 = 1_000;
    let _alone = alone();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let start = descriptor_count();
    let backend = thread::spawn(move || {
        let mut threads = Vec::new();
        for _ in 0..COUNT {
            let socket = listener.accept();
            let small = thread::Builder::new().stack_size(128 << 10);
            threads.push(small.spawn(move || echo(socket)).unwrap());
        }
        let said = threads.into_iter().map(|thread| thread.join().unwrap());
        (said.flatten().count(), listener)
    });
    for slot in 0..COUNT {
        worker.open(session(slot));
    }
    for _ in 0..COUNT {
        assert_eq!(worker.next(), LinkEvent::Up);
    }
    for round in 0..3u8 {
        for slot in 0..COUNT {
            worker.send(session(slot), audio(vec![round; 160]));
        }
        let mut answered = std::collections::BTreeSet::new();
        for _ in 0..COUNT {
            let (session, event) = worker.event();
            assert_eq!(event, LinkEvent::Binary(vec![round; 160]));
            assert!(answered.insert(session), "each once");
        }
    }
    assert!(worker.is_quiet_for(Duration::from_millis(300)));
    for slot in 0..COUNT {
        worker.close(session(slot), 1000, "hung up");
    }
    let (goodbyes, _listener) = backend.join().unwrap();
    assert_eq!(goodbyes, COUNT as usize, "each was told");
    worker.wait_for_no_links();
    wait_for_descriptors(start);
}
