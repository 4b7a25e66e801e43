//! The kernel-facing half of a worker: sockets, receive models, send queue, wake-ups and tasks.
//!
//! This folder is the only place with `unsafe` code. Each file wraps one kernel interface behind a
//! safe one, and names the kernel's rules where it keeps them. Two receive models fill the same
//! [`Batch`]: `ring` (io_uring, multishot receives from registered buffer rings) and `mmsg`
//! (`ppoll` and `recvmmsg`, for hosts that do not permit io_uring); `probe` chooses between them
//! at run time. Both send by `sendmmsg` through a [`SendQueue`], synchronously, so that received
//! buffers may be given back to the kernel as soon as the pass ends. `slices` runs a glommio
//! executor inside the worker's own loop, and polls what must not wait for one.
//!
//! The caller is [`crate::worker`]; sockets are opened by the daemons' drivers.

mod address;
mod batch;
mod buffer_ring;
mod control_message;
mod counters;
mod event;
pub(crate) mod mmsg;
mod probe;
mod readiness;
mod region;
mod resident;
pub(crate) mod ring;
mod send;
mod slices;
mod socket;
mod steering;
mod stream;
pub(crate) mod syscall;
mod task_waker;
#[cfg(test)]
mod test_loop;

pub use batch::{Batch, Received};
pub use counters::{IoStats, SendStats, SocketStats};
pub use event::WakeEvent;
#[cfg(test)]
pub(crate) use probe::tests::without_io_uring;
pub(crate) use probe::try_ring as require_ring;
pub use probe::{IoModel, IoModelChoice, IoModelError, choose_io_model};
pub use resident::{Evicted, Resident};
pub use send::{Segmentation, Send, SendQueue, Sends};
pub(crate) use slices::SliceExecutor;
pub use slices::{Sleep, Slices, SpawnError, TaskHandle};
pub use socket::{PathMtu, SocketError, UdpOptions, UdpSocket, open_udp, open_udp_group};
pub use steering::attach_shard_steering;
pub use stream::Stream;

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Largest payload, in bytes, that a client-size buffer holds; a longer datagram is truncated.
///
/// A 2 KiB slot less the room for the sender's address and the control messages. Wider than an
/// Ethernet datagram (1,472 bytes), so only a datagram that no WebRTC client sends is cut.
pub const CLIENT_PAYLOAD_BYTES_MAX: usize = CLIENT_SLOT_BYTES - SLOT_HEADER_BYTES;

/// Largest payload, in bytes, of an inner-leg buffer: all that UDP (and UDP_GRO) can deliver.
pub const INNER_PAYLOAD_BYTES_MAX: usize = 65_535;

/// Datagrams handed over in one pass, at most: what is left waits for the next pass, so that
/// timers and the mailbox get their turn under any load.
pub const BATCH_DATAGRAMS_MAX: usize = 256;

/// A batch smaller than this is light traffic, in which waiting for company saves wake-ups.
///
/// Measured: above two dozen datagrams a wake-up the cost of waking is spread thin already.
pub(crate) const COALESCE_BATCH_MAX: usize = 24;

/// Most sockets of a worker: the ring's submission queue holds one receive for each.
pub const SOCKETS_MAX: usize = 62;

/// Size of a client slot in the buffer ring, in bytes.
pub(crate) const CLIENT_SLOT_BYTES: usize = 2048;

/// What precedes the payload in a slot: `io_uring_recvmsg_out`, name, control.
pub(crate) const SLOT_HEADER_BYTES: usize =
    16 + address::NAME_BYTES + control_message::RECEIVE_BYTES;

/// One socket of a worker.
#[derive(Debug)]
pub struct WorkerSocket {
    /// The bound socket.
    pub socket: UdpSocket,
    /// Receive into buffers that hold a whole UDP_GRO train (64 KiB) instead of one datagram.
    pub large: bool,
}

