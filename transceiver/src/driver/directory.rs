//! Appoints who answers a call: a backend of the pool, spoken to in its dialect.

use std::sync::Arc;
use std::time::Instant;

use super::pool::Pool;
use crate::backend::Backend;
use crate::backend::echo::Echo;
use crate::backend::link::LinkTarget;
use crate::backend::media_v1::MediaV1;
use crate::backend::realtime::Realtime;
use crate::config::backends::Dialect;
use crate::signalling::directory::{Directory, NoBackend};

/// The directory of a process with this pool; with an empty one, the echo answers every call.
pub struct Pooled {
    pool: Arc<Pool>,
}

impl Pooled {
    /// Of this pool.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool }
    }
}

impl Directory for Pooled {
    fn appoint(
        &self,
        now: Instant,
        model: Option<&str>,
        call: &str,
    ) -> Result<Box<dyn Backend>, NoBackend> {
        let Some((backend, dialect)) = self.pool.choose(model, now)? else {
            return Ok(Box::new(Echo::default()));
        };
        let target = LinkTarget {
            backend,
            model: model.map(str::to_owned),
            call: call.to_owned(),
            subprotocol: None,
        };
        Ok(match dialect {
            Dialect::Echo => Box::new(Echo::default()),
            Dialect::MediaV1 => Box::new(MediaV1::new(target)),
            Dialect::Realtime => {
                let options = self.pool.backend(backend).realtime_options();
                Box::new(Realtime::new(target, options))
            }
        })
    }
}
