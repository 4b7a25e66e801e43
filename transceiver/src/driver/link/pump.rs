//! Moves messages over an open WebSocket, both ways, until it is lost or left.
//!
//! One poll does everything there is to do: what came goes to the session as long as it keeps up;
//! what waits is written as long as the kernel takes it, and no further, so that what waits behind
//! it can still be dropped; then the clocks: the first message, pings, the farewell.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_tungstenite::tungstenite::Message;
use async_tungstenite::tungstenite::protocol::CloseFrame;
use futures_lite::{Stream as _, StreamExt as _};
use futures_util::Sink as _;
use syrinx_shared::uring::{Sleep, Slices};

use super::connect::{WebSocket, loss_of};
use super::line::{Farewell, Line};
use super::retry::Loss;
use crate::backend::link::{LinkBody, LinkCause, LinkEvent, LinkMessage};
use crate::driver::pool::LinkOptions;

/// Messages read in one poll; then others have their turn.
const READS_MAX: usize = 64;
/// Bytes written between two flushes.
const BURST_BYTES_MAX: usize = 16 << 10;
/// Time to send what waits, say good-bye and hear it back.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How it ended.
pub(super) enum End {
    /// The connection is of no more use.
    Lost(Loss),
    /// The session has left, and what it had to say is written.
    Left,
}

/// What became of it.
pub(super) struct Pumped {
    pub(super) end: End,
    /// When the backend said its first message, if it did.
    pub(super) first_heard: Option<Instant>,
}

/// See the module.
pub(super) struct Pump {
    line: Rc<Line>,
    slices: Slices,
    socket: WebSocket,
    options: LinkOptions,
    opened: Instant,
    first_heard: Option<Instant>,
    heard: Instant,
    pinged: Option<Instant>,
    is_unflushed: bool,
    timer: Option<(Instant, Sleep)>,
}

impl Pump {
    pub(super) fn new(
        line: Rc<Line>,
        slices: Slices,
        socket: WebSocket,
        options: LinkOptions,
    ) -> Self {
        let now = Instant::now();
        Self {
            line,
            slices,
            socket,
            options,
            opened: now,
            first_heard: None,
            heard: now,
            pinged: None,
            is_unflushed: false,
            timer: None,
        }
    }

    /// Runs until the end, and sees to it that the other side learns of it.
    pub(super) async fn run(mut self) -> Pumped {
        let end = poll_fn(|context| self.poll(context)).await;
        let (slices, socket) = (&self.slices, &mut self.socket);
        match &end {
            End::Left => {
                let farewell = self.line.farewell().unwrap_or_else(|| Farewell {
                    code: 1001,
                    reason: String::new(),
                    said: Instant::now(),
                });
                let deadline = farewell.said + CLOSE_TIMEOUT;
                say_goodbye(slices, socket, deadline, farewell.code, &farewell.reason).await;
            }
            End::Lost(loss) => {
                let deadline = Instant::now() + CLOSE_TIMEOUT / 2;
                match loss.down.cause {
                    // The answer to his close is on its way; he hangs up when he has it.
                    LinkCause::Closed => drain(slices, socket, deadline).await,
                    LinkCause::Protocol => {
                        say_goodbye(slices, socket, deadline, 1002, &loss.down.detail).await;
                    }
                    LinkCause::TimedOut | LinkCause::Overflow => {
                        say_goodbye(slices, socket, deadline, 1008, &loss.down.detail).await;
                    }
                    _ => {}
                }
            }
        }
        let first_heard = self.first_heard;
        Pumped { end, first_heard }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let now = Instant::now();
        self.line.register(context.waker());
        if let Poll::Ready(loss) = self.poll_inbound(context, now) {
            return Poll::Ready(End::Lost(loss));
        }
        if self.line.has_overflowed() {
            let detail = "too many messages wait that the backend does not read";
            return Poll::Ready(End::Lost(Loss::new(LinkCause::Overflow, detail)));
        }
        if let Poll::Ready(loss) = self.poll_outbound(context, now) {
            return Poll::Ready(End::Lost(loss));
        }
        if self.line.is_dismissed() && !self.is_unflushed && self.line.outbox.borrow().is_empty() {
            return Poll::Ready(End::Left);
        }
        self.poll_clocks(context)
    }

