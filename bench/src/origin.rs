//! Where a result comes from: what every result file begins with.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// The verb, the machine and the command line of a run. Its fields stand beside a report's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Which verb made it: what `compare` and `report` tell files apart by.
    pub verb: String,
    /// Whether it came to its end; `false` after ^C, or when every call failed.
    pub complete: bool,
    /// The machine.
    pub machine: Machine,
    /// Seconds since the Unix epoch when it began.
    pub begun_unix_s: u64,
    /// The command line.
    pub arguments: Vec<String>,
    /// What everything random was drawn from.
    pub seed: u64,
}

impl Origin {
    /// Of a run of this process that begins now.
    #[must_use]
    pub fn begun(verb: &str, seed: u64) -> Self {
        let age = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            verb: verb.to_owned(),
            complete: false,
            machine: Machine::read(),
            begun_unix_s: age.map_or(0, |age| age.as_secs()),
            arguments: std::env::args().skip(1).collect(),
            seed,
        }
    }
}
