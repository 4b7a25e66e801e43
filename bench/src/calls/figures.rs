//! What a run of calls is judged by, by name: objectives, comparisons, pages and the summary all
//! draw on this one list.

use super::latency::Quantiles;
use super::report::{Report, Run};
use super::stand::Kind;
use super::tally::Phase;
use crate::figure::{Definition, Figure, Unit, less, more, time};

/// How a figure is read off a run; `None` where the run did not measure it.
type Of = fn(&Run) -> Option<f64>;

/// Every figure.
const FIGURES: [(Definition, Of); 42] = [
    (
        time("setup_p50", "intended start to first audio back, median"),
        |run| set_up(run, Phase::Audio, |all| all.p50),
    ),
    (time("setup_p99", "the same, 99th percentile"), |run| {
        set_up(run, Phase::Audio, |all| all.p99)
    }),
    (time("setup_max", "the same, the longest"), |run| {
        set_up(run, Phase::Audio, |all| all.max)
    }),
    (
        time("http_p50", "intended start to the answer by HTTP, median"),
        |run| set_up(run, Phase::Http, |all| all.p50),
    ),
    (time("http_p99", "the same, 99th percentile"), |run| {
        set_up(run, Phase::Http, |all| all.p99)
    }),
    (
        time(
            "check_p99",
            "intended start to the first answered check, 99th percentile",
        ),
        |run| set_up(run, Phase::Check, |all| all.p99),
    ),
    (
        time(
            "ice_p99",
            "intended start to a path by ICE, 99th percentile",
        ),
        |run| set_up(run, Phase::Ice, |all| all.p99),
    ),
    (
        time("dtls_p99", "intended start to DTLS, 99th percentile"),
        |run| set_up(run, Phase::Dtls, |all| all.p99),
    ),
    (
        time(
            "channel_p99",
            "intended start to the data channel, 99th percentile",
        ),
        |run| set_up(run, Phase::Channel, |all| all.p99),
    ),
    (
        time(
            "session_p99",
            "intended start to session.created, 99th percentile",
        ),
        |run| set_up(run, Phase::Session, |all| all.p99),
    ),
    (
        less("failed", Unit::Share, "calls that were not established"),
        |run| {
            let started = run.calls.started as f64;
            (started > 0.0).then(|| run.calls.failed as f64 / started)
        },
    ),
    (
        less(
            "lost_calls",
            Unit::Count,
            "calls that ended before their time",
        ),
        |run| Some(run.calls.lost as f64),
    ),
    (
        more("established", Unit::Count, "calls that were established"),
        |run| Some(run.calls.established as f64),
    ),
    (
        less("loss", Unit::Share, "packets not heard, or too late"),
        |run| run.media.loss(),
    ),
    (
        less("longest_loss", Unit::Count, "packets lost in a row at most"),
        |run| run.media.loss().map(|_| run.media.longest_run as f64),
    ),
    (
        less("reordered", Unit::Count, "packets overtaken by others"),
        |run| run.media.loss().map(|_| run.media.reordered as f64),
    ),
    (
        less("foreign", Unit::Count, "audio packets of somebody else"),
        |run| run.media.loss().map(|_| run.media.foreign as f64),
    ),
    (time("rtt_p50", "round trip of the echo, median"), |run| {
        at(&run.media.round_trip, |all| all.p50)
    }),
    (time("rtt_p99", "the same, 99th percentile"), |run| {
        at(&run.media.round_trip, |all| all.p99)
    }),
    (time("rtt_max", "the same, the longest"), |run| {
        at(&run.media.round_trip, |all| all.max)
    }),
    (
        time(
            "up_p50",
            "planned send to the echo, where that says when (media-v1, reflector), median",
        ),
        |run| at(&run.media.up, |all| all.p50),
    ),
    (time("up_p99", "the same, 99th percentile"), |run| {
        at(&run.media.up, |all| all.p99)
    }),
    (
        time("down_p50", "from there back to the client, median"),
        |run| at(&run.media.down, |all| all.p50),
    ),
    (time("down_p99", "the same, 99th percentile"), |run| {
        at(&run.media.down, |all| all.p99)
    }),
    (
        time(
            "jitter_p50",
            "interarrival jitter (RFC 3550) by call, median",
        ),
        |run| at(&run.media.jitter, |all| all.p50),
    ),
    (time("jitter_p99", "the same, 99th percentile"), |run| {
        at(&run.media.jitter, |all| all.p99)
    }),
    (
        time("gap_p50", "longest gap in the sound by call, median"),
        |run| at(&run.media.longest_gap, |all| all.p50),
    ),
    (time("gap_max", "the same, the longest"), |run| {
        at(&run.media.longest_gap, |all| all.max)
    }),
    (
        more(
            "mos",
            Unit::Number,
            "opinion score by the E-model, median call",
        ),
        |run| Some(run.media.mos?.median),
    ),
    (
        more("mos_min", Unit::Number, "the same, worst call"),
        |run| Some(run.media.mos?.min),
    ),
    (
        less(
            "cpu_ms_per_call_second",
            Unit::Number,
            "CPU time of the servers, in ms",
        ),
        Run::cpu_ms_per_call_second,
    ),
    (
        less(
            "cpu_ms_per_start",
            Unit::Number,
            "CPU time of the servers a started call, in ms",
        ),
        cpu_ms_per_start,
    ),
    (
        more(
            "starts_per_cpu_second",
            Unit::Number,
            "starts that a second of CPU time pays for",
        ),
        |run| {
            let cost_ms = cpu_ms_per_start(run)?;
            (cost_ms > 0.0).then(|| 1e3 / cost_ms)
        },
    ),
    (
        less(
            "rss_per_call",
            Unit::Kib,
            "resident memory of the servers a call",
        ),
        |run| {
            let costs = run.processes.iter().map(|cost| cost.resident_per_call_kib);
            summed(costs)
        },
    ),
    (
        time(
            "send_lag_p99",
            "how late the generator itself sent, 99th percentile",
        ),
        |run| at(&run.generator.send_lag, |all| all.p99),
    ),
    (
        less(
            "incident_packets_lost",
            Unit::Count,
            "packets lost by what was done mid-load",
        ),
        |run| Some(run.incident.as_ref()?.packets_lost as f64),
    ),
    (
        less("incident_calls_lost", Unit::Count, "calls lost by it"),
        |run| Some(run.incident.as_ref()?.calls_lost as f64),
    ),
    (
        time("blackout", "longest silence by it, over all calls"),
        |run| Some(run.incident.as_ref()?.blackout_ms? * 1e3),
    ),
    (
        time(
            "settled",
            "from it until the last call had its sound for good, or was made again",
        ),
        |run| Some(run.incident.as_ref()?.settled_ms? * 1e3),
    ),
    (
        less(
            "rss_growth",
            Unit::Kib,
            "memory that 1,000 calls served add to the servers (soak)",
        ),
        |run| Some(run.trend.as_ref()?.resident_kib.values().sum()),
    ),
    (
        less(
            "descriptors_growth",
            Unit::Number,
            "descriptors that 1,000 calls served add (soak)",
        ),
        |run| Some(run.trend.as_ref()?.descriptors.values().sum()),
    ),
    (
        time(
            "rtt_p99_growth",
            "what 1,000 calls served add to round trips at p99 (soak)",
        ),
        |run| run.trend.as_ref()?.round_trip_p99_us,
    ),
];

