//! The result as a person reads it: a block for each run, then what to mind about it.

use super::capacity;
use super::latency::Quantiles;
use super::report::{Incident, ProcessCost, Report, Run, Trend};
use super::stand::Kind;
use crate::table::Table;

/// All runs of the report, and the notes below them.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    for run in &report.runs {
        text.push_str(&block(run));
        text.push('\n');
    }
    for (kind, searches) in &report.capacity {
        for found in searches {
            text.push_str(&capacity::describe(kind.name(), found));
            text.push('\n');
        }
    }
    let load = &report.load;
    text.push_str(&format!(
        "{} cores, {}, {}; seed {}, {} calls at {} a second, {:?} speech{}.\n",
        report.origin.machine.cores,
        report.origin.machine.processor,
        report.origin.machine.kernel,
        report.origin.seed,
        load.calls,
        load.rate,
        load.speech,
        if report.origin.complete {
            ""
        } else {
            "; STOPPED EARLY"
        },
    ));
    text.push_str(
        "All times count from the intended moment, in ms. A step counts from the milestone before. \
         Round trips are of the echo.\n",
    );
    text
}

fn block(run: &Run) -> String {
    let calls = &run.calls;
    let mut text = format!(
        "{}, round {}: {} of {} calls established, {} failed, {} lost, {} completed{}\n",
        run.target.name(),
        run.round + 1,
        calls.established,
        calls.planned,
        calls.failed,
        calls.lost,
        calls.completed,
        if run.complete { "" } else { ", stopped early" },
    );
    for (cause, occurrences) in &run.failures.0 {
        let (name, count, first) = (cause.name(), occurrences.count, &occurrences.first);
        text.push_str(&format!("  {count} × {name}: {first}\n"));
    }
    text.push_str(&times(run));
    text.push_str(&sound(run));
    if let Some(incident) = &run.incident {
        text.push_str(&incident_line(incident));
    }
    if let Some(trend) = &run.trend {
        text.push_str(&trend_line(trend));
    }
    text.push_str(&costs(&run.processes));
    text.push_str(&generator(run));
    text
}

fn times(run: &Run) -> String {
    let mut table = Table::new(["  ms", "p50", "p90", "p99", "p99.9", "max", "step p50"]);
    for set_up in &run.set_up {
        let step = set_up
            .step
            .as_ref()
            .map_or("-".to_owned(), |step| ms(step.p50));
        table.row(cells(set_up.phase.name(), Some(&set_up.total), step));
    }
    for (name, quantiles) in [
        ("round trip", &run.media.round_trip),
        ("round trip above floor", &run.media.above_floor),
        ("one way, up to the echo", &run.media.up),
        ("one way, down from it", &run.media.down),
        ("jitter, by call", &run.media.jitter),
        ("longest gap, by call", &run.media.longest_gap),
    ] {
        if quantiles.is_some() {
            table.row(cells(name, quantiles.as_ref(), String::new()));
        }
    }
    let mut text = table.render();
    if run.media.round_trip.is_some() && !run.target.marks() {
        text.push_str(&format!("  {}\n", one_way_note(&[run.target])));
    }
    text
}

/// Why there is no delay by way for targets whose echoes do not say when they had a packet.
pub fn one_way_note(targets: &[Kind]) -> String {
    let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
    format!(
        "one way: not measured: the echo of {} does not say when it had a packet (those of \
         media-v1 and reflector do)",
        names.join(" and of ")
    )
}

fn cells(name: &str, quantiles: Option<&Quantiles>, step: String) -> [String; 7] {
    let at = |value: fn(&Quantiles) -> f64| quantiles.map_or("-".to_owned(), |all| ms(value(all)));
    [
        format!("  {name}"),
        at(|all| all.p50),
        at(|all| all.p90),
        at(|all| all.p99),
        at(|all| all.p999),
        at(|all| all.max),
        step,
    ]
}

/// Microseconds as milliseconds.
fn ms(us: f64) -> String {
    format!("{:.2}", us / 1e3)
}

fn sound(run: &Run) -> String {
    let media = &run.media;
    let Some(loss) = media.loss() else {
        return String::new();
    };
    let mos = media.mos.map_or(String::new(), |mos| {
        format!("; MOS {:.2}, worst {:.2}", mos.median, mos.min)
    });
    let said = if run.target.keeps_payloads() {
        "packets"
    } else {
        "bursts of sound"
    };
    format!(
        "  {} {said} said, {} lost ({:.4} %, longest run {}), {} twice, {} overtaken, {} late, \
         {} foreign{mos}\n",
        media.said,
        media.lost,
        loss * 100.0,
        media.longest_run,
        media.duplicated,
        media.reordered,
        media.late,
        media.foreign,
    )
}

fn incident_line(incident: &Incident) -> String {
    let known = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0} ms"));
    format!(
        "  {} after {:.1} s (took {}): {} packets lost, {} calls lost, nothing heard for {} \
         (median {}), settled after {}\n",
        incident.what,
        incident.at_s,
        known(incident.took_ms),
        incident.packets_lost,
        incident.calls_lost,
        known(incident.blackout_ms),
        known(incident.blackout_p50_ms),
        known(incident.settled_ms),
    )
}

fn trend_line(trend: &Trend) -> String {
    let mut text = format!("  with every 1,000 calls, over {}:", trend.calls);
    for (name, kib) in &trend.resident_kib {
        let descriptors = trend.descriptors.get(name).copied();
        let descriptors = descriptors.map_or("-".to_owned(), |slope| format!("{slope:+.2}"));
        text.push_str(&format!(
            " {name} {kib:+.1} KiB and {descriptors} descriptors;"
        ));
    }
    let p99 = trend.round_trip_p99_us;
    let p99 = p99.map_or("-".to_owned(), |slope| format!("{slope:+.1} µs"));
    text + &format!(" round trip p99 {p99}\n")
}

fn costs(processes: &[ProcessCost]) -> String {
    let mut text = String::new();
    for cost in processes {
        let known = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let files = cost
            .descriptors
            .map_or("-".to_owned(), |count| count.to_string());
        text.push_str(&format!(
            "  {}: {} ms CPU a call-second, {} ms a start, {} % of a core, {} KiB a call, {} MiB \
             in all, {files} descriptors\n",
            cost.name,
            known(cost.cpu_ms_per_call_second, 3),
            known(cost.cpu_ms_per_start, 2),
            known(cost.busy_share.map(|share| share * 100.0), 0),
            known(cost.resident_per_call_kib, 0),
            known(cost.resident_kib.map(|kib| kib as f64 / 1024.0), 0),
        ));
    }
    text
}

fn generator(run: &Run) -> String {
    let generator = &run.generator;
    let p99 = |quantiles: &Option<Quantiles>| {
        quantiles.as_ref().map_or("-".to_owned(), |all| ms(all.p99))
    };
    let cost = generator.cpu_ms_per_call_second;
    let mut text = format!(
        "  generator: {} ms CPU a call-second, room for {} calls, {} % busy; p99 ms: starts {} \
         late, sends {} late, sockets unseen {}\n",
        cost.map_or("-".to_owned(), |cost| format!("{cost:.3}")),
        generator
            .room_for_calls
            .map_or("-".to_owned(), |calls| format!("{calls:.0}")),
        generator
            .busy_share
            .map_or("-".to_owned(), |share| format!("{:.0}", share * 100.0)),
        p99(&generator.start_lag),
        p99(&generator.send_lag),
        p99(&generator.pass),
    );
    for reason in &generator.bottleneck {
        text.push_str(&format!("  THE GENERATOR WAS THE BOTTLENECK: {reason}\n"));
    }
    text
}
