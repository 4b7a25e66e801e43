//! What a backend wants done, bounded.

use std::collections::VecDeque;

use super::codec::CodecCommand;
use super::link::{LinkClass, LinkCommand};
use crate::engine::{AudioCodec, AudioOut, ChannelId};
use crate::playout::{Frame, MarkId, Playout, SegmentId, Way};
use crate::session::EndReason;
use crate::session::events::{EventFault, EventIds, Profile};

/// Audio packets that a backend can answer within one step: one for each packet that came, and a
/// step takes one datagram, so this is room for a backend that releases a small burst.
const AUDIO_MAX: usize = 8;
/// Events that wait for a client that reads slowly.
const EVENTS_MAX: usize = 64;
/// Bytes of those events: two of the largest that can be sent.
const EVENT_BYTES_MAX: usize = 2 * crate::engine::CHANNEL_BUFFER_BYTES;
/// Events for the sideband within one step: those a client's queue can hold.
const SAID_MAX: usize = EVENTS_MAX;
/// Messages for the link within one step: what waited for it to come up is sent at once.
const LINK_COMMANDS_MAX: usize = 1_024;
/// Commands to the codec within one step: likewise.
const CODEC_COMMANDS_MAX: usize = 1_024;

/// Whom an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressee {
    /// The client, on the channel that he opened first.
    Client,
    /// One of the client's channels.
    Channel(ChannelId),
    /// Whoever speaks for the client on the sideband.
    Sideband,
}

/// What was lost or wrong on the way between the client and the backend. Only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Samples at 48 kHz of the caller that the backend never got, because it was not there in
    /// time.
    pub unheard_samples: u64,
    /// Samples at 48 kHz of the backend that were not taken, because too much waited.
    pub refused_samples: u64,
    /// Messages of the backend that made no sense.
    pub faults: u64,
    /// Flushes that cut something off.
    pub flushes: u64,
}

/// Something that the edge itself reports to the client, as the Realtime API's `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeError<'a> {
    /// The API's class of errors: `invalid_request_error` or `server_error`.
    pub kind: &'static str,
    /// What it is, for programs.
    pub code: &'static str,
    /// What it is, for people.
    pub message: &'a str,
}

/// What a session still has to do for its backend.
///
/// Every queue has a limit. What finds its queue full is dropped and counted, but for a control
/// message to the link: without it the other side would be left with half of the truth, so the
/// session ends.
#[derive(Debug)]
pub struct Actions {
    profile: Profile,
    event_ids: EventIds,
    client_codec: Option<AudioCodec>,
    audio: VecDeque<AudioOut>,
    playout: Playout,
    events: VecDeque<(Addressee, String)>,
    event_bytes: usize,
    is_tapped: bool,
    said: VecDeque<String>,
    said_missed: u32,
    link: VecDeque<LinkCommand>,
    codec: VecDeque<CodecCommand>,
    close: Option<EndReason>,
    dropped: u64,
    losses: Losses,
    way: Way,
}

impl Actions {
    /// Nothing to do, for a session with this profile. `event_seed` tells its events from others'.
    pub fn new(profile: Profile, event_seed: u64) -> Self {
        Self {
            profile,
            event_ids: EventIds::new(event_seed),
            client_codec: None,
            audio: VecDeque::new(),
            playout: Playout::default(),
            events: VecDeque::new(),
            event_bytes: 0,
            is_tapped: false,
            said: VecDeque::new(),
            said_missed: 0,
            link: VecDeque::new(),
            codec: VecDeque::new(),
            close: None,
            dropped: 0,
            losses: Losses::default(),
            way: Way::default(),
        }
    }

    /// Whom the session is for.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What the client is sent; `None` when it takes no audio.
    pub fn client_codec(&self) -> Option<AudioCodec> {
        self.client_codec
    }

    /// Says what the client is sent.
    pub fn set_client_codec(&mut self, codec: Option<AudioCodec>) {
        self.client_codec = codec;
    }

    /// An id for an event that the edge makes.
    pub fn event_id(&mut self) -> String {
        self.event_ids.next()
    }

    /// Sends an audio packet in this step, in the backend's own numbers; dropped and counted when
    /// too many wait. A backend either does this or uses the playout, which numbers for itself.
    pub fn pass_audio(&mut self, audio: AudioOut) {
        if self.audio.len() < AUDIO_MAX {
            self.audio.push_back(audio);
        } else {
            self.dropped += 1;
        }
    }

