//! Under which key each call was opened, how many each key may have, and how often a call's ICE was
//! restarted.
//!
//! Two limits a key: calls open at once, and of those the *half-open* ones, whose client has not
//! come through yet. An offer costs its sender one request; the place it takes is held until the
//! set-up deadline. The second limit keeps whoever only sends offers from taking every place.
//!
//! Bounded by the sessions of the process: a key without calls is forgotten. Pure.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use syrinx_shared::route::SessionRef;

use super::api_keys::KeyId;

/// What a key may have, unless it has a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyLimits {
    /// Calls open at once.
    pub calls_count_max: u32,
    /// Of these, calls whose client has not come through.
    pub half_open_count_max: u32,
}

/// A key that has as many calls as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// Calls.
    #[error("the key has {0} calls open, which is all it may have at once")]
    Calls(u32),
    /// Half-open calls.
    #[error("{0} calls of the key wait for their clients to come through: let some connect first")]
    HalfOpen(u32),
}

/// See the module.
#[derive(Debug)]
pub struct Owners {
    limits: KeyLimits,
    keys: HashMap<KeyId, Count>,
    calls: HashMap<SessionRef, Tenancy>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    calls: u32,
    half_open: u32,
}

#[derive(Debug)]
struct Tenancy {
    key: KeyId,
    is_half_open: bool,
    ice_restarts: u16,
}

impl Owners {
    /// Nobody has a call.
    pub fn new(limits: KeyLimits) -> Self {
        Self {
            limits,
            keys: HashMap::new(),
            calls: HashMap::new(),
        }
    }

    /// Whether `key`, which may have `calls_count_max` calls if it has a limit of its own, may open
    /// another.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn check(&self, key: KeyId, calls_count_max: Option<u32>) -> Result<(), TooMany> {
        let Some(count) = self.keys.get(&key) else {
            return Ok(());
        };
        let calls_count_max = calls_count_max.unwrap_or(self.limits.calls_count_max);
        if count.calls >= calls_count_max {
            return Err(TooMany::Calls(count.calls));
        }
        if count.half_open >= self.limits.half_open_count_max {
            return Err(TooMany::HalfOpen(count.half_open));
        }
        Ok(())
    }

    /// `key` has opened the call of `session`.
    ///
    /// # Panics
    /// When the session has an owner.
    pub fn admit(&mut self, session: SessionRef, key: KeyId) {
        let tenancy = Tenancy {
            key,
            is_half_open: true,
            ice_restarts: 0,
        };
        let former = self.calls.insert(session, tenancy);
        assert!(former.is_none(), "invariant: a session is opened once");
        let count = self.keys.entry(key).or_default();
        count.calls += 1;
        count.half_open += 1;
    }

    /// The client of `session` has come through.
    pub fn connected(&mut self, session: SessionRef) {
        let Some(tenancy) = self.calls.get_mut(&session) else {
            return;
        };
        if std::mem::replace(&mut tenancy.is_half_open, false) {
            let count = self.keys.get_mut(&tenancy.key);
            count.expect("invariant: an owner is counted").half_open -= 1;
        }
    }

    /// The call of `session` has ended; whose it was.
    pub fn release(&mut self, session: SessionRef) -> Option<KeyId> {
        let Tenancy {
            key, is_half_open, ..
        } = self.calls.remove(&session)?;
        let Entry::Occupied(mut entry) = self.keys.entry(key) else {
            unreachable!("invariant: an owner is counted");
        };
        let count = entry.get_mut();
        count.calls -= 1;
        count.half_open -= u32::from(is_half_open);
        if count.calls == 0 {
            debug_assert_eq!(*count, Count::default());
            entry.remove();
        }
        Some(key)
    }

    /// How often the ICE of a call was restarted; `None` if it has no owner.
    pub fn ice_restarts(&self, session: SessionRef) -> Option<u16> {
        self.calls.get(&session).map(|call| call.ice_restarts)
    }

    /// The ICE of a call is restarted once more: how often it was then.
    pub fn count_restart(&mut self, session: SessionRef) -> Option<u16> {
        let call = self.calls.get_mut(&session)?;
        call.ice_restarts = call.ice_restarts.wrapping_add(1);
        Some(call.ice_restarts)
    }

    /// Whose call it is.
    pub fn of(&self, session: SessionRef) -> Option<KeyId> {
        self.calls.get(&session).map(|tenancy| tenancy.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn session(number: u8) -> SessionRef {
        SessionRef::from_bytes([0, 1, 0, 0, 0, number, 0, 1])
    }

    fn key(number: u8) -> KeyId {
        KeyId::from_bytes([number; 8])
    }

    const LIMITS: KeyLimits = KeyLimits {
        calls_count_max: 3,
        half_open_count_max: 2,
    };

    #[test]
    fn a_key_has_its_limits_and_another_key_has_its_own() {
        let mut owners = Owners::new(LIMITS);
        owners.admit(session(1), key(1));
        owners.admit(session(2), key(1));
        assert_eq!(owners.check(key(1), None), Err(TooMany::HalfOpen(2)));
        assert_eq!(owners.check(key(2), None), Ok(()));
        owners.connected(session(1));
        owners.connected(session(1));
        assert_eq!(owners.check(key(1), None), Ok(()));
        owners.admit(session(3), key(1));
        assert_eq!(owners.check(key(1), None), Err(TooMany::Calls(3)));
        assert_eq!(owners.check(key(1), Some(4)), Err(TooMany::HalfOpen(2)));
        assert_eq!(owners.release(session(3)), Some(key(1)));
        assert_eq!(owners.check(key(1), None), Ok(()));
        assert_eq!(owners.check(key(1), Some(2)), Err(TooMany::Calls(2)));
    }

    #[test]
    fn a_key_without_calls_is_forgotten() {
        let mut owners = Owners::new(LIMITS);
        owners.admit(session(1), key(1));
        assert_eq!(owners.of(session(1)), Some(key(1)));
        assert_eq!(owners.release(session(1)), Some(key(1)));
        assert_eq!(owners.release(session(1)), None);
        assert_eq!(owners.of(session(1)), None);
        owners.connected(session(1));
        assert_eq!(owners.count_restart(session(1)), None);
        assert!(owners.keys.is_empty() && owners.calls.is_empty());
    }

    proptest! {
        /// Against counting them all anew after each step.
        #[test]
        fn counts_are_those_of_the_open_calls(
            steps in prop::collection::vec((0u8..3, 0u8..6, 0u8..3), 1..100)
        ) {
            let mut owners = Owners::new(LIMITS);
            for (step, number, owner) in steps {
                let session = session(number);
                match step {
                    0 if owners.of(session).is_none() => owners.admit(session, key(owner)),
                    1 => owners.connected(session),
                    2 => { owners.release(session); }
                    _ => {}
                }
                let mut expected: HashMap<KeyId, Count> = HashMap::new();
                for tenancy in owners.calls.values() {
                    let count = expected.entry(tenancy.key).or_default();
                    count.calls += 1;
                    count.half_open += u32::from(tenancy.is_half_open);
                }
                prop_assert_eq!(&owners.keys, &expected);
            }
        }
    }
}
