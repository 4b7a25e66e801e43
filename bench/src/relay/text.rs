//! The result as a person reads it: one table, then what to mind about it.

use super::memory::FlowMemory;
use super::report::{Line, Report};
use super::target::Kind;
use crate::stats::Spread;
use crate::table::Table;

/// The table of all situations and targets, and the notes below it.
pub fn render(report: &Report) -> String {
    let mut table = Table::new([
        "situation / target",
        "CPU ns each",
        "spread",
        "Go / this",
        "spread",
        "kpps",
        "p50 µs",
        "p99 µs",
        "lost",
        "",
    ]);
    let mut situation = None;
    for line in &report.summary {
        if situation != Some(line.scenario) {
            situation = Some(line.scenario);
            table.row([line.scenario.name().to_owned()]);
        }
        table.row(cells(line));
    }
    let mut text = table.render();
    text.push('\n');
    for note in notes(report) {
        text.push_str(&note);
        text.push('\n');
    }
    text
}

fn cells(line: &Line) -> [String; 10] {
    let delay = |delay: Option<Spread>| number(delay, 1);
    [
        format!("  {}", line.kind.name()),
        number(line.cpu_ns_each, 0),
        noise(line.cpu_ns_each),
        if line.kind == Kind::Go {
            String::new()
        } else {
            number(line.go_over_this, 2)
        },
        if line.kind == Kind::Go {
            String::new()
        } else {
            noise(line.go_over_this)
        },
        number(line.delivered_kpps, 0),
        delay(line.delay_p50_us),
        delay(line.delay_p99_us),
        line.fates.lost().to_string(),
        remarks(line),
    ]
}

fn number(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |spread| format!("{:.digits$}", spread.median),
    )
}

fn noise(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |spread| {
        format!("±{:.0} %", spread.noise() * 50.0)
    })
}

/// What keeps a line from being taken at its word.
pub fn remarks(line: &Line) -> String {
    let mut remarks = Vec::new();
    let of = line.window_count;
    if line.fates.wrong() > 0 {
        remarks.push(format!("{} wrong", line.fates.wrong()));
    }
    if line.unclean_count > 0 {
        remarks.push(format!("unclean {}/{of}", line.unclean_count));
    }
    if line.late_count > 0 {
        remarks.push(format!("generator late {}/{of}", line.late_count));
    }
    if line.noisy_count > 0 {
        remarks.push(format!("noisy {}/{of}", line.noisy_count));
    }
    remarks.join(", ")
}

/// What to mind about the result as a whole.
pub fn notes(report: &Report) -> Vec<String> {
    let mut notes =
        vec![
        format!(
            "{} cores, {}, {}; seed {}, {} clients, {} windows{}.",
            report.origin.machine.cores,
            report.origin.machine.processor,
            report.origin.machine.kernel,
            report.origin.seed,
            report.client_count,
            report.windows.len(),
            if report.origin.complete { "" } else { ", stopped early" },
        ),
        "Only delivered, verified datagrams count; no cost is drawn from a window that lost any. \
         Ratios pair windows of one round; the spread is half the distance between quartiles."
            .to_owned(),
    ];
    if report.origin.machine.irq_time_accounting == Some(true) {
        notes.push(
            "This kernel keeps softirq time out of a process' CPU time: costs are lower than on \
             one that does not, for all targets."
                .to_owned(),
        );
    }
    notes.extend(report.flow_memory.iter().map(|memory| {
        let FlowMemory {
            kind,
            flow_count,
            bytes_each,
        } = memory;
        format!(
            "{} keeps a flow in {bytes_each:.0} bytes ({flow_count} flows).",
            kind.name()
        )
    }));
    let held = report.windows.iter().any(|window| window.hold_count > 0);
    if held {
        notes.push(
            "Saturated: the relay works off backlogs laid while it was held, so kpps there is not \
             its rate; 1,000,000 / CPU ns is."
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;
    use crate::relay::ledger::Fates;
    use crate::relay::report::{Window, summarise};
    use crate::relay::scenario::Scenario;

    fn window(kind: Kind, cpu_ms: f64, lost: u64) -> Window {
        Window {
            kind,
            scenario: Scenario::ToClientsSaturated,
            round: 0,
            up: Fates::default(),
            down: Fates {
                sent: 1_000_000,
                delivered: 1_000_000 - lost,
                ..Fates::default()
            },
            wall_ms: 4_000.0,
            cpu_ms,
            delay: None,
            lateness: None,
            foreign_share: 0.2,
            stolen_share: 0.0,
            hold_count: 1,
            resident_kib: None,
        }
    }

    #[test]
    fn shows_ratio_loss_and_noise() {
        let windows = vec![
            window(Kind::Syrinx, 1_000.0, 0),
            window(Kind::Go, 3_500.0, 0),
            window(Kind::Coturn, 7_000.0, 9),
        ];
        let report = Report {
            origin: Origin {
                complete: true,
                seed: 5,
                ..Origin::default()
            },
            client_count: 2_000,
            rate_pps: 1,
            backlog: 1,
            flow_memory: Vec::new(),
            versions: std::collections::BTreeMap::new(),
            summary: summarise(&windows),
            windows,
            slo: Vec::new(),
        };
        let text = render(&report);
        let line = |name: &str| {
            let found = text
                .lines()
                .find(|line| line.trim_start().starts_with(name));
            found
                .unwrap_or_else(|| panic!("no {name} in\n{text}"))
                .to_owned()
        };
        assert!(line("syrinx").contains("3.50"), "{text}");
        assert!(line("coturn").contains("unclean 1/1, noisy 1/1"), "{text}");
        assert!(!line("coturn").contains("7000"), "{text}");
        assert!(text.contains("seed 5"), "{text}");
    }
}
