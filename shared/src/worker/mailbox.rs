//! Messages from the control thread to a worker: a bounded queue and the worker's wake-up.

use crate::uring::WakeEvent;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use thiserror::Error;

/// A message that was not delivered, given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Undelivered<M> {
    /// The worker has not taken earlier messages yet.
    #[error("the worker's mailbox is full")]
    Full(M),
    /// The worker stopped or failed.
    #[error("the worker has stopped")]
    Stopped(M),
}

/// The sending end of a worker's mailbox. Clones send to the same worker.
#[derive(Debug)]
pub struct Mailbox<M> {
    sender: SyncSender<M>,
    wake: Arc<WakeEvent>,
}

impl<M> Mailbox<M> {
    pub(super) fn new(sender: SyncSender<M>, wake: Arc<WakeEvent>) -> Mailbox<M> {
        Mailbox { sender, wake }
    }

    /// Queues a message and wakes the worker; never blocks.
    ///
    /// Errors: [`Undelivered`], with the message.
    pub fn send(&self, message: M) -> Result<(), Undelivered<M>> {
        match self.sender.try_send(message) {
            Ok(()) => {
                self.wake.wake();
                Ok(())
            }
            Err(TrySendError::Full(message)) => Err(Undelivered::Full(message)),
            Err(TrySendError::Disconnected(message)) => Err(Undelivered::Stopped(message)),
        }
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Mailbox<M> {
        Mailbox {
            sender: self.sender.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}
