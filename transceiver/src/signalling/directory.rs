//! Who answers a call: chosen by the model that its client asked for, before anything is spent on
//! it.

use std::time::Instant;

use crate::backend::Backend;
use crate::backend::echo::Echo;

/// Knows the backends.
pub trait Directory: Send {
    /// Who answers the call of this name, whose client asked for `model`.
    ///
    /// # Errors
    /// [`NoBackend`].
    fn appoint(
        &self,
        now: Instant,
        model: Option<&str>,
        call: &str,
    ) -> Result<Box<dyn Backend>, NoBackend>;
}

/// Why a call cannot have a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoBackend {
    /// None is configured for its model.
    #[error("no backend answers for this model")]
    Unknown,
    /// None of the addresses of the one that is can be connected to for the moment.
    #[error("the backend for this model cannot be reached for the moment")]
    Down,
}

/// The directory of a process without backends: the built-in echo answers every call.
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoOnly;

impl Directory for EchoOnly {
    fn appoint(&self, _: Instant, _: Option<&str>, _: &str) -> Result<Box<dyn Backend>, NoBackend> {
        Ok(Box::new(Echo::default()))
    }
}
