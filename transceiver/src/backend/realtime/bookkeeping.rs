//! Which answers there are, what of each is played, and what of it must never be.
//!
//! An answer (a *response*) has items with audio; each item's audio is a segment of the playout.
//! When the caller interrupts, every answer that is not over is cut: audio of it that is still on
//! its way is left aside, and each item is known with the milliseconds that were really sent.

use std::collections::VecDeque;

use crate::playout::{Played, SegmentId};

/// How many answers are remembered: one is played, one is made, and late deltas come of a few.
const ANSWERS_MAX: usize = 32;
/// How many items with audio an answer can have.
const ITEMS_MAX: usize = 64;
/// Samples at 48 kHz of a millisecond.
const SAMPLES_PER_MS: u64 = 48;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Answers {
    answers: VecDeque<Answer>,
    segment_count: u32,
}

#[derive(Debug)]
struct Answer {
    id: String,
    items: Vec<Item>,
    /// The backend gives no more of it.
    is_done: bool,
    /// The caller has interrupted it, or the client has given it up.
    is_cut: bool,
    /// Some of it has been played.
    is_started: bool,
}

#[derive(Debug)]
struct Item {
    id: String,
    content_index: u32,
    segment: SegmentId,
    /// The backend gives no more of it.
    is_complete: bool,
    is_played: bool,
}

/// What an interruption has cut off.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Cut {
    /// Items of which the backend must know how much was sent.
    pub(super) truncations: Vec<Truncation>,
    /// Answers whose audio was cleared.
    pub(super) cleared: Vec<String>,
    /// Answers that the backend still makes.
    pub(super) active: Vec<String>,
}

/// How much of an item was really sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Truncation {
    pub(super) item: String,
    pub(super) content_index: u32,
    pub(super) end_ms: u64,
}

impl Answers {
    /// The backend begins an answer.
    pub(super) fn handle_created(&mut self, id: &str) {
        self.of(id);
    }

    /// The backend gives audio of an answer; the segment it belongs to, or `None` when it must not
    /// be played. An empty `id` is that of the newest answer.
    pub(super) fn handle_delta(&mut self, id: &str, item: &str, content: u32) -> Option<SegmentId> {
        let next = SegmentId(self.segment_count);
        let answer = self.of(id);
        if answer.is_cut {
            return None;
        }
        let known = answer
            .items
            .iter()
            .find(|known| known.id == item && known.content_index == content);
        if let Some(known) = known {
            return Some(known.segment);
        }
        if answer.items.len() == ITEMS_MAX {
            return None;
        }
        answer.items.push(Item {
            id: item.to_owned(),
            content_index: content,
            segment: next,
            is_complete: false,
            is_played: false,
        });
        self.segment_count = self.segment_count.wrapping_add(1);
        Some(next)
    }

    /// The backend has given all audio of an item; the segment that ends with it.
    pub(super) fn handle_audio_done(
        &mut self,
        id: &str,
        item: &str,
        content: u32,
    ) -> Option<SegmentId> {
        let answer = self.of(id);
        let known = answer
            .items
            .iter_mut()
            .find(|known| known.id == item && known.content_index == content);
        let known = known.filter(|known| !known.is_complete)?;
        known.is_complete = true;
        (!known.is_played).then_some(known.segment)
    }

    /// The backend has given all of an answer; the segments that end with it.
    pub(super) fn handle_done(&mut self, id: &str) -> Vec<SegmentId> {
        let answer = self.of(id);
        answer.is_done = true;
        let is_open = |item: &&mut Item| !item.is_complete && !item.is_played;
        let open = answer.items.iter_mut().filter(is_open);
        open.map(|item| {
            item.is_complete = true;
            item.segment
        })
        .collect()
    }

    /// The client gives up an answer, or the newest: what has come of it is played, and what comes
    /// is not.
    pub(super) fn handle_cancel(&mut self, id: Option<&str>) {
        let newest = self.answers.iter_mut().rev();
        let mut active = newest.filter(|answer| !answer.is_done);
        let cancelled = match id {
            Some(id) => active.find(|answer| answer.id == id),
            None => active.next(),
        };
        if let Some(cancelled) = cancelled {
            cancelled.is_cut = true;
        }
    }

