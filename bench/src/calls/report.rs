//! What a run of calls leaves behind: each target's rounds as they were, in JSON that other verbs
//! read back.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::capacity::Capacity;
use super::ear::Counts;
use super::engine::{Done, Driven};
use super::failure::Failures;
use super::latency::Quantiles;
use super::schedule::Arrivals;
use super::stand::Kind;
use super::tally::{Calls, Phase, Tally};
use super::voice::Speech;
use crate::origin::Origin;
use crate::slo::Verdict;
use crate::stats::Spread;

/// Packets sent so late, in µs, at the 99th percentile make a generator the bottleneck: a quarter
/// of the distance between two packets.
const SEND_LAG_US_MAX: f64 = 5_000.0;
/// Likewise a datagram that can lie unseen for so long, in µs.
const PASS_US_MAX: f64 = 5_000.0;
/// Calls started so late, in µs: what a slow server's answer may take.
const START_LAG_US_MAX: f64 = 100_000.0;
/// A media thread that uses more of its core than this has no room for a burst.
const BUSY_SHARE_MAX: f64 = 0.9;

/// The verbs that make such reports.
pub const VERBS: [&str; 7] = [
    "capacity", "calls", "setup", "storm", "soak", "roam", "recovery",
];

/// A whole measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where it comes from; the verb is one of [`VERBS`].
    #[serde(flatten)]
    pub origin: Origin,
    /// What was asked of each target.
    pub load: Load,
    /// What each target says of its version.
    pub versions: BTreeMap<Kind, String>,
    /// The impaired network between clients and relay, and what its fates were drawn from.
    #[serde(default)]
    pub network: Option<String>,
    /// Every round of every target, in the order played.
    pub runs: Vec<Run>,
    /// What the search of each round found, by target; from `capacity` alone.
    #[serde(default)]
    pub capacity: BTreeMap<Kind, Vec<Capacity>>,
    /// What became of the objectives that were set.
    #[serde(default)]
    pub slo: Vec<Verdict>,
}

/// The load of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Calls in all.
    pub calls: u32,
    /// Starts a second.
    pub rate: f64,
    /// Seconds in which the rate grows to that.
    pub ramp_s: f64,
    /// How starts follow each other.
    pub arrivals: Arrivals,
    /// Seconds that each call is held; `None` when all end together.
    pub hold_s: Option<f64>,
    /// Seconds of measured media; `None` where none is.
    pub window_s: Option<f64>,
    /// The rhythm of speech.
    pub speech: Speech,
    /// Whether clients offer a data channel.
    pub channel: bool,
    /// Seconds until a call must be established.
    pub set_up_timeout_s: f64,
}

/// One round against one target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The target.
    pub target: Kind,
    /// The round, from 0.
    pub round: u32,
    /// Whether it came to its end.
    pub complete: bool,
    /// How many calls came how far.
    pub calls: Calls,
    /// Why the others did not.
    pub failures: Failures,
    /// Set-up by phase, for calls that were established.
    pub set_up: Vec<SetUp>,
    /// Sound within the window.
    pub media: Media,
    /// What it cost, by process under test.
    pub processes: Vec<ProcessCost>,
    /// The generator's own state.
    pub generator: Generator,
    /// What was done in the middle of it, and what came of that.
    pub incident: Option<Incident>,
    /// The run over time.
    pub series: Vec<Point>,
    /// Where the server's figures go with every call it has served; from `soak` alone.
    pub trend: Option<Trend>,
}

/// Set-up times of one phase, in µs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetUp {
    /// The milestone that ends it.
    pub phase: Phase,
    /// From the intended start of the call.
    pub total: Quantiles,
    /// From the milestone before.
    pub step: Option<Quantiles>,
}

