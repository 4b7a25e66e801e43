//! A whole worker on loopback sockets, each scenario on both receive models.
//!
//! The service under test echoes; what it saw is checked by the peer's side, by the counters it
//! published, and by what its messages report back.

#![cfg(feature = "driver")]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket as Peer};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use syrinx_shared::route::Now;
use syrinx_shared::uring::{
    Batch, CLIENT_PAYLOAD_BYTES_MAX, IoModel, IoStats, Send, SendQueue, UdpOptions, WorkerSocket,
    attach_shard_steering, open_udp, open_udp_group,
};
use syrinx_shared::worker::{
    Service, Undelivered, WorkerContext, WorkerFailure, WorkerHandle, WorkerOptions, spawn,
};

const MODELS: [IoModel; 2] = [IoModel::Ring, IoModel::Mmsg];

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the service tells the test.
#[derive(Debug, PartialEq)]
enum Report {
    Received {
        from: SocketAddr,
        payload: Vec<u8>,
        truncated: bool,
    },
    Message(Order),
    Timeout,
    Second(Box<IoStats>),
    Stopped,
}

/// What the test tells the service.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    /// Ask for a deadline this many milliseconds from here.
    Deadline(u64),
    /// Sleep on the worker's thread, as no service should.
    Stall(Duration),
    /// Panic.
    Panic,
}

/// Sends every datagram back to where it came from.
struct Echo {
    reports: Sender<Report>,
    report_datagrams: bool,
    deadline: Option<Instant>,
}

impl Echo {
    fn report(&self, report: Report) {
        // A test that has seen enough drops its end.
        let _ = self.reports.send(report);
    }
}

impl Service for Echo {
    type Message = Order;

    fn handle_datagrams(&mut self, _now: Now, batch: &Batch, queue: &mut SendQueue) {
        let mut sends = queue.begin();
        for received in batch.iter() {
            if self.report_datagrams {
                self.report(Report::Received {
                    from: received.from,
                    payload: received.payload.to_vec(),
                    truncated: received.truncated,
                });
            }
            for payload in received.datagrams() {
                sends.push(Send {
                    socket: received.socket,
                    to: received.from,
                    from_ip: received.local_ip,
                    traffic_class: received.traffic_class,
                    segment_bytes: None,
                    item_count: 1,
                    payload,
                });
            }
        }
    }

    fn handle_message(&mut self, now: Now, order: Order, _queue: &mut SendQueue) {
        self.report(Report::Message(order));
        match order {
            Order::Deadline(ms) => self.deadline = Some(now.mono + Duration::from_millis(ms)),
            Order::Stall(duration) => thread::sleep(duration),
            Order::Panic => panic!("ordered to"),
        }
    }

    fn handle_timeout(&mut self, now: Now, _queue: &mut SendQueue) {
        assert!(self.deadline.is_some_and(|deadline| deadline <= now.mono));
        self.deadline = None;
        self.report(Report::Timeout);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    fn handle_second(&mut self, _now: Now, io: &IoStats) {
        self.report(Report::Second(Box::new(io.clone())));
    }

    fn handle_stop(&mut self, _now: Now, _queue: &mut SendQueue) {
        self.report(Report::Stopped);
    }
}

struct EchoWorker {
    handle: WorkerHandle<Order>,
    address: SocketAddr,
    reports: Receiver<Report>,
}

impl EchoWorker {
    /// A worker on a loopback socket that reports its datagrams.
    fn start(model: IoModel) -> EchoWorker {
        EchoWorker::on(loopback(), model, true, |_| ())
    }

    fn on(
        socket: WorkerSocket,
        model: IoModel,
        report_datagrams: bool,
        prepare: impl FnOnce(&mut WorkerOptions),
    ) -> EchoWorker {
        let address = socket.socket.local_addr();
        let mut options = WorkerOptions::new("echo", vec![socket]);
        options.io_model = model;
        prepare(&mut options);
        let (reports, receiver) = channel();
        let build = move |_: &WorkerContext| Echo {
            reports,
            report_datagrams,
            deadline: None,
        };
        let handle = spawn(options, build).unwrap();
        assert_eq!(handle.io_model(), model);
        EchoWorker {
            handle,
            address,
            reports: receiver,
        }
    }

