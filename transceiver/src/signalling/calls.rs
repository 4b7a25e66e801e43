//! Opening a call: from the text of an offer to an answer and everything its session starts with.
//!
//! ```text
//! offer ─▶ parse ─▶ place (registrar) ─▶ ufrag and password (mint) ─▶ engine and answer
//! ```
//!
//! The caller hands the [`Opening`] to the shard that owns the place, and reports back what came of
//! it: [`Calls::abandon`] if it could not be delivered, [`Calls::end`] when the session has ended.
//! Pure: time and randomness are arguments. Text of strangers is parsed under `catch_unwind`, as
//! every step of a session is, so that no offer can take the process's signalling down.

mod restart;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::{ClusterId, Now, SessionRef, ShardIndex};
use syrinx_shared::wire::ufrag::{MintError, Minted, mint};

use super::api_keys::KeyId;
use super::call_id::CallId;
use super::directory::{Directory, EchoOnly, NoBackend};
use super::owners::{KeyLimits, Owners, TooMany};
use super::registrar::{Refusal, Registrar};
use super::session_config::SessionConfig;
use crate::engine::{Credentials, Engine, Offer, OfferError, Template};
use crate::session::Opening;
use crate::session::events::Profile;

/// All calls of a process, and what new ones are made with.
pub struct Calls {
    registrar: Registrar,
    owners: Owners,
    directory: Box<dyn Directory>,
    template: Template,
    keys: Arc<KeyRing>,
    cluster: ClusterId,
}

/// What a client asks for.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// The SDP offer.
    pub offer: &'a [u8],
    /// Whose call it is to be.
    pub owner: Owner,
    /// What is asked of the session; repeated in `session.created`.
    pub session: SessionConfig,
    /// Stream id of a data channel agreed on beforehand.
    pub negotiated_channel: Option<u16>,
}

/// Somebody who may open calls.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    /// Under which key.
    pub key: KeyId,
    /// Calls the key may have open at once, if it has a limit of its own.
    pub calls_count_max: Option<u32>,
}

impl Default for Owner {
    fn default() -> Self {
        Self {
            key: KeyId::ANONYMOUS,
            calls_count_max: None,
        }
    }
}

/// Random bits of one call, from a cryptographically secure source.
#[derive(Debug, Clone, Copy)]
pub struct Randomness {
    /// Makes the call id.
    pub call: [u8; 16],
    /// Makes the ufrag differ from the session's others.
    pub ufrag: u16,
    /// Makes event ids differ from those of other sessions.
    pub events: u64,
}

/// A call that has a place.
pub struct Opened {
    /// Its name.
    pub call: CallId,
    /// The SDP answer.
    pub answer: String,
    /// For the shard that owns the place.
    pub opening: Box<Opening>,
}

/// Why a call was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The offer.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// No room.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The key has all it may have.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// Nobody answers it.
    #[error(transparent)]
    NoBackend(#[from] NoBackend),
    /// The keys.
    #[error(transparent)]
    Mint(#[from] MintError),
    /// The worker that would own the session takes no more messages for the moment.
    #[error("the worker has too much waiting")]
    Busy,
}

impl OpenError {
    /// The error as a metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Offer(OfferError::Malformed { .. }) => "malformed",
            Self::Offer(OfferError::TooLarge { .. }) => "too_large",
            Self::Offer(OfferError::NothingUsable(_)) => "nothing_usable",
            Self::Offer(OfferError::Refused(_)) => "engine_refused",
            Self::Refused(Refusal::Full) => "full",
            Self::Refused(Refusal::NoHeadroom) => "no_headroom",
            Self::Refused(Refusal::Draining) => "draining",
            Self::TooMany(TooMany::Calls(_)) => "key_calls",
            Self::TooMany(TooMany::HalfOpen(_)) => "key_half_open",
            Self::NoBackend(NoBackend::Unknown) => "unknown_model",
            Self::NoBackend(NoBackend::Down) => "backend_down",
            Self::Mint(_) => "no_minting_key",
            Self::Busy => "busy",
        }
    }

    /// Every label there is.
    pub const LABELS: [&'static str; 13] = [
        "malformed",
        "too_large",
        "nothing_usable",
        "engine_refused",
        "full",
        "no_headroom",
        "draining",
        "key_calls",
        "key_half_open",
        "unknown_model",
        "backend_down",
        "no_minting_key",
        "busy",
    ];
}

impl Calls {
    /// No calls yet.
    pub fn new(
        registrar: Registrar,
        limits: KeyLimits,
        template: Template,
        keys: Arc<KeyRing>,
        cluster: ClusterId,
    ) -> Self {
        Self {
            registrar,
            owners: Owners::new(limits),
            directory: Box::new(EchoOnly),
            template,
            keys,
            cluster,
        }
    }