/// What was heard of what was said. Where payloads do not come back as they were said, a burst of
/// sound counts in place of a packet, and there is no jitter, gap or score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Media {
    /// Echo round trips from the intended send, in µs.
    pub round_trip: Option<Quantiles>,
    /// The same above the fastest of each call, in µs: what comes on top of the server's pacing.
    pub above_floor: Option<Quantiles>,
    /// From the intended send to the echo's look at its clock, in µs; where the echo marks it
    /// ([`Kind::marks`]).
    #[serde(default)]
    pub up: Option<Quantiles>,
    /// From there to the client, in µs.
    #[serde(default)]
    pub down: Option<Quantiles>,
    /// Interarrival jitter (RFC 3550), one value a call, in µs.
    pub jitter: Option<Quantiles>,
    /// How long a sound was overdue at worst, one value a call, in µs.
    pub longest_gap: Option<Quantiles>,
    /// Mean opinion scores by the E-model, one a call.
    pub mos: Option<Spread>,
    /// Packets said.
    pub said: u64,
    /// Packets heard in time.
    pub heard: u64,
    /// Packets not heard, or too late.
    pub lost: u64,
    /// Runs of lost packets.
    pub lost_runs: u64,
    /// The longest of them.
    pub longest_run: u64,
    /// Packets heard twice.
    pub duplicated: u64,
    /// Packets overtaken by others.
    pub reordered: u64,
    /// Packets heard too late; they are among the lost.
    pub late: u64,
    /// Audio packets that were none of the client's own.
    pub foreign: u64,
    /// Texts on data channels, over the whole run.
    pub messages: u64,
}

/// What one process under test cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessCost {
    /// The process.
    pub name: String,
    /// CPU time within the window, in ms for each second of each call.
    pub cpu_ms_per_call_second: Option<f64>,
    /// CPU time of the whole run for each call that was started, in ms.
    pub cpu_ms_per_start: Option<f64>,
    /// Part of one core that it used within the window.
    pub busy_share: Option<f64>,
    /// Resident memory before the first call, in KiB.
    pub resident_before_kib: u64,
    /// Resident memory at the end of the window, in KiB; `None` when the process was gone.
    pub resident_kib: Option<u64>,
    /// What the resident memory grew by for each call that was up then, in KiB.
    pub resident_per_call_kib: Option<f64>,
    /// Open descriptors before the first call.
    pub descriptors_before: Option<u64>,
    /// Open descriptors at the end of the window.
    pub descriptors: Option<u64>,
}

/// The generator looks at itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Media threads.
    pub threads: usize,
    /// From intended to actual starts of calls, in µs.
    pub start_lag: Option<Quantiles>,
    /// From intended to actual sends of packets, in µs.
    pub send_lag: Option<Quantiles>,
    /// How long an arrived datagram can lie unseen, in µs.
    pub pass: Option<Quantiles>,
    /// CPU time of media threads within the window, in ms for each second of each call.
    pub cpu_ms_per_call_second: Option<f64>,
    /// Part of their cores that media threads used within the window.
    pub busy_share: Option<f64>,
    /// Calls that its cores carry at this cost before they have no room for a burst. A lower bound:
    /// the cost of a call falls as their number rises.
    #[serde(default)]
    pub room_for_calls: Option<f64>,
    /// Sends that the kernel refused.
    pub refused_sends: u64,
    /// Why figures of this run are the generator's rather than the server's; empty when they are
    /// the server's.
    pub bottleneck: Vec<String>,
}

/// What was done in the middle of a run, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// What it was.
    pub what: String,
    /// When, in seconds since the first possible start.
    pub at_s: f64,
    /// How long it took to do, in ms, where that is known.
    pub took_ms: Option<f64>,
    /// Packets lost from then on.
    pub packets_lost: u64,
    /// Calls that did not outlive it.
    pub calls_lost: u64,
    /// How long a sound was overdue at worst, over all calls, in ms.
    pub blackout_ms: Option<f64>,
    /// The median of that over calls, in ms.
    pub blackout_p50_ms: Option<f64>,
    /// From the incident until the last call had its sound back for good, in ms.
    pub settled_ms: Option<f64>,
}

/// Where figures go: what they change by while the server serves a thousand calls, once it is warm.
/// Slopes by Theil and Sen, which single outliers do not move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// Calls that the slopes are drawn from.
    pub calls: u64,
    /// Resident memory, in KiB, by process.
    pub resident_kib: BTreeMap<String, f64>,
    /// Open descriptors, by process.
    pub descriptors: BTreeMap<String, f64>,
    /// 99th percentile of the round trip, in µs.
    pub round_trip_p99_us: Option<f64>,
}