    /// A segment starts; its answer, when that starts with it.
    pub(super) fn handle_started(&mut self, segment: SegmentId) -> Option<&str> {
        let (answer, _) = self.find(segment)?;
        let is_first = !std::mem::replace(&mut answer.is_started, true);
        is_first.then_some(answer.id.as_str())
    }

    /// A segment has been played.
    pub(super) fn handle_played(&mut self, segment: SegmentId) {
        if let Some((answer, at)) = self.find(segment) {
            answer.items[at].is_played = true;
        }
    }

    /// An answer that was started, is done, and has been played to its end; told once.
    pub(super) fn poll_stopped(&mut self) -> Option<String> {
        let is_over = |answer: &Answer| {
            let is_played = answer.items.iter().all(|item| item.is_played);
            answer.is_done && answer.is_started && is_played
        };
        let over = self.answers.iter().position(is_over)?;
        let answer = &mut self.answers[over];
        answer.is_started = false;
        Some(answer.id.clone())
    }

    /// The caller interrupts: all that is not over is cut. `playing` is what the playout was at.
    pub(super) fn cut(&mut self, playing: Option<Played>) -> Cut {
        let mut cut = Cut::default();
        for answer in &mut self.answers {
            if !answer.is_done && !answer.is_cut {
                cut.active.push(answer.id.clone());
            }
            // Of an answer that is made but has no audio yet, none must be played either.
            answer.is_cut |= !answer.is_done;
            let mut is_cleared = false;
            for item in answer.items.iter_mut().filter(|item| !item.is_played) {
                let sent = playing.filter(|played| played.segment == item.segment);
                cut.truncations.push(Truncation {
                    item: item.id.clone(),
                    content_index: item.content_index,
                    end_ms: sent.map_or(0, |played| played.samples / SAMPLES_PER_MS),
                });
                item.is_played = true;
                is_cleared = true;
            }
            if is_cleared {
                answer.is_started = false;
                cut.cleared.push(answer.id.clone());
            }
        }
        cut
    }

    /// The link is gone: no answer gets any further. The segments that end with it.
    pub(super) fn handle_down(&mut self) -> Vec<SegmentId> {
        let unfinished = self.answers.iter().filter(|answer| !answer.is_done);
        let ids: Vec<_> = unfinished.map(|answer| answer.id.clone()).collect();
        ids.iter().flat_map(|id| self.handle_done(id)).collect()
    }

    /// The answer with this id, or the newest where there is none; made when it is not known.
    fn of(&mut self, id: &str) -> &mut Answer {
        let known = if id.is_empty() {
            self.answers.len().checked_sub(1)
        } else {
            self.answers.iter().rposition(|answer| answer.id == id)
        };
        let at = known.unwrap_or_else(|| {
            if self.answers.len() == ANSWERS_MAX {
                self.answers.pop_front();
            }
            self.answers.push_back(Answer {
                id: id.to_owned(),
                items: Vec::new(),
                is_done: false,
                is_cut: false,
                is_started: false,
            });
            self.answers.len() - 1
        });
        &mut self.answers[at]
    }

