//! The backend's answers on their way to the caller, and what ends them before their time.

use std::time::Instant;

use super::events::{self, Delta, ResponseEvent};
use super::{Realtime, parse, say_buffer, send};
use crate::backend::turns::Speech;
use crate::backend::{Actions, Addressee};
use crate::playout::{PlayoutEvent, SegmentId};

impl Realtime {
    pub(super) fn handle_delta(&mut self, now: Instant, text: &str, actions: &mut Actions) -> bool {
        let Some(delta) = parse::<Delta<'_>>(text) else {
            return false;
        };
        let Some(bytes) = events::decode_base64(&delta.delta) else {
            return false;
        };
        let content = delta.content_index;
        let segment = self
            .answers
            .handle_delta(&delta.response_id, &delta.item_id, content);
        let Some(segment) = segment else {
            return true;
        };
        if self.newest != Some(segment) {
            self.newest = Some(segment);
            self.odd = None;
        }
        let pcm = self.output.decode(&mut self.odd, &bytes);
        let samples = pcm.len() as u64 * 48_000 / u64::from(self.output.rate_hz());
        if !pcm.is_empty() && self.voice.push(segment, false, pcm).is_err() {
            actions.losses().refused_samples += samples;
        }
        self.voice.feed(now, actions);
        true
    }

    pub(super) fn handle_audio_done(&mut self, now: Instant, text: &str, actions: &mut Actions) {
        let Some(done) = parse::<Delta<'_>>(text) else {
            return;
        };
        let (id, item, content) = (&done.response_id, &done.item_id, done.content_index);
        let segment = self.answers.handle_audio_done(id, item, content);
        self.end_segments(now, segment.into_iter().collect(), actions);
    }

    pub(super) fn handle_done(
        &mut self,
        now: Instant,
        text: String,
        actions: &mut Actions,
    ) -> bool {
        let Some(event) = parse::<ResponseEvent<'_>>(&text) else {
            return false;
        };
        let is_interrupted = event.is_interrupted();
        let segments = self.answers.handle_done(&event.response.id);
        self.end_segments(now, segments, actions);
        actions.say(Addressee::Client, text);
        if is_interrupted {
            self.interrupt(actions);
        }
        self.say_stopped(actions);
        true
    }

    pub(super) fn end_segments(
        &mut self,
        now: Instant,
        segments: Vec<SegmentId>,
        actions: &mut Actions,
    ) {
        for segment in segments {
            // With too many ends waiting the segment ends with the next one instead.
            let _ = self.voice.end(segment);
        }
        self.voice.feed(now, actions);
    }

    /// Silence; the backend is told what was really sent, and the client that the rest is gone.
    /// The answers that the backend still makes.
    pub(super) fn interrupt(&mut self, actions: &mut Actions) -> Vec<String> {
        self.voice.flush(actions);
        let flushed = actions.playout().flush();
        let cut = self.answers.cut(flushed.playing);
        if !cut.truncations.is_empty() {
            actions.losses().flushes += 1;
        }
        for truncation in cut.truncations {
            let event_id = self.own_event_id(actions);
            let item = &truncation.item;
            let event =
                events::truncate(&event_id, item, truncation.content_index, truncation.end_ms);
            send(event, actions);
        }
        for response in cut.cleared {
            say_buffer("cleared", &response, actions);
        }
        cut.active
    }

    /// Interrupts, and tells the backend to make no more of its answers.
    pub(super) fn stop(&mut self, actions: &mut Actions) {
        for response in self.interrupt(actions) {
            let event_id = self.own_event_id(actions);
            send(events::cancel(&event_id, &response), actions);
        }
    }

    /// Does what the edge is to do when the caller starts or stops to speak.
    pub(super) fn take_turns(&mut self, actions: &mut Actions) {
        while let Some(speech) = self.listening.poll_speech() {
            if self.options.takes_turns {
                let event_id = actions.event_id();
                actions.say(Addressee::Client, events::speech(&event_id, speech));
            }
            match speech {
                Speech::Started(_) => self.stop(actions),
                Speech::Stopped(_) if self.options.takes_turns => {
                    for kind in ["input_audio_buffer.commit", "response.create"] {
                        let event_id = actions.event_id();
                        send(events::bare(kind, &event_id), actions);
                    }
                }
                Speech::Stopped(_) => {}
            }
        }
    }

    pub(super) fn handle_playout(&mut self, event: PlayoutEvent, actions: &mut Actions) {
        match event {
            PlayoutEvent::Started(segment) => {
                if let Some(response) = self.answers.handle_started(segment) {
                    say_buffer("started", response, actions);
                }
            }
            PlayoutEvent::Ended(played) => {
                self.answers.handle_played(played.segment);
                self.say_stopped(actions);
            }
            PlayoutEvent::Reached(_) => {}
        }
    }

    pub(super) fn say_stopped(&mut self, actions: &mut Actions) {
        while let Some(response) = self.answers.poll_stopped() {
            say_buffer("stopped", &response, actions);
        }
    }
}