/// A look at a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since the first possible start.
    pub at_s: f64,
    /// Calls that are up.
    pub active: u64,
    /// Calls established so far.
    pub established: u64,
    /// Calls that failed so far.
    pub failed: u64,
    /// Calls lost so far.
    pub lost: u64,
    /// Packets said since the look before.
    pub said: u64,
    /// Packets heard since then.
    pub heard: u64,
    /// Median round trip since then, in µs.
    pub round_trip_p50_us: Option<f64>,
    /// Its 99th percentile, in µs.
    pub round_trip_p99_us: Option<f64>,
    /// The processes under test, in the order of [`Run::processes`].
    pub processes: Vec<ProcessPoint>,
}

/// A look at a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessPoint {
    /// CPU time since it began, in ms.
    pub cpu_ms: f64,
    /// Resident memory, in KiB; 0 while it is away.
    pub resident_kib: u64,
    /// Open descriptors.
    pub descriptors: Option<u64>,
}

impl Run {
    /// Draws what the tally says; costs, series and incident are the watcher's to add.
    pub fn of(target: Kind, round: u32, driven: &Driven, threads: usize, window: Duration) -> Self {
        let tally = &driven.tally;
        let set_up = Phase::ALL.into_iter().filter_map(|phase| {
            let times = &tally.set_up[phase as usize];
            Some(SetUp {
                phase,
                total: times.total.quantiles()?,
                step: times.step.quantiles(),
            })
        });
        Self {
            target,
            round,
            complete: driven.complete,
            calls: tally.calls,
            failures: tally.failures.clone(),
            set_up: set_up.collect(),
            media: Media::of(tally, target.keeps_payloads()),
            processes: Vec::new(),
            generator: Generator::of(tally, threads, window),
            incident: driven
                .incident
                .as_ref()
                .map(|done| Incident::of(tally, done)),
            series: Vec::new(),
            trend: None,
        }
    }

    /// Set-up times until `phase`.
    pub fn phase(&self, phase: Phase) -> Option<&SetUp> {
        self.set_up.iter().find(|set_up| set_up.phase == phase)
    }

    /// CPU time of all processes under test, in ms for each second of each call.
    pub fn cpu_ms_per_call_second(&self) -> Option<f64> {
        let costs = self
            .processes
            .iter()
            .map(|cost| cost.cpu_ms_per_call_second);
        costs
            .sum::<Option<f64>>()
            .filter(|_| !self.processes.is_empty())
    }
}

impl Media {
    /// Without payloads that come back, counts are of bursts, a second apart: too few to say how
    /// a call sounded.
    fn of(tally: &Tally, keeps_payloads: bool) -> Self {
        let Counts {
            said,
            heard,
            lost_runs,
            longest_run,
            duplicated,
            reordered,
            late,
        } = tally.packets;
        Self {
            round_trip: tally.round_trip.quantiles(),
            above_floor: tally.above_floor.quantiles(),
            up: tally.up.quantiles(),
            down: tally.down.quantiles(),
            jitter: tally.jitter.quantiles().filter(|_| keeps_payloads),
            longest_gap: tally.longest_gap.quantiles().filter(|_| keeps_payloads),
            mos: Spread::of(tally.mos.iter().copied()).filter(|_| keeps_payloads),
            said,
            heard,
            lost: tally.packets.lost(),
            lost_runs,
            longest_run,
            duplicated,
            reordered,
            late,
            foreign: tally.foreign,
            messages: tally.messages,
        }
    }

    /// Lost packets as a part of those said; `None` when none were.
    pub fn loss(&self) -> Option<f64> {
        (self.said > 0).then(|| self.lost as f64 / self.said as f64)
    }
}

