//! What happens beside a call while it is open: its ICE is restarted, and others listen to it.

use std::sync::Arc;

use syrinx_shared::route::SessionRef;
use syrinx_shared::wire::ufrag::MintError;
use syrinx_shared::worker::Mailbox;
use tokio::sync::{mpsc, oneshot};

use super::sidebands::{ListenerId, SidebandNews};
use super::{Book, Desk, DeskError, INSPECT_TIMEOUT, draw};
use crate::driver::service::ShardMessage;
use crate::engine::Fragment;
use crate::signalling::api_keys::KeyId;
use crate::signalling::call_id::CallId;

/// Why ICE was not restarted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    /// There is no such call, or its worker is busy.
    #[error(transparent)]
    Desk(#[from] DeskError),
    /// The fragment says nothing to restart with.
    #[error("a restart needs the client's new a=ice-ufrag and a=ice-pwd")]
    NoCredentials,
    /// The keys.
    #[error(transparent)]
    Mint(#[from] MintError),
}

/// Somebody who listens to a call, and may speak to it. Dropped, he leaves.
pub struct Sideband {
    desk: Arc<Desk>,
    session: SessionRef,
    id: ListenerId,
    news: mpsc::Receiver<SidebandNews>,
    event_seed: u64,
}

impl Desk {
    fn mailbox(&self, session: SessionRef) -> &Mailbox<ShardMessage> {
        &self.mailboxes[usize::from(session.shard.0)]
    }

    /// How often the ICE of a call that `key` opened was restarted.
    ///
    /// # Errors
    ///
    /// [`DeskError::UnknownCall`].
    pub fn restarts(&self, call: CallId, key: KeyId) -> Result<u16, DeskError> {
        let book = self.book();
        let session = find(&book, call, key)?;
        book.calls.restarts(session).ok_or(DeskError::UnknownCall)
    }

    /// Restarts the ICE of a call that `key` opened with what the client's fragment says: how often
    /// that was done, and our own fragment.
    ///
    /// # Errors
    ///
    /// [`RestartError`].
    pub fn restart(
        &self,
        call: CallId,
        key: KeyId,
        fragment: &Fragment,
    ) -> Result<(u16, String), RestartError> {
        let mut book = self.book();
        let session = find(&book, call, key)?;
        let client = fragment.credentials().ok_or(RestartError::NoCredentials)?;
        let now = book.clock.now();
        let client = client.clone();
        let restart = book.calls.restart(now, draw().ufrag, session, client)?;
        let answer = book.calls.answer_fragment(fragment, &restart.ours);
        let told = self
            .mailbox(session)
            .send(ShardMessage::Restart(session, Box::new(restart)));
        told.map_err(|_| DeskError::Busy)?;
        let restarts = book.calls.count_restart(session);
        Ok((restarts.ok_or(DeskError::UnknownCall)?, answer))
    }

    /// Listens to a call that `key` opened.
    ///
    /// # Errors
    ///
    /// [`DeskError`].
    pub fn listen(self: &Arc<Self>, call: CallId, key: KeyId) -> Result<Sideband, DeskError> {
        let mut book = self.book();
        let session = find(&book, call, key)?;
        let (id, news) = book.sidebands.add(session).ok_or(DeskError::Crowded)?;
        let sideband = Sideband {
            desk: Arc::clone(self),
            session,
            id,
            news,
            event_seed: draw().events,
        };
        // Its drop, on failure, takes the lock.
        drop(book);
        let told = self.mailbox(session).send(ShardMessage::Tap(session, true));
        match told {
            Ok(()) => Ok(sideband),
            Err(_) => Err(DeskError::Busy),
        }
    }

    fn leave(&self, session: SessionRef, id: ListenerId) {
        if self.book().sidebands.remove(session, id) {
            // A worker that takes no message tells what nobody fetches, which is thrown away here.
            let _ = self
                .mailbox(session)
                .send(ShardMessage::Tap(session, false));
        }
    }
}

fn find(book: &Book, call: CallId, key: KeyId) -> Result<SessionRef, DeskError> {
    book.calls
        .session_of(call, key)
        .ok_or(DeskError::UnknownCall)
}

impl Sideband {
    /// What there is to hear next; `None` after the end of the call.
    pub async fn next(&mut self) -> Option<SidebandNews> {
        self.news.recv().await
    }

    /// Has an event, which is checked, handled as if the client had sent it. Returns when it was,
    /// so a sideband has one event on its way and no more.
    ///
    /// # Errors
    ///
    /// [`DeskError`].
    pub async fn inject(&self, event: &str) -> Result<(), DeskError> {
        let (reply, answer) = oneshot::channel();
        let message = ShardMessage::Inject(self.session, event.to_owned(), reply);
        let told = self.desk.mailbox(self.session).send(message);
        told.map_err(|_| DeskError::Busy)?;
        match tokio::time::timeout(INSPECT_TIMEOUT, answer).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(DeskError::UnknownCall),
            Ok(Err(_)) | Err(_) => Err(DeskError::Busy),
        }
    }

    /// Random bits that tell the sideband's own events from others'.
    pub fn event_seed(&self) -> u64 {
        self.event_seed
    }
}

impl Drop for Sideband {
    fn drop(&mut self) {
        self.desk.leave(self.session, self.id);
    }
}
