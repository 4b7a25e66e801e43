//! One codec thread: takes what comes, does a piece of each session's work in turn, and answers in
//! batches.
//!
//! Pieces are a packet decoded or a frame encoded, a fraction of a millisecond each: a backend that
//! sends a minute of audio at once delays its own session, and the others by one frame.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use syrinx_shared::cores::give_way;
use syrinx_shared::route::SessionRef;
use syrinx_shared::worker::{Mailbox, Undelivered};

use super::metrics::ThreadMetrics;
use super::session::Session;
use super::{CHANNEL_CAPACITY, Job, Outputs};
use crate::backend::codec::{CodecCommand, CodecOutput};
use crate::driver::load::{Load, LoadMeter};
use crate::driver::service::ShardMessage;

/// Pieces between two looks at what came and two deliveries: some milliseconds at most.
const TURN_PIECES: usize = 8;
/// How soon a mailbox that was full is tried again.
const DELIVERY_PAUSE: Duration = Duration::from_millis(1);
/// How often the thread says how busy it is.
const LOAD_PERIOD: Duration = Duration::from_secs(1);

/// Runs until every sender is gone.
pub(super) fn run(
    jobs: &Receiver<Job>,
    mailboxes: &[Mailbox<ShardMessage>],
    metrics: ThreadMetrics,
    load: Load,
) {
    give_way();
    let mut thread = Thread {
        sessions: HashMap::new(),
        turn: VecDeque::new(),
        answers: mailboxes.iter().map(|_| Vec::new()).collect(),
        metrics,
        busy: Duration::ZERO,
        measured: Instant::now(),
        meter: LoadMeter::new(load),
    };
    loop {
        if thread.turn.is_empty() {
            match jobs.recv_timeout(LOAD_PERIOD) {
                Ok(job) => thread.take(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        // No more than the channel holds, so that who sends without end does not keep it here.
        let waiting = jobs.try_iter().take(CHANNEL_CAPACITY);
        waiting.for_each(|job| thread.take(job));
        for _ in 0..TURN_PIECES {
            if !thread.work() {
                break;
            }
        }
        thread.deliver(mailboxes);
        thread.measure(Instant::now());
    }
}

struct Thread {
    sessions: HashMap<SessionRef, Tenant>,
    /// Sessions with something to do, each once.
    turn: VecDeque<SessionRef>,
    /// What is to be delivered, by worker.
    answers: Vec<Outputs>,
    metrics: ThreadMetrics,
    /// Time with work, since the thread began.
    busy: Duration,
    /// When that was last told.
    measured: Instant,
    meter: LoadMeter,
}

struct Tenant {
    worker: usize,
    session: Session,
}

impl Thread {
    fn take(&mut self, job: Job) {
        let Job {
            worker,
            session: name,
            command,
        } = job;
        if command == CodecCommand::Close {
            self.sessions.remove(&name);
            return;
        }
        if let CodecCommand::Open(setup) = &command
            && !self.sessions.contains_key(&name)
        {
            let session = Session::new(*setup);
            self.sessions.insert(name, Tenant { worker, session });
            return;
        }
        // A command for nobody is one that its session's end has overtaken.
        let Some(tenant) = self.sessions.get_mut(&name) else {
            return;
        };
        let was_ready = tenant.session.is_ready();
        tenant.session.take(command);
        if !was_ready && tenant.session.is_ready() {
            self.turn.push_back(name);
        }
    }

    /// Does one piece of work. Says whether there was any.
    fn work(&mut self) -> bool {
        let Some(name) = self.turn.pop_front() else {
            return false;
        };
        let Some(tenant) = self.sessions.get_mut(&name) else {
            return true;
        };
        let start = Instant::now();
        let mut outputs = Vec::new();
        let session = &mut tenant.session;
        match catch_unwind(AssertUnwindSafe(|| session.step(&mut outputs))) {
            Ok(Some(work)) => self.metrics.note(work, start.elapsed()),
            Ok(None) => {}
            Err(_) => {
                self.metrics.note_panic();
                tracing::error!(session = %name, "a codec panicked and is made anew");
                session.start_afresh();
            }
        }
        self.busy += start.elapsed();
        let named = outputs.drain(..).map(|output: CodecOutput| (name, output));
        self.answers[tenant.worker].extend(named);
        if tenant.session.is_ready() {
            self.turn.push_back(name);
        }
        true
    }

    /// Says how busy the thread is, once a second.
    fn measure(&mut self, now: Instant) {
        if now.saturating_duration_since(self.measured) >= LOAD_PERIOD {
            self.measured = now;
            let busy_ns = u64::try_from(self.busy.as_nanos()).unwrap_or(u64::MAX);
            self.meter.note(now, busy_ns);
        }
    }

    /// Hands the answers over. A worker that does not take them is waited for: it is the one who
    /// has too much to do.
    fn deliver(&mut self, mailboxes: &[Mailbox<ShardMessage>]) {
        for (answers, mailbox) in self.answers.iter_mut().zip(mailboxes) {
            if answers.is_empty() {
                continue;
            }
            let mut message = ShardMessage::Codec(std::mem::take(answers));
            while let Err(Undelivered::Full(back)) = mailbox.send(message) {
                message = back;
                std::thread::sleep(DELIVERY_PAUSE);
            }
        }
    }
}
