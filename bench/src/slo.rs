//! Objectives for a run: `--slo 'setup_p99<300ms,loss<0.1%'`. A run that misses one ends with
//! [`EXIT_MISSED`], so that a roll-out can be gated on it.
//!
//! Objectives are checked against the figures that a verb has before it runs, so that a typing
//! error costs no measurement. Where a figure has several rounds, the worst one is judged; a figure
//! that the run could not measure misses its objective.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::figure::{Definition, Figure, Unit};
use crate::table::Table;

/// The program's exit status after a run that missed an objective. 1 is a run that failed, 2 a
/// command line that was wrong.
pub const EXIT_MISSED: u8 = 3;
/// Status of a run whose objectives name no figure of its verb, or not in its unit: that of any
/// wrong command line.
pub const EXIT_USAGE: u8 = 2;
/// More than anybody writes by hand.
const OBJECTIVES_MAX: usize = 64;

/// How a figure is to relate to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Below,
    AtMost,
    Above,
    AtLeast,
}

impl Relation {
    /// Longer signs first: `<` is a prefix of `<=`.
    const SIGNS: [(&'static str, Self); 4] = [
        ("<=", Self::AtMost),
        (">=", Self::AtLeast),
        ("<", Self::Below),
        (">", Self::Above),
    ];

    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Below => value < limit,
            Self::AtMost => value <= limit,
            Self::Above => value > limit,
            Self::AtLeast => value >= limit,
        }
    }
}

/// One objective: a figure, a relation, a limit with its unit.
#[derive(Clone, Debug, PartialEq)]
struct Objective {
    text: String,
    name: String,
    relation: Relation,
    number: f64,
    suffix: String,
}

/// What a run has to hold. The default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objectives(Vec<Objective>);

/// What is wrong with objectives.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SloError {
    /// It cannot be read.
    #[error("{0:?} is no objective: write a figure, <, <=, > or >=, and a limit, as loss<0.1%")]
    Syntax(String),
    /// Too many.
    #[error("{0} objectives are more than {OBJECTIVES_MAX}")]
    TooMany(usize),
    /// There is no such figure.
    #[error("{text:?}: there is no figure {name:?} here; there are:\n{known}")]
    Unknown {
        /// The objective.
        text: String,
        /// The name that is none.
        name: String,
        /// All figures, a line each.
        known: String,
    },
    /// The limit's unit is not the figure's.
    #[error("{text:?}: {name} is {expected}")]
    WrongUnit {
        /// The objective.
        text: String,
        /// The figure.
        name: String,
        /// How its limit is written.
        expected: &'static str,
    },
}

/// A run came to its end and missed objectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{missed} of {all} objectives were missed")]
pub struct Missed {
    /// How many.
    pub missed: usize,
    /// Of how many.
    pub all: usize,
}

/// What became of an objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The objective as it was written.
    pub objective: String,
    /// The figure's worst round, in its own unit; `None` where nothing was measured.
    pub value: Option<f64>,
    /// The same as a person reads it.
    pub shown: String,
    /// Whether it was met.
    pub met: bool,
}

impl FromStr for Objectives {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all: Result<Vec<Objective>, _> = text.split(',').map(|part| one(part.trim())).collect();
        let all = all?;
        if all.len() > OBJECTIVES_MAX {
            return Err(SloError::TooMany(all.len()));
        }
        Ok(Self(all))
    }
}

fn one(text: &str) -> Result<Objective, SloError> {
    let wrong = || SloError::Syntax(text.to_owned());
    let (name, relation, limit) = Relation::SIGNS
        .into_iter()
        .find_map(|(sign, relation)| {
            let (name, limit) = text.split_once(sign)?;
            Some((name.trim(), relation, limit.trim()))
        })
        .ok_or_else(wrong)?;
    let unit = limit
        .find(|c: char| !(c.is_ascii_digit() || ".-".contains(c)))
        .unwrap_or(limit.len());
    let (number, suffix) = limit.split_at(unit);
    let number = number.parse().map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    Ok(Objective {
        text: text.to_owned(),
        name: name.to_owned(),
        relation,
        number,
        suffix: suffix.trim().to_owned(),
    })
}

