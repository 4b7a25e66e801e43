//! What the forwarder decides about a datagram, and the count of every decision.
//!
//! A drop reason is a metric label: stable text, one counter each. Every datagram of a client ends
//! in `forwarded_to_transceiver` or in one drop of [`Side::Client`]; every datagram of the inner
//! leg is a bundle or one drop, and every record of a bundle ends in `forwarded_to_client`, in
//! `control_records` or in one drop of [`Side::Transceiver`]. [`Counters::balance`] adds them up.

use syrinx_shared::route::{ClientSocket, LocalEndpoint, Transport};
use syrinx_shared::wire::encap::{Marks, RawHeader, RecordHeader};
use syrinx_shared::wire::train::TrainDestination;
use syrinx_shared::wire::ufrag::UfragError;

/// What becomes of a client's datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientVerdict {
    /// Send it to a transceiver's shard behind this record header.
    Forward {
        /// Which process and shard.
        to: TrainDestination,
        /// The header to put in front of the payload.
        header: RawHeader,
    },
    /// Drop it: counted, not answered.
    Drop(DropReason),
}

/// A datagram to send to a client, from the address that the client used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToClient<'a> {
    /// Where it goes.
    pub client: ClientSocket,
    /// Which of our addresses it leaves from.
    pub endpoint: LocalEndpoint,
    /// How the client reached us.
    pub transport: Transport,
    /// The ECN and DSCP that it leaves with.
    pub marks: Marks,
    /// The datagram.
    pub payload: &'a [u8],
}

/// What became of one record of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordVerdict<'a> {
    /// Its header, where it could be read.
    pub header: Option<RecordHeader>,
    /// A datagram for a client, a control message that was obeyed (`None`), or a drop.
    pub outcome: Result<Option<ToClient<'a>>, DropReason>,
}

