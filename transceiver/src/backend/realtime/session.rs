//! The session's two greetings, `session.created` and `session.updated`, between a client that
//! waits for them and a backend that may be late with them or leave them out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::events::{AudioFormat, SessionInfo, configure};
use crate::backend::session_view::SessionView;
use crate::backend::{Actions, Addressee};
use crate::engine::ChannelId;

/// How long a channel waits for the backend's `session.created` before the edge says its own.
const CREATED_WAIT: Duration = Duration::from_secs(2);
/// How long the backend has to answer a `session.update` before the edge does. Clients wait five
/// seconds.
const UPDATED_WAIT: Duration = Duration::from_secs(2);
/// How many updates can be unanswered, and how many are repeated to a link that is made again.
const UPDATES_MAX: usize = 8;
/// Largest `session.created` that is kept for channels that open later, in bytes.
const CREATED_BYTES_MAX: usize = crate::engine::CHANNEL_BUFFER_BYTES;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Session {
    created: Option<String>,
    ungreeted: Vec<ChannelId>,
    greet_by: Option<Instant>,
    view: SessionView,
    /// What the client has asked for, for a link that is made again.
    asked: VecDeque<String>,
    /// Updates of the client, and of the edge (`None`), that the backend has not answered.
    unanswered: VecDeque<(Instant, Option<String>)>,
}

impl Session {
    pub(super) fn handle_channel(
        &mut self,
        now: Instant,
        channel: ChannelId,
        actions: &mut Actions,
    ) {
        match &self.created {
            Some(created) => actions.say(Addressee::Channel(channel), created.clone()),
            None => {
                self.ungreeted.push(channel);
                self.greet_by.get_or_insert(now + CREATED_WAIT);
            }
        }
    }

    /// The backend's `session.created`: for the channels that are open, and for those to come.
    pub(super) fn handle_created(&mut self, text: String, actions: &mut Actions) {
        if text.len() > CREATED_BYTES_MAX {
            return;
        }
        self.greet_by = None;
        for channel in self.ungreeted.drain(..) {
            actions.say(Addressee::Channel(channel), text.clone());
        }
        self.created = Some(text);
    }

    /// What the backend's session is, as it says.
    pub(super) fn set_view(&mut self, session: serde_json::Map<String, serde_json::Value>) {
        self.view.set(session);
    }

    /// What the backend has to be told as its session begins, if anything: what was asked for in
    /// the call's request, and the audio format where its own is not the wanted one.
    pub(super) fn configure(
        &mut self,
        now: Instant,
        info: Option<&SessionInfo>,
        wanted: AudioFormat,
        actions: &mut Actions,
    ) -> Vec<String> {
        let is_beta = info.is_some_and(|info| info.is_beta);
        let usual = AudioFormat::Pcm16 { rate_hz: 24_000 };
        let is = |format: Option<AudioFormat>| format.unwrap_or(usual) == wanted;
        let is_wanted =
            is(info.and_then(|info| info.input)) && is(info.and_then(|info| info.output));
        let format = (!is_wanted).then_some(wanted);
        let mut texts = Vec::new();
        if format.is_some() || !actions.profile().members.is_empty() {
            let event_id = actions.event_id();
            let asked = &actions.profile().members;
            texts.push(configure(&event_id, asked, format, is_beta));
            self.expect_answer(now, None);
        }
        for update in &self.asked {
            texts.push(update.clone());
        }
        for _ in 0..self.asked.len() {
            self.expect_answer(now, None);
        }
        texts
    }

    /// The client's `session.update` has been passed on.
    pub(super) fn handle_update(&mut self, now: Instant, text: &str) {
        if self.asked.len() == UPDATES_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back(text.to_owned());
        self.expect_answer(now, Some(text.to_owned()));
    }

    /// The backend's `session.updated`; whether the client is to be told, or it answers the edge.
    pub(super) fn handle_updated(&mut self) -> bool {
        !matches!(self.unanswered.pop_front(), Some((_, None)))
    }

    /// The backend has answered one of the client's updates with an error.
    pub(super) fn handle_refused(&mut self, event_id: &str) {
        let names_it = |text: &String| text.contains(event_id);
        self.unanswered
            .retain(|(_, update)| !update.as_ref().is_some_and(names_it));
    }

    pub(super) fn handle_down(&mut self) {
        // The edge answers for a backend that cannot.
        self.unanswered.retain(|(_, update)| update.is_some());
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        if self.greet_by.is_some_and(|by| by <= now) {
            self.greet_by = None;
            for channel in self.ungreeted.drain(..) {
                actions.greet(Addressee::Channel(channel));
            }
        }
        while self.unanswered.front().is_some_and(|(by, _)| *by <= now) {
            let Some((_, Some(update))) = self.unanswered.pop_front() else {
                continue;
            };
            if let Some(updated) = self.view.update(&update, actions) {
                actions.say(Addressee::Client, updated);
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let answer_by = self.unanswered.front().map(|(by, _)| *by);
        [self.greet_by, answer_by].into_iter().flatten().min()
    }

    fn expect_answer(&mut self, now: Instant, update: Option<String>) {
        if self.unanswered.len() == 2 * UPDATES_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((now + UPDATED_WAIT, update));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};

    const USUAL: AudioFormat = AudioFormat::Pcm16 { rate_hz: 24_000 };

    #[test]
    fn what_the_calls_request_asked_for_reaches_the_backend_and_its_answer_is_the_edges() {
        let now = Instant::now();
        let Value::Object(members) = json!({"voice": "a"}) else {
            panic!("an object");
        };
        let mut actions = Actions::for_tests_with(members);
        let mut session = Session::default();
        let texts = session.configure(now, None, USUAL, &mut actions);
        let update: Value = serde_json::from_str(&texts[0]).unwrap();
        assert_eq!(update["session"], json!({"type": "realtime", "voice": "a"}));
        assert!(!session.handle_updated(), "it answers the edge");
        assert!(session.handle_updated(), "nobody asked: the client is told");
    }

    #[test]
    fn a_backend_that_has_all_it_needs_is_told_nothing() {
        let mut actions = Actions::for_tests_with(Map::new());
        let mut session = Session::default();
        let texts = session.configure(Instant::now(), None, USUAL, &mut actions);
        assert!(texts.is_empty());
    }
}