    fn poll_inbound(&mut self, context: &mut Context<'_>, now: Instant) -> Poll<Loss> {
        for _ in 0..READS_MAX {
            if !self.line.has_room() {
                // Woken when the session has taken what waits.
                return Poll::Pending;
            }
            let Poll::Ready(read) = Pin::new(&mut self.socket).poll_next(context) else {
                return Poll::Pending;
            };
            self.heard = now;
            self.pinged = None;
            let event = match read {
                None => return Poll::Ready(Loss::new(LinkCause::Reset, "ended without a close")),
                Some(Err(error)) => return Poll::Ready(loss_of(&error)),
                Some(Ok(Message::Close(frame))) => return Poll::Ready(closed(frame)),
                Some(Ok(Message::Text(text))) => LinkEvent::Text(text.as_str().to_owned()),
                Some(Ok(Message::Binary(bytes))) => LinkEvent::Binary(bytes.into()),
                Some(Ok(_)) => {
                    // The answer to a ping waits to be written.
                    self.is_unflushed = true;
                    continue;
                }
            };
            self.first_heard.get_or_insert(now);
            self.line.counters.note_received(&event);
            self.line.deliver(event);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_outbound(&mut self, context: &mut Context<'_>, now: Instant) -> Poll<Loss> {
        loop {
            if self.is_unflushed {
                match Pin::new(&mut self.socket).poll_flush(context) {
                    Poll::Ready(Ok(())) => self.is_unflushed = false,
                    Poll::Ready(Err(error)) => return Poll::Ready(loss_of(&error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let mut burst_bytes = 0;
            while burst_bytes < BURST_BYTES_MAX {
                let Some(message) = self.line.outbox.borrow_mut().pop(now) else {
                    break;
                };
                let message = framed(message);
                burst_bytes += message.len();
                self.line.counters.note_sent(message.len());
                if let Err(error) = self.start_send(message) {
                    return Poll::Ready(error);
                }
            }
            if !self.is_unflushed {
                return Poll::Pending;
            }
        }
    }

    fn start_send(&mut self, message: Message) -> Result<(), Loss> {
        self.is_unflushed = true;
        let sent = Pin::new(&mut self.socket).start_send(message);
        sent.map_err(|error| loss_of(&error))
    }

    fn poll_clocks(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            // Asked anew each time round: a deadline may pass while its timer is being set.
            let now = Instant::now();
            let deadline = self.deadline();
            if now >= deadline {
                if let Err(end) = self.handle_deadline(now) {
                    return Poll::Ready(end);
                }
                // A ping was queued: written by the poll that follows.
                context.waker().wake_by_ref();
                continue;
            }
            // One that is set for earlier fires in vain and is set anew: cheaper than setting it
            // for every message.
            if self
                .timer
                .as_ref()
                .is_some_and(|(at, _)| *at > now && *at <= deadline)
            {
                return Poll::Pending;
            }
            let mut sleep = self.slices.sleep_until(deadline);
            if Pin::new(&mut sleep).poll(context).is_pending() {
                self.timer = Some((deadline, sleep));
                return Poll::Pending;
            }
        }
    }

    fn deadline(&self) -> Instant {
        let silence = self.pinged.unwrap_or(self.heard) + self.options.ping_period;
        let first = self
            .first_heard
            .is_none()
            .then(|| self.opened + self.options.first_message_timeout);
        let farewell = self
            .line
            .farewell()
            .map(|farewell| farewell.said + CLOSE_TIMEOUT);
        [first, farewell]
            .into_iter()
            .flatten()
            .fold(silence, Instant::min)
    }

    fn handle_deadline(&mut self, now: Instant) -> Result<(), End> {
        if self.line.is_dismissed() {
            return Err(End::Left);
        }
        if self.first_heard.is_none() && now >= self.opened + self.options.first_message_timeout {
            let detail = "the backend has sent no message since the handshake";
            return Err(End::Lost(Loss::new(LinkCause::TimedOut, detail)));
        }
        if self.pinged.is_some() {
            let detail = "the backend has answered no ping";
            return Err(End::Lost(Loss::new(LinkCause::Unresponsive, detail)));
        }
        self.pinged = Some(now);
        if self.is_unflushed {
            // He does not read; a ping would only wait behind the rest.
            return Ok(());
        }
        self.start_send(Message::Ping(Vec::new().into()))
            .map_err(End::Lost)
    }
}

fn framed(message: LinkMessage) -> Message {
    match message.body {
        LinkBody::Text(text) => Message::Text(text.into()),
        LinkBody::Binary(bytes) => Message::Binary(bytes.into()),
    }
}

fn closed(frame: Option<CloseFrame>) -> Loss {
    match frame {
        Some(frame) => Loss::closed(Some(frame.code.into()), frame.reason.as_str()),
        None => Loss::closed(None, ""),
    }
}

/// Sends a close and waits for the other's, but not for ever.
async fn say_goodbye(
    slices: &Slices,
    socket: &mut WebSocket,
    deadline: Instant,
    code: u16,
    reason: &str,
) {
    let frame = CloseFrame {
        code: code.into(),
        reason: shortened(reason).into(),
    };
    let close = slices.timeout_at(deadline, socket.close(Some(frame))).await;
    if matches!(close, Some(Ok(()))) {
        drain(slices, socket, deadline).await;
    }
}

/// Reads until the other side hangs up, so that nothing unread turns our end into a reset.
async fn drain(slices: &Slices, socket: &mut WebSocket, deadline: Instant) {
    let read = async { while let Some(Ok(_)) = socket.next().await {} };
    slices.timeout_at(deadline, read).await;
}

/// What fits a close frame: 125 bytes with the code (RFC 6455, 5.5).
fn shortened(reason: &str) -> &str {
    let mut end = reason.len().min(123);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_where_a_character_ends() {
        assert_eq!(shortened("bye"), "bye");
        let long = "\u{e4}".repeat(100);
        assert_eq!(shortened(&long).len(), 122);
    }
}