    /// Calls are answered by whom this directory names, instead of the built-in echo.
    #[must_use]
    pub fn with_directory(self, directory: Box<dyn Directory>) -> Self {
        Self { directory, ..self }
    }

    /// Mints with these keys from here on.
    pub fn set_keys(&mut self, keys: Arc<KeyRing>) {
        self.keys = keys;
    }

    /// Opens a call.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; no place was taken.
    pub fn open(
        &mut self,
        now: Now,
        random: Randomness,
        request: Request<'_>,
    ) -> Result<Opened, OpenError> {
        // Refused before the offer is looked at: an overloaded process must be cheap to ask.
        self.registrar.check()?;
        let Owner {
            key,
            calls_count_max,
        } = request.owner;
        self.owners.check(key, calls_count_max)?;
        let offer = contained(|| Offer::parse(request.offer))?;
        let call = CallId::new(random.call);
        let session = self.registrar.admit(call)?;
        let opened = self.answer(now, random, request, &offer, session);
        match &opened {
            Ok(_) => self.owners.admit(session, key),
            Err(_) => drop(self.registrar.release(session)),
        }
        opened
    }

    fn answer(
        &self,
        now: Now,
        random: Randomness,
        request: Request<'_>,
        offer: &Offer,
        session: SessionRef,
    ) -> Result<Opened, OpenError> {
        let call = CallId::new(random.call);
        let id = call.to_string();
        let mut members = request.session.into_members();
        let model = members.remove("model");
        let model = model.and_then(|model| model.as_str().map(str::to_owned));
        let backend = self.directory.appoint(now.mono, model.as_deref(), &id)?;
        let minted = mint(&self.keys, self.cluster, session, now.wall, random.ufrag)?;
        let credentials = credentials(&minted);
        let (engine, answer): (Engine, String) = contained(|| {
            self.template
                .answer(now.mono, offer, &credentials, request.negotiated_channel)
        })?;
        let opening = Box::new(Opening {
            session,
            epoch: minted.epoch,
            password: minted.password,
            engine,
            backend,
            profile: Profile { id, model, members },
            event_seed: random.events,
            offered: now.mono,
        });
        Ok(Opened {
            call,
            answer,
            opening,
        })
    }

    /// Takes back the place of a call whose session never reached its shard.
    pub fn abandon(&mut self, session: SessionRef) {
        self.owners.release(session);
        self.registrar.release(session);
    }

    /// Where the session of a call lives, if `key` opened it: to others it is no call.
    pub fn session_of(&self, call: CallId, key: KeyId) -> Option<SessionRef> {
        let session = self.registrar.session_of(call)?;
        (self.owners.of(session) == Some(key)).then_some(session)
    }

    /// The client of a session has come through.
    pub fn connected(&mut self, session: SessionRef) {
        self.owners.connected(session);
    }

    /// Forgets the name of a call that its shard was told to end.
    pub fn unlist(&mut self, call: CallId) {
        self.registrar.unlist(call);
    }

    /// Frees the place of a session that has ended, and says under which key it was opened. `None`
    /// if it was free already.
    pub fn end(&mut self, session: SessionRef) -> Option<KeyId> {
        self.registrar.release(session)?;
        self.owners.release(session)
    }

    /// Whether a shard's worker has CPU time to spare for further calls.
    pub fn set_headroom(&mut self, shard: ShardIndex, has_headroom: bool) {
        self.registrar.set_headroom(shard, has_headroom);
    }

    /// Opens no further call.
    pub fn drain(&mut self) {
        self.registrar.drain();
    }

    /// The places and who has them.
    pub fn registrar(&self) -> &Registrar {
        &self.registrar
    }
}

fn credentials(minted: &Minted) -> Credentials {
    let password = std::str::from_utf8(&minted.password).expect("invariant: ice-chars are ASCII");
    Credentials {
        ufrag: minted.ufrag.as_str().to_owned(),
        password: password.to_owned(),
    }
}