    /// What was lost so far, to add to.
    pub fn losses(&mut self) -> &mut Losses {
        &mut self.losses
    }

    /// What was lost so far.
    pub fn lost(&self) -> Losses {
        self.losses
    }

    /// What the client has reported of the way to it.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Notes what the client reports of the way to it.
    pub fn set_way(&mut self, way: Way) {
        self.way = way;
    }

    /// What waits to be said to the caller, at his pace.
    pub fn playout(&mut self) -> &mut Playout {
        &mut self.playout
    }

    /// The same, to look at.
    pub fn waiting_playout(&self) -> &Playout {
        &self.playout
    }

    /// Plays a frame behind what waits; dropped and counted when too much does.
    pub fn play(&mut self, frame: Frame) {
        let samples = u64::from(frame.samples);
        if self.playout.push(frame).is_err() {
            self.losses.refused_samples += samples;
        }
    }

    /// Reports when what waits has been played; dropped and counted when too many marks wait.
    pub fn mark(&mut self, mark: MarkId) {
        self.dropped += u64::from(self.playout.mark(mark).is_err());
    }

    /// Ends a segment behind what waits; dropped and counted when too many marks wait.
    pub fn end_segment(&mut self, segment: SegmentId) {
        self.dropped += u64::from(self.playout.end(segment).is_err());
    }

    /// Sends an event as soon as the client takes it; dropped and counted when too many wait. One
    /// that no client could take becomes an `error` event. The sideband sees whatever the client
    /// is sent.
    pub fn say(&mut self, to: Addressee, event: String) {
        self.tap(to, &event);
        if to == Addressee::Sideband {
            return;
        }
        if event.len() > crate::engine::CHANNEL_BUFFER_BYTES {
            return self.say_fault(to, EventFault::TooLarge);
        }
        let event_bytes = self.event_bytes + event.len();
        if self.events.len() < EVENTS_MAX && event_bytes <= EVENT_BYTES_MAX {
            self.event_bytes = event_bytes;
            self.events.push_back((to, event));
        } else {
            self.dropped += 1;
        }
    }

    /// Says the edge's own `session.created`.
    pub fn greet(&mut self, to: Addressee) {
        let created = crate::session::events::created(&mut self.event_ids, &self.profile);
        self.say(to, created);
    }

    /// Says an `error` event.
    pub fn say_error(&mut self, to: Addressee, error: EdgeError<'_>) {
        let event = crate::session::events::error(&mut self.event_ids, error);
        self.say(to, event);
    }

    /// Asks something of the link. Audio that finds the queue full is dropped and counted.
    pub fn link(&mut self, command: LinkCommand) {
        if self.link.len() < LINK_COMMANDS_MAX {
            self.link.push_back(command);
            return;
        }
        self.dropped += 1;
        if !matches!(&command, LinkCommand::Send(message) if message.class == LinkClass::Audio) {
            self.close(EndReason::Runaway);
        }
    }

    /// Asks something of the codec; dropped and counted when too much is asked in one step.
    pub fn codec(&mut self, command: CodecCommand) {
        if self.codec.len() < CODEC_COMMANDS_MAX {
            self.codec.push_back(command);
        } else {
            self.dropped += 1;
        }
    }

    /// Ends the session with this step. The first reason stands.
    pub fn close(&mut self, reason: EndReason) {
        self.close.get_or_insert(reason);
    }

    /// How many actions were dropped so far because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether what is said to the client is kept for the sideband too.
    pub fn set_tap(&mut self, is_tapped: bool) {
        self.is_tapped = is_tapped;
        if !is_tapped {
            self.said.clear();
            self.said_missed = 0;
        }
    }

    /// The oldest audio packet that waits.
    pub fn pop_audio(&mut self) -> Option<AudioOut> {
        self.audio.pop_front()
    }

    /// The oldest event that waits for the client.
    pub fn first_event(&self) -> Option<(Addressee, &str)> {
        self.events.front().map(|(to, event)| (*to, event.as_str()))
    }

    /// Takes the oldest event that waits for the client.
    pub fn pop_event(&mut self) -> Option<(Addressee, String)> {
        let popped = self.events.pop_front()?;
        self.event_bytes -= popped.1.len();
        Some(popped)
    }

    /// Takes the oldest event for the sideband, and how many were left out before it.
    pub fn pop_said(&mut self) -> Option<(String, u32)> {
        let said = self.said.pop_front()?;
        Some((said, std::mem::take(&mut self.said_missed)))
    }

