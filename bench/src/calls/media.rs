//! A media thread: all packets of its calls, on one core, by one epoll instance.
//!
//! It never blocks on anything but that epoll instance, which has the calls' sockets, a timer for
//! the next thing that is due, and a waker for calls that signalling has opened. Nothing else runs
//! here, so that how late the thread is says how busy its core is, and that is recorded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{
    ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags,
};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::call::{Call, Dialled, Notes, Stage, Woken};
use super::latency::Latencies;
use super::tally::Tally;
use super::terms::Terms;

/// Events taken by one look at the sockets.
const EVENTS_MAX: usize = 256;
/// The largest datagram of a path with Ethernet's MTU, and some room.
const DATAGRAM_BYTES_MAX: usize = 2_048;
/// Epoll tokens that are no call's.
const WAKER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
/// How often a thread gives its round trips to the live view.
const SLICE_NS: u64 = 250_000_000;
/// Things due are worked off so many at a time before the sockets get a look.
const DUE_MAX: usize = 64;

/// What a media thread shares with the rest of the run.
#[derive(Debug)]
pub(super) struct Live {
    /// Calls that are established, or once were and are not over.
    pub(super) active: AtomicU64,
    pub(super) established: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) slice: Mutex<LiveSlice>,
}

/// What was said and heard since the last look.
#[derive(Debug, Default)]
pub(super) struct LiveSlice {
    pub(super) round_trip: Latencies,
    pub(super) said: u64,
    pub(super) heard: u64,
}

impl Live {
    pub(super) fn new() -> Self {
        Self {
            active: AtomicU64::new(0),
            established: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            slice: Mutex::default(),
        }
    }
}

/// What a media thread is made of.
pub(super) struct Setup<'a> {
    pub(super) terms: &'a Terms,
    pub(super) live: &'a Live,
    pub(super) stop: &'a AtomicBool,
    pub(super) core: Option<usize>,
    pub(super) waker: &'a EventFd,
    pub(super) inbox: Receiver<Dialled>,
    /// Calls that signalling must hang up.
    pub(super) hang_up: Sender<String>,
}

/// Runs until there is no call left and none will come.
///
/// # Errors
/// When the kernel refuses epoll, a timer, or the core.
pub(super) fn run(setup: Setup<'_>) -> io::Result<Tally> {
    if let Some(core) = setup.core {
        let mut cores = CpuSet::new();
        cores.set(core)?;
        sched_setaffinity(Pid::from_raw(0), &cores)?;
    }
    let mut thread = Thread::new(setup)?;
    while thread.turn()? {}
    thread.publish();
    let Thread { mut notes, cpu, .. } = thread;
    notes.tally.cpu = cpu.spent();
    Ok(notes.tally)
}

struct Thread<'a> {
    setup: Setup<'a>,
    epoll: Epoll,
    timer: TimerFd,
    timer_ns: u64,
    /// Calls by slot; a freed slot is used again.
    calls: Vec<Option<Call>>,
    free: Vec<usize>,
    /// `(when, slot)`; a call has an entry for the time at which it wants to be woken, and may have
    /// later ones that find nothing to do.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// The earliest entry of each slot in `due`.
    queued_ns: Vec<u64>,
    events: Vec<EpollEvent>,
    buffer: Vec<u8>,
    notes: Notes,
    told: Told,
    sliced_ns: u64,
    /// When the last wait ended.
    woken_ns: u64,
    cpu: WindowCpu,
    inbox_is_open: bool,
    cut: bool,
}

/// What of the tally the live view knows already.
#[derive(Default)]
struct Told {
    active: u64,
    established: u64,
    failed: u64,
    lost: u64,
}

impl<'a> Thread<'a> {
    fn new(setup: Setup<'a>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(TimerClock::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        epoll.add(setup.waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        let cpu = WindowCpu::new(setup.terms.window_ns.clone());
        Ok(Self {
            setup,
            epoll,
            timer,
            timer_ns: u64::MAX,
            calls: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            queued_ns: Vec::new(),
            events: vec![EpollEvent::empty(); EVENTS_MAX],
            buffer: vec![0; DATAGRAM_BYTES_MAX],
            notes: Notes::default(),
            told: Told::default(),
            sliced_ns: 0,
            woken_ns: 0,
            cpu,
            inbox_is_open: true,
            cut: false,
        })
    }