    fn find(&mut self, segment: SegmentId) -> Option<(&mut Answer, usize)> {
        self.answers.iter_mut().find_map(|answer| {
            let mut items = answer.items.iter();
            let at = items.position(|item| item.segment == segment)?;
            Some((answer, at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truncation(item: &str, end_ms: u64) -> Truncation {
        Truncation {
            item: item.to_owned(),
            content_index: 0,
            end_ms,
        }
    }

    fn playing(segment: SegmentId, ms: u64) -> Option<Played> {
        let samples = ms * SAMPLES_PER_MS;
        Some(Played { segment, samples })
    }

    #[test]
    fn an_answer_is_started_and_stopped_once_and_only_when_it_is_done_and_played() {
        let mut answers = Answers::default();
        let first = answers.handle_delta("r", "a", 0).unwrap();
        let second = answers.handle_delta("r", "b", 0).unwrap();
        assert_eq!(answers.handle_delta("r", "a", 0), Some(first));
        assert_ne!(first, second);
        assert_eq!(answers.handle_started(first), Some("r"));
        assert_eq!(answers.handle_audio_done("r", "a", 0), Some(first));
        assert_eq!(answers.handle_audio_done("r", "a", 0), None);
        answers.handle_played(first);
        assert_eq!(answers.handle_started(second), None);
        assert_eq!(answers.poll_stopped(), None, "more may come");
        assert_eq!(answers.handle_done("r"), [second]);
        assert_eq!(answers.poll_stopped(), None, "it still plays");
        answers.handle_played(second);
        assert_eq!(answers.poll_stopped().as_deref(), Some("r"));
        assert_eq!(answers.poll_stopped(), None);
    }

    #[test]
    fn an_interruption_tells_what_was_sent_of_each_item_that_was_not_over() {
        let mut answers = Answers::default();
        let over = answers.handle_delta("r", "a", 0).unwrap();
        let half = answers.handle_delta("r", "b", 0).unwrap();
        answers.handle_delta("r", "c", 0).unwrap();
        answers.handle_started(over);
        answers.handle_played(over);
        let cut = answers.cut(playing(half, 340));
        assert_eq!(cut.truncations, [truncation("b", 340), truncation("c", 0)]);
        assert_eq!(
            (cut.cleared, cut.active),
            (vec!["r".into()], vec!["r".into()])
        );
        assert_eq!(answers.handle_delta("r", "c", 0), None, "stale");
        assert!(answers.handle_done("r").is_empty());
        assert_eq!(answers.poll_stopped(), None, "it was cleared");
        assert_eq!(answers.cut(None), Cut::default(), "once");
        assert!(
            answers.handle_delta("r2", "d", 0).is_some(),
            "the next is whole"
        );
    }

    #[test]
    fn an_answer_that_is_being_made_is_cut_before_its_first_word() {
        let mut answers = Answers::default();
        answers.handle_created("r");
        let cut = answers.cut(None);
        assert_eq!((cut.cleared.len(), cut.active), (0, vec!["r".to_owned()]));
        assert_eq!(answers.handle_delta("r", "a", 0), None);
    }

    #[test]
    fn a_done_answer_that_still_plays_is_cut_without_being_cancelled() {
        let mut answers = Answers::default();
        let segment = answers.handle_delta("r", "a", 0).unwrap();
        answers.handle_done("r");
        let cut = answers.cut(playing(segment, 20));
        assert_eq!(cut.truncations, [truncation("a", 20)]);
        assert!(cut.active.is_empty());
    }

    #[test]
    fn a_cancelled_answer_takes_no_more_audio() {
        let mut answers = Answers::default();
        let segment = answers.handle_delta("r1", "a", 0).unwrap();
        answers.handle_started(segment);
        answers.handle_created("r2");
        answers.handle_cancel(Some("r1"));
        assert_eq!(answers.handle_delta("r1", "a", 0), None);
        assert_eq!(answers.handle_done("r1"), [segment], "what came is played");
        answers.handle_played(segment);
        assert_eq!(answers.poll_stopped().as_deref(), Some("r1"));
        answers.handle_cancel(None);
        assert_eq!(answers.handle_delta("r2", "b", 0), None);
        answers.handle_cancel(None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut answers = Answers::default();
        for n in 0..1_000 {
            answers.handle_created(&n.to_string());
            answers.handle_delta("999", &n.to_string(), 0);
        }
        assert_eq!(answers.answers.len(), ANSWERS_MAX);
        assert!(
            answers
                .answers
                .iter()
                .all(|answer| answer.items.len() <= ITEMS_MAX)
        );
    }

    #[test]
    fn servers_that_name_no_answer_mean_the_newest() {
        let mut answers = Answers::default();
        answers.handle_created("r1");
        let segment = answers.handle_delta("", "a", 0).unwrap();
        answers.cut(playing(segment, 20));
        assert_eq!(answers.handle_delta("", "a", 0), None);
        answers.handle_created("r2");
        assert!(answers.handle_delta("", "b", 0).is_some());
    }
}