impl Objective {
    /// The limit in the figure's own unit.
    fn limit(&self, definition: &Definition) -> Result<f64, SloError> {
        let (factor, expected) = match (definition.unit, self.suffix.as_str()) {
            (Unit::Microseconds, "us" | "µs") => (Some(1.0), ""),
            (Unit::Microseconds, "ms") => (Some(1e3), ""),
            (Unit::Microseconds, "s") => (Some(1e6), ""),
            (Unit::Microseconds, _) => (None, "a time: write its limit as 300ms, 80us or 2s"),
            (Unit::Share, "%") => (Some(0.01), ""),
            (Unit::Share, "") => (Some(1.0), ""),
            (Unit::Share, _) => (None, "a part: write its limit as 0.1% or 0.001"),
            (Unit::Kib, "kb" | "KiB") => (Some(1.0), ""),
            (Unit::Kib, "mb" | "MiB") => (Some(1024.0), ""),
            (Unit::Kib, _) => (None, "memory: write its limit as 120KiB or 3MiB"),
            (Unit::Count | Unit::Number, "") => (Some(1.0), ""),
            (Unit::Count | Unit::Number, _) => (None, "a number: write its limit without a unit"),
        };
        let factor = factor.ok_or_else(|| SloError::WrongUnit {
            text: self.text.clone(),
            name: self.name.clone(),
            expected,
        })?;
        Ok(self.number * factor)
    }
}

impl Objectives {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that each objective is for one of `known` and in its unit.
    ///
    /// # Errors
    /// The first that is not, with the names that are.
    pub fn check(&self, known: &[Definition]) -> Result<(), SloError> {
        for objective in &self.0 {
            let definition = known
                .iter()
                .find(|definition| definition.name == objective.name)
                .ok_or_else(|| SloError::Unknown {
                    text: objective.text.clone(),
                    name: objective.name.clone(),
                    known: list(known),
                })?;
            objective.limit(definition)?;
        }
        Ok(())
    }

    /// Judges a run by its figures.
    ///
    /// # Errors
    /// As [`Objectives::check`], for figures that a run of this kind never has.
    pub fn judge(&self, figures: &[Figure]) -> Result<Vec<Verdict>, SloError> {
        let known: Vec<Definition> = figures.iter().map(|figure| figure.definition).collect();
        self.check(&known)?;
        let verdicts = self.0.iter().filter_map(|objective| {
            let figure = figures
                .iter()
                .find(|figure| figure.definition.name == objective.name)?;
            Some(verdict(objective, figure))
        });
        verdicts.collect()
    }
}

fn verdict(objective: &Objective, figure: &Figure) -> Result<Verdict, SloError> {
    let limit = objective.limit(&figure.definition)?;
    let value = figure.worst();
    Ok(Verdict {
        objective: objective.text.clone(),
        value,
        shown: value.map_or("not measured".to_owned(), |value| {
            figure.definition.unit.show(value)
        }),
        met: value.is_some_and(|value| objective.relation.holds(value, limit)),
    })
}

