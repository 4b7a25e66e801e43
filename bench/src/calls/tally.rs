//! What one thread of the generator has seen; the tallies of all threads add up to a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ear::{Counts, Verdict};
use super::failure::Failures;
use super::latency::Latencies;

/// A milestone of a call's set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The answer to the offer is here.
    Http,
    /// The first connectivity check was answered.
    Check,
    /// ICE has a path.
    Ice,
    /// DTLS is up.
    Dtls,
    /// The data channel is open.
    Channel,
    /// `session.created` came.
    Session,
    /// The first audio came back.
    Audio,
}

impl Phase {
    /// All, in the order of a call.
    pub const ALL: [Self; 7] = [
        Self::Http,
        Self::Check,
        Self::Ice,
        Self::Dtls,
        Self::Channel,
        Self::Session,
        Self::Audio,
    ];

    /// The milestone that this one follows upon; `None` for the first.
    pub fn after(self) -> Option<Self> {
        match self {
            Self::Http => None,
            Self::Check => Some(Self::Http),
            Self::Ice => Some(Self::Check),
            Self::Dtls => Some(Self::Ice),
            Self::Channel | Self::Audio => Some(Self::Dtls),
            Self::Session => Some(Self::Channel),
        }
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP answer",
            Self::Check => "first check answered",
            Self::Ice => "ICE",
            Self::Dtls => "DTLS",
            Self::Channel => "data channel",
            Self::Session => "session.created",
            Self::Audio => "first audio back",
        }
    }
}

/// When one call reached its milestones, in nanoseconds since the run's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Milestones([Option<u64>; 7]);

impl Milestones {
    /// Notes a milestone; `false` when it was reached before.
    pub fn reach(&mut self, phase: Phase, now_ns: u64) -> bool {
        let place = &mut self.0[phase as usize];
        let fresh = place.is_none();
        place.get_or_insert(now_ns);
        fresh
    }

    /// When `phase` was reached.
    pub fn at(&self, phase: Phase) -> Option<u64> {
        self.0[phase as usize]
    }
}

/// Set-up times of one milestone.
#[derive(Clone, Debug, Default)]
pub struct SetUp {
    /// From the intended start of the call.
    pub total: Latencies,
    /// From the milestone before.
    pub step: Latencies,
}

/// How many calls came how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Planned to start.
    pub planned: u64,
    /// Started.
    pub started: u64,
    /// Reached everything a call must reach.
    pub established: u64,
    /// Did not, in time.
    pub failed: u64,
    /// Were established and ended before their time, or in silence.
    pub lost: u64,
    /// Went as planned to their end.
    pub completed: u64,
    /// Were cut short by the end of the run.
    pub cut_short: u64,
}

impl Calls {
    fn add(&mut self, other: &Self) {
        self.planned += other.planned;
        self.started += other.started;
        self.established += other.established;
        self.failed += other.failed;
        self.lost += other.lost;
        self.completed += other.completed;
        self.cut_short += other.cut_short;
    }
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many calls came how far.
    pub calls: Calls,
    /// Why the others did not.
    pub failures: Failures,
    /// By [`Phase`].
    pub set_up: [SetUp; 7],
    /// Echo round trips from the intended send, within the window.
    pub round_trip: Latencies,
    /// The same without what the fastest round trip of the call took: what comes on top of pacing.
    pub above_floor: Latencies,
    /// From the intended send to the echo, where that marks when it had a packet.
    pub up: Latencies,
    /// From the echo to the client, likewise.
    pub down: Latencies,
    /// One value a call.
    pub jitter: Latencies,
    /// One value a call: how long a sound was overdue at worst.
    pub longest_gap: Latencies,
    /// One value a call that had a gap: from the incident to the end of its last gap.
    pub recovery: Latencies,
    /// One value a call.
    pub mos: Vec<f64>,
    /// Packets within the window.
    pub packets: Counts,
    /// Audio packets that were none of ours.
    pub foreign: u64,
    /// Texts that came on data channels.
    pub messages: u64,
    /// Sends that the kernel refused.
    pub refused_sends: u64,
    /// Time of established calls within the window, all together.
    pub call_time: Duration,
    /// From intended to actual starts of calls.
    pub start_lag: Latencies,
    /// From intended to actual sends of packets.
    pub send_lag: Latencies,
    /// From the end of one wait to the next look at the sockets: how long a datagram can lie
    /// unseen.
    pub pass: Latencies,
    /// CPU time of the thread within the window.
    pub cpu: Duration,
}

