//! The names of the Realtime protocol's events that the edge acts on, current and earlier ones.
//!
//! Servers in the field speak the general release or the beta before it; a few events were
//! renamed in between. Whatever is not in these tables is passed on unread.

/// An event of the backend that the edge acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FromBackend {
    SessionCreated,
    SessionUpdated,
    ResponseCreated,
    ResponseDone,
    AudioDelta,
    AudioDone,
    SpeechStarted,
    Error,
}

/// An event of the client that the edge acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FromClient {
    SessionUpdate,
    ResponseCancel,
    OutputClear,
}

const FROM_BACKEND: [(&str, FromBackend); 10] = [
    ("session.created", FromBackend::SessionCreated),
    ("session.updated", FromBackend::SessionUpdated),
    ("response.created", FromBackend::ResponseCreated),
    ("response.done", FromBackend::ResponseDone),
    ("response.output_audio.delta", FromBackend::AudioDelta),
    ("response.audio.delta", FromBackend::AudioDelta),
    ("response.output_audio.done", FromBackend::AudioDone),
    ("response.audio.done", FromBackend::AudioDone),
    (
        "input_audio_buffer.speech_started",
        FromBackend::SpeechStarted,
    ),
    ("error", FromBackend::Error),
];

const FROM_CLIENT: [(&str, FromClient); 3] = [
    ("session.update", FromClient::SessionUpdate),
    ("response.cancel", FromClient::ResponseCancel),
    ("output_audio_buffer.clear", FromClient::OutputClear),
];

impl FromBackend {
    pub(super) fn parse(kind: &str) -> Option<Self> {
        find(&FROM_BACKEND, kind)
    }
}

impl FromClient {
    pub(super) fn parse(kind: &str) -> Option<Self> {
        find(&FROM_CLIENT, kind)
    }
}

fn find<T: Copy>(table: &[(&str, T)], kind: &str) -> Option<T> {
    let known = table.iter().find(|(name, _)| *name == kind);
    known.map(|(_, event)| *event)
}
