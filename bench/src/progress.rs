//! The line that tells how far a run is: rewritten in place on a terminal, one line a step
//! elsewhere, always on standard error so that standard output stays the result.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Distance of notes where each is a line of its own.
const NOTE_PERIOD: Duration = Duration::from_secs(5);

/// Counts the steps of a run and guesses its end.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    done_count: usize,
    total_count: usize,
    in_place: bool,
    noted: Option<Instant>,
}

impl Progress {
    /// Nothing of `total_count` steps is done.
    pub fn new(total_count: usize) -> Self {
        let in_place = std::io::stderr().is_terminal();
        Self {
            begun: Instant::now(),
            done_count: 0,
            total_count,
            in_place,
            noted: None,
        }
    }

    /// One step more is done; `what` says what came of it.
    pub fn step(&mut self, what: &str) {
        self.done_count += 1;
        let left = self.total_count.saturating_sub(self.done_count) as f64;
        let left_s = self.begun.elapsed().as_secs_f64() / self.done_count as f64 * left;
        let text = format!(
            "[{}/{}, {left_s:.0} s left] {what}",
            self.done_count, self.total_count
        );
        // A closed standard error is no reason to end a measurement.
        let _ = if self.in_place {
            write!(std::io::stderr(), "\r\x1b[2K{text}")
        } else {
            writeln!(std::io::stderr(), "{text}")
        };
    }

    /// Where the step in hand stands: on a terminal a line that the next one replaces, elsewhere
    /// one every [`NOTE_PERIOD`].
    pub fn note(&mut self, text: &str) {
        if !self.in_place
            && self
                .noted
                .is_some_and(|noted| noted.elapsed() < NOTE_PERIOD)
        {
            return;
        }
        self.noted = Some(Instant::now());
        let text = format!("[{}/{}] {text}", self.done_count + 1, self.total_count);
        let _ = if self.in_place {
            write!(std::io::stderr(), "\r\x1b[2K{text}")
        } else {
            writeln!(std::io::stderr(), "{text}")
        };
    }

    /// The run is over: what follows starts on a line of its own.
    pub fn end(&mut self) {
        if self.in_place {
            let _ = writeln!(std::io::stderr());
        }
    }
}
