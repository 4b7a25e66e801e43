//! The links of one worker: a WebSocket for each session that has a backend, kept by a task on the
//! worker's own thread. While it is open, the worker's loop moves its messages itself.
//!
//! ```text
//! shard ── LinkCommand ──▶ Links ── Line: outbox ──▶ task: connect, pump, retry ──▶ backend
//! shard ◀── LinkEvent ─── inbox ◀── at most 64 a link, then it reads no more ─────── backend
//! ```
//!
//! The service hands over what the shard commands, and takes out what the links tell after each
//! slice of the tasks. Nothing here outlives its session by more than [`pump::CLOSE_TIMEOUT`].

mod connect;
mod counters;
mod handshake;
mod line;
mod outbox;
mod pump;
mod retry;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_lite::future::or;
use syrinx_shared::route::SessionRef;
use syrinx_shared::uring::{Slices, TaskHandle};

use super::pool::{Lease, Pool};
use crate::backend::link::{LinkCause, LinkCommand, LinkDown, LinkEvent, LinkTarget};
use counters::{BackendMetrics, Presence};
use line::{Farewell, Inbox, Line};
use outbox::Outbox;
use pump::{End, Pump};
use retry::{Loss, Retries};

pub use counters::describe;

/// Longest message either way, in bytes: what the Realtime protocol allows an event to be, and more
/// than ten seconds of its audio.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Tasks that `sessions` sessions of a worker can need: each its link, and as many links again
/// that are still saying good-bye for sessions that have ended.
pub const fn tasks_max(sessions: usize) -> usize {
    2 * sessions
}

/// All links of a worker; see the module.
pub struct Links {
    slices: Slices,
    pool: Arc<Pool>,
    lines: HashMap<SessionRef, Rc<Line>>,
    /// Links whose sessions have ended, oldest first.
    leaving: VecDeque<TaskHandle>,
    leaving_max: usize,
    tasks: HashMap<SessionRef, TaskHandle>,
    inbox: Rc<Inbox>,
    metrics: Vec<BackendMetrics>,
}

impl Links {
    /// None yet, for the worker with this index and at most `sessions_max` sessions.
    pub fn new(slices: Slices, pool: Arc<Pool>, worker: usize, sessions_max: usize) -> Self {
        let backends = pool.backends().iter();
        let metrics = backends.map(|backend| BackendMetrics::register(backend.name(), worker));
        Self {
            slices,
            metrics: metrics.collect(),
            pool,
            lines: HashMap::new(),
            leaving: VecDeque::new(),
            leaving_max: sessions_max,
            tasks: HashMap::new(),
            inbox: Rc::new(RefCell::default()),
        }
    }

    /// Does what a session's dialect wants of its link.
    pub fn handle(&mut self, now: Instant, session: SessionRef, command: LinkCommand) {
        match command {
            LinkCommand::Open(target) => self.open(session, target),
            LinkCommand::Send(message) => {
                if let Some(line) = self.lines.get(&session) {
                    line.send(now, message);
                }
            }
            LinkCommand::Close { code, reason } => self.leave(now, session, code, reason),
        }
    }

    /// What the links tell, in the order it happened.
    pub fn poll_event(&mut self) -> Option<(SessionRef, LinkEvent)> {
        loop {
            let (line, event) = self.inbox.borrow_mut().pop_front()?;
            line.note_delivered(&event);
            if line.is_dismissed() {
                continue;
            }
            if matches!(
                event,
                LinkEvent::Down {
                    will_retry: false,
                    ..
                }
            ) {
                self.lines.remove(&line.session);
                self.tasks.remove(&line.session);
            }
            return Some((line.session, event));
        }
    }

    /// Publishes what was counted since the last call.
    pub fn publish(&self) {
        let mut queue_bytes = vec![0; self.metrics.len()];
        for line in self.lines.values() {
            let mut outbox = line.outbox.borrow_mut();
            queue_bytes[usize::from(line.target.backend.0)] += outbox.bytes();
            counters::add(&line.counters.dropped, outbox.take_dropped());
        }
        let backends = self.metrics.iter().zip(queue_bytes);
        backends.for_each(|(metrics, queue_bytes)| metrics.publish(queue_bytes));
    }

    fn open(&mut self, session: SessionRef, target: LinkTarget) {
        let index = usize::from(target.backend.0);
        let options = self.pool.backend(target.backend).options();
        let line = Rc::new(Line::new(
            session,
            target,
            Outbox::new(options.audio_backlog),
            Rc::clone(&self.metrics[index].counters),
            Rc::clone(&self.inbox),
        ));
        self.sweep();
        let link = Link {
            line: Rc::clone(&line),
            slices: self.slices.clone(),
            pool: Arc::clone(&self.pool),
        };
        match self.slices.spawn("link", link.run()) {
            Ok(task) => {
                self.tasks.insert(session, task);
                self.lines.insert(session, line);
            }
            Err(error) => {
                let cause = LinkCause::Unavailable;
                line.counters.note_failed(cause);
                let detail = error.to_string();
                line.deliver(LinkEvent::Down {
                    reason: LinkDown { cause, detail },
                    will_retry: false,
                });
            }
        }
    }

