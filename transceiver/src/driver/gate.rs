//! The gate: the keys in force, and the counting of those it turns away.
//!
//! The rules are [`Access`]'s; the gate knows what time it is, draws the randomness of ephemeral
//! keys, and lets the keys be replaced whole while requests are under way.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syrinx_shared::wire::ufrag::MintError;

use super::metrics::AccessMetrics;
use crate::signalling::access::{Access, AccessError, Caller, Purpose};
use crate::signalling::api_keys::KeyId;
use crate::signalling::ephemeral::Claims;
use crate::signalling::session_config::SessionConfig;

/// See the module's description.
#[derive(Debug)]
pub struct Gate {
    access: RwLock<Arc<Access>>,
    metrics: AccessMetrics,
}

impl Gate {
    /// A gate with these rules.
    pub fn new(access: Access, metrics: AccessMetrics) -> Self {
        Self {
            access: RwLock::new(Arc::new(access)),
            metrics,
        }
    }

    /// The rules in force.
    pub fn access(&self) -> Arc<Access> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&access)
    }

    /// Puts other rules into force.
    pub fn replace(&self, access: Access) {
        let mut place = self.access.write().unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(access);
    }

    /// Who it is that presents `credential`.
    ///
    /// # Errors
    ///
    /// [`AccessError`], which is counted.
    pub fn admit(&self, credential: Option<&str>, purpose: Purpose) -> Result<Caller, AccessError> {
        let admitted = self.access().admit(credential, purpose, unix_seconds());
        admitted.inspect_err(|error| self.metrics.count_refused(*error))
    }

    /// An ephemeral key under `key` that expires after `lifetime`, and what it says.
    ///
    /// # Errors
    ///
    /// [`MintError`] when the cluster's keys only verify.
    ///
    /// # Panics
    ///
    /// When the operating system has no randomness, which on Linux happens only before its
    /// generator is seeded at boot.
    pub fn issue(
        &self,
        key: KeyId,
        session: SessionConfig,
        lifetime: Duration,
    ) -> Result<(String, Claims), MintError> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).expect("the operating system's generator is seeded");
        let expires_at = unix_seconds().saturating_add(lifetime.as_secs());
        let expires_at = u32::try_from(expires_at).unwrap_or(u32::MAX);
        self.access().issue(key, session, expires_at, nonce)
    }
}

/// Seconds since the epoch; a clock set before it counts as the epoch itself.
fn unix_seconds() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |since| since.as_secs())
}