impl Tally {
    /// Adds one call's sound; `incident_ns` is when something was done to it.
    pub fn hear(&mut self, verdict: &Verdict, incident_ns: Option<u64>) {
        self.packets.add(&verdict.counts);
        if verdict.counts.said == 0 {
            return;
        }
        self.jitter.record(verdict.jitter);
        self.longest_gap.record(verdict.longest_gap);
        self.mos.extend(verdict.mos);
        if let (Some(recovered), Some(incident_ns)) = (verdict.recovered, incident_ns) {
            let since = recovered.saturating_sub(Duration::from_nanos(incident_ns));
            if !since.is_zero() {
                self.recovery.record(since);
            }
        }
    }

    /// Adds one call's milestones; `start_ns` is when it should have started.
    pub fn set_up(&mut self, milestones: &Milestones, start_ns: u64) {
        for phase in Phase::ALL {
            let Some(at_ns) = milestones.at(phase) else {
                continue;
            };
            let before = phase
                .after()
                .map_or(Some(start_ns), |phase| milestones.at(phase));
            let times = &mut self.set_up[phase as usize];
            times.total.record_ns(at_ns.saturating_sub(start_ns));
            if let Some(before_ns) = before {
                times.step.record_ns(at_ns.saturating_sub(before_ns));
            }
        }
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Self) {
        self.calls.add(&other.calls);
        self.failures.add(&other.failures);
        for (own, their) in self.set_up.iter_mut().zip(&other.set_up) {
            own.total.add(&their.total);
            own.step.add(&their.step);
        }
        self.round_trip.add(&other.round_trip);
        self.above_floor.add(&other.above_floor);
        self.up.add(&other.up);
        self.down.add(&other.down);
        self.jitter.add(&other.jitter);
        self.longest_gap.add(&other.longest_gap);
        self.recovery.add(&other.recovery);
        self.mos.extend_from_slice(&other.mos);
        self.packets.add(&other.packets);
        self.foreign += other.foreign;
        self.messages += other.messages;
        self.refused_sends += other.refused_sends;
        self.call_time += other.call_time;
        self.start_lag.add(&other.start_lag);
        self.send_lag.add(&other.send_lag);
        self.pass.add(&other.pass);
        self.cpu += other.cpu;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_milestone_counts_from_the_intended_start_and_from_the_one_before() {
        let mut milestones = Milestones::default();
        assert!(milestones.reach(Phase::Http, 3_000_000));
        assert!(milestones.reach(Phase::Check, 5_000_000));
        assert!(!milestones.reach(Phase::Check, 9_000_000));
        let mut tally = Tally::default();
        tally.set_up(&milestones, 1_000_000);
        let check = &tally.set_up[Phase::Check as usize];
        let is = |latencies: &Latencies, us: f64| {
            (latencies.quantiles().expect("one").p50 / us - 1.0).abs() < 0.001
        };
        assert!(is(&check.total, 4_000.0) && is(&check.step, 2_000.0));
        assert_eq!(tally.set_up[Phase::Audio as usize].total.count(), 0);
    }

    #[test]
    fn tallies_of_threads_add_up() {
        let mut one = Tally::default();
        one.calls.started = 2;
        one.packets.said = 10;
        one.call_time = Duration::from_secs(3);
        let mut all = one.clone();
        all.add(&one);
        assert_eq!((all.calls.started, all.packets.said), (4, 20));
        assert_eq!(all.call_time, Duration::from_secs(6));
    }
}
