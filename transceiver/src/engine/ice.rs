//! ICE credentials, and how they change in a restart (RFC 8445, 9; RFC 8839, 4.4.3.1.1).
//!
//! str0m's own restart draws random credentials and forgets its candidate pairs, so media to the
//! client would stop until a new nomination. Here only the credentials change: pairs stay, and
//! which of two generations a check is answered in is the session's choice, check by check.

use str0m::IceCreds;
use syrinx_shared::wire::stun::{BindingRequest, Integrity, RequestWriter, seal_sha256};

use super::Engine;
use super::offer::{OfferError, ice_password, ice_ufrag};

/// ICE credentials of our side: the ufrag that routes to the session, and its derived password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// 32 ice-chars, minted for the session.
    pub ufrag: String,
    /// 32 ice-chars, derived from the ufrag.
    pub password: String,
}

/// ICE credentials of the client's side.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCredentials {
    ufrag: String,
    password: String,
}

impl ClientCredentials {
    /// Takes what a client says in line `line` of its text.
    ///
    /// # Errors
    /// [`OfferError::Malformed`] when they are not what ICE allows.
    pub fn parse(line: usize, ufrag: &str, password: &str) -> Result<Self, OfferError> {
        Ok(Self {
            ufrag: ice_ufrag(line, ufrag)?,
            password: ice_password(line, password)?,
        })
    }
}

impl Credentials {
    pub(super) fn to_str0m(&self) -> IceCreds {
        IceCreds {
            ufrag: self.ufrag.clone(),
            pass: self.password.clone(),
        }
    }
}

impl Engine {
    /// Both sides' credentials in which checks are answered.
    pub fn ice(&mut self) -> (Credentials, ClientCredentials) {
        let IceCreds { ufrag, pass } = self.rtc.direct_api().local_ice_credentials();
        let ours = Credentials {
            ufrag,
            password: pass,
        };
        (ours, self.client.clone())
    }

    /// Answers the checks that follow in these credentials. Pairs and nominations stay.
    pub fn use_ice(&mut self, ours: &Credentials, client: &ClientCredentials) {
        self.client = client.clone();
        let theirs = IceCreds {
            ufrag: client.ufrag.clone(),
            pass: client.password.clone(),
        };
        let mut api = self.rtc.direct_api();
        api.set_local_ice_credentials(ours.to_str0m());
        api.set_remote_ice_credentials(theirs);
    }

    /// `request`, an authenticated check, as the engine reads it: with the same answer to it. str0m
    /// reads nothing that is closed by MESSAGE-INTEGRITY-SHA256 alone (RFC 8489, 14.6), for which
    /// [`Engine::seal`] makes up in the answer, or that lacks PRIORITY; and it would change roles
    /// with a client that claims to be controlled.
    ///
    /// The first check of a session is made to nominate, whatever it says. str0m sends nothing but
    /// answers to checks before a path is nominated, so a handshake that the client has begun would
    /// wait for its nomination: Chromium sends its ClientHello 1 ms after the first answer, and
    /// nominates 50 ms later. A path that has carried an authenticated check may carry data
    /// (RFC 8445, 12.1), and which one does is the session's choice in any case.
    pub fn rewrite(&mut self, request: &BindingRequest<'_>, nominate: bool) -> Vec<u8> {
        let (ours, client) = self.ice();
        let id = request.transaction_id().try_into();
        RequestWriter {
            server_ufrag: ours.ufrag.as_bytes(),
            client_ufrag: client.ufrag.as_bytes(),
            password: ours.password.as_bytes(),
            transaction_id: id.expect("invariant: 96 bits, by STUN's header"),
            nominate,
            integrity: Integrity::Sha1,
        }
        .to_bytes()
    }

    /// The engine's `answer` to a check that was closed by MESSAGE-INTEGRITY-SHA256, closed in the
    /// same way.
    pub fn seal(&mut self, answer: &[u8]) -> Vec<u8> {
        let (ours, _) = self.ice();
        let sealed = seal_sha256(answer, ours.password.as_bytes());
        sealed.expect("invariant: the engine writes well-formed STUN")
    }
}