    /// The next report that is not of counters.
    fn next(&self) -> Report {
        loop {
            let report = self.reports.recv_timeout(PATIENCE);
            match report.expect("the worker reports in time") {
                Report::Second(_) => {}
                report => return report,
            }
        }
    }

    /// Stops the worker and returns its last counters.
    fn stop(self) -> IoStats {
        self.handle.stop();
        self.handle.join().unwrap();
        let reports: Vec<Report> = self.reports.try_iter().collect();
        match reports.as_slice() {
            [.., Report::Stopped, Report::Second(stats)] => *stats.clone(),
            other => panic!("a stop ends with a stop and the last counters: {other:?}"),
        }
    }
}

fn socket(bind: &str) -> WorkerSocket {
    let mut options = UdpOptions::new(bind.parse().unwrap());
    options.receive_buffer_bytes = 64 << 20;
    let socket = open_udp(&options).unwrap();
    WorkerSocket {
        socket,
        large: false,
    }
}

fn loopback() -> WorkerSocket {
    socket("127.0.0.1:0")
}

fn peer() -> Peer {
    let peer = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer
}

#[test]
fn echoes_every_payload_of_many_clients() {
    for model in MODELS {
        let worker = EchoWorker::on(loopback(), model, false, |_| ());
        let clients: Vec<Peer> = (0..200).map(|_| peer()).collect();
        for round in 0u32..20 {
            for (index, client) in clients.iter().enumerate() {
                let mut payload = vec![round as u8; 120 + (index + round as usize) % 80];
                payload[..4].copy_from_slice(&(index as u32).to_be_bytes());
                client.send_to(&payload, worker.address).unwrap();
            }
            for (index, client) in clients.iter().enumerate() {
                let mut buffer = [0; 2048];
                let (length, from) = client.recv_from(&mut buffer).unwrap();
                assert_eq!(from, worker.address);
                assert_eq!(length, 120 + (index + round as usize) % 80);
                assert_eq!(buffer[..4], (index as u32).to_be_bytes());
                assert!(buffer[4..length].iter().all(|byte| *byte == round as u8));
            }
        }
        let stats = worker.stop();
        assert_eq!(stats.received(), 4_000, "{model}");
        assert_eq!(stats.sends().sent_datagrams, 4_000);
        assert_eq!(stats.sends().dropped(), 0);
        let socket = &stats.sockets[0];
        assert_eq!((socket.truncated, socket.receive_errors), (0, 0));
        assert!(stats.batches <= stats.passes);
    }
}

#[test]
fn a_burst_beyond_all_buffers_is_answered_in_full_and_so_is_what_follows() {
    for model in MODELS {
        let worker = EchoWorker::on(loopback(), model, false, |options| {
            options.client_buffers = 32;
        });
        let client = peer_with_room();
        worker
            .handle
            .send(Order::Stall(Duration::from_millis(300)))
            .unwrap();
        for index in 0..10_000u32 {
            client
                .send_to(&index.to_be_bytes(), worker.address)
                .unwrap();
        }
        // Answers come in order, for there is one path and one queue.
        let mut buffer = [0; 16];
        for index in 0..10_000u32 {
            let length = client.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], index.to_be_bytes(), "{model}");
        }
        for index in 0..100u32 {
            client
                .send_to(&index.to_be_bytes(), worker.address)
                .unwrap();
            let length = client.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], index.to_be_bytes(), "{model}");
        }
        let stats = worker.stop();
        assert_eq!(stats.received(), 10_100, "{model}");
        assert_eq!(stats.sockets[0].kernel_dropped, 0, "{model}");
        if model == IoModel::Ring {
            assert!(stats.no_buffers > 0, "32 buffers cannot have been enough");
        }
    }
}

