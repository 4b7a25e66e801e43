//! A run of calls: diallers open them by the schedule, media threads carry them, and one thread
//! watches.
//!
//! ```text
//!  schedule ──▶ diallers (blocking HTTP) ──opened──▶ media threads (epoll, one core each)
//!                   ▲                                      │
//!                   └────────── hang-ups ◀─────────────────┘
//! ```
//!
//! **Open loop.** Each dialler takes the next planned call and waits for its start; when all
//! diallers are busy with a slow server, the next start is late, its delay counts from the plan all
//! the same, and the lag is reported as the generator's.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::call::{Dialled, client_socket};
use super::client::Kit;
use super::clock::Clock;
use super::failure::{Cause, Failure, Failures};
use super::latency::Latencies;
use super::media::{self, Live};
use super::schedule::Planned;
use super::signalling::Signalling;
use super::sources::Sources;
use super::tally::Tally;
use super::terms::{Sound, Terms, ns};
use super::voice::Speech;

/// From the start of the threads to the epoch of the schedule.
const LEAD: Duration = Duration::from_millis(100);
/// How long a dialler sleeps at most before it looks whether the run was stopped.
const NAP: Duration = Duration::from_millis(50);
/// How long the watching thread sleeps at least: it shares its core with others.
const NAP_MIN: Duration = Duration::from_millis(1);
/// So many calls that failed while none came about end a run: the server is dead, not slow.
pub(super) const HOPELESS: u64 = 20;
/// Stack of a dialler: TLS and SDP, nothing deep.
const DIALLER_STACK_BYTES: usize = 512 << 10;

/// What is run.
pub struct Drive<'a> {
    /// The calls, in the order of their starts.
    pub plan: &'a [Planned],
    /// The server.
    pub signalling: &'a dyn Signalling,
    /// What the clients share.
    pub kit: &'a Kit,
    /// The rhythm of their speech.
    pub speech: Speech,
    /// What they say in it.
    pub sound: Sound,
    /// Their addresses.
    pub sources: Sources,
    /// Which intended sends are measured, counted from the epoch.
    pub window: Range<Duration>,
    /// Time from the intended start until a call must be established.
    pub set_up_timeout: Duration,
    /// One media thread each, pinned; without any, as many threads as `threads` says, not pinned.
    pub cores: &'a [usize],
    /// Media threads when they are not pinned.
    pub threads: usize,
    /// How many calls signalling opens at once.
    pub diallers: usize,
}

/// Something done to the server in the middle of a run.
pub struct Incident<'a> {
    /// When, counted from the epoch.
    pub at: Duration,
    /// What it is, in words.
    pub what: String,
    /// What is done; blocks until it is done.
    pub act: Box<dyn FnOnce() -> anyhow::Result<()> + Send + 'a>,
}

/// What became of a run.
#[derive(Debug)]
pub struct Driven {
    /// All threads' tallies.
    pub tally: Tally,
    /// Whether it came to its end.
    pub complete: bool,
    /// What was done in the middle, when, and how long that took.
    pub incident: Option<Done>,
}

/// An incident that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What it was.
    pub what: String,
    /// When, counted from the epoch.
    pub at: Duration,
    /// How long it took to do.
    pub took: Duration,
}

/// How a run stands, for the eyes of who watches.
#[derive(Debug)]
pub struct Tick {
    /// Since the epoch.
    pub at: Duration,
    /// Established calls that are not over.
    pub active: u64,
    /// Calls established so far.
    pub established: u64,
    /// Calls that failed so far.
    pub failed: u64,
    /// Calls lost so far.
    pub lost: u64,
    /// Round trips since the last tick.
    pub round_trip: Latencies,
    /// Packets said since the last tick.
    pub said: u64,
    /// Packets heard since the last tick.
    pub heard: u64,
}

/// Who watches a run from outside its threads.
pub trait Watch {
    /// A look at the run: every [`PERIOD`], at both edges of the window, and at the end.
    fn tick(&mut self, tick: Tick);
}

/// Distance of two looks.
pub const PERIOD: Duration = Duration::from_millis(500);

