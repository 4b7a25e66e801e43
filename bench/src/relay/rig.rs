//! Clients, sink and ledgers of one target, on one thread: what the drives play on.
//!
//! One thread, because the generator has one core: two threads on it would only take turns, and
//! hand each other's work over at the scheduler's pleasure.

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::clients::Clients;
use super::ledger::{Fates, Ledger};
use super::payload::Way;
use super::sink::Sink;

/// How long a client waits for the answer to a check before it asks again: an ICE agent's first
/// retransmission comes after 500 ms (RFC 8445 section 14.3), on loopback far less will do.
const CHECK_AGAIN_AFTER: Duration = Duration::from_millis(150);
/// How many checks go out between two looks at the sockets.
const CHECK_BURST: usize = 32;
/// The longest delay that the histograms tell from longer ones.
const DELAY_NS_MAX: u64 = 10_000_000_000;
/// Three digits: a delay of 100 µs is known to 0.1 µs.
const DELAY_DIGITS: u8 = 3;

/// A histogram of delays in nanoseconds.
pub type Delays = Histogram<u64>;

/// An empty [`Delays`].
///
/// # Panics
/// Never: the bounds are constants that the histogram accepts.
pub fn delays() -> Delays {
    Histogram::new_with_bounds(1, DELAY_NS_MAX, DELAY_DIGITS)
        .expect("invariant: the bounds are valid")
}

/// Everything of one target but the target.
#[derive(Debug)]
pub struct Rig {
    clients: Clients,
    sink: Sink,
    up: Ledger,
    down: Ledger,
    epoch: Instant,
    window: u32,
    delay_up: Delays,
    delay_down: Delays,
}

impl Rig {
    /// Puts clients and sink together.
    pub fn new(clients: Clients, sink: Sink) -> Self {
        let count = clients.count();
        Self {
            clients,
            sink,
            up: Ledger::new(Way::Up, count),
            down: Ledger::new(Way::Down, count),
            epoch: Instant::now(),
            window: 0,
            delay_up: delays(),
            delay_down: delays(),
        }
    }

    /// Nanoseconds since the rig was made: the clock of all stamps.
    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Has every client confirm its flow; returns how many could not before `timeout`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn settle(&mut self, timeout: Duration) -> io::Result<usize> {
        self.clients.unsettle();
        let begun = Instant::now();
        while !self.clients.all_settled() && begun.elapsed() < timeout {
            for client in 0..self.clients.count() {
                self.clients.ask(client)?;
                if (client as usize).is_multiple_of(CHECK_BURST) {
                    self.pull()?;
                }
            }
            let asked = Instant::now();
            while !self.clients.all_settled() && asked.elapsed() < CHECK_AGAIN_AFTER {
                self.pull()?;
            }
        }
        Ok(self.clients.count() as usize - self.clients.settled_count())
    }

    /// Opens the next window: its ledgers and histograms are empty.
    pub fn open_window(&mut self) {
        self.window += 1;
        self.up.open(self.window);
        self.down.open(self.window);
        self.delay_up.reset();
        self.delay_down.reset();
    }

    /// Sends one measured datagram, or packs it for [`Rig::flush`]; `false` when the window is
    /// full.
    ///
    /// # Errors
    /// The kernel's.
    pub fn push(&mut self, way: Way, intended_ns: u64) -> io::Result<bool> {
        let ledger = match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        };
        let Some(stamp) = ledger.deal(intended_ns) else {
            return Ok(false);
        };
        let taken = match way {
            Way::Up => self.clients.send(&stamp)?,
            Way::Down => self.sink.send(&stamp)?,
        };
        ledger.sent(taken);
        Ok(true)
    }

    /// Sends what is packed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// Looks at both sockets once; returns how many datagrams there were.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pull(&mut self) -> io::Result<usize> {
        let Self {
            clients,
            sink,
            up,
            down,
            epoch,
            delay_up,
            delay_down,
            ..
        } = self;
        let note = |delays: &mut Delays, intended_ns: u64| {
            let now_ns = epoch.elapsed().as_nanos() as u64;
            delays.saturating_record(now_ns.saturating_sub(intended_ns).max(1));
        };
        let at_sink = sink.receive(clients, up, |stamp| note(delay_up, stamp.intended_ns))?;
        let at_clients = clients.receive(down, |stamp| note(delay_down, stamp.intended_ns))?;
        Ok(at_sink + at_clients)
    }

    /// Datagrams sent and not seen yet, both ways.
    pub fn outstanding(&self) -> u64 {
        self.up.outstanding() + self.down.outstanding()
    }

    /// The window's fates so far, up and down.
    pub fn fates(&self) -> (Fates, Fates) {
        (self.up.fates(), self.down.fates())
    }

    /// The window's delays so far, from the intended send to the verified arrival, up and down.
    pub fn delays(&self) -> (&Delays, &Delays) {
        (&self.delay_up, &self.delay_down)
    }

    /// How many clients there are.
    pub fn client_count(&self) -> u32 {
        self.clients.count()
    }
}