/// A peer whose receive buffer holds ten thousand small answers.
fn peer_with_room() -> Peer {
    let mut options = UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into());
    options.receive_buffer_bytes = 64 << 20;
    let peer = Peer::from(open_udp(&options).unwrap());
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer
}

#[test]
fn a_message_wakes_a_sleeping_worker_and_its_deadline_fires() {
    for model in MODELS {
        let worker = EchoWorker::start(model);
        let start = Instant::now();
        worker.handle.send(Order::Deadline(30)).unwrap();
        assert_eq!(worker.next(), Report::Message(Order::Deadline(30)));
        let woken = start.elapsed();
        assert!(
            woken < Duration::from_millis(500),
            "{woken:?} is no wake-up"
        );
        assert_eq!(worker.next(), Report::Timeout);
        let fired = start.elapsed();
        assert!(fired >= Duration::from_millis(30), "{fired:?}");
        assert!(fired < Duration::from_millis(500), "{fired:?}");
        let stats = worker.stop();
        assert_eq!((stats.messages, stats.timeouts), (1, 1));
    }
}

#[test]
fn messages_arrive_in_order_from_many_senders_and_before_the_stop() {
    for model in MODELS {
        let worker = EchoWorker::start(model);
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let mailbox = worker.handle.mailbox();
                thread::spawn(move || {
                    for ms in 1_000..1_100 {
                        mailbox.send(Order::Deadline(ms)).unwrap();
                    }
                })
            })
            .collect();
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
        let stats = worker.stop();
        assert_eq!(stats.messages, 400, "{model}");
    }
}

#[test]
fn a_full_mailbox_gives_the_message_back_and_recovers() {
    for model in MODELS {
        let worker = EchoWorker::on(loopback(), model, true, |options| {
            options.mailbox_capacity = 2;
        });
        let stall = Order::Stall(Duration::from_millis(200));
        worker.handle.send(stall).unwrap();
        assert_eq!(worker.next(), Report::Message(stall));
        let order = Order::Deadline(60_000);
        worker.handle.send(order).unwrap();
        worker.handle.send(order).unwrap();
        assert_eq!(worker.handle.send(order), Err(Undelivered::Full(order)));
        for _ in 0..2 {
            assert_eq!(worker.next(), Report::Message(order));
        }
        worker.handle.send(Order::Deadline(1)).unwrap();
        assert_eq!(worker.next(), Report::Message(Order::Deadline(1)));
    }
}

#[test]
fn counters_are_published_every_second_without_any_traffic() {
    for model in MODELS {
        let worker = EchoWorker::start(model);
        let start = Instant::now();
        for _ in 0..2 {
            let report = worker.reports.recv_timeout(PATIENCE).unwrap();
            assert!(matches!(report, Report::Second(_)), "{report:?}");
        }
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(1_900), "{elapsed:?}");
        assert!(elapsed < Duration::from_millis(3_500), "{elapsed:?}");
        assert!(worker.stop().passes < 20, "an idle worker sleeps");
    }
}

#[test]
fn empty_and_oversize_datagrams_are_delivered_and_marked() {
    for model in MODELS {
        let worker = EchoWorker::start(model);
        let client = peer();
        let from = client.local_addr().unwrap();
        client.send_to(&[], worker.address).unwrap();
        client.send_to(&[7; 5_000], worker.address).unwrap();
        client.send_to(&[8; 100], worker.address).unwrap();
        let expected = [
            (vec![], false),
            (vec![7; CLIENT_PAYLOAD_BYTES_MAX], true),
            (vec![8; 100], false),
        ];
        for (payload, truncated) in expected {
            let expected = Report::Received {
                from,
                payload,
                truncated,
            };
            assert_eq!(worker.next(), expected, "{model}");
        }
        let socket = worker.stop().sockets[0];
        assert_eq!((socket.received, socket.truncated), (3, 1));
    }
}

