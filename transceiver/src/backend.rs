//! What a session's audio and events are for: the seam to whatever answers the caller.
//!
//! A [`Backend`] is a state machine. The session tells it what happened ([`Input`]); it writes what
//! is to be done into [`Actions`]; the session and its shard see to that in the same step where
//! they can. A backend never sees datagrams, paths or WebRTC, and it owns no socket: what it wants
//! sent on its link is a [`link::LinkCommand`], and what it wants transcoded is a
//! [`codec::CodecCommand`]. The driver carries both out and brings the results back as inputs.

mod actions;
pub mod codec;
mod decoding;
pub mod echo;
pub mod g711;
mod kept;
pub mod link;
mod loss;
pub mod media_v1;
pub mod realtime;
mod session_view;
mod turns;
mod voice;

use std::borrow::Cow;
use std::time::Instant;

use serde::Deserialize;

pub use actions::{Actions, Addressee, EdgeError, Losses};

use crate::engine::ChannelId;
use crate::playout::PlayoutEvent;
use crate::session::EndReason;
use crate::session::inbound::{Gap, Heard, KeyPress, Placed};
use codec::CodecOutput;
use link::LinkEvent;

/// Answers the caller.
pub trait Backend: Send {
    /// Something happened. Each call is one step: what it leads to is bounded.
    fn handle(&mut self, now: Instant, input: Input<'_>, actions: &mut Actions);

    /// When the backend next wants [`Input::Timeout`]; never when `None`.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// What a backend is told.
#[derive(Debug)]
pub enum Input<'a> {
    /// The session begins: the first input, before any check of the client has come. A backend
    /// with a link opens it here, so that it is up by the time the client speaks.
    Start,
    /// Media can flow: ICE and DTLS are up.
    MediaReady,
    /// An audio packet of the caller. Packets and gaps come in order, and together they make one
    /// time line.
    Audio(Placed),
    /// A stretch of the time line that no packet fills.
    Gap(Gap),
    /// The caller pressed a key; told once, as soon as it is known.
    Key(KeyPress),
    /// A data channel opened; it has been told nothing yet.
    ChannelOpen(ChannelId),
    /// An event of the client: JSON text with a `type`, already checked.
    ClientEvent(ClientEvent<'a>),
    /// Something happened to the link.
    Link(LinkEvent),
    /// The codec has done some of its work.
    Codec(CodecOutput),
    /// Something of what was to be played has become audible.
    Playout(PlayoutEvent),
    /// The moment of [`Backend::poll_timeout`] has come.
    Timeout,
    /// The session ends; the last input. A backend says good-bye on its link here.
    Closing(EndReason),
}

/// An event that the client, or whoever speaks for him on the sideband, has sent.
#[derive(Debug, Clone, Copy)]
pub struct ClientEvent<'a> {
    /// Whom an answer to it alone is for.
    pub from: Addressee,
    /// The text.
    pub text: &'a str,
}

impl From<Heard> for Input<'_> {
    fn from(heard: Heard) -> Self {
        match heard {
            Heard::Audio(audio) => Self::Audio(audio),
            Heard::Gap(gap) => Self::Gap(gap),
            Heard::Key(key) => Self::Key(key),
        }
    }
}

/// The `type` of an event; `None` when it is no JSON object with one. Nothing else of the event is
/// kept, and the type is borrowed from its text where it can be.
pub(crate) fn event_type(event: &str) -> Option<Cow<'_, str>> {
    let Head { kind } = serde_json::from_str(event).ok()?;
    Some(kind)
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}
