//! Who asks, and what they may: the rules of the client-facing API's keys.
//!
//! | holder of | may open calls | may look at, restart and end them | may issue ephemeral keys |
//! |---|---|---|---|
//! | an API key | yes | those opened under it | yes |
//! | an ephemeral key | until it expires | those of its API key, as long as that exists | no |
//! | nothing | only where no API keys are configured | likewise | likewise |
//!
//! An ephemeral key lives for minutes and a call for an hour, so what manages a call must not
//! expire before it; a call's id is unguessable, and is asked for besides.
//!
//! Where no API keys are configured every credential is as good as none, with one exception: an
//! ephemeral key is held to what it says, because it was made here to say that. Pure.

use std::sync::Arc;

use syrinx_shared::keys::KeyRing;
use syrinx_shared::wire::ufrag::MintError;

use super::api_keys::{ApiKeys, KeyId};
use super::ephemeral::{self, Claims, PREFIX};
use super::session_config::SessionConfig;

/// The keys in force.
#[derive(Debug, Clone)]
pub struct Access {
    ring: Arc<KeyRing>,
    /// `None`: nobody needs one.
    api_keys: Option<ApiKeys>,
}

/// What somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Open a call.
    Open,
    /// Look at, restart or end a call that is open.
    Manage,
    /// Issue an ephemeral key.
    Issue,
}

/// Somebody who may.
#[derive(Debug, Clone, PartialEq)]
pub struct Caller {
    /// Under which API key.
    pub key: KeyId,
    /// Calls the API key may have open at once, if it has a limit of its own.
    pub calls_count_max: Option<u32>,
    /// What an ephemeral key makes of the sessions it opens.
    pub session: SessionConfig,
}

/// Why somebody may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No credential.
    #[error("this needs a key: send Authorization: Bearer and an API key or an ephemeral key")]
    Missing,
    /// A credential that is no key in force.
    #[error("the key is not known: it may have been revoked")]
    Unknown,
    /// An ephemeral key whose time is over.
    #[error("the ephemeral key has expired: have your server issue another")]
    Expired,
    /// An ephemeral key where an API key is needed.
    #[error("ephemeral keys open calls; this needs an API key")]
    NeedsApiKey,
}

impl AccessError {
    /// The error as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::NeedsApiKey => "needs_api_key",
        }
    }

    /// Every label there is.
    pub const LABELS: [&'static str; 4] = ["missing", "unknown", "expired", "needs_api_key"];
}

impl Access {
    /// The rules under these keys; without API keys, nobody needs one.
    pub fn new(ring: Arc<KeyRing>, api_keys: Option<ApiKeys>) -> Self {
        Self { ring, api_keys }
    }

    /// Whether nobody needs a key.
    pub fn is_anonymous(&self) -> bool {
        self.api_keys.is_none()
    }

    /// What the operator calls a key; `None` for nobody's, and for one that is in force no more.
    pub fn name_of(&self, key: KeyId) -> Option<&str> {
        let key = self.api_keys.as_ref()?.by_id(key)?;
        Some(&key.name)
    }

