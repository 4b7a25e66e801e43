//! Two reports of calls, figure by figure.
//!
//! A figure changed when the quartiles of its rounds lie apart. A single round has no quartiles, so
//! nothing can be said about noise then, and nothing is.

use super::{OTHER_MACHINE, apart};
use crate::calls::figures;
use crate::calls::report::Report;
use crate::figure::Figure;
use crate::stats::Spread;
use crate::table::Table;

/// Rounds that give quartiles a meaning.
const ROUNDS_MIN: usize = 3;

/// The table of all figures that both have, and what to mind about it.
pub(super) fn compare(a: &Report, b: &Report) -> String {
    let mut table = Table::new(["target / figure", "A", "±", "B", "±", "B / A", "verdict"]);
    for target in figures::targets(a) {
        table.row([target.name().to_owned()]);
        let (before, after) = (figures::of(a, target), figures::of(b, target));
        for (before, after) in before.iter().zip(&after) {
            if let (Some(was), Some(is)) = (before.spread(), after.spread()) {
                table.row(row(before, was, is));
            }
        }
    }
    let mut text = table.render();
    if a.machine != b.machine {
        text.push_str(OTHER_MACHINE);
        text.push_str("what changed may be theirs.\n");
    }
    if a.load != b.load || a.network != b.network {
        text.push_str("\nThe files were made with different loads or networks.\n");
    }
    let rounds = |report: &Report| report.runs.iter().map(|run| run.round + 1).max();
    if rounds(a).min(rounds(b)) < Some(ROUNDS_MIN as u32) {
        text.push_str("\nFewer than 3 rounds say nothing about noise: use --rounds 3 or more.\n");
    }
    text
}

fn row(figure: &Figure, was: Spread, is: Spread) -> [String; 7] {
    let definition = figure.definition;
    let noise = |spread: Spread| {
        if spread.count > 1 {
            format!("{:.0} %", spread.noise() * 50.0)
        } else {
            String::new()
        }
    };
    let ratio = if was.median == 0.0 {
        "-".to_owned()
    } else {
        format!("{:.2}", is.median / was.median)
    };
    let verdict = if was.count.min(is.count) >= ROUNDS_MIN {
        apart(was, is, definition.better)
    } else {
        "-"
    };
    [
        format!("  {}", definition.name),
        definition.unit.show(was.median),
        noise(was),
        definition.unit.show(is.median),
        noise(is),
        ratio,
        verdict.to_owned(),
    ]
}
