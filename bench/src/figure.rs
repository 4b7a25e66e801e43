//! Figures by name: what an objective is set for, what `compare` sets side by side, and what a live
//! run exposes.
//!
//! A figure has a name and a unit and knows which way is better; its value comes out of a result,
//! once a round.

use std::fmt;

use crate::stats::Spread;

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Time in microseconds.
    Microseconds,
    /// A part of a whole, 0 to 1.
    Share,
    /// Memory in KiB.
    Kib,
    /// A number of things.
    Count,
    /// Anything else: ratios, scores, rates; the name says which.
    Number,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Small values.
    Less,
    /// Large values.
    More,
}

/// A figure that a kind of result has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name: lower case, digits and underscores.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// What it is, in a few words.
    pub meaning: &'static str,
}

/// A time, of which less is better.
#[must_use]
pub const fn time(name: &'static str, meaning: &'static str) -> Definition {
    less(name, Unit::Microseconds, meaning)
}

/// A figure of which less is better.
#[must_use]
pub const fn less(name: &'static str, unit: Unit, meaning: &'static str) -> Definition {
    Definition {
        name,
        unit,
        better: Better::Less,
        meaning,
    }
}

/// A figure of which more is better.
#[must_use]
pub const fn more(name: &'static str, unit: Unit, meaning: &'static str) -> Definition {
    Definition {
        name,
        unit,
        better: Better::More,
        meaning,
    }
}

/// A figure with its values, one a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Which figure.
    pub definition: Definition,
    /// Its rounds.
    pub values: Vec<f64>,
}

impl Figure {
    /// Middle and width over the rounds; `None` where nothing was measured.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        Spread::of(self.values.iter().copied())
    }

    /// The round that was worst; `None` where nothing was measured.
    #[must_use]
    pub fn worst(&self) -> Option<f64> {
        let spread = self.spread()?;
        Some(match self.definition.better {
            Better::Less => spread.max,
            Better::More => spread.min,
        })
    }
}

impl Unit {
    /// A value as a person reads it: three digits and a unit that suits its size.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Microseconds if value.abs() < 1e3 => format!("{} µs", digits(value)),
            Self::Microseconds if value.abs() < 1e6 => format!("{} ms", digits(value / 1e3)),
            Self::Microseconds => format!("{} s", digits(value / 1e6)),
            Self::Share => format!("{} %", digits(value * 100.0)),
            Self::Kib if value.abs() < 10_240.0 => format!("{} KiB", digits(value)),
            Self::Kib => format!("{} MiB", digits(value / 1024.0)),
            Self::Count => format!("{value:.0}"),
            Self::Number => digits(value),
        }
    }
}

/// Three significant digits, without an exponent.
#[must_use]
pub fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size == 0.0 || size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ if size >= 0.01 => 3,
        _ => 5,
    };
    format!("{value:.decimals$}")
}

impl fmt::Display for Better {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Less => "less is better",
            Self::More => "more is better",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_values_in_a_unit_that_suits_their_size() {
        let shown = [
            (Unit::Microseconds, 35.25, "35.2 µs"),
            (Unit::Microseconds, 3_213.0, "3.21 ms"),
            (Unit::Microseconds, 2_500_000.0, "2.50 s"),
            (Unit::Share, 0.0012, "0.120 %"),
            (Unit::Share, 0.0, "0 %"),
            (Unit::Kib, 88.0, "88.0 KiB"),
            (Unit::Kib, 20_480.0, "20.0 MiB"),
            (Unit::Count, 3.0, "3"),
            (Unit::Number, 4.417, "4.42"),
        ];
        for (unit, value, text) in shown {
            assert_eq!(unit.show(value), text);
        }
    }

    #[test]
    fn the_worst_round_is_the_one_on_the_wrong_side() {
        let figure = |better| Figure {
            definition: Definition {
                better,
                ..less("some", Unit::Number, "some figure")
            },
            values: vec![2.0, 1.0, 3.0],
        };
        assert_eq!(figure(Better::Less).worst(), Some(3.0));
        assert_eq!(figure(Better::More).worst(), Some(1.0));
        let nothing = Figure {
            values: Vec::new(),
            ..figure(Better::More)
        };
        assert_eq!(nothing.worst(), None);
    }
}