    /// Who it is that presents `credential`, at `now_s` in Unix seconds.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn admit(
        &self,
        credential: Option<&str>,
        purpose: Purpose,
        now_s: u64,
    ) -> Result<Caller, AccessError> {
        match (&self.api_keys, credential) {
            (_, Some(text)) if text.starts_with(PREFIX) => {
                self.admit_ephemeral(text, purpose, now_s)
            }
            (None, _) => Ok(Caller {
                key: KeyId::ANONYMOUS,
                calls_count_max: None,
                session: SessionConfig::default(),
            }),
            (Some(_), None) => Err(AccessError::Missing),
            (Some(keys), Some(text)) => {
                let key = keys.find(text).ok_or(AccessError::Unknown)?;
                Ok(Caller {
                    key: key.id(),
                    calls_count_max: key.calls_count_max,
                    session: SessionConfig::default(),
                })
            }
        }
    }

    fn admit_ephemeral(
        &self,
        text: &str,
        purpose: Purpose,
        now_s: u64,
    ) -> Result<Caller, AccessError> {
        let claims = ephemeral::open(&self.ring, text).map_err(|_| AccessError::Unknown)?;
        let (key, calls_count_max) = match &self.api_keys {
            None => (KeyId::ANONYMOUS, None),
            Some(keys) => {
                let key = keys.by_id(claims.key).ok_or(AccessError::Unknown)?;
                (key.id(), key.calls_count_max)
            }
        };
        if purpose == Purpose::Issue {
            return Err(AccessError::NeedsApiKey);
        }
        if purpose == Purpose::Open && now_s >= u64::from(claims.expires_at) {
            return Err(AccessError::Expired);
        }
        Ok(Caller {
            key,
            calls_count_max,
            session: claims.session,
        })
    }

    /// An ephemeral key under `key`, and what it says.
    ///
    /// # Errors
    /// [`MintError`] when the cluster's keys only verify.
    pub fn issue(
        &self,
        key: KeyId,
        session: SessionConfig,
        expires_at: u32,
        nonce: [u8; 8],
    ) -> Result<(String, Claims), MintError> {
        let claims = Claims {
            key,
            expires_at,
            session,
        };
        let text = ephemeral::seal(&self.ring, &claims, nonce)?;
        Ok((text, claims))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signalling::api_keys::tests::two_keys;
    use syrinx_shared::keys::MasterSecret;
    use syrinx_shared::route::Epoch;

    fn ring() -> Arc<KeyRing> {
        let epoch = Epoch::new(2).unwrap();
        Arc::new(KeyRing::single(epoch, &MasterSecret::new([7; 32])))
    }

    fn session() -> SessionConfig {
        SessionConfig::of_model("m").unwrap()
    }

    const ALL: [Purpose; 3] = [Purpose::Open, Purpose::Manage, Purpose::Issue];

    #[test]
    fn an_api_key_may_everything_and_nothing_else_does() {
        let access = Access::new(ring(), Some(two_keys()));
        for purpose in ALL {
            let caller = access.admit(Some("sk-two"), purpose, 0).unwrap();
            assert_eq!(access.name_of(caller.key), Some("two"));
            assert_eq!(caller.calls_count_max, Some(2));
            assert_eq!(access.admit(None, purpose, 0), Err(AccessError::Missing));
            for wrong in ["", "sk-three", "ek_", "ek_AAAA"] {
                assert_eq!(
                    access.admit(Some(wrong), purpose, 0),
                    Err(AccessError::Unknown)
                );
            }
        }
    }

    #[test]
    fn an_ephemeral_key_opens_until_it_expires_manages_as_long_as_its_key_exists_and_issues_none() {
        let access = Access::new(ring(), Some(two_keys()));
        let key = access.admit(Some("sk-two"), Purpose::Issue, 0).unwrap().key;
        let (text, _) = access.issue(key, session(), 1_000, [0; 8]).unwrap();
        let admit = |purpose, now| access.admit(Some(&text), purpose, now);
        let caller = admit(Purpose::Open, 999).unwrap();
        assert_eq!((caller.key, caller.calls_count_max), (key, Some(2)));
        assert_eq!(caller.session, session());
        assert_eq!(admit(Purpose::Open, 1_000), Err(AccessError::Expired));
        assert_eq!(admit(Purpose::Manage, 9_999).unwrap().key, key);
        assert_eq!(admit(Purpose::Issue, 0), Err(AccessError::NeedsApiKey));

        let without = "[[key]]\nname = 'new'\nsha256 = '".to_owned() + &"0".repeat(64) + "'\n";
        let revoked = Access::new(ring(), Some(ApiKeys::parse(&without).unwrap()));
        for purpose in ALL {
            let refused = revoked.admit(Some(&text), purpose, 0);
            assert_eq!(refused, Err(AccessError::Unknown));
        }
        assert_eq!(revoked.name_of(key), None);
    }

    #[test]
    fn where_nobody_needs_a_key_an_ephemeral_one_is_held_to_what_it_says() {
        let access = Access::new(ring(), None);
        assert!(access.is_anonymous());
        for credential in [None, Some("whatever"), Some("sk-one")] {
            for purpose in ALL {
                let caller = access.admit(credential, purpose, 0).unwrap();
                assert_eq!(caller.key, KeyId::ANONYMOUS);
            }
        }
        let issued = access.issue(KeyId::ANONYMOUS, session(), 1_000, [0; 8]);
        let (text, _) = issued.unwrap();
        let admit = |text: &str, now| access.admit(Some(text), Purpose::Open, now);
        assert_eq!(admit(&text, 999).unwrap().session, session());
        assert_eq!(admit(&text, 1_000), Err(AccessError::Expired));
        assert_eq!(admit(&text[..40], 0), Err(AccessError::Unknown));
        // It opens nothing where keys are needed: no API key stands behind it.
        let keyed = Access::new(ring(), Some(two_keys()));
        assert_eq!(
            keyed.admit(Some(&text), Purpose::Open, 0),
            Err(AccessError::Unknown)
        );
    }
}