/// The face of the relay on which a datagram was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The public sockets.
    Client,
    /// The inner leg.
    Transceiver,
}

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident $side:ident $label:literal,)*) => {
        /// Why a datagram was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum DropReason {
            $($(#[$doc])* $name,)*
        }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The metric label: stable, snake case.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }

            /// On which side the datagram was received.
            pub fn side(self) -> Side {
                match self {
                    $(Self::$name => Side::$side,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// An empty datagram.
    Empty Client "empty",
    /// A first byte that no WebRTC client sends.
    NotWebrtc Client "not_webrtc",
    /// Cut by the kernel: larger than a receive buffer.
    Truncated Client "truncated",
    /// Too large for any datagram of the inner leg.
    Oversize Client "oversize",
    /// STUN whose structure is broken.
    StunMalformed Client "stun_malformed",
    /// A Binding request without a `server:client` USERNAME.
    StunUsername Client "stun_username",
    /// No flow, and not a request that could make one.
    NoFlow Client "no_flow",
    /// The ufrag is not 32 ice-chars.
    UfragMalformed Client "ufrag_malformed",
    /// The ufrag has a version that this build does not read.
    UfragVersion Client "ufrag_version",
    /// The ufrag says that it cannot be routed.
    UfragUnroutable Client "ufrag_unroutable",
    /// The ufrag's epoch is unknown or retired.
    UfragEpoch Client "ufrag_epoch",
    /// The ufrag's tag is wrong: forged.
    UfragTag Client "ufrag_tag",
    /// This relay lacks the cluster keys of the ufrag's epoch.
    UfragEdgeOnly Client "ufrag_edge_only",
    /// The ufrag's block does not decrypt.
    UfragCheck Client "ufrag_check",
    /// The ufrag is older than a session can be, or from the future.
    UfragExpired Client "ufrag_expired",
    /// The ufrag names another cluster.
    ForeignCluster Client "foreign_cluster",
    /// The session's transceiver is not in the route table.
    UnknownTransceiver Client "unknown_transceiver",
    /// The session's transceiver has no such shard.
    UnknownShard Client "unknown_shard",
    /// MESSAGE-INTEGRITY does not verify.
    Integrity Client "integrity",
    /// A late request of the session that this client's flow has left.
    SupersededUfrag Client "superseded_ufrag",
    /// The sender's prefix makes flows too fast.
    AdmissionPrefix Client "admission_prefix",
    /// All senders together make flows too fast.
    AdmissionTotal Client "admission_total",
    /// The table is full of answered flows.
    TableFull Client "table_full",
    /// Sent to more local addresses of a wildcard socket than a record can name.
    EndpointLimit Client "endpoint_limit",
    /// The kernel's send buffer towards the transceiver stayed full.
    InnerSendBlocked Client "inner_send_blocked",
    /// The kernel refused the send towards the transceiver.
    InnerSendFailed Client "inner_send_failed",
    /// A datagram on the inner port that is no bundle.
    NotBundle Transceiver "not_bundle",
    /// A bundle whose records run past its end.
    BundleTruncated Transceiver "bundle_truncated",
    /// A record with a reserved bit set.
    RecordReserved Transceiver "record_reserved",
    /// A record that travels the wrong way.
    WrongDirection Transceiver "wrong_direction",
    /// A control message of an unknown kind.
    UnknownControl Transceiver "unknown_control",
    /// No such flow, and a cookie that does not prove one.
    UnknownFlow Transceiver "unknown_flow",
    /// The flow is another session's.
    BadCookie Transceiver "bad_cookie",
    /// A flow to be made again, towards a transceiver that is not in the route table.
    UnknownReturnRoute Transceiver "unknown_return_route",
    /// A flow to be made again, and the table is full of answered ones.
    ReturnTableFull Transceiver "return_table_full",
    /// The flow's endpoint is not one of this relay's sockets.
    UnknownEndpoint Transceiver "unknown_endpoint",
    /// The kernel's send buffer towards the client stayed full.
    ClientSendBlocked Transceiver "client_send_blocked",
    /// The kernel refused the send towards the client.
    ClientSendFailed Transceiver "client_send_failed",
}

impl From<UfragError> for DropReason {
    fn from(error: UfragError) -> Self {
        match error {
            UfragError::Malformed => Self::UfragMalformed,
            UfragError::Version(_) => Self::UfragVersion,
            UfragError::Unroutable => Self::UfragUnroutable,
            UfragError::Epoch(_) => Self::UfragEpoch,
            UfragError::Tag => Self::UfragTag,
            UfragError::EdgeOnly => Self::UfragEdgeOnly,
            UfragError::Check => Self::UfragCheck,
            UfragError::Expired { .. } => Self::UfragExpired,
        }
    }
}

/// One counter for each [`DropReason`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Adds `count` drops for `reason`.
    pub fn add(&mut self, reason: DropReason, count: u64) {
        self.0[reason as usize] += count;
    }

    /// How many drops `reason` has.
    pub fn count(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// How many drops `side` has, for whatever reason.
    pub fn total(&self, side: Side) -> u64 {
        DropReason::ALL
            .iter()
            .filter(|reason| reason.side() == side)
            .map(|reason| self.count(*reason))
            .sum()
    }
}

/// What a forwarder has done. Plain integers: a worker owns them, and publishes them once a
/// second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams received from clients.
    pub client_datagrams: u64,
    /// Of them, forwarded.
    pub forwarded_to_transceiver: u64,
    /// Datagrams received on the inner leg.
    pub inner_datagrams: u64,
    /// Of them, bundles.
    pub bundles: u64,
    /// Records in those bundles.
    pub records: u64,
    /// Of them, forwarded to clients.
    pub forwarded_to_client: u64,
    /// Of them, control messages that were obeyed.
    pub control_records: u64,
    /// Flows made, for whatever reason.
    pub flows_created: u64,
    /// Of them, made again from a transceiver's record.
    pub flows_healed: u64,
    /// Flows pointed at another session.
    pub flows_repointed: u64,
    /// Flows freed because their client fell silent.
    pub flows_expired: u64,
    /// Flows freed because their session ended.
    pub flows_closed: u64,
    /// Unanswered flows freed to make room.
    pub flows_evicted: u64,
    /// What was dropped, by reason.
    pub drops: DropCounters,
}

impl Counters {
    /// Whether every datagram and record received is in exactly one counter.
    pub fn balance(&self) -> bool {
        let not_bundles =
            self.drops.count(DropReason::NotBundle) + self.drops.count(DropReason::BundleTruncated);
        let record_drops = self.drops.total(Side::Transceiver) - not_bundles;
        self.client_datagrams == self.forwarded_to_transceiver + self.drops.total(Side::Client)
            && self.inner_datagrams == self.bundles + not_bundles
            && self.records == self.forwarded_to_client + self.control_records + record_drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn labels_are_distinct_snake_case() {
        let labels: HashSet<_> = DropReason::ALL
            .iter()
            .map(|reason| reason.label())
            .collect();
        assert_eq!(labels.len(), DropReason::ALL.len());
        let legal = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(labels.iter().all(|label| label.chars().all(legal)));
    }

    #[test]
    fn balance_notices_a_datagram_that_is_in_no_counter_and_one_in_two() {
        let mut counters = Counters {
            client_datagrams: 1,
            ..Counters::default()
        };
        assert!(!counters.balance());
        counters.drops.add(DropReason::Empty, 1);
        assert!(counters.balance());
        counters.forwarded_to_transceiver = 1;
        assert!(!counters.balance());
        let mut counters = Counters {
            records: 2,
            ..Counters::default()
        };
        counters.control_records = 1;
        counters.drops.add(DropReason::BadCookie, 1);
        assert!(counters.balance());
    }
}
