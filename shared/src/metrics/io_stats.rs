//! A worker's input and output as metrics, the same in every daemon.
//!
//! What an operator looks at when packets go missing: the kernel dropped them because a receive
//! buffer was full, the ring ran out of buffers, a send buffer stayed full, a destination answered
//! with ICMP.

use ::metrics::counter;

use super::Published;
use crate::uring::{IoStats, SocketStats};

/// Where a counter of a worker is read from.
type ReadWorker = fn(&IoStats) -> u64;
/// Where a counter of a socket is read from.
type ReadSocket = fn(&SocketStats) -> u64;

/// See the module's description.
#[derive(Debug)]
pub struct IoMetrics {
    worker: Vec<(Published, ReadWorker)>,
    sockets: Vec<Vec<(Published, ReadSocket)>>,
}

const WORKER: &[(&str, ReadWorker)] = &[
    ("passes_total", |io| io.passes),
    ("batches_total", |io| io.batches),
    ("coalesced_passes_total", |io| io.coalesced),
    ("buffers_exhausted_total", |io| io.no_buffers),
    ("task_slices_total", |io| io.slices),
    ("task_panics_total", |io| io.task_panics),
];

const SOCKET: &[(&str, ReadSocket)] = &[
    ("socket_received_total", |socket| socket.received),
    ("socket_truncated_total", |socket| socket.truncated),
    ("socket_receive_errors_total", |socket| {
        socket.receive_errors
    }),
    ("socket_receives_armed_total", |socket| socket.rearms),
    ("socket_kernel_dropped_total", |socket| {
        u64::from(socket.kernel_dropped)
    }),
    ("socket_sent_datagrams_total", |socket| {
        socket.sends.sent_datagrams
    }),
    ("socket_send_calls_total", |socket| socket.sends.sent_calls),
    ("socket_send_blocked_total", |socket| {
        socket.sends.dropped_would_block
    }),
    ("socket_send_unreachable_total", |socket| {
        socket.sends.dropped_refused
    }),
    ("socket_send_failed_total", |socket| {
        socket.sends.dropped_other
    }),
    ("socket_segmentation_refused_total", |socket| {
        socket.sends.segmentation_refused
    }),
];

impl IoMetrics {
    /// Registers the handles of one worker under names that start with `prefix`. `sockets` names
    /// its sockets, in their order.
    pub fn register(prefix: &str, worker: &str, sockets: &[String]) -> Self {
        let of_socket = |socket: &String| {
            let register = |&(name, read): &(&str, ReadSocket)| {
                let handle = counter!(
                    format!("{prefix}_{name}"),
                    "worker" => worker.to_owned(), "socket" => socket.clone()
                );
                (Published::new(handle), read)
            };
            SOCKET.iter().map(register).collect()
        };
        let of_worker = |&(name, read): &(&str, ReadWorker)| {
            let handle = counter!(format!("{prefix}_{name}"), "worker" => worker.to_owned());
            (Published::new(handle), read)
        };
        Self {
            worker: WORKER.iter().map(of_worker).collect(),
            sockets: sockets.iter().map(of_socket).collect(),
        }
    }

    /// Publishes what was added since the last call.
    pub fn publish(&mut self, io: &IoStats) {
        for (published, read) in &mut self.worker {
            published.publish(read(io));
        }
        for (handles, socket) in self.sockets.iter_mut().zip(&io.sockets) {
            for (published, read) in handles {
                published.publish(read(socket));
            }
        }
    }
}
