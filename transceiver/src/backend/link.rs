//! Words between a dialect, which is pure, and the driver, which owns the connection.
//!
//! A link is one WebSocket to an inference service. The dialect asks for it with
//! [`LinkCommand::Open`], is told [`LinkEvent::Up`], and from then on sends and receives whole
//! messages. When the connection goes away the driver says so, and whether it tries again; a
//! dialect treats a second [`LinkEvent::Up`] as a fresh start of its protocol.

/// Which configured backend a link goes to: its place in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackendId(pub u16);

/// Whom a link is for; what an address with placeholders is filled in from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTarget {
    /// The configured backend.
    pub backend: BackendId,
    /// The model the client asked for.
    pub model: Option<String>,
    /// The call's public name.
    pub call: String,
    /// The WebSocket subprotocol to ask for, if the dialect has one.
    pub subprotocol: Option<&'static str>,
}

/// What a dialect wants of its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkCommand {
    /// Connect. Said once a session.
    Open(LinkTarget),
    /// Send a message, behind those before it. Only after [`LinkEvent::Up`].
    Send(LinkMessage),
    /// Send what waits, close with this code and reason (RFC 6455, 7.4), and forget the session.
    /// Nothing comes after it. A reason has at most 123 bytes.
    Close {
        /// A close code.
        code: u16,
        /// What a person should read in a log.
        reason: String,
    },
}

/// A message to the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkMessage {
    /// What may be done with it when the backend does not read.
    pub class: LinkClass,
    /// The message.
    pub body: LinkBody,
}

/// What becomes of a message that waits for a backend that does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkClass {
    /// Speech of the caller: dropped, oldest first, when too much waits.
    Audio,
    /// Never dropped: when too much of it waits, the link is given up.
    Control,
}

/// The two kinds of WebSocket messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkBody {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Vec<u8>),
}

/// What the driver tells of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The WebSocket is open, for the first time or again.
    Up,
    /// A text message came.
    Text(String),
    /// A binary message came.
    Binary(Vec<u8>),
    /// The connection is gone, or could not be made. What waited to be sent is gone with it.
    Down {
        /// Why.
        reason: LinkDown,
        /// Whether the driver tries again. When not, this is the last event.
        will_retry: bool,
    },
}

/// Why a link is not up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkDown {
    /// The kind of reason, for counting.
    pub cause: LinkCause,
    /// What a person should read in a log: an address, an errno, the backend's own words.
    pub detail: String,
}

/// Kinds of reasons why a link is not up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkCause {
    /// No address of the backend could be connected to.
    Unreachable,
    /// Connecting, or the first message, took longer than it may.
    TimedOut,
    /// TLS failed: the certificate, the name, or the protocol.
    Tls,
    /// The backend answered the upgrade with something else than a WebSocket.
    Refused,
    /// The connection broke off.
    Reset,
    /// The backend closed the WebSocket.
    Closed,
    /// The backend answers no pings.
    Unresponsive,
    /// The backend reads too slowly for its control messages to be kept.
    Overflow,
    /// What the backend sent is no WebSocket protocol, or a message larger than it may be.
    Protocol,
    /// Too many sessions have a link to the backend already, or none of its addresses is healthy.
    Unavailable,
}

impl LinkCause {
    /// Every cause, in the order of [`LinkCause::index`].
    pub const ALL: [Self; 10] = [
        Self::Unreachable,
        Self::TimedOut,
        Self::Tls,
        Self::Refused,
        Self::Reset,
        Self::Closed,
        Self::Unresponsive,
        Self::Overflow,
        Self::Protocol,
        Self::Unavailable,
    ];

    /// The cause as an index into a table of counters.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The cause as a metric label and in the log.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Tls => "tls",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Unresponsive => "unresponsive",
            Self::Overflow => "overflow",
            Self::Protocol => "protocol",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A reason as a close frame can carry it: at most 123 bytes (RFC 6455, 5.5 and 7.1.6).
pub(super) fn close_reason(reason: &str) -> String {
    let end = reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX);
    reason[..end].to_owned()
}

/// A control frame has 125 bytes, of which the code takes two.
const CLOSE_REASON_BYTES_MAX: usize = 123;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(close_reason("short"), "short");
        assert_eq!(close_reason(&"é".repeat(100)).len(), 122);
    }

    #[test]
    fn every_cause_has_its_own_index_and_label() {
        for (index, cause) in LinkCause::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), index);
            let namesakes = LinkCause::ALL
                .iter()
                .filter(|other| other.label() == cause.label());
            assert_eq!(namesakes.count(), 1, "{}", cause.label());
        }
    }
}
