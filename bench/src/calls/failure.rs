//! Why calls did not come about, or ended before their time: one cause each, counted, with the
//! words of the first.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What went wrong with a call. The order is that in which a call can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// This machine gave the client no socket or no address.
    NoSocket,
    /// The server's name could not be resolved.
    Dns,
    /// Nothing listens where the server should be.
    NoServer,
    /// TLS could not be agreed on.
    Tls,
    /// The HTTP answer did not come in time.
    HttpTimeout,
    /// The HTTP exchange broke off, or was none.
    HttpBroken,
    /// The server has no room: 429 or 503.
    Refused,
    /// The server answered with another error.
    HttpError,
    /// The answer was no SDP, or did not fit the offer.
    BadAnswer,
    /// No connectivity check was answered.
    NoCheckAnswered,
    /// ICE found no path.
    NoIce,
    /// The DTLS handshake did not end.
    NoDtls,
    /// The data channel did not open.
    NoChannel,
    /// `session.created` did not come.
    NoSession,
    /// No audio came back.
    NoAudio,
    /// The server ended the call.
    Closed,
    /// Nothing was heard any more.
    Silent,
    /// The client's own engine gave up.
    Broken,
    /// The run was ended before the call came to its point.
    Stopped,
}

impl Cause {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSocket => "no socket for the client",
            Self::Dns => "name not resolved",
            Self::NoServer => "nothing listens",
            Self::Tls => "TLS failed",
            Self::HttpTimeout => "HTTP timed out",
            Self::HttpBroken => "HTTP broke off",
            Self::Refused => "refused: no room",
            Self::HttpError => "HTTP error",
            Self::BadAnswer => "answer unusable",
            Self::NoCheckAnswered => "no check answered",
            Self::NoIce => "no ICE path",
            Self::NoDtls => "no DTLS",
            Self::NoChannel => "no data channel",
            Self::NoSession => "no session.created",
            Self::NoAudio => "no audio back",
            Self::Closed => "ended by the server",
            Self::Silent => "fell silent",
            Self::Broken => "client gave up",
            Self::Stopped => "stopped",
        }
    }
}

/// One failure, with its words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {words}", .cause.name())]
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// What the system or the server said.
    pub words: String,
}

impl Failure {
    /// A failure with the words of `what`.
    pub fn new(cause: Cause, what: impl fmt::Display) -> Self {
        Self {
            cause,
            words: what.to_string(),
        }
    }
}

/// Failures of many calls, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures(pub BTreeMap<Cause, Occurrences>);

/// How often, and what was said the first time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occurrences {
    /// How many calls.
    pub count: u64,
    /// The words of the first.
    pub first: String,
}

impl Failures {
    /// Counts one.
    pub fn count(&mut self, failure: Failure) {
        let entry = self.0.entry(failure.cause).or_insert(Occurrences {
            count: 0,
            first: failure.words,
        });
        entry.count += 1;
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Self) {
        for (cause, occurrences) in &other.0 {
            let entry = self.0.entry(*cause).or_insert(Occurrences {
                count: 0,
                first: occurrences.first.clone(),
            });
            entry.count += occurrences.count;
        }
    }

    /// All together.
    pub fn total(&self) -> u64 {
        self.0.values().map(|occurrences| occurrences.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_first_words_and_adds_up() {
        let (mut all, mut other) = (Failures::default(), Failures::default());
        all.count(Failure::new(Cause::Refused, "503"));
        all.count(Failure::new(Cause::Refused, "429"));
        other.count(Failure::new(Cause::Refused, "503 again"));
        other.count(Failure::new(Cause::NoAudio, "nothing"));
        all.add(&other);
        assert_eq!(all.total(), 4);
        let refused = &all.0[&Cause::Refused];
        assert_eq!((refused.count, refused.first.as_str()), (3, "503"));
    }
}