    /// One look at everything; `false` when the thread's work is done.
    fn turn(&mut self) -> io::Result<bool> {
        if self.setup.stop.load(Ordering::Relaxed) && !self.cut {
            self.cut_short();
        }
        let now_ns = self.work_off()?;
        self.cpu.look(now_ns)?;
        if now_ns - self.sliced_ns > SLICE_NS {
            self.sliced_ns = now_ns;
            self.publish();
        }
        if self.is_done() {
            return Ok(false);
        }
        if self.setup.terms.window_ns.contains(&now_ns) {
            self.notes.tally.pass.record_ns(now_ns - self.woken_ns);
        }
        let count = self.wait(now_ns)?;
        self.woken_ns = self.setup.terms.now_ns();
        for index in 0..count {
            match self.events[index].data() {
                TIMER => self.timer_ns = u64::MAX,
                WAKER => self.take_in()?,
                slot => self.receive(slot as usize)?,
            }
        }
        Ok(true)
    }

    fn is_done(&self) -> bool {
        !self.inbox_is_open && self.free.len() == self.calls.len()
    }

    /// Waits for a socket, the waker or the next thing that is due.
    fn wait(&mut self, now_ns: u64) -> io::Result<usize> {
        let next_ns = self
            .due
            .peek()
            .map_or(u64::MAX, |Reverse((at_ns, _))| *at_ns);
        // The slice and the stop flag want a look now and then.
        let next_ns = next_ns.min(now_ns + SLICE_NS);
        let timeout = if next_ns <= now_ns {
            EpollTimeout::ZERO
        } else {
            if next_ns < self.timer_ns || self.timer_ns <= now_ns {
                self.timer_ns = next_ns;
                let wait = TimeSpec::from_duration(Duration::from_nanos(next_ns - now_ns));
                self.timer
                    .set(Expiration::OneShot(wait), TimerSetTimeFlags::empty())?;
            }
            EpollTimeout::NONE
        };
        match self.epoll.wait(&mut self.events, timeout) {
            Ok(count) => Ok(count),
            Err(Errno::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes over the calls that signalling has opened.
    fn take_in(&mut self) -> io::Result<()> {
        // Reading resets it; that others read it first is no error.
        let _ = self.setup.waker.read();
        loop {
            match self.setup.inbox.try_recv() {
                Ok(dialled) => self.insert(dialled)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    self.inbox_is_open = false;
                    return Ok(());
                }
            }
        }
    }

    fn insert(&mut self, dialled: Dialled) -> io::Result<()> {
        let mut call = Call::new(dialled, self.setup.terms);
        if self.cut {
            call.cut_short(self.setup.terms);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.calls.push(None);
            self.queued_ns.push(u64::MAX);
            self.calls.len() - 1
        });
        let event = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
        self.epoll.add(&call.socket, event)?;
        call.wake(self.setup.terms, &mut self.notes);
        self.calls[slot] = Some(call);
        self.settle(slot)
    }

    /// Wakes the calls whose time has come; returns the time at which it looked.
    fn work_off(&mut self) -> io::Result<u64> {
        let mut now_ns = self.setup.terms.now_ns();
        for _ in 0..DUE_MAX {
            let Some(&Reverse((at_ns, slot))) = self.due.peek() else {
                break;
            };
            if at_ns > now_ns {
                now_ns = self.setup.terms.now_ns();
                if at_ns > now_ns {
                    break;
                }
            }
            self.due.pop();
            if self.queued_ns[slot] == at_ns {
                self.queued_ns[slot] = u64::MAX;
            }
            let Some(call) = &mut self.calls[slot] else {
                continue;
            };
            let is_due = call.wake_ns() <= now_ns;
            if is_due && call.wake(self.setup.terms, &mut self.notes) == Woken::Moved {
                let event = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
                self.epoll.add(&call.socket, event)?;
            }
            self.settle(slot)?;
        }
        Ok(now_ns)
    }

    fn receive(&mut self, slot: usize) -> io::Result<()> {
        if let Some(call) = self.calls.get_mut(slot).and_then(Option::as_mut) {
            call.receive(&mut self.buffer, self.setup.terms, &mut self.notes);
            self.settle(slot)?;
        }
        Ok(())
    }

    /// After a call did something: queues its next time, or takes it out when it is over.
    fn settle(&mut self, slot: usize) -> io::Result<()> {
        let Some(call) = &self.calls[slot] else {
            return Ok(());
        };
        if call.stage == Stage::Over {
            let call = self.calls[slot].take().expect("invariant: looked at above");
            self.free.push(slot);
            if let Some(handle) = call.account(self.setup.terms, &mut self.notes) {
                // The receiver outlives all media threads.
                let _ = self.setup.hang_up.send(handle);
            }
            return Ok(());
        }
        let wake_ns = call.wake_ns();
        if wake_ns < self.queued_ns[slot] {
            self.queued_ns[slot] = wake_ns;
            self.due.push(Reverse((wake_ns, slot)));
        }
        Ok(())
    }

    fn cut_short(&mut self) {
        self.cut = true;
        for slot in 0..self.calls.len() {
            if let Some(call) = &mut self.calls[slot] {
                call.cut_short(self.setup.terms);
                self.due.push(Reverse((0, slot)));
            }
        }
    }

    /// Tells the live view what is new.
    fn publish(&mut self) {
        let (live, calls) = (self.setup.live, &self.notes.tally.calls);
        let over = calls.completed + calls.cut_short + calls.lost;
        let tell = |to: &AtomicU64, told: &mut u64, is: u64| {
            // Differences, so that threads add up; one that shrinks wraps and adds up all the same.
            to.fetch_add(is.wrapping_sub(*told), Ordering::Relaxed);
            *told = is;
        };
        let active = calls.established.saturating_sub(over);
        tell(&live.active, &mut self.told.active, active);
        tell(
            &live.established,
            &mut self.told.established,
            calls.established,
        );
        tell(&live.failed, &mut self.told.failed, calls.failed);
        tell(&live.lost, &mut self.told.lost, calls.lost);
        let mut slice = live.slice.lock().unwrap_or_else(PoisonError::into_inner);
        slice.round_trip.add(&self.notes.slice);
        slice.said += std::mem::take(&mut self.notes.slice_said);
        slice.heard += std::mem::take(&mut self.notes.slice_heard);
        drop(slice);
        self.notes.slice.clear();
    }
}

/// CPU time of this thread between the edges of the window, as near as it looks.
struct WindowCpu {
    window_ns: Range<u64>,
    begun: Option<Duration>,
    ended: Option<Duration>,
    now: Duration,
}

impl WindowCpu {
    fn new(window_ns: Range<u64>) -> Self {
        Self {
            window_ns,
            begun: None,
            ended: None,
            now: Duration::ZERO,
        }
    }