    /// Takes the oldest command to the link.
    pub fn pop_link(&mut self) -> Option<LinkCommand> {
        self.link.pop_front()
    }

    /// Takes the oldest command to the codec.
    pub fn pop_codec(&mut self) -> Option<CodecCommand> {
        self.codec.pop_front()
    }

    /// Why the backend wants the session to end, if it does.
    pub fn closes(&self) -> Option<EndReason> {
        self.close
    }

    /// Leaves out what waits for the sideband, which will be told how much it was.
    pub(crate) fn miss_said(&mut self) {
        let missed = u32::try_from(self.said.len()).unwrap_or(u32::MAX);
        self.said_missed = self.said_missed.saturating_add(missed);
        self.said.clear();
    }

    pub(crate) fn say_fault(&mut self, to: Addressee, fault: EventFault) {
        self.say_error(to, fault.as_error());
    }

    /// An answer on one of the client's channels, or to the client at large, is seen by the
    /// sideband; what is meant for the sideband alone is seen by nobody else.
    fn tap(&mut self, to: Addressee, event: &str) {
        if !self.is_tapped {
            self.dropped += u64::from(to == Addressee::Sideband);
        } else if self.said.len() < SAID_MAX {
            self.said.push_back(event.to_owned());
        } else {
            self.said_missed += 1;
        }
    }
}

#[cfg(test)]
impl Actions {
    /// Those of a session with an Opus client that can hear.
    pub(crate) fn for_tests() -> Self {
        Self::for_tests_with(serde_json::Map::new())
    }

    /// The same, of a session of which this was asked.
    pub(crate) fn for_tests_with(members: serde_json::Map<String, serde_json::Value>) -> Self {
        let profile = Profile {
            id: "sess_1".to_owned(),
            model: None,
            members,
        };
        let mut actions = Self::new(profile, 1);
        actions.set_client_codec(Some(AudioCodec::Opus));
        actions.playout().release();
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::link::{LinkBody, LinkMessage};

    fn packet(sequence: u64) -> AudioOut {
        let payload = [0u8; 4].as_slice().into();
        AudioOut {
            sequence,
            timestamp: 0,
            marker: false,
            payload_type: 111,
            payload,
        }
    }

    fn send(class: LinkClass) -> LinkCommand {
        let body = LinkBody::Binary(vec![0]);
        LinkCommand::Send(LinkMessage { class, body })
    }

    #[test]
    fn keeps_the_oldest_audio_and_counts_what_it_drops() {
        let mut actions = Actions::for_tests();
        for sequence in 0..AUDIO_MAX as u64 + 3 {
            actions.pass_audio(packet(sequence));
        }
        assert_eq!(actions.dropped(), 3);
        assert_eq!(actions.pop_audio().map(|audio| audio.sequence), Some(0));
    }

    #[test]
    fn the_sideband_sees_what_the_client_is_sent_only_while_it_listens() {
        let mut actions = Actions::for_tests();
        actions.say(Addressee::Client, "1".into());
        actions.set_tap(true);
        actions.say(Addressee::Client, "2".into());
        actions.say(Addressee::Sideband, "3".into());
        let said: Vec<_> = std::iter::from_fn(|| actions.pop_said()).collect();
        assert_eq!(said, [("2".to_owned(), 0), ("3".to_owned(), 0)]);
        let events: Vec<_> = std::iter::from_fn(|| actions.pop_event()).collect();
        let client = |text: &str| (Addressee::Client, text.to_owned());
        assert_eq!(events, [client("1"), client("2")]);
    }

    #[test]
    fn a_sideband_that_is_told_too_much_is_told_how_much_it_missed() {
        let mut actions = Actions::for_tests();
        actions.set_tap(true);
        for n in 0..SAID_MAX + 5 {
            actions.say(Addressee::Sideband, n.to_string());
        }
        assert_eq!(actions.pop_said(), Some(("0".to_owned(), 5)));
        assert_eq!(actions.pop_said(), Some(("1".to_owned(), 0)));
    }

    #[test]
    fn too_much_audio_for_the_link_is_dropped_and_too_much_control_ends_the_session() {
        let mut actions = Actions::for_tests();
        for _ in 0..LINK_COMMANDS_MAX + 7 {
            actions.link(send(LinkClass::Audio));
        }
        assert_eq!((actions.dropped(), actions.closes()), (7, None));
        actions.link(send(LinkClass::Control));
        assert_eq!(actions.closes(), Some(EndReason::Runaway));
    }
}
