//! A whole worker on loopback sockets, each scenario on both receive models.
//!
//! The service under test echoes; what it saw is checked by the peer's side, by the counters it
//! published, and by what its messages report back.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket as Peer};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use syrinx_shared::route::Now;
use syrinx_shared::uring::{
    Batch, IoModel, IoStats, Send, SendQueue, UdpOptions, WorkerSocket, open_udp,
};
use syrinx_shared::worker::{
    Service, Undelivered, WorkerContext, WorkerHandle, WorkerOptions, spawn,
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
    Message(u32),
    Timeout,
    Second(Box<IoStats>),
    Stopped,
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
    type Message = u32;

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

    fn handle_message(&mut self, now: Now, message: u32, _queue: &mut SendQueue) {
        self.deadline = Some(now.mono + Duration::from_millis(u64::from(message)));
        self.report(Report::Message(message));
    }

    fn handle_timeout(&mut self, _now: Now, _queue: &mut SendQueue) {
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
    handle: WorkerHandle<u32>,
    address: SocketAddr,
    reports: Receiver<Report>,
}

impl EchoWorker {
    fn start(model: IoModel, report_datagrams: bool) -> EchoWorker {
        let mut options = UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into());
        options.receive_buffer_bytes = 16 << 20;
        let socket = open_udp(&options).unwrap();
        let address = socket.local_addr();
        let mut options = WorkerOptions::new(
            "echo",
            vec![WorkerSocket {
                socket,
                large: false,
            }],
        );
        options.io_model = model;
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

    fn next(&self) -> Report {
        self.reports
            .recv_timeout(PATIENCE)
            .expect("the worker reports in time")
    }

    /// Stops the worker and returns its last counters.
    fn stop(self) -> IoStats {
        self.handle.stop();
        self.handle.join().unwrap();
        let mut last = None;
        for report in self.reports.try_iter() {
            if let Report::Second(stats) = report {
                last = Some(*stats);
            }
        }
        last.expect("counters are published once more at the end")
    }
}

fn peer() -> Peer {
    let peer = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer
}

#[test]
fn echoes_every_payload_of_many_clients() {
    for model in MODELS {
        let worker = EchoWorker::start(model, false);
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
        assert_eq!(stats.received(), 4_000, "{model:?}");
        assert_eq!(stats.sends().sent_datagrams, 4_000);
        assert_eq!(stats.sends().dropped(), 0);
        assert_eq!(
            (stats.sockets[0].truncated, stats.sockets[0].receive_errors),
            (0, 0)
        );
    }
}

#[test]
fn a_message_wakes_a_sleeping_worker_and_its_deadline_fires() {
    for model in MODELS {
        let worker = EchoWorker::start(model, true);
        let start = Instant::now();
        worker.handle.send(30).unwrap();
        assert_eq!(worker.next(), Report::Message(30));
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "woken, not timed out"
        );
        assert_eq!(worker.next(), Report::Timeout);
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(30), "{elapsed:?}");
        let stats = worker.stop();
        assert_eq!((stats.messages, stats.timeouts), (1, 1));
    }
}

#[test]
fn empty_and_oversize_datagrams_are_delivered_and_marked() {
    for model in MODELS {
        let worker = EchoWorker::start(model, true);
        let client = peer();
        let from = client.local_addr().unwrap();
        client.send_to(&[], worker.address).unwrap();
        client.send_to(&[7; 5_000], worker.address).unwrap();
        client.send_to(&[8; 100], worker.address).unwrap();
        let expected: [(Vec<u8>, bool); 3] = [
            (vec![], false),
            (
                vec![7; syrinx_shared::uring::CLIENT_PAYLOAD_BYTES_MAX],
                true,
            ),
            (vec![8; 100], false),
        ];
        for (payload, truncated) in expected {
            assert_eq!(
                worker.next(),
                Report::Received {
                    from,
                    payload,
                    truncated
                },
                "{model:?}"
            );
        }
        let stats = worker.stop();
        assert_eq!(
            (stats.sockets[0].received, stats.sockets[0].truncated),
            (3, 1)
        );
    }
}

#[test]
fn a_stopped_worker_gives_messages_back() {
    for model in MODELS {
        let worker = EchoWorker::start(model, true);
        let mailbox = worker.handle.mailbox();
        worker.stop();
        assert_eq!(mailbox.send(5), Err(Undelivered::Stopped(5)));
    }
}
