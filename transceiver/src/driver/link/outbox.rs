//! What a session wants sent on its link, until the link takes it: bounded in messages, in bytes
//! and, for audio, in age.
//!
//! A backend that reads slowly must cost the caller neither the process's memory nor, once it
//! reads again, his patience. So audio that waited too long is dropped, the oldest first, and
//! counted; everything else keeps its order and its place, and when too much of that waits the
//! link is given up, for nobody can speak a protocol with holes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::backend::link::{LinkBody, LinkClass, LinkMessage};

/// Messages with audio, at most: 20 s of packets. What the dialect held back while the link was not
/// up comes at once.
const AUDIO_COUNT_MAX: usize = 1_024;
/// Other messages, at most.
const CONTROL_COUNT_MAX: usize = 512;
/// Bytes, at most: two of the largest messages there can be.
const BYTES_MAX: usize = 2 * super::MESSAGE_BYTES_MAX;

/// More waits than may, and none of it is audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many messages wait for a backend that does not read them")]
pub(super) struct Overflow;

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    audio_age_max: Duration,
    messages: VecDeque<Waiting>,
    audio_count: usize,
    bytes: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    message: LinkMessage,
}

impl Outbox {
    /// Empty; audio is kept for `audio_age_max`.
    pub(super) fn new(audio_age_max: Duration) -> Self {
        Self {
            audio_age_max,
            messages: VecDeque::new(),
            audio_count: 0,
            bytes: 0,
            dropped: 0,
        }
    }

    /// Puts a message behind the others, and drops audio that is too old or too much.
    ///
    /// # Errors
    /// [`Overflow`]; the message was not taken.
    pub(super) fn push(&mut self, now: Instant, message: LinkMessage) -> Result<(), Overflow> {
        self.drop_old_audio(now);
        let length = length(&message);
        let is_audio = message.class == LinkClass::Audio;
        if is_audio && self.audio_count == AUDIO_COUNT_MAX {
            self.drop_oldest_audio();
        }
        while self.bytes + length > BYTES_MAX && self.drop_oldest_audio() {}
        if self.bytes + length > BYTES_MAX {
            if is_audio {
                self.dropped += 1;
                return Ok(());
            }
            return Err(Overflow);
        }
        if !is_audio && self.messages.len() - self.audio_count >= CONTROL_COUNT_MAX {
            return Err(Overflow);
        }
        self.audio_count += usize::from(is_audio);
        self.bytes += length;
        self.messages.push_back(Waiting {
            since: now,
            message,
        });
        Ok(())
    }

    /// Takes the oldest message.
    pub(super) fn pop(&mut self, now: Instant) -> Option<LinkMessage> {
        self.drop_old_audio(now);
        let waiting = self.messages.pop_front()?;
        self.forget(&waiting);
        Some(waiting.message)
    }