/// Runs `drive` until its calls are over, or until shortly after `stop` is set.
///
/// # Errors
/// When the kernel refuses a thread what it needs, or the incident's act fails.
pub fn run(
    drive: &Drive<'_>,
    incident: Option<Incident<'_>>,
    stop: &AtomicBool,
    watch: &mut dyn Watch,
) -> anyhow::Result<Driven> {
    let threads = drive.cores.len().max(drive.threads).max(1);
    let wakers = (0..threads).map(|_| EventFd::from_flags(EfdFlags::EFD_NONBLOCK));
    let epoch = Instant::now() + LEAD;
    let shared = Shared {
        terms: Terms {
            epoch,
            epoch_clock_ns: Clock::read().ns(epoch),
            window_ns: ns(drive.window.start)..ns(drive.window.end),
            speech: drive.speech,
            sound: drive.sound.clone(),
            expected: drive.signalling.expected(),
            needs_hang_up: drive.signalling.needs_hang_up(),
            set_up_timeout: drive.set_up_timeout,
            incident_ns: incident.as_ref().map(|incident| ns(incident.at)),
            sources: drive.sources,
        },
        drive,
        live: Live::new(),
        wakers: wakers
            .collect::<Result<_, _>>()
            .context("no event descriptor")?,
        halted: AtomicBool::new(false),
        next: AtomicUsize::new(0),
        dialled: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let media = shared.start(scope)?;
        let acted = shared.watch_over(scope, &media, incident, stop, watch);
        let mut tally = shared
            .dialled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .tally(drive);
        for thread in media {
            match thread.join() {
                Ok(theirs) => tally.add(&theirs.context("a media thread cannot work")?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        let incident = match acted.map(ScopedJoinHandle::join) {
            None => None,
            Some(Ok(done)) => Some(done.context("what was to be done in the middle of the run")?),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        };
        Ok(Driven {
            tally,
            complete: !shared.halted.load(Ordering::Relaxed),
            incident,
        })
    })
}

/// What all threads of a run see.
struct Shared<'a> {
    drive: &'a Drive<'a>,
    terms: Terms,
    live: Live,
    wakers: Vec<EventFd>,
    /// No further calls; those that are there end.
    halted: AtomicBool,
    /// The next call of the plan that nobody has taken.
    next: AtomicUsize,
    dialled: Mutex<DialTally>,
}

/// What the diallers have seen.
#[derive(Default)]
struct DialTally {
    started: u64,
    failures: Failures,
    start_lag: Latencies,
}

impl DialTally {
    fn tally(&self, drive: &Drive<'_>) -> Tally {
        let mut tally = Tally {
            failures: self.failures.clone(),
            start_lag: self.start_lag.clone(),
            ..Tally::default()
        };
        tally.calls.planned = drive.plan.len() as u64;
        tally.calls.started = self.started;
        tally.calls.failed = self.failures.total();
        tally
    }
}

type Media<'scope> = Vec<ScopedJoinHandle<'scope, io::Result<Tally>>>;

impl Shared<'_> {
    /// Starts media threads, diallers and the thread that hangs up.
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
    ) -> anyhow::Result<Media<'scope>> {
        let (hang_up, hung_up) = channel();
        let (mut outboxes, mut media) = (Vec::new(), Vec::new());
        for (index, waker) in self.wakers.iter().enumerate() {
            let (outbox, inbox) = channel();
            outboxes.push(outbox);
            let setup = media::Setup {
                terms: &self.terms,
                live: &self.live,
                stop: &self.halted,
                core: self.drive.cores.get(index).copied(),
                waker,
                inbox,
                hang_up: hang_up.clone(),
            };
            media.push(scope.spawn(move || media::run(setup)));
        }
        for _ in 0..self.drive.diallers.max(1) {
            let outboxes = outboxes.clone();
            let dialler = std::thread::Builder::new().stack_size(DIALLER_STACK_BYTES);
            let dialler = dialler.spawn_scoped(scope, move || self.dial(outboxes));
            if let Err(error) = dialler {
                // Those that did start have to end before the scope does.
                self.halted.store(true, Ordering::Relaxed);
                self.wake_all();
                return Err(anyhow!(error).context("no thread for signalling: try --diallers"));
            }
        }
        scope.spawn(move || part(self.drive.signalling, &hung_up));
        drop(outboxes);
        self.wake_all();
        Ok(media)
    }

    /// A media thread whose inbox is closed learns of it by its waker.
    fn wake_all(&self) {
        for waker in &self.wakers {
            // Full means that it is about to be read anyhow.
            let _ = waker.write(1);
        }
    }

    /// One dialler: takes planned calls until there are none.
    fn dial(&self, outboxes: Vec<Sender<Dialled>>) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(planned) = self.drive.plan.get(index) else {
                break;
            };
            if !self.sleep_until(planned.start) {
                break;
            }
            let lag = self.since_epoch().saturating_sub(planned.start);
            let outcome = self.open(*planned);
            let mut dialled = self.dialled.lock().unwrap_or_else(PoisonError::into_inner);
            dialled.started += 1;
            dialled.start_lag.record(lag);
            match outcome {
                Ok(opened) => {
                    drop(dialled);
                    let thread = index % outboxes.len();
                    if outboxes[thread].send(opened).is_err() {
                        // The media thread says itself why it ended.
                        self.halted.store(true, Ordering::Relaxed);
                        break;
                    }
                    let _ = self.wakers[thread].write(1);
                }
                Err(failure) => {
                    dialled.failures.count(failure);
                    drop(dialled);
                    self.live.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        drop(outboxes);
        self.wake_all();
    }

    /// Opens a call; blocks until the server has answered.
    fn open(&self, planned: Planned) -> Result<Dialled, Failure> {
        let address = self.drive.sources.address(planned.id);
        let no_socket = |error| {
            let words = format!("{address}: {error} (is it this machine's? see --sources)");
            Failure::new(Cause::NoSocket, words)
        };
        let socket = client_socket(address).map_err(no_socket)?;
        let local = socket.local_addr().map_err(no_socket)?;
        let offered = self.drive.kit.offer(Instant::now(), local);
        let (offering, offer) = offered.map_err(|error| Failure::new(Cause::Broken, error))?;
        let opened = self.drive.signalling.open(&offer)?;
        let client = offering.accept(&opened.answer);
        Ok(Dialled {
            planned,
            client: client.map_err(|error| Failure::new(Cause::BadAnswer, error))?,
            socket,
            answered_ns: self.terms.now_ns(),
            handle: opened.call,
        })
    }

    /// `false` when the run was stopped meanwhile.
    fn sleep_until(&self, at: Duration) -> bool {
        loop {
            if self.halted.load(Ordering::Relaxed) {
                return false;
            }
            let left = (self.terms.epoch + at).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    fn since_epoch(&self) -> Duration {
        Instant::now().saturating_duration_since(self.terms.epoch)
    }

    /// Looks at the run until its media threads have ended; gives the thread that acts, if one
    /// does.
    fn watch_over<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        media: &Media<'scope>,
        incident: Option<Incident<'scope>>,
        stop: &AtomicBool,
        watch: &mut dyn Watch,
    ) -> Option<ScopedJoinHandle<'scope, anyhow::Result<Done>>> {
        let Range { start, end } = self.drive.window;
        let mut looks = vec![start, end];
        let (mut incident, mut acting) = (incident, None);
        let mut next_tick = Duration::ZERO;
        while !media.iter().all(ScopedJoinHandle::is_finished) {
            let at = self.since_epoch();
            let looks_now = looks.iter().any(|look| *look <= at);
            if looks_now || at >= next_tick {
                looks.retain(|look| *look > at);
                next_tick = at + PERIOD;
                watch.tick(self.tick(at));
            }
            if let Some(due) = incident.take_if(|incident| incident.at <= at) {
                acting = Some(scope.spawn(move || {
                    let begun = Instant::now();
                    (due.act)().map(|()| Done {
                        what: due.what,
                        at: due.at,
                        took: begun.elapsed(),
                    })
                }));
            }
            if stop.load(Ordering::Relaxed) || self.is_hopeless() {
                self.halted.store(true, Ordering::Relaxed);
            }
            let coming = looks.iter().copied().chain([next_tick]);
            let coming = coming.chain(incident.as_ref().map(|incident| incident.at));
            let nap = coming.min().unwrap_or(at).saturating_sub(at);
            std::thread::sleep(nap.clamp(NAP_MIN, NAP));
        }
        watch.tick(self.tick(self.since_epoch()));
        acting
    }

    /// Whether every call so far has failed, and they were many.
    fn is_hopeless(&self) -> bool {
        let established = self.live.established.load(Ordering::Relaxed);
        established == 0 && self.live.failed.load(Ordering::Relaxed) >= HOPELESS
    }

    fn tick(&self, at: Duration) -> Tick {
        let slice = self.live.slice.lock();
        let slice = std::mem::take(&mut *slice.unwrap_or_else(PoisonError::into_inner));
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Tick {
            at,
            active: read(&self.live.active),
            established: read(&self.live.established),
            failed: read(&self.live.failed),
            lost: read(&self.live.lost),
            round_trip: slice.round_trip,
            said: slice.said,
            heard: slice.heard,
        }
    }
}

/// Hangs up the calls that do not end by themselves, until no media thread is left to name one.
fn part(signalling: &dyn Signalling, calls: &Receiver<String>) {
    while let Ok(call) = calls.recv() {
        signalling.hang_up(&call);
    }
}

#[cfg(test)]
mod tests;