/// What a receive model is built from.
pub(crate) struct ReceiverOptions {
    pub(crate) sockets: Rc<[WorkerSocket]>,
    pub(crate) client_buffers: u16,
    pub(crate) inner_buffers: u16,
    pub(crate) coalesce: Duration,
    pub(crate) spin: bool,
    pub(crate) wake: Arc<WakeEvent>,
    /// Readable when the worker's tasks have something to do.
    pub(crate) tasks: Option<Rc<OwnedFd>>,
}

/// The seam between the worker's loop and the kernel's ways to receive.
pub(crate) trait Receiver {
    /// Returns the buffers of the last batch to the kernel, then waits until a datagram, a wake-up,
    /// a task event or `timeout` comes, and fills the batch with what is there.
    ///
    /// Answers whether the tasks' descriptor became readable.
    fn wait(&mut self, timeout: Duration) -> io::Result<bool>;

    /// What the last [`Receiver::wait`] received.
    fn batch(&self) -> &Batch;

    /// Adds this model's counters, which only grow, to `stats`.
    fn publish(&self, stats: &mut IoStats);
}

/// Whether a receive that failed with this error would fail for ever: a bug or a missing feature,
/// as opposed to the fate of one datagram.
pub(crate) fn is_permanent(errno: i32) -> bool {
    matches!(
        errno,
        libc::EBADF | libc::EFAULT | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP
    )
}