impl Incident {
    fn of(tally: &Tally, done: &Done) -> Self {
        let ms = |us: f64| us / 1e3;
        let gaps = tally.longest_gap.quantiles();
        Self {
            what: done.what.clone(),
            at_s: done.at.as_secs_f64(),
            took_ms: Some(done.took.as_secs_f64() * 1e3),
            packets_lost: tally.packets.lost(),
            calls_lost: tally.calls.lost,
            blackout_ms: gaps.as_ref().map(|all| ms(all.max)),
            blackout_p50_ms: gaps.as_ref().map(|all| ms(all.p50)),
            settled_ms: tally.recovery.quantiles().map(|all| ms(all.max)),
        }
    }
}

impl Generator {
    fn of(tally: &Tally, threads: usize, window: Duration) -> Self {
        let call_s = tally.call_time.as_secs_f64();
        let cpu_s = tally.cpu.as_secs_f64();
        let room_s = window.as_secs_f64() * threads as f64;
        let cpu_ms = (call_s > 0.0 && cpu_s > 0.0).then(|| cpu_s * 1e3 / call_s);
        let mut generator = Self {
            threads,
            start_lag: tally.start_lag.quantiles(),
            send_lag: tally.send_lag.quantiles(),
            pass: tally.pass.quantiles(),
            cpu_ms_per_call_second: cpu_ms,
            room_for_calls: cpu_ms.map(|ms| threads as f64 * BUSY_SHARE_MAX * 1e3 / ms),
            busy_share: (room_s > 0.0).then(|| cpu_s / room_s),
            refused_sends: tally.refused_sends,
            bottleneck: Vec::new(),
        };
        generator.bottleneck = generator.reasons();
        generator
    }

    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        let mut judge = |quantiles: &Option<Quantiles>, most_us: f64, what: &str, remedy: &str| {
            if let Some(quantiles) = quantiles.as_ref().filter(|all| all.p99 > most_us) {
                let (p99_ms, most_ms) = (quantiles.p99 / 1e3, most_us / 1e3);
                reasons.push(format!(
                    "{what} {p99_ms:.1} ms late at p99 (over {most_ms} ms): {remedy}"
                ));
            }
        };
        let cores = "give it more cores (--cores), or fewer calls";
        judge(&self.send_lag, SEND_LAG_US_MAX, "packets left", cores);
        judge(&self.pass, PASS_US_MAX, "datagrams were seen", cores);
        let diallers = "more --diallers, or a server that answers sooner";
        judge(&self.start_lag, START_LAG_US_MAX, "calls started", diallers);
        if let Some(busy) = self.busy_share.filter(|busy| *busy > BUSY_SHARE_MAX) {
            let percent = busy * 100.0;
            reasons.push(format!(
                "media threads used {percent:.0} % of their cores: {cores}"
            ));
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_when_and_why_the_generator_was_the_bottleneck() {
        let mut tally = Tally::default();
        tally.send_lag.record(Duration::from_micros(80));
        tally.cpu = Duration::from_millis(500);
        tally.call_time = Duration::from_secs(100);
        let window = Duration::from_secs(1);
        let fine = Generator::of(&tally, 1, window);
        assert!(fine.bottleneck.is_empty(), "{:?}", fine.bottleneck);
        assert_eq!(fine.cpu_ms_per_call_second, Some(5.0));
        for _ in 0..10 {
            tally.send_lag.record(Duration::from_millis(8));
        }
        tally.cpu = Duration::from_millis(980);
        let late = Generator::of(&tally, 1, window).bottleneck;
        assert!(late[0].contains("packets left 8.0 ms late"), "{late:?}");
        assert!(late[1].contains("98 %"), "{late:?}");
    }

    #[test]
    fn a_run_without_calls_has_no_figures() {
        let driven = Driven {
            tally: Tally::default(),
            complete: false,
            incident: None,
        };
        let run = Run::of(Kind::Syrinx, 0, &driven, 1, Duration::from_secs(1));
        assert!(run.set_up.is_empty() && run.media.round_trip.is_none());
        assert_eq!(
            (run.media.loss(), run.cpu_ms_per_call_second()),
            (None, None)
        );
        assert_eq!(run.generator.cpu_ms_per_call_second, None);
    }
}