    fn leave(&mut self, now: Instant, session: SessionRef, code: u16, reason: String) {
        let Some(line) = self.lines.remove(&session) else {
            return;
        };
        let said = now;
        line.dismiss(Farewell { code, reason, said });
        counters::add(
            &line.counters.dropped,
            line.outbox.borrow_mut().take_dropped(),
        );
        self.leaving.extend(self.tasks.remove(&session));
        self.sweep();
    }

    /// Forgets the links that have left, and makes those leave that are too many.
    fn sweep(&mut self) {
        while let Some(task) = self.leaving.front() {
            if !task.is_finished() {
                if self.leaving.len() <= self.leaving_max {
                    return;
                }
                task.cancel();
            }
            self.leaving.pop_front();
        }
    }
}

/// A link's task.
struct Link {
    line: Rc<Line>,
    slices: Slices,
    pool: Arc<Pool>,
}

/// What one attempt came to.
enum Outcome {
    /// The session has left.
    Left,
    /// The link is gone.
    Lost(Loss),
}

impl Link {
    async fn run(self) {
        let options = self.pool.backend(self.line.target.backend).options();
        let mut retries = Retries::new(options.retry_count_max, options.retry_pause);
        let mut avoided = None;
        loop {
            let Outcome::Lost(loss) = self.attempt(&mut retries, &mut avoided).await else {
                return;
            };
            if self.line.is_dismissed() {
                return;
            }
            let now = Instant::now();
            let pause = retries.next(now, &loss, fastrand::f64());
            self.note_loss(&loss, pause.is_some());
            let Some(pause) = pause else { return };
            let slept = self.slices.sleep_until(now + pause);
            or(slept, self.line.dismissed()).await;
            if self.line.is_dismissed() {
                return;
            }
            counters::add(&self.line.counters.retried, 1);
        }
    }

    fn note_loss(&self, loss: &Loss, will_retry: bool) {
        let LinkDown { cause, detail } = &loss.down;
        let LinkTarget { backend, call, .. } = &self.line.target;
        let (backend, cause) = (self.pool.backend(*backend).name(), cause.label());
        tracing::warn!(call, backend, cause, detail, will_retry, "a link is not up");
        self.line.counters.note_failed(loss.down.cause);
        self.line.forget_unsent();
        let reason = loss.down.clone();
        self.line.deliver(LinkEvent::Down { reason, will_retry });
    }

    /// Connects, and serves the connection to its end. `avoided` is the address that failed last.
    async fn attempt(&self, retries: &mut Retries, avoided: &mut Option<usize>) -> Outcome {
        let line = &self.line;
        let start = Instant::now();
        let Some(lease) = self.pool.lease(line.target.backend, *avoided, start) else {
            let detail = "no address of the backend is known";
            return Outcome::Lost(Loss::new(LinkCause::Unavailable, detail));
        };
        let connected = {
            let _presence = Presence::new(&line.counters.connecting);
            or(self.connect(&lease, start), async {
                line.dismissed().await;
                None
            })
            .await
        };
        let socket = match connected {
            None => return Outcome::Left,
            Some(Ok(socket)) => socket,
            Some(Err(loss)) => {
                lease.note_failure(Instant::now());
                *avoided = Some(lease.endpoint());
                return Outcome::Lost(loss);
            }
        };
        lease.note_success();
        line.counters.note_opened(start.elapsed());
        let _presence = Presence::new(&line.counters.open);
        line.deliver(LinkEvent::Up);
        let options = self.pool.backend(line.target.backend).options();
        let pump = Pump::new(Rc::clone(line), self.slices.clone(), socket, options);
        // What it does for every message is too much for a task: see there.
        let Ok(pumped) = self.slices.reside("link", pump.run()).await else {
            let detail = "the link was ended by a fault of this process";
            return Outcome::Lost(Loss::new(LinkCause::Reset, detail));
        };
        if let Some(first_heard) = pumped.first_heard {
            retries.note_up(first_heard);
        }
        match pumped.end {
            End::Left => Outcome::Left,
            End::Lost(loss) => {
                *avoided = Some(lease.endpoint());
                Outcome::Lost(loss)
            }
        }
    }

    /// One attempt, which never outlasts its time.
    async fn connect(
        &self,
        lease: &Lease,
        start: Instant,
    ) -> Option<Result<connect::WebSocket, Loss>> {
        let backend = self.pool.backend(self.line.target.backend);
        let connecting = connect::connect(&self.slices, backend, lease, &self.line.target);
        let timeout = backend.options().connect_timeout;
        let connected = self.slices.timeout_at(start + timeout, connecting).await;
        Some(connected.unwrap_or_else(|| {
            let detail = format!("{}: not connected within {timeout:?}", lease.url());
            Err(Loss::new(LinkCause::TimedOut, detail))
        }))
    }
}