/// Runs what reads a stranger's text; a panic of it is a refusal of that text.
fn contained<T>(run: impl FnOnce() -> Result<T, OfferError>) -> Result<T, OfferError> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(OfferError::Refused("it cannot be processed".to_owned())))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::backend::Backend;
    use std::time::Instant;
    use syrinx_shared::keys::MasterSecret;
    use syrinx_shared::route::{Epoch, Generation, TransceiverId, UnixMinutes};
    use syrinx_shared::wire::ufrag::decode;

    /// One audio section with Opus, as small as an offer can be.
    pub(crate) const OFFER: &str = concat!(
        "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\n",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=sendrecv\r\n",
        "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\n",
        "a=fingerprint:sha-256 ",
        "00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:",
        "10:11:12:13:14:15:16:17:18:19:1A:1B:1C:1D:1E:1F\r\n",
        "a=setup:actpass\r\na=rtcp-mux\r\na=rtpmap:111 opus/48000/2\r\n",
    );

    fn ring() -> Arc<KeyRing> {
        let epoch = Epoch::new(2).unwrap();
        Arc::new(KeyRing::single(epoch, &MasterSecret::new([7; 32])))
    }

    fn calls(keys: Arc<KeyRing>) -> Calls {
        let registrar = Registrar::new(TransceiverId(9), 1, 2, Generation(0));
        let template = Template::new(&["192.0.2.1:3478".parse().unwrap()]).unwrap();
        Calls::new(registrar, LIMITS, template, keys, ClusterId(3))
    }

    pub(crate) const LIMITS: KeyLimits = KeyLimits {
        calls_count_max: 8,
        half_open_count_max: 8,
    };

    fn now() -> Now {
        Now {
            mono: Instant::now(),
            wall: UnixMinutes(29_000_000),
        }
    }

    fn random(call: u8) -> Randomness {
        Randomness {
            call: [call; 16],
            ufrag: 0xbeef,
            events: 1,
        }
    }

    fn request(offer: &str) -> Request<'_> {
        Request {
            offer: offer.as_bytes(),
            ..Request::default()
        }
    }

    #[test]
    fn an_answer_names_the_relay_and_carries_a_ufrag_that_decodes_to_the_place() {
        let keys = ring();
        let mut calls = calls(Arc::clone(&keys));
        let now = now();
        let opened = calls.open(now, random(1), request(OFFER)).unwrap();
        assert!(
            opened.answer.contains("192.0.2.1 3478 typ host"),
            "{}",
            opened.answer
        );
        let ufrag = opened
            .answer
            .lines()
            .find_map(|l| l.strip_prefix("a=ice-ufrag:"))
            .unwrap();
        let decoded = decode(&keys, ufrag.as_bytes(), now.wall, 60).unwrap();
        assert_eq!((decoded.cluster, decoded.random), (ClusterId(3), 0xbeef));
        assert_eq!(decoded.session, opened.opening.session);
        assert_eq!(decoded.session.shard, ShardIndex(0));
        assert_eq!(
            calls.session_of(opened.call, KeyId::ANONYMOUS),
            Some(decoded.session)
        );
        assert_eq!(opened.opening.profile.id, opened.call.to_string());
        let password = std::str::from_utf8(&opened.opening.password).unwrap();
        assert!(opened.answer.contains(&format!("a=ice-pwd:{password}\r\n")));
    }

    #[test]
    fn a_restart_is_minted_for_the_same_place() {
        let keys = ring();
        let mut calls = calls(Arc::clone(&keys));
        let now = now();
        let opened = calls.open(now, random(1), request(OFFER)).unwrap();
        let session = opened.opening.session;
        let client = Offer::parse(OFFER.as_bytes()).unwrap().client_credentials();
        let restart = calls.restart(now, 0xcafe, session, client).unwrap();
        let decoded = decode(&keys, restart.ours.ufrag.as_bytes(), now.wall, 60).unwrap();
        assert_eq!((decoded.session, decoded.random), (session, 0xcafe));
        assert_ne!(restart.ours.password.as_bytes(), opened.opening.password);
        assert!(!opened.answer.contains(&restart.ours.ufrag));
    }

    #[test]
    fn a_refused_offer_takes_no_place() {
        let mut calls = calls(ring());
        for _ in 0..3 {
            let refused = calls
                .open(now(), random(1), request("not an offer"))
                .err()
                .unwrap();
            assert_eq!(refused.label(), "malformed");
        }
        assert_eq!(calls.registrar().session_count(), 0);
    }

    #[test]
    fn a_call_that_nobody_answers_takes_no_place() {
        struct Nobody;
        impl Directory for Nobody {
            fn appoint(
                &self,
                _: Instant,
                model: Option<&str>,
                call: &str,
            ) -> Result<Box<dyn Backend>, NoBackend> {
                assert_eq!(model, Some("gpt-realtime"));
                assert!(call.starts_with("rtc_"), "{call}");
                Err(NoBackend::Down)
            }
        }
        let mut calls = calls(ring()).with_directory(Box::new(Nobody));
        let session = SessionConfig::of_model("gpt-realtime").unwrap();
        let request = Request {
            session,
            ..request(OFFER)
        };
        let refused = calls.open(now(), random(1), request).err().unwrap();
        assert_eq!(refused, OpenError::NoBackend(NoBackend::Down));
        assert_eq!(calls.registrar().session_count(), 0);
    }

    #[test]
    fn a_ring_that_only_verifies_opens_nothing_and_takes_no_place() {
        let text =
            syrinx_shared::keys::edge_key_file(Epoch::new(2).unwrap(), &MasterSecret::new([7; 32]));
        let mut calls = calls(Arc::new(KeyRing::parse(&text).unwrap()));
        let refused = calls.open(now(), random(1), request(OFFER)).err().unwrap();
        assert_eq!(refused, OpenError::Mint(MintError::NoMintingEpoch));
        assert_eq!(calls.registrar().session_count(), 0);
    }

    #[test]
    fn a_full_or_draining_process_refuses_before_it_reads_the_offer() {
        let mut calls = calls(ring());
        let first = calls.open(now(), random(1), request(OFFER)).unwrap();
        calls.open(now(), random(2), request(OFFER)).unwrap();
        let refused = calls
            .open(now(), random(3), request("not an offer"))
            .err()
            .unwrap();
        assert_eq!(refused, OpenError::Refused(Refusal::Full));
        calls.abandon(first.opening.session);
        calls.open(now(), random(4), request(OFFER)).unwrap();
        calls.drain();
        let refused = calls
            .open(now(), random(5), request("not an offer"))
            .err()
            .unwrap();
        assert_eq!(refused, OpenError::Refused(Refusal::Draining));
    }

    #[test]
    fn a_key_has_its_limit_finds_only_its_own_calls_and_is_told_whose_call_has_ended() {
        let mut calls = calls(ring());
        let key = KeyId::from_bytes([1; 8]);
        let owner = Owner {
            key,
            calls_count_max: Some(1),
        };
        let asked = |offer| Request {
            owner,
            ..request(offer)
        };
        let first = calls.open(now(), random(1), asked(OFFER)).unwrap();
        let refused = calls.open(now(), random(2), asked("not an offer"));
        let expected = OpenError::TooMany(TooMany::Calls(1));
        assert_eq!(refused.err().unwrap(), expected);
        let session = first.opening.session;
        assert_eq!(calls.session_of(first.call, key), Some(session));
        assert_eq!(calls.session_of(first.call, KeyId::ANONYMOUS), None);
        assert_eq!(calls.end(session), Some(key));
        assert_eq!(calls.end(session), None);
        let again = calls.open(now(), random(3), asked(OFFER)).unwrap();
        calls.abandon(again.opening.session);
        calls.open(now(), random(4), asked(OFFER)).unwrap();
    }

    #[test]
    fn what_is_asked_of_the_session_is_what_it_starts_with() {
        let mut calls = calls(ring());
        let json = br#"{"model":"m","instructions":"Be brief."}"#;
        let asked = Request {
            session: SessionConfig::parse(json).unwrap(),
            ..request(OFFER)
        };
        let profile = calls.open(now(), random(1), asked).unwrap().opening.profile;
        assert_eq!(profile.model.as_deref(), Some("m"));
        assert_eq!(profile.members["instructions"], "Be brief.");
        assert_eq!(profile.members.len(), 1);
    }

    #[test]
    fn every_label_is_listed() {
        let errors = [
            OpenError::Offer(OfferError::Malformed { line: 1, what: "" }),
            OpenError::Offer(OfferError::TooLarge {
                limit: 1,
                unit: "bytes",
            }),
            OpenError::Offer(OfferError::NothingUsable("")),
            OpenError::Offer(OfferError::Refused(String::new())),
            OpenError::Refused(Refusal::Full),
            OpenError::Refused(Refusal::NoHeadroom),
            OpenError::Refused(Refusal::Draining),
            OpenError::TooMany(TooMany::Calls(1)),
            OpenError::TooMany(TooMany::HalfOpen(1)),
            OpenError::NoBackend(NoBackend::Unknown),
            OpenError::NoBackend(NoBackend::Down),
            OpenError::Mint(MintError::NoMintingEpoch),
            OpenError::Busy,
        ];
        assert_eq!(errors.map(|error| error.label()), OpenError::LABELS);
    }

    #[test]
    fn a_panic_over_an_offer_is_a_refusal_of_it() {
        let refused = contained::<()>(|| panic!("over an offer")).unwrap_err();
        assert_eq!(OpenError::Offer(refused).label(), "engine_refused");
    }
}