    /// Drops everything: it was for a connection that is gone.
    pub(super) fn clear(&mut self) {
        self.dropped += self.audio_count as u64;
        self.messages.clear();
        self.audio_count = 0;
        self.bytes = 0;
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Messages with audio that were dropped since this was asked last.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    fn drop_old_audio(&mut self, now: Instant) {
        // Audio stands in the order it came in, so the first that is young ends the search.
        while let Some(index) = self.oldest_audio() {
            let age = now.saturating_duration_since(self.messages[index].since);
            if age <= self.audio_age_max {
                return;
            }
            self.drop_oldest_audio();
        }
    }

    fn drop_oldest_audio(&mut self) -> bool {
        let oldest = self.oldest_audio();
        let Some(waiting) = oldest.and_then(|index| self.messages.remove(index)) else {
            return false;
        };
        self.forget(&waiting);
        self.dropped += 1;
        true
    }

    fn oldest_audio(&self) -> Option<usize> {
        if self.audio_count == 0 {
            return None;
        }
        let is_audio = |waiting: &Waiting| waiting.message.class == LinkClass::Audio;
        self.messages.iter().position(is_audio)
    }

    fn forget(&mut self, waiting: &Waiting) {
        self.bytes -= length(&waiting.message);
        self.audio_count -= usize::from(waiting.message.class == LinkClass::Audio);
    }
}

fn length(message: &LinkMessage) -> usize {
    match &message.body {
        LinkBody::Text(text) => text.len(),
        LinkBody::Binary(bytes) => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE_MAX: Duration = Duration::from_secs(2);

    fn audio(mark: u8) -> LinkMessage {
        LinkMessage {
            class: LinkClass::Audio,
            body: LinkBody::Binary(vec![mark; 100]),
        }
    }

    fn control(text: &str) -> LinkMessage {
        LinkMessage {
            class: LinkClass::Control,
            body: LinkBody::Text(text.to_owned()),
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn keeps_the_order_of_audio_and_control() {
        let now = Instant::now();
        let mut outbox = Outbox::new(AGE_MAX);
        for message in [audio(1), control("commit"), audio(2)] {
            outbox.push(now, message).unwrap();
        }
        assert_eq!(outbox.bytes(), 206);
        for message in [audio(1), control("commit"), audio(2)] {
            assert_eq!(outbox.pop(now), Some(message));
        }
        assert_eq!((outbox.pop(now), outbox.bytes()), (None, 0));
        assert_eq!(outbox.take_dropped(), 0);
    }

    #[test]
    fn after_a_stall_what_is_sent_is_never_older_than_the_backlog() {
        let start = Instant::now();
        let mut outbox = Outbox::new(AGE_MAX);
        outbox.push(start, control("update")).unwrap();
        // Ten seconds of packets, of which nobody takes any.
        for packet in 0..500 {
            outbox.push(start + ms(20 * packet), audio(0)).unwrap();
        }
        let end = start + ms(20 * 499);
        assert_eq!(outbox.pop(end), Some(control("update")), "that is kept");
        let left = std::iter::from_fn(|| outbox.pop(end)).count();
        assert_eq!(left, 101, "two seconds, both ends included");
        assert_eq!(outbox.take_dropped(), 500 - 101);
        assert_eq!(outbox.take_dropped(), 0, "told once");
    }

    #[test]
    fn a_burst_is_taken_whole_up_to_its_limit_and_then_loses_its_beginning() {
        let now = Instant::now();
        let mut outbox = Outbox::new(AGE_MAX);
        for packet in 0..AUDIO_COUNT_MAX + 3 {
            outbox.push(now, audio((packet % 251) as u8)).unwrap();
        }
        assert_eq!(outbox.take_dropped(), 3);
        assert_eq!(outbox.pop(now), Some(audio(3)));
    }

    #[test]
    fn control_displaces_audio_and_never_control() {
        let now = Instant::now();
        let mut outbox = Outbox::new(AGE_MAX);
        let large = "x".repeat(super::super::MESSAGE_BYTES_MAX);
        outbox.push(now, control(&large)).unwrap();
        outbox.push(now, audio(1)).unwrap();
        outbox.push(now, control(&large)).unwrap();
        assert_eq!(outbox.take_dropped(), 1);
        assert_eq!(outbox.push(now, control("more")), Err(Overflow));
        outbox.push(now, audio(2)).unwrap();
        assert_eq!(outbox.take_dropped(), 1, "audio has no room either");
        outbox.pop(now);
        outbox.push(now, control("more")).unwrap();
        let mut outbox = Outbox::new(AGE_MAX);
        for _ in 0..CONTROL_COUNT_MAX {
            outbox.push(now, control("x")).unwrap();
        }
        assert_eq!(outbox.push(now, control("x")), Err(Overflow));
        outbox.push(now, audio(1)).unwrap();
    }

    #[test]
    fn what_was_for_a_lost_connection_is_dropped_and_its_audio_counted() {
        let now = Instant::now();
        let mut outbox = Outbox::new(AGE_MAX);
        for message in [audio(1), control("commit"), audio(2)] {
            outbox.push(now, message).unwrap();
        }
        outbox.clear();
        assert!(outbox.is_empty());
        assert_eq!((outbox.bytes(), outbox.take_dropped()), (0, 2));
    }
}
