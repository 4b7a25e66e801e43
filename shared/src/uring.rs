//! The kernel-facing half of a worker: sockets, receive models, send queue, wake-ups and tasks.
//!
//! This folder is the only place with `unsafe` code. Each file wraps one kernel interface behind a
//! safe one, and names the kernel's rules where it keeps them. Two receive models fill the same
//! [`Batch`]: [`ring`] (io_uring, multishot receives from registered buffer rings) and [`mmsg`]
//! (`ppoll` and `recvmmsg`, for hosts that do not permit io_uring); [`probe`] chooses between them
//! at run time. Both send by `sendmmsg` through a [`SendQueue`], synchronously, so that received
//! buffers may be given back to the kernel as soon as the pass ends. [`slices`] runs a glommio
//! executor inside the worker's own loop.
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
mod region;
pub(crate) mod ring;
mod send;
mod slices;
mod socket;
mod steering;
pub(crate) mod syscall;
mod task_waker;

pub use batch::{Batch, Received};
pub use counters::{IoStats, SendStats, SocketStats};
pub use event::WakeEvent;
pub(crate) use probe::try_ring as require_ring;
pub use probe::{IoModel, IoModelChoice, IoModelError, choose_io_model};
pub use send::{Segmentation, Send, SendQueue, Sends};
pub(crate) use slices::SliceExecutor;
pub use slices::{Sleep, Slices, SpawnError, TaskHandle};
pub use socket::{PathMtu, SocketError, UdpOptions, UdpSocket, open_udp, open_udp_group};
pub use steering::attach_shard_steering;

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
