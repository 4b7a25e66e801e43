//! `compare A B`: did a change help? Two result files line by line, with ratios and noise.
//!
//! Two files were not interleaved with each other, so a ratio of their absolute costs holds only
//! what the machine did between them. Where both files have the Go relay, the ratio to it is
//! compared instead: that was interleaved within each file, and what slowed one run down cancels.

mod figures;

use std::path::Path;

use anyhow::bail;
use serde_json::Value;

use crate::calls::barge_in::report as barge_in;
use crate::calls::report::VERBS;
use crate::figure::Better;
use crate::relay::memory::FlowMemory;
use crate::relay::report::{Line, Report};
use crate::result_file;
use crate::stats::Spread;
use crate::table::Table;

/// The verb whose lines are compared by their ratios.
const RELAY: &str = "relay";
const OTHER_MACHINE: &str = "\nThe files come from different machines, kernels or versions: ";

/// Reads both files and renders the table.
///
/// # Errors
/// When a file cannot be read or is not a result, or they are of different kinds.
pub fn files(a: &Path, b: &Path) -> anyhow::Result<String> {
    let verbs = [verb(a)?, verb(b)?];
    if verbs[0] != verbs[1] {
        bail!(
            "{} is of `{}` and {} of `{}`: only results of one verb compare",
            a.display(),
            verbs[0],
            b.display(),
            verbs[1]
        );
    }
    match verbs[0].as_str() {
        RELAY => relays(&result_file::read_json(a)?, &result_file::read_json(b)?),
        barge_in::VERB => {
            figures::barge_in(&result_file::read_json(a)?, &result_file::read_json(b)?)
        }
        _ => figures::calls(&result_file::read_json(a)?, &result_file::read_json(b)?),
    }
}

/// Which verb made a file; the error names those whose results compare.
fn verb(path: &Path) -> anyhow::Result<String> {
    let file: Value = result_file::read_json(path)?;
    let shown = path.display();
    let Some(verb) = file.get("verb").and_then(Value::as_str) else {
        bail!("{shown} is not a result that can be compared: it names no verb that made it");
    };
    let known = || [RELAY, barge_in::VERB].into_iter().chain(VERBS);
    if !known().any(|one| one == verb) {
        let known: Vec<&str> = known().collect();
        bail!(
            "{shown} is of `{verb}`, of which this version compares nothing; it compares results \
             of {}",
            known.join(", ")
        );
    }
    Ok(verb.to_owned())
}

/// The table of all lines that both reports of relays have, and what to mind about it.
///
/// # Errors
/// When they have none in common.
pub fn relays(a: &Report, b: &Report) -> anyhow::Result<String> {
    let mut table = Table::new([
        "situation / target",
        "A ns",
        "B ns",
        "A / B",
        "A Go / this",
        "B Go / this",
        "B / A",
        "verdict",
    ]);
    let mut compared = 0;
    for line in &a.summary {
        let same = |other: &&Line| other.scenario == line.scenario && other.kind == line.kind;
        if let Some(other) = b.summary.iter().find(same) {
            table.row(cells(line, other));
            compared += 1;
        }
    }
    if compared == 0 {
        bail!("nothing in one file is in the other: no target met the same situation in both");
    }
    let mut text = table.render();
    for memory in &a.flow_memory {
        let same = |other: &&FlowMemory| other.kind == memory.kind;
        if let Some(other) = b.flow_memory.iter().find(same) {
            text.push_str(&format!(
                "{}: {:.0} bytes a flow before, {:.0} after\n",
                memory.kind.name(),
                memory.bytes_each,
                other.bytes_each
            ));
        }
    }
    if a.origin.machine != b.origin.machine {
        text.push_str(OTHER_MACHINE);
        text.push_str("only the columns relative to Go can be compared.\n");
    }
    if a.client_count != b.client_count || a.rate_pps != b.rate_pps {
        text.push_str("\nThe files were made with different clients or rates.\n");
    }
    Ok(text)
}

fn cells(a: &Line, b: &Line) -> [String; 8] {
    let number = |spread: Option<Spread>, digits: usize| {
        spread.map_or("-".to_owned(), |spread| {
            format!("{:.digits$}", spread.median)
        })
    };
    let ratio = |over: Option<Spread>, under: Option<Spread>| {
        let (over, under) = (over?, under?);
        (under.median > 0.0).then(|| over.median / under.median)
    };
    let shown = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    [
        format!("{} {}", a.scenario.name(), a.kind.name()),
        number(a.cpu_ns_each, 0),
        number(b.cpu_ns_each, 0),
        shown(ratio(a.cpu_ns_each, b.cpu_ns_each)),
        number(a.go_over_this, 2),
        number(b.go_over_this, 2),
        shown(ratio(b.go_over_this, a.go_over_this)),
        verdict(a, b).to_owned(),
    ]
}

/// Whether B's ratio to the Go relay, or its cost where there is none, left A's quartiles behind.
fn verdict(a: &Line, b: &Line) -> &'static str {
    let (before, after, more_is_better) = match (a.go_over_this, b.go_over_this) {
        (Some(before), Some(after)) => (before, after, true),
        _ => match (a.cpu_ns_each, b.cpu_ns_each) {
            (Some(before), Some(after)) => (before, after, false),
            _ => return "-",
        },
    };
    let better = if more_is_better {
        Better::More
    } else {
        Better::Less
    };
    apart(before, after, better)
}

/// Whether the quartiles of two sets of rounds leave each other behind, and to which side.
fn apart(before: Spread, after: Spread, better: Better) -> &'static str {
    let (rose, fell) = (after.low > before.high, after.high < before.low);
    match (rose, fell, better) {
        (true, _, Better::More) | (_, true, Better::Less) => "better",
        (true, _, Better::Less) | (_, true, Better::More) => "worse",
        _ => "within noise",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::ledger::Fates;
    use crate::relay::scenario::Scenario;
    use crate::relay::target::Kind;

    fn line(cost: [f64; 3], ratio: Option<[f64; 3]>) -> Line {
        Line {
            scenario: Scenario::ToClientsSaturated,
            kind: Kind::Syrinx,
            cpu_ns_each: Spread::of(cost),
            delivered_kpps: None,
            go_over_this: ratio.and_then(Spread::of),
            delay_p50_us: None,
            delay_p99_us: None,
            fates: Fates::default(),
            unclean_count: 0,
            late_count: 0,
            noisy_count: 0,
            window_count: 3,
        }
    }

    #[test]
    fn judges_by_the_interleaved_ratio_where_there_is_one() {
        let before = line([1_000.0, 1_010.0, 1_020.0], Some([3.0, 3.1, 3.2]));
        let slower_machine = line([2_000.0, 2_010.0, 2_020.0], Some([3.0, 3.1, 3.2]));
        assert_eq!(verdict(&before, &slower_machine), "within noise");
        let improved = line([1_000.0, 1_010.0, 1_020.0], Some([4.0, 4.1, 4.2]));
        assert_eq!(verdict(&before, &improved), "better");
        assert_eq!(verdict(&improved, &before), "worse");
    }

    #[test]
    fn judges_by_cost_where_there_is_no_rival() {
        let before = line([1_000.0, 1_010.0, 1_020.0], None);
        let after = line([800.0, 810.0, 820.0], None);
        assert_eq!(verdict(&before, &after), "better");
        assert_eq!(verdict(&after, &before), "worse");
        assert_eq!(verdict(&before, &line([1.0, f64::NAN, 1.0], None)), "-");
    }
}
