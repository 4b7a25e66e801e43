//! How a window is driven: saturated, or paced from the intended send.
//!
//! - **Saturated**: a backlog is laid while the target is held, then the target is released and
//!   left alone until all has arrived; again and again. The relay's CPU time over the window
//!   divided by what arrived is its cost at saturation, and the generator cannot be the bottleneck.
//!   Without a process to hold (the direct path) a window of the same size is kept in flight.
//! - **Paced**: clients have random phases and each sends at a fixed interval, as voice does.
//!   Delay is counted from the moment a datagram *should* have been sent, so a target or generator
//!   that stalls shows all the datagrams that waited behind the stall (no coordinated omission).

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::payload::Way;
use super::rig::{Delays, Rig, delays};
use super::target::{Target, TargetError};

/// A released backlog that makes no progress for this long has lost the rest.
const STALLED_AFTER: Duration = Duration::from_millis(60);
/// How many datagrams are sent between two looks at the sockets when nothing is held.
const BURST: u64 = 32;
/// How many datagrams that are late are sent before the sockets are looked at again.
const LATE_BURST: u32 = 16;

/// Which ways the datagrams of a window go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Clients to transceiver.
    Up,
    /// Transceiver to clients.
    Down,
    /// Both, in turn.
    Duplex,
}

impl Direction {
    /// The way of the `index`th datagram.
    fn way(self, index: u64) -> Way {
        match self {
            Self::Up => Way::Up,
            Self::Down => Way::Down,
            Self::Duplex if index.is_multiple_of(2) => Way::Up,
            Self::Duplex => Way::Down,
        }
    }
}

/// How the generator behaved in a window.
#[derive(Debug)]
pub struct Driven {
    /// From the first send to the last arrival.
    pub wall: Duration,
    /// CPU time of the target meanwhile.
    pub cpu: Duration,
    /// How late the generator sent, paced windows only.
    pub lateness: Delays,
    /// How often the target was held and released.
    pub hold_count: u64,
}

/// Drives one saturated window of about `length`, with up to `backlog` datagrams in flight.
///
/// # Errors
/// When the target ended or the kernel refused a call.
pub fn saturated(
    rig: &mut Rig,
    target: &mut Target,
    direction: Direction,
    backlog: u64,
    length: Duration,
) -> Result<Driven, TargetError> {
    let (begun, cpu) = (Instant::now(), target.cpu()?);
    let mut hold_count = 0;
    let mut index = 0;
    if target.works() {
        let mut room = true;
        while room && begun.elapsed() < length {
            target.hold()?;
            hold_count += 1;
            let laid = lay(rig, direction, &mut index, backlog);
            target.release()?;
            room = laid?;
            drain(rig, target)?;
        }
    } else {
        while begun.elapsed() < length {
            if rig.outstanding() + BURST <= backlog && !lay(rig, direction, &mut index, BURST)? {
                break;
            }
            rig.pull()?;
        }
        drain(rig, target)?;
    }
    let cpu = target.cpu()? - cpu;
    Ok(Driven {
        wall: begun.elapsed(),
        cpu,
        lateness: delays(),
        hold_count,
    })
}

/// Sends `count` datagrams; `false` when the window is full.
fn lay(rig: &mut Rig, direction: Direction, index: &mut u64, count: u64) -> io::Result<bool> {
    let intended_ns = rig.now_ns();
    for _ in 0..count {
        if !rig.push(direction.way(*index), intended_ns)? {
            rig.flush()?;
            return Ok(false);
        }
        *index += 1;
    }
    rig.flush()?;
    Ok(true)
}

/// Takes arrivals until nothing is outstanding, or nothing has come for a while.
fn drain(rig: &mut Rig, target: &mut Target) -> Result<(), TargetError> {
    let mut last = Instant::now();
    let mut stragglers = rig.outstanding();
    while rig.outstanding() > 0 && last.elapsed() < STALLED_AFTER {
        rig.pull()?;
        if rig.outstanding() != stragglers {
            stragglers = rig.outstanding();
            last = Instant::now();
        }
    }
    target.check()
}

/// Drives one paced window of `length` at `rate_pps` datagrams a second in all, each client at a
/// fixed interval from a phase drawn from `seed`.
///
/// # Errors
/// When the target ended or the kernel refused a call.
pub fn paced(
    rig: &mut Rig,
    target: &mut Target,
    direction: Direction,
    rate_pps: u32,
    length: Duration,
    seed: u64,
) -> Result<Driven, TargetError> {
    let schedule = Schedule::new(rig.client_count(), rate_pps, seed);
    let total = (length.as_secs_f64() * f64::from(rate_pps)) as u64;
    let mut lateness = delays();
    let (begun, cpu) = (Instant::now(), target.cpu()?);
    let start_ns = rig.now_ns();
    let mut index = 0;
    while index < total {
        let mut burst = 0;
        while index < total && burst < LATE_BURST {
            let (due_ns, now_ns) = (start_ns + schedule.due_ns(index), rig.now_ns());
            if due_ns > now_ns {
                break;
            }
            lateness.saturating_record((now_ns - due_ns).max(1));
            rig.push(direction.way(index), due_ns)?;
            index += 1;
            burst += 1;
        }
        rig.flush()?;
        rig.pull()?;
    }
    drain(rig, target)?;
    let cpu = target.cpu()? - cpu;
    Ok(Driven {
        wall: begun.elapsed(),
        cpu,
        lateness,
        hold_count: 0,
    })
}

/// When each datagram of a paced window is due.
#[derive(Debug)]
pub struct Schedule {
    /// The clients' phases within one interval, ascending.
    phases_ns: Vec<u64>,
    interval_ns: u64,
}

impl Schedule {
    /// `client_count` clients that send `rate_pps` datagrams a second together.
    ///
    /// # Panics
    /// When there is no client or the rate is zero.
    pub fn new(client_count: u32, rate_pps: u32, seed: u64) -> Self {
        assert!(client_count > 0 && rate_pps > 0);
        let interval_ns = u64::from(client_count) * 1_000_000_000 / u64::from(rate_pps);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut phases_ns: Vec<u64> = (0..client_count)
            .map(|_| random.u64(0..interval_ns.max(1)))
            .collect();
        phases_ns.sort_unstable();
        Self {
            phases_ns,
            interval_ns,
        }
    }

    /// When the `index`th datagram is due, in nanoseconds from the window's start.
    pub fn due_ns(&self, index: u64) -> u64 {
        let clients = self.phases_ns.len() as u64;
        self.phases_ns[(index % clients) as usize] + index / clients * self.interval_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_keeps_its_rate_and_each_client_its_interval() {
        let schedule = Schedule::new(2_000, 100_000, 7);
        let dues: Vec<u64> = (0..10_000).map(|index| schedule.due_ns(index)).collect();
        assert!(dues.is_sorted());
        assert_eq!(dues[2_000 + 5] - dues[5], 20_000_000);
        let seconds = dues[9_999] as f64 / 1e9;
        assert!((0.095..0.1).contains(&seconds), "{seconds}");
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        let dues = |seed| {
            let schedule = Schedule::new(10, 1_000, seed);
            (0..100)
                .map(|index| schedule.due_ns(index))
                .collect::<Vec<_>>()
        };
        assert_eq!(dues(3), dues(3));
        assert_ne!(dues(3), dues(4));
    }

    #[test]
    fn duplex_alternates() {
        let ways: Vec<Way> = (0..4).map(|index| Direction::Duplex.way(index)).collect();
        assert_eq!(ways, [Way::Up, Way::Down, Way::Up, Way::Down]);
    }
}
