//! Clients of all kinds.

use str0m::config::DtlsVersion;
use str0m::media::Direction as MediaDirection;

/// What kind of client it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) channel: bool,
    /// The channel's label.
    pub(crate) label: &'static str,
    /// The SCTP stream of a channel that both sides agree on instead of opening it in band.
    pub(crate) negotiated: Option<u16>,
    pub(crate) audio: Option<MediaDirection>,
    pub(crate) dtls: DtlsVersion,
    /// Whether it speaks Opus, or else only G.711.
    pub(crate) opus: bool,
    /// Whether its packets say which media section they are of (RFC 8843, 9).
    pub(crate) mid: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            channel: true,
            label: "oai-events",
            negotiated: None,
            audio: Some(MediaDirection::SendRecv),
            dtls: DtlsVersion::Dtls12,
            opus: true,
            mid: true,
        }
    }
}
