//! What a shard's sessions give to the driver beside datagrams: events, and commands to links and
//! codecs.
//!
//! Commands are bounded by each session's step, and the driver drains them after each. Events of
//! ended sessions are bounded by the sessions there were. What is said to sidebands can wait for
//! one that does not listen, and has its own limits.

use std::collections::VecDeque;

use syrinx_shared::route::SessionRef;

use super::ShardEvent;
use crate::backend::codec::CodecCommand;
use crate::backend::link::LinkCommand;
use crate::session::Session;

/// Events for sidebands that wait for the driver: a worker with a thousand calls, each of which
/// says a few events a second, and a driver that is late by a second.
const SAID_COUNT_MAX: usize = 4_096;
/// Bytes of them.
const SAID_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The shard's queues.
#[derive(Debug, Default)]
pub(super) struct Outlets {
    events: VecDeque<ShardEvent>,
    said_count: usize,
    said_bytes: usize,
    link: VecDeque<(SessionRef, LinkCommand)>,
    codec: VecDeque<(SessionRef, CodecCommand)>,
}

impl Outlets {
    /// Takes over what a session has for others.
    pub(super) fn collect(&mut self, session: &mut Session) {
        let reference = session.reference();
        while let Some(command) = session.actions().pop_link() {
            session.note_link(&command);
            self.link.push_back((reference, command));
        }
        while let Some(command) = session.actions().pop_codec() {
            self.codec.push_back((reference, command));
        }
        while self.said_count < SAID_COUNT_MAX && self.said_bytes < SAID_BYTES_MAX {
            let Some((event, missed)) = session.actions().pop_said() else {
                return;
            };
            self.said_count += 1;
            self.said_bytes += event.len();
            self.events.push_back(ShardEvent::Said {
                session: reference,
                event,
                missed,
            });
        }
        session.actions().miss_said();
    }

    pub(super) fn push_event(&mut self, event: ShardEvent) {
        self.events.push_back(event);
    }

    pub(super) fn push_link(&mut self, session: SessionRef, command: LinkCommand) {
        self.link.push_back((session, command));
    }

    pub(super) fn pop_event(&mut self) -> Option<ShardEvent> {
        let popped = self.events.pop_front()?;
        if let ShardEvent::Said { event, .. } = &popped {
            self.said_count -= 1;
            self.said_bytes -= event.len();
        }
        Some(popped)
    }

    pub(super) fn pop_link(&mut self) -> Option<(SessionRef, LinkCommand)> {
        self.link.pop_front()
    }

    pub(super) fn pop_codec(&mut self) -> Option<(SessionRef, CodecCommand)> {
        self.codec.pop_front()
    }
}
