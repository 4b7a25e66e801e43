//! What is said of a session: while it lives, and once when it has ended.

use std::time::Duration;

use syrinx_shared::route::{ClientSocket, SessionRef};

use super::inbound::Repairs;
use super::{Delivery, Reception};
use crate::backend::Losses;
use crate::engine::AudioFormat;

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The client did not get through to media within the set-up deadline.
    SetupTimeout,
    /// The DTLS handshake cannot succeed: another certificate than the offered one or none, nothing
    /// in common, an alert.
    HandshakeFailed,
    /// No packet of the client has authenticated for the time of silence.
    ClientSilent,
    /// The client closed DTLS or its SCTP association.
    ClientClosed,
    /// The API was asked to end it.
    HungUp,
    /// The process stops serving.
    Drained,
    /// The backend asked to end it.
    BackendClosed,
    /// The backend is gone, and is not tried again.
    BackendLost,
    /// The engine met an error it cannot go on from, after media could flow.
    EngineFailed,
    /// A step gave more outputs than any should.
    Runaway,
    /// A step panicked. The session is gone; the others are not.
    Panicked,
}

impl EndReason {
    /// Every reason, in the order of [`EndReason::index`].
    pub const ALL: [Self; 11] = [
        Self::SetupTimeout,
        Self::HandshakeFailed,
        Self::ClientSilent,
        Self::ClientClosed,
        Self::HungUp,
        Self::Drained,
        Self::BackendClosed,
        Self::BackendLost,
        Self::EngineFailed,
        Self::Runaway,
        Self::Panicked,
    ];

    /// The reason as an index into a table of counters.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The reason as a metric label and in the log.
    pub fn label(self) -> &'static str {
        match self {
            Self::SetupTimeout => "setup_timeout",
            Self::HandshakeFailed => "handshake_failed",
            Self::ClientSilent => "client_silent",
            Self::ClientClosed => "client_closed",
            Self::HungUp => "hung_up",
            Self::Drained => "drained",
            Self::BackendClosed => "backend_closed",
            Self::BackendLost => "backend_lost",
            Self::EngineFailed => "engine_failed",
            Self::Runaway => "runaway",
            Self::Panicked => "panicked",
        }
    }

    /// Whether the client is told. A client that closed knows; an engine in trouble is left alone.
    pub(super) fn says_goodbye(self) -> bool {
        matches!(
            self,
            Self::SetupTimeout
                | Self::ClientSilent
                | Self::HungUp
                | Self::Drained
                | Self::BackendClosed
                | Self::BackendLost
        )
    }
}

/// How long after the offer each part of set-up was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// The first check that verified.
    pub first_check: Option<Duration>,
    /// ICE and DTLS.
    pub connected: Option<Duration>,
    /// The first data channel.
    pub channel: Option<Duration>,
    /// The first audio packet from the client.
    pub first_audio: Option<Duration>,
}

/// Counts that only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams of the client that reached the engine.
    pub datagrams_in: u64,
    /// Datagrams for the client.
    pub datagrams_out: u64,
    /// Audio packets for the client.
    pub audio_out_packets: u64,
    /// Bytes of their payloads.
    pub audio_out_bytes: u64,
    /// Messages that came on data channels.
    pub messages_in: u64,
    /// Messages that went out on data channels.
    pub messages_out: u64,
    /// How often the client restarted ICE.
    pub ice_restarts: u64,
}

/// The state of a session at one moment.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Which session.
    pub session: SessionRef,
    /// Its public name.
    pub id: String,
    /// The client's address on the current path.
    pub client: Option<ClientSocket>,
    /// Time since the offer.
    pub age: Duration,
    /// How set-up went.
    pub phases: Phases,
    /// How often the client moved.
    pub moves: u32,
    /// What its audio is made of; `None` without audio.
    pub audio: Option<AudioFormat>,
    /// The audio that came.
    pub reception: Reception,
    /// What the client says of the audio it is sent.
    pub delivery: Delivery,
    /// What was done to put its own in order.
    pub repairs: Repairs,
    /// What else was counted.
    pub counts: Counts,
    /// What was lost or wrong between the client and the backend.
    pub losses: Losses,
    /// Replies left out because too many waited.
    pub replies_dropped: u64,
    /// The engine's error, for [`EndReason::HandshakeFailed`] and [`EndReason::EngineFailed`].
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_index_and_label() {
        for (index, reason) in EndReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            let namesakes = EndReason::ALL
                .iter()
                .filter(|other| other.label() == reason.label());
            assert_eq!(namesakes.count(), 1, "{}", reason.label());
        }
    }
}