    fn look(&mut self, now_ns: u64) -> io::Result<()> {
        if now_ns < self.window_ns.start || self.ended.is_some() {
            return Ok(());
        }
        if self.begun.is_some() && now_ns < self.window_ns.end {
            return Ok(());
        }
        self.now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into();
        if self.begun.is_none() {
            self.begun = Some(self.now);
        } else {
            self.ended = Some(self.now);
        }
        Ok(())
    }

    fn spent(&self) -> Duration {
        let begun = self.begun.unwrap_or_default();
        self.ended.unwrap_or(self.now).saturating_sub(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::super::terms::ns;
    use super::*;

    #[test]
    fn counts_the_cpu_time_between_the_edges_of_the_window_only() {
        let mut cpu = WindowCpu::new(ns(Duration::from_secs(1))..ns(Duration::from_secs(2)));
        cpu.look(0).expect("a clock");
        assert_eq!(cpu.begun, None);
        cpu.look(ns(Duration::from_secs(1))).expect("a clock");
        let mut sum = 0_u64;
        for step in 0..2_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(step));
        }
        cpu.look(ns(Duration::from_secs(2))).expect("a clock");
        let spent = cpu.spent();
        assert!(spent > Duration::ZERO);
        cpu.look(ns(Duration::from_secs(3))).expect("a clock");
        assert_eq!(cpu.spent(), spent);
    }
}
