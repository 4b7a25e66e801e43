//! What became of every record that a shard was given, and of every session.

use crate::session::{EndReason, Refusal};

/// What became of a record. Each one ends in exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Its session took it.
    Taken,
    /// The record's header has a reserved bit set.
    Reserved,
    /// It does not travel towards a session.
    Direction,
    /// It names another transceiver or another shard.
    WrongShard,
    /// Its slot holds no session, or does not exist.
    UnknownSlot,
    /// Its slot holds a later or an earlier session.
    StaleGeneration,
    /// No protocol of a WebRTC client.
    Protocol,
    /// Malformed STUN.
    MalformedStun,
    /// STUN that is no Binding request: an indication, or a response to nothing.
    NotBindingRequest,
    /// The first packet of a path, with the wrong cookie.
    BadCookie,
    /// A Binding request made without the session's password.
    BadIntegrity,
    /// DTLS, SRTP or SRTCP from a path on which no check has verified.
    UnadmittedPath,
    /// The session has had all the paths it may have.
    PathsExhausted,
    /// The engine could not use it: malformed DTLS, RTP or RTCP.
    EngineRefused,
}

impl Fate {
    /// Every fate, in the order of [`Fate::index`].
    pub const ALL: [Self; 14] = [
        Self::Taken,
        Self::Reserved,
        Self::Direction,
        Self::WrongShard,
        Self::UnknownSlot,
        Self::StaleGeneration,
        Self::Protocol,
        Self::MalformedStun,
        Self::NotBindingRequest,
        Self::BadCookie,
        Self::BadIntegrity,
        Self::UnadmittedPath,
        Self::PathsExhausted,
        Self::EngineRefused,
    ];

    /// The fate as an index into a table of counters.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The fate as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Reserved => "reserved",
            Self::Direction => "direction",
            Self::WrongShard => "wrong_shard",
            Self::UnknownSlot => "unknown_slot",
            Self::StaleGeneration => "stale_generation",
            Self::Protocol => "protocol",
            Self::MalformedStun => "malformed_stun",
            Self::NotBindingRequest => "not_binding_request",
            Self::BadCookie => "bad_cookie",
            Self::BadIntegrity => "bad_integrity",
            Self::UnadmittedPath => "unadmitted_path",
            Self::PathsExhausted => "paths_exhausted",
            Self::EngineRefused => "engine_refused",
        }
    }
}

impl From<Refusal> for Fate {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Protocol => Self::Protocol,
            Refusal::MalformedStun => Self::MalformedStun,
            Refusal::NotBindingRequest => Self::NotBindingRequest,
            Refusal::Cookie => Self::BadCookie,
            Refusal::Integrity => Self::BadIntegrity,
            Refusal::Path => Self::UnadmittedPath,
            Refusal::PathsExhausted => Self::PathsExhausted,
            Refusal::Engine => Self::EngineRefused,
        }
    }
}

/// A shard's counters, which only grow. Plain integers: their owner publishes them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    records: [u64; Fate::ALL.len()],
    ended: [u64; EndReason::ALL.len()],
    /// Datagrams on the inner port that are no bundle, or one that names more than it holds.
    pub bad_bundles: u64,
    /// Bundles of good form.
    pub bundles: u64,
    /// Sessions taken up.
    pub sessions_opened: u64,
    /// Openings refused, because their slot was not free or is not ours.
    pub openings_refused: u64,
    /// Records sent to relays: datagrams for clients, and flows that ended.
    pub records_out: u64,
}

impl Counters {
    /// Records that met `fate`.
    pub fn records(&self, fate: Fate) -> u64 {
        self.records[fate.index()]
    }

    /// All records.
    pub fn records_total(&self) -> u64 {
        self.records.iter().sum()
    }

    /// Sessions that ended for `reason`.
    pub fn ended(&self, reason: EndReason) -> u64 {
        self.ended[reason.index()]
    }

    pub(super) fn count_record(&mut self, fate: Fate) {
        self.records[fate.index()] += 1;
    }

    pub(super) fn count_end(&mut self, reason: EndReason) {
        self.ended[reason.index()] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fate_has_its_own_index_and_label() {
        for (index, fate) in Fate::ALL.into_iter().enumerate() {
            assert_eq!(fate.index(), index);
            let namesakes = Fate::ALL
                .iter()
                .filter(|other| other.label() == fate.label());
            assert_eq!(namesakes.count(), 1, "{}", fate.label());
        }
    }
}
