//! What all parts of the page show alike: objectives, and figures side by side.

use super::Page;
use crate::figure::{Figure, Unit};
use crate::slo::Verdict;
use crate::stats::Spread;

/// What became of the objectives; nothing where there were none.
pub(super) fn objectives(page: &mut Page, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    page.heading("Objectives");
    let rows: Vec<Vec<String>> = verdicts
        .iter()
        .map(|verdict| {
            let word = if verdict.met { "met" } else { "MISSED" };
            vec![
                verdict.objective.clone(),
                verdict.shown.clone(),
                word.to_owned(),
            ]
        })
        .collect();
    page.table(&["objective", "worst round", ""], &rows);
}

/// A row for each figure that anybody has, a column for each target, and how each rival's compares
/// with the first target's.
pub(super) fn side_by_side(page: &mut Page, verb: &str, columns: &[(String, Vec<Figure>)]) {
    let Some(((first, figures), rivals)) = columns.split_first() else {
        return;
    };
    let mut heading = vec!["figure".to_owned()];
    heading.extend(columns.iter().map(|(name, _)| name.clone()));
    heading.extend(rivals.iter().map(|(rival, _)| format!("{rival} / {first}")));
    let mut rows = Vec::new();
    for (place, figure) in figures.iter().enumerate() {
        let spreads = columns.iter().map(|(_, column)| column[place].spread());
        let spreads: Vec<Option<Spread>> = spreads.collect();
        if spreads.iter().all(Option::is_none) {
            continue;
        }
        let mut row = vec![figure.definition.name.to_owned()];
        let unit = figure.definition.unit;
        row.extend(spreads.iter().map(|spread| cell(unit, *spread)));
        let rivals = spreads.iter().skip(1);
        row.extend(rivals.map(|rival| ratio(*rival, spreads[0])));
        rows.push(row);
    }
    page.heading("Figures");
    page.paragraph(&format!(
        "Medians over rounds, with half the distance between quartiles; times count from the \
         intended moment. syrinx-bench {verb} --help names every figure."
    ));
    let heading: Vec<&str> = heading.iter().map(String::as_str).collect();
    page.table(&heading, &rows);
}

fn cell(unit: Unit, spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |spread| {
        let value = unit.show(spread.median);
        if spread.count > 1 {
            format!("{value} ±{:.0} %", spread.noise() * 50.0)
        } else {
            value
        }
    })
}

fn ratio(theirs: Option<Spread>, ours: Option<Spread>) -> String {
    match (theirs, ours) {
        (Some(theirs), Some(ours)) if ours.median > 0.0 => {
            format!("{:.2}", theirs.median / ours.median)
        }
        _ => "–".to_owned(),
    }
}
