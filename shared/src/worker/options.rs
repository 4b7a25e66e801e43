//! What a worker is started with, and how it can fail to start or to go on.

use crate::cores::{CoreError, CoreId};
use crate::uring::{IoModel, IoModelError, SOCKETS_MAX, WorkerSocket};
use std::time::Duration;
use std::{fmt, io};
use thiserror::Error;

/// Longest wait for company of a first datagram.
pub const COALESCE_MAX: Duration = Duration::from_micros(100);

/// Called on the worker's thread when it ends: without a failure if it was asked to.
pub type ExitHook = Box<dyn FnOnce(Option<&WorkerFailure>) + Send>;

/// What a worker is started with.
pub struct WorkerOptions {
    /// Names the thread, in the log and in `top`; 15 bytes are shown.
    pub name: String,
    /// The core to pin to; `None` leaves the thread to the scheduler.
    pub core: Option<CoreId>,
    /// How to receive.
    pub io_model: IoModel,
    /// Wait this long for company of a first datagram when traffic is light, saving wake-ups.
    /// Nought switches it off; at most [`COALESCE_MAX`].
    pub coalesce: Duration,
    /// Never sleep: poll for completions, at the price of the whole core.
    pub spin: bool,
    /// Buffers for datagrams; a power of two.
    pub client_buffers: u16,
    /// Buffers for trains of 64 KiB; a power of two. Only taken if a socket is `large`.
    pub inner_buffers: u16,
    /// The sockets; their index is their name in what is received and sent.
    pub sockets: Vec<WorkerSocket>,
    /// Messages that the mailbox holds.
    pub mailbox_capacity: usize,
    /// Tasks that may run at once; nought is a worker without an executor.
    pub tasks_max: usize,
    /// Told when a worker that had started ends.
    pub on_exit: Option<ExitHook>,
}

impl WorkerOptions {
    /// Defaults: unpinned, model found by probing, 50 µs of coalescing, 1,024 datagram and 64
    /// train buffers, 1,024 messages, no tasks.
    pub fn new(name: impl Into<String>, sockets: Vec<WorkerSocket>) -> WorkerOptions {
        WorkerOptions {
            name: name.into(),
            core: None,
            io_model: IoModel::Auto,
            coalesce: Duration::from_micros(50),
            spin: false,
            client_buffers: 1024,
            inner_buffers: 64,
            sockets,
            mailbox_capacity: 1024,
            tasks_max: 0,
            on_exit: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), WorkerError> {
        if self.sockets.len() > SOCKETS_MAX {
            return Err(WorkerError::TooManySockets(self.sockets.len()));
        }
        if self.coalesce > COALESCE_MAX {
            return Err(WorkerError::CoalesceTooLong(self.coalesce));
        }
        for count in [self.client_buffers, self.inner_buffers] {
            if !count.is_power_of_two() || count > 1 << 15 {
                return Err(WorkerError::BufferCount(count));
            }
        }
        if self.mailbox_capacity == 0 {
            return Err(WorkerError::NoMailbox);
        }
        Ok(())
    }
}

/// Why a worker did not start.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The sockets exceed what one ring is set up for.
    #[error("{0} sockets for one worker; at most {SOCKETS_MAX}")]
    TooManySockets(usize),
    /// Coalescing would be felt.
    #[error("coalescing for {0:?}; at most {COALESCE_MAX:?}")]
    CoalesceTooLong(Duration),
    /// The kernel takes only powers of two.
    #[error("{0} buffers: must be a power of two up to 32768")]
    BufferCount(u16),
    /// No message could ever be sent.
    #[error("a mailbox must hold at least one message")]
    NoMailbox,
    /// Pinning failed.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// io_uring was asked for, or is needed for tasks, and cannot be had.
    #[error(transparent)]
    IoModel(#[from] IoModelError),
    /// The task executor cannot work here.
    #[error("the worker's tasks need io_uring: {0}")]
    Tasks(IoModelError),
    /// A call failed otherwise.
    #[error("{step}: {cause}")]
    Failed {
        /// What was being set up.
        step: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The service's constructor panicked.
    #[error("the worker panicked while starting: {0}")]
    Panicked(String),
}

/// Why a running worker ended without being asked to.
#[derive(Debug, Error)]
pub enum WorkerFailure {
    /// The service panicked, with this text.
    #[error("worker {worker} panicked: {text}")]
    Panicked {
        /// The worker's name.
        worker: String,
        /// The panic's message.
        text: String,
    },
    /// The kernel refused to go on.
    #[error("worker {worker}: receiving failed: {cause}")]
    Receive {
        /// The worker's name.
        worker: String,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WorkerOptions")
            .field("name", &self.name)
            .field("core", &self.core)
            .field("io_model", &self.io_model)
            .field("sockets", &self.sockets)
            .finish_non_exhaustive()
    }
}