/// All figures, a line each: what the user chooses from.
#[must_use]
pub fn list(known: &[Definition]) -> String {
    let width = known.iter().map(|definition| definition.name.len()).max();
    let width = width.unwrap_or_default();
    let lines = known.iter().map(|definition| {
        let Definition {
            name,
            better,
            meaning,
            ..
        } = definition;
        format!("  {name:<width$}  {meaning}; {better}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The help of a verb's `--slo`, with an example of its own.
#[must_use]
pub fn help(example: &str, known: &[Definition]) -> String {
    format!(
        "Objectives for the first target, comma separated, as '{example}'. The worst round is \
         judged; a run that misses one, or could not measure it, ends with status {EXIT_MISSED}. \
         The figures:\n{}",
        list(known)
    )
}

/// Whether every objective was met.
///
/// # Errors
/// When one was not.
pub fn all_met(verdicts: &[Verdict]) -> Result<(), Missed> {
    match verdicts.iter().filter(|verdict| !verdict.met).count() {
        0 => Ok(()),
        missed => Err(Missed {
            missed,
            all: verdicts.len(),
        }),
    }
}

/// The verdicts as a table.
#[must_use]
pub fn render(verdicts: &[Verdict]) -> String {
    let mut table = Table::new(["objective", "worst round", ""]);
    for verdict in verdicts {
        let word = if verdict.met { "met" } else { "MISSED" };
        table.row([
            verdict.objective.clone(),
            verdict.shown.clone(),
            word.to_owned(),
        ]);
    }
    table.render()
}

impl fmt::Display for Objectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.0.iter().map(|objective| objective.text.as_str());
        f.write_str(&texts.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Better;

    const SETUP: Definition = Definition {
        name: "setup_p99",
        unit: Unit::Microseconds,
        better: Better::Less,
        meaning: "set-up",
    };
    const LOSS: Definition = Definition {
        name: "loss",
        unit: Unit::Share,
        better: Better::Less,
        meaning: "packets lost",
    };
    const MOS: Definition = Definition {
        name: "mos",
        unit: Unit::Number,
        better: Better::More,
        meaning: "opinion score",
    };
    const MEMORY: Definition = Definition {
        name: "rss",
        unit: Unit::Kib,
        better: Better::Less,
        meaning: "memory",
    };

    fn figures(setup_us: &[f64], loss: f64, mos: Option<f64>) -> Vec<Figure> {
        let figure = |definition, values| Figure { definition, values };
        vec![
            figure(SETUP, setup_us.to_vec()),
            figure(LOSS, vec![loss]),
            figure(MOS, mos.into_iter().collect()),
            figure(MEMORY, vec![2_048.0]),
        ]
    }

    fn met(text: &str) -> Vec<bool> {
        let objectives: Objectives = text.parse().expect("objectives");
        let figures = figures(&[200_000.0, 290_000.0], 0.0005, Some(4.2));
        let verdicts = objectives.judge(&figures).expect("known figures");
        verdicts.iter().map(|verdict| verdict.met).collect()
    }

    #[test]
    fn judges_each_objective_in_its_own_unit() {
        assert_eq!(met("setup_p99<300ms,loss<0.1%"), [true, true]);
        assert_eq!(met("setup_p99 < 0.3s , loss <= 0.0005"), [true, true]);
        assert_eq!(met("setup_p99<290000us,loss<0.05%"), [false, false]);
        assert_eq!(
            met("mos>=4.2,mos>4.2,rss<=2MiB,rss<2048KiB"),
            [true, false, true, false]
        );
    }

    #[test]
    fn the_worst_round_decides() {
        assert_eq!(met("setup_p99<250ms"), [false], "one round took 290 ms");
        assert_eq!(met("setup_p99<=290ms"), [true]);
    }

    #[test]
    fn what_was_not_measured_misses_its_objective() {
        let objectives: Objectives = "mos>1".parse().expect("an objective");
        let verdicts = objectives
            .judge(&figures(&[1.0], 0.0, None))
            .expect("known");
        assert_eq!((verdicts[0].met, verdicts[0].value), (false, None));
        assert!(render(&verdicts).contains("not measured  MISSED"));
        let missed = all_met(&verdicts).expect_err("one was missed");
        assert_eq!((missed.missed, missed.all), (1, 1));
    }

    #[test]
    fn an_unknown_figure_is_answered_with_those_there_are() {
        let objectives: Objectives = "setup_p98<1ms".parse().expect("an objective");
        let error = objectives.check(&[SETUP, LOSS]).expect_err("unknown");
        let text = error.to_string();
        for part in ["setup_p98", "setup_p99", "packets lost; less is better"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_limit_in_another_unit_is_refused_with_the_right_one() {
        let refused = |text: &str| {
            let objectives: Objectives = text.parse().expect("an objective");
            let error = objectives.check(&[SETUP, LOSS, MOS, MEMORY]);
            error.expect_err("another unit").to_string()
        };
        assert!(refused("setup_p99<300").contains("300ms"));
        assert!(refused("setup_p99<300%").contains("300ms"));
        assert!(refused("loss<1ms").contains("0.1%"));
        assert!(refused("mos>4ms").contains("without a unit"));
        assert!(refused("rss<4").contains("120KiB"));
    }

    #[test]
    fn what_is_no_objective_is_refused_with_an_example() {
        for text in [
            "",
            "loss",
            "loss=1%",
            "<1%",
            "loss<",
            "loss<x%",
            "loss<1%,",
            "loss<1.2.3%",
        ] {
            let error = text.parse::<Objectives>().expect_err(text);
            assert!(error.to_string().contains("as loss<0.1%"), "{error}");
        }
        let many = vec!["loss<1%"; OBJECTIVES_MAX + 1].join(",");
        assert!(many.parse::<Objectives>().is_err());
    }
}
