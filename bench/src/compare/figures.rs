//! Two reports, figure by figure.
//!
//! A figure changed when the quartiles of its rounds lie apart. A single round has no quartiles, so
//! nothing can be said about noise then, and nothing is.

use anyhow::bail;

use super::{OTHER_MACHINE, apart};
use crate::calls::barge_in::report as barge_in;
use crate::calls::figures;
use crate::calls::report::Report;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::stats::Spread;
use crate::table::Table;

/// Rounds that give quartiles a meaning.
const ROUNDS_MIN: usize = 3;

/// A report as far as two are compared.
struct Side<'a> {
    machine: &'a Machine,
    /// Targets and their figures.
    targets: Vec<(&'static str, Vec<Figure>)>,
}

/// The table of all figures that two reports of calls have, and what to mind about it.
///
/// # Errors
/// When they have none in common.
pub(super) fn calls(a: &Report, b: &Report) -> anyhow::Result<String> {
    let side = |report| {
        let targets = figures::targets(report).into_iter();
        let targets = targets.map(|target| (target.name(), figures::of(report, target)));
        Side {
            machine: &report.origin.machine,
            targets: targets.collect(),
        }
    };
    let (a_side, b_side): (Side<'_>, Side<'_>) = (side(a), side(b));
    let differ = a.load != b.load || a.network != b.network;
    compare(&a_side, &b_side, differ)
}

/// The same of two reports of interrupted answers.
///
/// # Errors
/// When they have no figure in common.
pub(super) fn barge_in(a: &barge_in::Report, b: &barge_in::Report) -> anyhow::Result<String> {
    fn side(report: &barge_in::Report) -> Side<'_> {
        Side {
            machine: &report.origin.machine,
            targets: vec![(report.dialect.name(), barge_in::figures(report))],
        }
    }
    let differ = (a.calls, a.at_once) != (b.calls, b.at_once);
    compare(&side(a), &side(b), differ)
}

fn compare(a: &Side<'_>, b: &Side<'_>, loads_differ: bool) -> anyhow::Result<String> {
    let mut table = Table::new(["target / figure", "A", "±", "B", "±", "B / A", "verdict"]);
    let (mut compared, mut rounds) = (0, usize::MAX);
    for (name, before) in &a.targets {
        let Some((_, after)) = b.targets.iter().find(|(other, _)| other == name) else {
            continue;
        };
        table.row([(*name).to_owned()]);
        for (before, after) in before.iter().zip(after) {
            if let (Some(was), Some(is)) = (before.spread(), after.spread()) {
                table.row(row(before, was, is));
                compared += 1;
                rounds = rounds.min(was.count).min(is.count);
            }
        }
    }
    if compared == 0 {
        let names = |side: &Side<'_>| {
            let names: Vec<&str> = side.targets.iter().map(|(name, _)| *name).collect();
            names.join(", ")
        };
        bail!(
            "nothing in one file is in the other: A measured {}, B {}",
            names(a),
            names(b)
        );
    }
    let mut text = table.render();
    if a.machine != b.machine {
        text.push_str(OTHER_MACHINE);
        text.push_str("what changed may be theirs.\n");
    }
    if loads_differ {
        text.push_str("\nThe files were made with different loads or networks.\n");
    }
    if rounds < ROUNDS_MIN {
        text.push_str("\nFewer than 3 rounds say nothing about noise: use --rounds 3 or more.\n");
    }
    Ok(text)
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
