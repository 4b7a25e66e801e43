//! Nothing is allocated for a datagram once a worker has started: counted by an allocator, over
//! both directions, drops included.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use syrinx_relay::driver::metrics::RelayMetrics;
use syrinx_relay::driver::service::{RelayMessage, RelayService};
use syrinx_relay::forwarder::Forwarder;
use syrinx_shared::route::{ClientSocket, Now, ShardIndex};
use syrinx_shared::uring::{
    Batch, IoModel, IoStats, SendQueue, UdpOptions, WorkerSocket, open_udp,
};
use syrinx_shared::wire::train::Trains;
use syrinx_shared::worker::{self, Service, WorkerOptions};

mod support;

use support::{Bench, RTP, bundle, check, check_with, keys, options, routes};

/// Datagrams after which every table and queue has been used once.
const WARM_UP: u64 = 200;

/// The relay's service, with the allocations of its datagram handling counted.
struct Counted {
    service: RelayService,
    datagrams: Arc<AtomicU64>,
    allocations: Arc<AtomicU64>,
}

impl Service for Counted {
    type Message = RelayMessage;

    fn handle_datagrams(&mut self, now: Now, batch: &Batch, queue: &mut SendQueue) {
        let count = allocation_counter::measure(|| {
            self.service.handle_datagrams(now, batch, queue);
        });
        let count_in_batch: usize = batch.iter().map(|one| one.datagrams().count()).sum();
        let handled = self
            .datagrams
            .fetch_add(count_in_batch as u64, Ordering::AcqRel);
        if handled >= WARM_UP {
            self.allocations
                .fetch_add(count.count_total, Ordering::AcqRel);
        }
    }

    fn handle_message(&mut self, now: Now, message: RelayMessage, queue: &mut SendQueue) {
        self.service.handle_message(now, message, queue);
    }

    fn handle_timeout(&mut self, now: Now, queue: &mut SendQueue) {
        self.service.handle_timeout(now, queue);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.service.poll_timeout()
    }

    fn handle_second(&mut self, _: Now, _: &IoStats) {}

    fn handle_stop(&mut self, now: Now, queue: &mut SendQueue) {
        self.service.handle_stop(now, queue);
    }
}

fn nothing_is_allocated(io_model: IoModel) {
    let open = |gro| {
        let options = UdpOptions {
            gro,
            ..UdpOptions::new("127.0.0.1:0".parse().unwrap())
        };
        open_udp(&options).unwrap()
    };
    let (public, inner) = (open(false), open(true));
    let (public_at, inner_at) = (public.local_addr(), inner.local_addr());
    let mut worker_options = WorkerOptions::new(
        "relay-test",
        vec![
            WorkerSocket {
                socket: public,
                large: false,
            },
            WorkerSocket {
                socket: inner,
                large: true,
            },
        ],
    );
    worker_options.io_model = io_model;
    let (datagrams, allocations) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = (Arc::clone(&datagrams), Arc::clone(&allocations));
    let bench = Bench::new();
    let now = bench.now;
    let worker = worker::spawn(worker_options, move |_| {
        let forwarder = Forwarder::new(options(), keys(), routes(), now);
        let trains = Trains::new(ShardIndex(0), 1, 1_400, 4);
        let metrics = RelayMetrics::register(0, &["public".to_owned(), "inner".to_owned()]);
        let service = RelayService::new(forwarder, trains, 1, metrics);
        Counted {
            service,
            datagrams: counts.0,
            allocations: counts.1,
        }
    })
    .unwrap();

    let session = bench.session_named(support::session_name(1, 1), support::CLUSTER, wall());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let caller = ClientSocket::new(client.local_addr().unwrap());
    let record = bench.header_to(caller, &session).to_raw();
    let answers = bundle(&[(record, b"answer"), (record, b"again")]);
    let good = check(&session);
    let forged = check_with(&session, b"wrong");
    for round in 0..2_000u64 {
        for datagram in [&good[..], RTP, &forged[..], b"", &[0xff; 30]] {
            client.send_to(datagram, public_at).unwrap();
        }
        client.send_to(&answers, inner_at).unwrap();
        if round % 20 == 0 {
            wait_for(&datagrams, 6 * (round + 1));
        }
    }
    wait_for(&datagrams, 6 * 2_000);
    assert_eq!(allocations.load(Ordering::Acquire), 0);
    worker.stop();
    worker.join().unwrap();
    // The counter is live: it sees an allocation when there is one.
    assert_ne!(
        allocation_counter::measure(|| drop(vec![bench.now; 3])).count_total,
        0
    );
}

fn wall() -> syrinx_shared::route::UnixMinutes {
    let seconds = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    syrinx_shared::route::UnixMinutes(u32::try_from(seconds / 60).unwrap())
}

/// Waits until the worker has handled `count` datagrams.
fn wait_for(datagrams: &AtomicU64, count: u64) {
    let started = Instant::now();
    while datagrams.load(Ordering::Acquire) < count {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the worker fell silent"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn nothing_is_allocated_for_a_datagram_on_the_ring() {
    nothing_is_allocated(IoModel::Ring);
}

#[test]
fn nothing_is_allocated_for_a_datagram_on_recvmmsg() {
    nothing_is_allocated(IoModel::Mmsg);
}