/// What a search finds. Its probes have no other figures: they differ in load, and one at least is
/// meant to fail.
const CARRIED: Definition = more(
    "carried",
    Unit::Number,
    "starts a second, or calls at once, that one core carries",
);
/// The verb that searches.
const SEARCH: &str = "capacity";

/// All figures that a verb which makes calls can have.
#[must_use]
pub fn definitions(verb: &str) -> Vec<Definition> {
    if verb == SEARCH {
        return vec![CARRIED];
    }
    FIGURES.iter().map(|(definition, _)| *definition).collect()
}

/// All figures, whichever verb has them.
#[must_use]
pub fn all_definitions() -> Vec<Definition> {
    let mut all = definitions("");
    all.push(CARRIED);
    all
}

/// All figures of one target, a value for each of its rounds that measured it.
#[must_use]
pub fn of(report: &Report, target: Kind) -> Vec<Figure> {
    if report.origin.verb == SEARCH {
        let found = report.capacity.get(&target).into_iter().flatten();
        return vec![Figure {
            definition: CARRIED,
            values: found.filter_map(|found| found.passed).collect(),
        }];
    }
    let figures = FIGURES.iter().map(|(definition, of)| Figure {
        definition: *definition,
        values: runs(report, target).filter_map(of).collect(),
    });
    figures.collect()
}

/// The targets of a report, in the order in which they were named.
#[must_use]
pub fn targets(report: &Report) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = report.runs.iter().map(|run| run.target).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// The rounds of one target.
pub fn runs(report: &Report, target: Kind) -> impl Iterator<Item = &Run> {
    report.runs.iter().filter(move |run| run.target == target)
}

fn at(quantiles: &Option<Quantiles>, value: fn(&Quantiles) -> f64) -> Option<f64> {
    quantiles.as_ref().map(value)
}

fn set_up(run: &Run, phase: Phase, value: fn(&Quantiles) -> f64) -> Option<f64> {
    run.phase(phase).map(|set_up| value(&set_up.total))
}

fn cpu_ms_per_start(run: &Run) -> Option<f64> {
    summed(run.processes.iter().map(|cost| cost.cpu_ms_per_start))
}

/// The sum over all processes; `None` where one is not known, or there is none.
fn summed(costs: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let costs: Vec<f64> = costs.collect::<Option<_>>()?;
    (!costs.is_empty()).then(|| costs.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_of_their_own() {
        let mut names: Vec<&str> = all_definitions().iter().map(|one| one.name).collect();
        let is_word = |name: &&str| {
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        assert!(names.iter().all(is_word), "{names:?}");
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands for one figure");
    }

    #[test]
    fn a_cost_that_one_process_hides_is_not_half_a_cost() {
        assert_eq!(summed([Some(1.0), Some(2.0)].into_iter()), Some(3.0));
        assert_eq!(summed([Some(1.0), None].into_iter()), None);
        assert_eq!(summed(std::iter::empty()), None);
    }
}