#[test]
fn a_wildcard_socket_answers_from_the_address_that_was_asked() {
    for model in MODELS {
        let worker = EchoWorker::on(socket("0.0.0.0:0"), model, false, |_| ());
        for asked in ["127.0.0.1", "127.0.0.77", "127.1.2.3"] {
            let client = peer();
            client
                .send_to(b"who", (asked, worker.address.port()))
                .unwrap();
            let (_, from) = client.recv_from(&mut [0; 8]).unwrap();
            assert_eq!(from.ip().to_string(), asked, "{model}");
        }
    }
}

#[test]
fn steering_takes_each_datagram_to_the_worker_that_it_names() {
    for model in MODELS {
        let mut options = UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into());
        options.gro = true;
        let group = open_udp_group(&options, 3).unwrap();
        attach_shard_steering(&group, 1).unwrap();
        let workers: Vec<EchoWorker> = group
            .into_iter()
            .map(|socket| WorkerSocket {
                socket,
                large: true,
            })
            .map(|socket| EchoWorker::on(socket, model, true, |_| ()))
            .collect();
        for shard in [2u8, 0, 1, 1, 2] {
            let client = peer();
            client.send_to(&[9, shard, 9], workers[0].address).unwrap();
            let expected = Report::Received {
                from: client.local_addr().unwrap(),
                payload: vec![9, shard, 9],
                truncated: false,
            };
            assert_eq!(workers[usize::from(shard)].next(), expected, "{model}");
        }
    }
}

#[test]
fn clients_that_went_away_do_not_hurt_the_ones_that_stay() {
    for model in MODELS {
        let worker = EchoWorker::on(loopback(), model, false, |_| ());
        let stays = peer();
        for round in 0..50u8 {
            let gone = peer();
            worker
                .handle
                .send(Order::Stall(Duration::from_millis(1)))
                .unwrap();
            gone.send_to(b"gone", worker.address).unwrap();
            drop(gone);
            stays.send_to(&[round], worker.address).unwrap();
            let mut buffer = [0; 8];
            assert_eq!(stays.recv(&mut buffer).unwrap(), 1);
            assert_eq!(buffer[0], round, "{model}");
        }
        assert_eq!(worker.stop().received(), 100);
    }
}

#[test]
fn a_stopped_worker_gives_messages_back_and_frees_its_port() {
    for model in MODELS {
        let worker = EchoWorker::start(model);
        let (mailbox, address) = (worker.handle.mailbox(), worker.address);
        worker.stop();
        let order = Order::Deadline(5);
        assert_eq!(mailbox.send(order), Err(Undelivered::Stopped(order)));
        open_udp(&UdpOptions::new(address)).unwrap();
    }
}

#[test]
fn a_panic_of_the_service_is_reported_by_the_hook_and_the_join() {
    for model in MODELS {
        let (told, hook) = channel();
        let worker = EchoWorker::on(loopback(), model, false, |options| {
            options.on_exit = Some(Box::new(move |failure| {
                told.send(failure.map(ToString::to_string)).unwrap();
            }));
        });
        worker.handle.send(Order::Panic).unwrap();
        let failure = hook.recv_timeout(PATIENCE).unwrap();
        assert_eq!(
            failure.as_deref(),
            Some("worker echo panicked: ordered to"),
            "{model}"
        );
        let outcome = worker.handle.join();
        assert!(
            matches!(outcome, Err(WorkerFailure::Panicked { text, .. }) if text == "ordered to")
        );
    }
}

#[test]
fn an_ordered_end_is_told_to_the_hook_as_no_failure() {
    let (told, hook) = channel();
    let worker = EchoWorker::on(loopback(), IoModel::Ring, false, |options| {
        options.on_exit = Some(Box::new(move |failure| {
            told.send(failure.is_none()).unwrap();
        }));
    });
    worker.stop();
    assert_eq!(hook.recv_timeout(PATIENCE), Ok(true));
}