#[cfg(test)]
mod tests {
    use super::mmsg::Mmsg;
    use super::ring::Ring;
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket as Peer};
    use std::os::fd::AsFd;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// What a test keeps of a received datagram.
    #[derive(Debug, Clone, PartialEq)]
    struct Kept {
        socket: usize,
        from: SocketAddr,
        local_ip: Option<std::net::IpAddr>,
        traffic_class: u8,
        truncated: bool,
        datagrams: Vec<Vec<u8>>,
        segment_bytes: Option<u16>,
    }

    struct Bench {
        receiver: Box<dyn Receiver>,
        sockets: Rc<[WorkerSocket]>,
        wake: Arc<WakeEvent>,
    }

    fn bench(model: IoModel, sockets: Vec<WorkerSocket>, client_buffers: u16) -> Bench {
        bench_with(model, sockets, client_buffers, Duration::ZERO, false)
    }

    fn bench_with(
        model: IoModel,
        sockets: Vec<WorkerSocket>,
        client_buffers: u16,
        coalesce: Duration,
        spin: bool,
    ) -> Bench {
        let sockets: Rc<[WorkerSocket]> = sockets.into();
        let wake = Arc::new(WakeEvent::new().unwrap());
        let options = ReceiverOptions {
            sockets: Rc::clone(&sockets),
            client_buffers,
            inner_buffers: 8,
            coalesce,
            spin,
            wake: Arc::clone(&wake),
            tasks: None,
        };
        let receiver: Box<dyn Receiver> = match model {
            IoModel::Mmsg => Box::new(Mmsg::new(&options).unwrap()),
            _ => Box::new(Ring::new(&options).unwrap()),
        };
        Bench {
            receiver,
            sockets,
            wake,
        }
    }

    impl Bench {
        /// Waits until `count` datagrams or trains came.
        fn receive(&mut self, count: usize) -> Vec<Kept> {
            let deadline = Instant::now() + PATIENCE;
            let mut kept = Vec::new();
            while kept.len() < count {
                assert!(Instant::now() < deadline, "{} of {count} came", kept.len());
                self.receiver.wait(Duration::from_millis(100)).unwrap();
                kept.extend(self.receiver.batch().iter().map(|received| Kept {
                    socket: received.socket,
                    from: received.from,
                    local_ip: received.local_ip,
                    traffic_class: received.traffic_class,
                    truncated: received.truncated,
                    datagrams: received.datagrams().map(<[u8]>::to_vec).collect(),
                    segment_bytes: received.segment_bytes,
                }));
            }
            kept
        }

        fn address(&self, socket: usize) -> SocketAddr {
            self.sockets[socket].socket.local_addr()
        }

        fn stats(&self) -> IoStats {
            let mut stats = IoStats::new(self.sockets.len());
            self.receiver.publish(&mut stats);
            stats
        }
    }

    fn socket(bind: &str) -> WorkerSocket {
        socket_with(bind, false, false)
    }

    fn socket_with(bind: &str, large: bool, gro: bool) -> WorkerSocket {
        let mut options = UdpOptions::new(bind.parse().unwrap());
        options.gro = gro;
        options.receive_buffer_bytes = 32 << 20;
        let socket = open_udp(&options).unwrap();
        WorkerSocket { socket, large }
    }

    fn peer() -> Peer {
        Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    const MODELS: [IoModel; 2] = [IoModel::Ring, IoModel::Mmsg];

    #[test]
    fn carries_the_traffic_class_of_both_families() {
        for model in MODELS {
            let sockets = vec![socket("127.0.0.1:0"), socket("[::1]:0")];
            let mut bench = bench(model, sockets, 16);
            let v4 = peer();
            syscall::set_option(v4.as_fd(), libc::IPPROTO_IP, libc::IP_TOS, 0xb9).unwrap();
            v4.send_to(b"4", bench.address(0)).unwrap();
            let v6 = Peer::bind("[::1]:0").unwrap();
            syscall::set_option(v6.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x2a).unwrap();
            v6.send_to(b"6", bench.address(1)).unwrap();
            let mut kept = bench.receive(2);
            kept.sort_by_key(|kept| kept.socket);
            // A sender's own ECN bits are the kernel's business on IPv4: only DSCP is asserted.
            assert_eq!(kept[0].traffic_class & 0xfc, 0xb8, "{model}");
            assert_eq!(kept[1].traffic_class, 0x2a, "{model}");
        }
    }

    #[test]
    fn a_wildcard_socket_learns_the_address_that_was_asked() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket("0.0.0.0:0"), socket("[::]:0")], 16);
            let port = |index: usize| bench.address(index).port();
            peer().send_to(b"4", ("127.0.0.9", port(0))).unwrap();
            let v6 = Peer::bind("[::1]:0").unwrap();
            v6.send_to(b"6", ("::1", port(1))).unwrap();
            let mut kept = bench.receive(2);
            kept.sort_by_key(|kept| kept.socket);
            assert_eq!(
                kept[0].local_ip,
                Some("127.0.0.9".parse().unwrap()),
                "{model}"
            );
            assert_eq!(kept[1].local_ip, Some("::1".parse().unwrap()), "{model}");
        }
    }

    #[test]
    fn the_source_and_traffic_class_asked_for_are_what_arrives() {
        let cases = [
            ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.42"),
            ("[::]:0", "[::1]:0", "::1"),
        ];
        for (from, to, source) in cases {
            let mut bench = bench(IoModel::Ring, vec![socket(to)], 16);
            let sender: Rc<[WorkerSocket]> = vec![socket(from)].into();
            let mut queue = SendQueue::new(&sender);
            queue.begin().push(Send {
                socket: 0,
                to: bench.address(0),
                from_ip: Some(source.parse().unwrap()),
                traffic_class: 0xba,
                segment_bytes: None,
                item_count: 1,
                payload: b"x",
            });
            let kept = bench.receive(1);
            assert_eq!(kept[0].from.ip().to_string(), source);
            assert_eq!(kept[0].traffic_class, 0xba);
        }
    }

    #[test]
    fn a_train_arrives_as_one_and_comes_apart_where_it_was_joined() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket_with("127.0.0.1:0", true, true)], 16);
            let sender: Rc<[WorkerSocket]> = vec![socket("127.0.0.1:0")].into();
            let mut queue = SendQueue::new(&sender);
            let payload: Vec<u8> = (0..40).flat_map(|index| vec![index; 1_200]).collect();
            let payload = &payload[..39 * 1_200 + 77];
            queue.begin().push(Send {
                socket: 0,
                to: bench.address(0),
                from_ip: None,
                traffic_class: 0,
                segment_bytes: Some(1_200),
                item_count: 40,
                payload,
            });
            let mut datagrams = Vec::new();
            let mut was_joined = false;
            while datagrams.len() < 40 {
                for kept in bench.receive(1) {
                    was_joined |= kept.segment_bytes == Some(1_200);
                    datagrams.extend(kept.datagrams);
                }
            }
            let expected: Vec<Vec<u8>> = payload.chunks(1_200).map(<[u8]>::to_vec).collect();
            assert_eq!(datagrams, expected, "{model}");
            assert!(
                was_joined,
                "{model}: the kernel delivered the train as a train"
            );
            assert_eq!(queue.segmentation(), Segmentation::Kernel);
            assert_eq!(queue.stats(0).sent_datagrams, 40);
            assert_eq!(queue.stats(0).sent_calls, 1);
        }
    }

    #[test]
    fn a_large_socket_takes_the_largest_datagram_whole() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket_with("127.0.0.1:0", true, false)], 16);
            peer().send_to(&[3; 65_507], bench.address(0)).unwrap();
            let kept = bench.receive(1);
            assert!(!kept[0].truncated);
            assert_eq!(kept[0].datagrams, [vec![3; 65_507]], "{model}");
        }
    }

    #[test]
    fn an_oversize_datagram_is_cut_marked_and_counted() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket("127.0.0.1:0")], 16);
            peer()
                .send_to(&[4; CLIENT_PAYLOAD_BYTES_MAX + 1], bench.address(0))
                .unwrap();
            peer()
                .send_to(&[5; CLIENT_PAYLOAD_BYTES_MAX], bench.address(0))
                .unwrap();
            let kept = bench.receive(2);
            assert_eq!(
                kept[0].datagrams,
                [vec![4; CLIENT_PAYLOAD_BYTES_MAX]],
                "{model}"
            );
            assert_eq!(
                kept[1].datagrams,
                [vec![5; CLIENT_PAYLOAD_BYTES_MAX]],
                "{model}"
            );
            assert_eq!(
                (kept[0].truncated, kept[1].truncated),
                (true, false),
                "{model}"
            );
            assert_eq!(bench.stats().sockets[0].truncated, 1);
        }
    }

    #[test]
    fn running_out_of_buffers_loses_nothing_and_never_leaves_the_socket_silent() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket("127.0.0.1:0")], 8);
            let client = peer();
            for round in 0..3u32 {
                for index in 0..3_000u32 {
                    let payload = (round * 3_000 + index).to_be_bytes();
                    client.send_to(&payload, bench.address(0)).unwrap();
                }
                for (index, kept) in bench.receive(3_000).into_iter().enumerate() {
                    let expected = (round * 3_000 + index as u32).to_be_bytes();
                    assert_eq!(kept.datagrams, [expected.to_vec()], "{model}");
                }
            }
            let stats = bench.stats();
            assert_eq!(stats.received(), 9_000);
            if model == IoModel::Ring {
                assert!(
                    stats.no_buffers > 0,
                    "eight buffers cannot have been enough"
                );
                assert!(stats.sockets[0].rearms >= stats.no_buffers);
            }
        }
    }

    #[test]
    fn an_icmp_error_is_counted_and_the_next_datagram_arrives() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket("127.0.0.1:0")], 16);
            let own = bench.sockets[0].socket.as_fd();
            syscall::set_option(own, libc::IPPROTO_IP, libc::IP_RECVERR, 1).unwrap();
            bench.receiver.wait(Duration::from_millis(1)).unwrap();
            let closed = peer().local_addr().unwrap();
            let mut queue = SendQueue::new(&bench.sockets);
            queue.begin().push(Send {
                socket: 0,
                to: closed,
                from_ip: None,
                traffic_class: 0,
                segment_bytes: None,
                item_count: 1,
                payload: b"nobody",
            });
            bench.receiver.wait(Duration::from_millis(50)).unwrap();
            peer().send_to(b"somebody", bench.address(0)).unwrap();
            let kept = bench.receive(1);
            assert_eq!(kept[0].datagrams, [b"somebody".to_vec()], "{model}");
            assert_eq!(bench.stats().sockets[0].receive_errors, 1, "{model}");
        }
    }

    #[test]
    fn a_wait_ends_at_its_timeout_with_nothing() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket("127.0.0.1:0")], 16);
            let start = Instant::now();
            bench.receiver.wait(Duration::from_millis(20)).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(20), "{model}");
            assert!(bench.receiver.batch().is_empty());
        }
    }

    #[test]
    fn a_wake_from_another_thread_ends_the_wait_each_time() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket("127.0.0.1:0")], 16);
            for _ in 0..3 {
                let wake = Arc::clone(&bench.wake);
                let waker = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(10));
                    wake.wake();
                });
                let start = Instant::now();
                bench.receiver.wait(PATIENCE).unwrap();
                assert!(start.elapsed() < PATIENCE / 2, "{model}");
                bench.wake.acknowledge();
                waker.join().unwrap();
            }
            let start = Instant::now();
            bench.receiver.wait(Duration::from_millis(20)).unwrap();
            assert!(
                start.elapsed() >= Duration::from_millis(20),
                "{model}: no wake is left"
            );
        }
    }

    #[test]
    fn a_flooded_socket_does_not_keep_another_from_its_turn() {
        for model in MODELS {
            let sockets = vec![socket("127.0.0.1:0"), socket("127.0.0.1:0")];
            let mut bench = bench(model, sockets, 64);
            let flooder = peer();
            for _ in 0..5_000 {
                flooder.send_to(&[0; 100], bench.address(0)).unwrap();
            }
            peer().send_to(b"calm", bench.address(1)).unwrap();
            let mut passes = 0;
            loop {
                bench.receiver.wait(PATIENCE).unwrap();
                passes += 1;
                if bench
                    .receiver
                    .batch()
                    .iter()
                    .any(|received| received.socket == 1)
                {
                    break;
                }
                assert!(passes < 10, "{model}: 5,000 datagrams are not ahead of one");
            }
        }
    }

    #[test]
    fn coalescing_waits_for_company_only_in_light_traffic_and_only_if_asked() {
        for model in MODELS {
            for coalesce in [Duration::ZERO, Duration::from_micros(100)] {
                let sockets = vec![socket("127.0.0.1:0")];
                let mut bench = bench_with(model, sockets, 16, coalesce, false);
                for _ in 0..3 {
                    peer().send_to(b"x", bench.address(0)).unwrap();
                    bench.receive(1);
                }
                assert_eq!(bench.stats().coalesced > 0, !coalesce.is_zero(), "{model}");
            }
        }
    }

    #[test]
    fn a_spinning_model_receives_and_wakes_without_sleeping() {
        for model in MODELS {
            let sockets = vec![socket("127.0.0.1:0")];
            let mut bench = bench_with(model, sockets, 16, Duration::ZERO, true);
            let start = Instant::now();
            bench.receiver.wait(PATIENCE).unwrap();
            assert!(
                start.elapsed() < PATIENCE / 2,
                "{model}: a spin never sleeps"
            );
            peer().send_to(b"x", bench.address(0)).unwrap();
            assert_eq!(bench.receive(1)[0].datagrams, [b"x".to_vec()], "{model}");
        }
    }

    #[test]
    fn dropping_a_model_frees_the_port_at_once() {
        for model in MODELS {
            let mut bench = bench(model, vec![socket("127.0.0.1:0")], 16);
            bench.receiver.wait(Duration::from_millis(1)).unwrap();
            let address = bench.address(0);
            drop(bench);
            Peer::bind(address).unwrap_or_else(|error| panic!("{model}: {error}"));
        }
    }
}
