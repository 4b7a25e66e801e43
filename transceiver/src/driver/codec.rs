//! Codec work away from the packet loop: threads that decode callers and encode answers for the
//! sessions of all workers.
//!
//! ```text
//! shard ── CodecCommand ──▶ Desk ══ bounded channel ══▶ thread: a piece of each session in turn
//! shard ◀── CodecOutput ── mailbox, in batches ◀══════════════════════════════════════════╝
//! ```
//!
//! The threads are bound to no core, and give way to every other thread of the process: an idle
//! worker's core is used, and no packet waits for a frame to be encoded.
//!
//! A session stays with one thread, so that its codec's state never crosses. A channel that is full
//! takes no more to decode: the session is told of the hole. What must not be lost waits at the
//! worker's [`Desk`] instead, bounded by what dialects let backends send ahead.

mod metrics;
mod resample;
mod session;
mod thread;
mod voice;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};

use syrinx_shared::route::SessionRef;
use syrinx_shared::worker::Mailbox;

use super::load::Load;
use super::service::ShardMessage;
use crate::backend::codec::{CodecCommand, CodecOutput};
use metrics::{DeskMetrics, ThreadMetrics};

pub use metrics::describe;

/// Commands on their way to a thread: what a thousand sessions say in 80 ms.
const CHANNEL_CAPACITY: usize = 4_096;

/// A command and who gave it.
struct Job {
    worker: usize,
    session: SessionRef,
    command: CodecCommand,
}

/// The running threads.
pub struct Codecs {
    senders: Vec<SyncSender<Job>>,
    /// Taken when the threads are started, which is after the workers that they answer.
    receivers: Vec<Receiver<Job>>,
    threads: Vec<JoinHandle<()>>,
    loads: Vec<Load>,
}

impl Codecs {
    /// Room for `count` threads, none of which runs yet: what desks send meanwhile waits.
    pub fn new(count: usize) -> Self {
        let (senders, receivers) = (0..count).map(|_| sync_channel(CHANNEL_CAPACITY)).unzip();
        Self {
            senders,
            receivers,
            threads: Vec::new(),
            loads: (0..count).map(|_| Load::default()).collect(),
        }
    }

    /// How busy the threads are.
    pub fn loads(&self) -> Vec<Load> {
        self.loads.clone()
    }

    /// Starts the threads; they answer into these mailboxes, in the order of the workers.
    ///
    /// # Errors
    /// The operating system has no thread to give.
    pub fn start(&mut self, mailboxes: &[Mailbox<ShardMessage>]) -> io::Result<()> {
        for (index, receiver) in self.receivers.drain(..).enumerate() {
            let mailboxes = mailboxes.to_vec();
            let metrics = ThreadMetrics::register(index);
            let load = self.loads[index].clone();
            let run = move || thread::run(&receiver, &mailboxes, metrics, load);
            let name = format!("codec-{index}");
            self.threads.push(Builder::new().name(name).spawn(run)?);
        }
        Ok(())
    }

    /// The desk of the worker with this index.
    pub fn desk(&self, worker: usize) -> DeskMaker {
        DeskMaker {
            worker,
            senders: self.senders.clone(),
        }
    }

    /// Ends the threads, once every desk is gone.
    pub fn stop(self) {
        drop(self.senders);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a codec thread ended by a panic");
            }
        }
    }
}

/// Carries what a [`Desk`] is made of to its worker's thread.
pub struct DeskMaker {
    worker: usize,
    senders: Vec<SyncSender<Job>>,
}

impl DeskMaker {
    /// On the worker's thread.
    pub fn make(self) -> Desk {
        let lanes = self.senders.into_iter().map(|sender| Lane {
            sender,
            kept: VecDeque::new(),
        });
        Desk {
            worker: self.worker,
            lanes: lanes.collect(),
            dropped: 0,
            metrics: DeskMetrics::register(self.worker),
        }
    }
}

/// One worker's way to the threads.
pub struct Desk {
    worker: usize,
    lanes: Vec<Lane>,
    dropped: u64,
    metrics: DeskMetrics,
}

/// The way to one thread.
struct Lane {
    sender: SyncSender<Job>,
    /// What must not be lost and found the channel full, in order.
    kept: VecDeque<Job>,
}

impl Desk {
    /// Hands a command on. What it answers is for the session at once: that the command was not
    /// taken.
    pub fn handle(&mut self, session: SessionRef, command: CodecCommand) -> Option<CodecOutput> {
        let lane = lane_of(session, self.lanes.len());
        let job = Job {
            worker: self.worker,
            session,
            command,
        };
        let taken = self.lanes.get_mut(lane).is_some_and(|lane| lane.send(job));
        if taken {
            return None;
        }
        self.dropped += 1;
        Some(CodecOutput::Overloaded)
    }

    /// Hands on what was kept, as far as there is room. Called now and then.
    pub fn hand_on(&mut self) {
        self.lanes.iter_mut().for_each(Lane::hand_on);
    }

    /// Publishes what was counted since the last call.
    pub fn publish(&mut self) {
        let kept = self.lanes.iter().map(|lane| lane.kept.len()).sum();
        self.metrics.publish(self.dropped, kept);
    }
}

impl Lane {
    /// Says whether the job is taken.
    fn send(&mut self, job: Job) -> bool {
        self.hand_on();
        if !self.kept.is_empty() {
            return self.keep(job);
        }
        match self.sender.try_send(job) {
            Ok(()) => true,
            Err(TrySendError::Full(job)) => self.keep(job),
            // The process is about to end.
            Err(TrySendError::Disconnected(_)) => true,
        }
    }

    fn keep(&mut self, job: Job) -> bool {
        if matches!(
            job.command,
            CodecCommand::Decode { .. } | CodecCommand::Conceal { .. }
        ) {
            return false;
        }
        self.kept.push_back(job);
        true
    }

    fn hand_on(&mut self) {
        while let Some(job) = self.kept.pop_front() {
            if let Err(TrySendError::Full(job)) = self.sender.try_send(job) {
                self.kept.push_front(job);
                return;
            }
        }
    }
}

/// Slots are given out evenly, and so sessions are spread.
fn lane_of(session: SessionRef, count: usize) -> usize {
    (session.slot.index() + usize::from(session.shard.0)) % count.max(1)
}

/// What threads answer: outputs of sessions, in order.
pub type Outputs = Vec<(SessionRef, CodecOutput)>;

/// How many threads a process has: as configured, or one for each core, since they use what time
/// the workers leave.
pub fn thread_count(configured: u16, core_count: usize) -> usize {
    match configured {
        0 => core_count,
        count => usize::from(count),
    }
}

#[cfg(test)]
mod tests;
