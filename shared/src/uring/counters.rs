//! What a worker counts about its input and output: plain integers that only grow.
//!
//! Owned by the worker's thread and lent to the service once a second; nothing here is shared, so
//! counting on the packet path is an addition.

use std::ops::AddAssign;

/// Everything a worker knows about its input and output since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IoStats {
    /// Rounds of the worker's loop: each waited once on the kernel.
    pub passes: u64,
    /// Passes that brought at least one datagram.
    pub batches: u64,
    /// Passes that waited for company because the batch before was small.
    pub coalesced: u64,
    /// Messages taken out of the mailbox.
    pub messages: u64,
    /// Deadlines of the service that fired.
    pub timeouts: u64,
    /// Times that the buffers ran out under a socket's receive, which was armed again.
    pub no_buffers: u64,
    /// Slices of the task executor.
    pub slices: u64,
    /// Slices that were interrupted for the packets' sake before the tasks came to rest.
    pub slices_unsettled: u64,
    /// Tasks that ended by a panic.
    pub task_panics: u64,
    /// One entry a socket, in the order the worker was given them.
    pub sockets: Vec<SocketStats>,
}

/// What one socket received and sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketStats {
    /// Datagrams received; a coalesced train counts as one.
    pub received: u64,
    /// Received datagrams that were longer than their buffer.
    pub truncated: u64,
    /// Errors of the receive call: mostly ICMP answers to what was sent.
    pub receive_errors: u64,
    /// Times the multishot receive ended and was armed again.
    pub rearms: u64,
    /// Datagrams the kernel dropped because the receive buffer was full (`SO_MEMINFO`).
    pub kernel_dropped: u32,
    /// What was sent.
    pub sends: SendStats,
}

/// What became of the datagrams handed to a socket's send queue. Each ends in `sent_datagrams` or
/// in one of the drops; every datagram of a train counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Datagrams the kernel took.
    pub sent_datagrams: u64,
    /// System calls that sent something.
    pub sent_calls: u64,
    /// Given up because the socket's send buffer stayed full.
    pub dropped_would_block: u64,
    /// Given up because the destination or the way to it is unreachable.
    pub dropped_refused: u64,
    /// Given up for another reason: too long, not permitted, an invalid address.
    pub dropped_other: u64,
    /// The callers' items in what was given up because the send buffer stayed full.
    pub items_blocked: u64,
    /// The callers' items in what was given up for any other reason.
    pub items_failed: u64,
    /// Datagrams that did not fit their way whole and left in fragments.
    pub fragmented: u64,
    /// Trains that the kernel or the device refused to cut up; they were cut up here.
    pub segmentation_refused: u64,
}

impl SendStats {
    /// All datagrams that were not sent.
    pub fn dropped(&self) -> u64 {
        self.dropped_would_block + self.dropped_refused + self.dropped_other
    }
}

impl AddAssign for SendStats {
    fn add_assign(&mut self, other: SendStats) {
        self.sent_datagrams += other.sent_datagrams;
        self.sent_calls += other.sent_calls;
        self.dropped_would_block += other.dropped_would_block;
        self.dropped_refused += other.dropped_refused;
        self.dropped_other += other.dropped_other;
        self.items_blocked += other.items_blocked;
        self.items_failed += other.items_failed;
        self.fragmented += other.fragmented;
        self.segmentation_refused += other.segmentation_refused;
    }
}

impl IoStats {
    /// Counters for this many sockets, all nought.
    pub(crate) fn new(socket_count: usize) -> IoStats {
        IoStats {
            sockets: vec![SocketStats::default(); socket_count],
            ..IoStats::default()
        }
    }

    /// Datagrams received over all sockets.
    pub fn received(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.received).sum()
    }

    /// What was sent over all sockets.
    pub fn sends(&self) -> SendStats {
        let mut total = SendStats::default();
        for socket in &self.sockets {
            total += socket.sends;
        }
        total
    }
}
