//! Which ICE credentials a session answers to, over restarts.
//!
//! After a restart the checks of two generations verify: a client keeps its old pairs alive until
//! one of the new ones is nominated, and media flows meanwhile. The first nomination in the new
//! credentials retires the old ones. Slot, shard and generation of the session stay, so both ufrags
//! lead relays to the same place.

use syrinx_shared::keys::PASSWORD_CHARS;
use syrinx_shared::route::Epoch;
use syrinx_shared::wire::stun::BindingRequest;

use crate::engine::{ClientCredentials, Credentials, Engine};

/// What a restart brings: made by the control thread, sent to the worker.
pub struct IceRestart {
    /// Whose keys the new ufrag was minted with.
    pub epoch: Epoch,
    /// Our new credentials.
    pub ours: Credentials,
    /// The client's.
    pub client: ClientCredentials,
}

/// The credentials of a session.
pub(super) struct Ice {
    epoch: Epoch,
    password: [u8; PASSWORD_CHARS],
    restart: Option<Box<Restart>>,
}

struct Restart {
    former: IceRestart,
    latest: IceRestart,
    /// Whether a check in the latest credentials has come.
    is_used: bool,
}

impl Ice {
    pub(super) fn new(epoch: Epoch, password: [u8; PASSWORD_CHARS]) -> Self {
        Self {
            epoch,
            password,
            restart: None,
        }
    }

    /// Takes further credentials. Those that were in use stay good until these are nominated.
    pub(super) fn restart(&mut self, latest: IceRestart, engine: &mut Engine) {
        let former = match self.restart.take() {
            Some(restart) if restart.is_used => restart.latest,
            Some(restart) => restart.former,
            None => {
                let (ours, client) = engine.ice();
                IceRestart {
                    epoch: self.epoch,
                    ours,
                    client,
                }
            }
        };
        self.restart = Some(Box::new(Restart {
            former,
            latest,
            is_used: false,
        }));
    }

    /// Whether a check was made with credentials that are good, which `engine` then answers in.
    pub(super) fn verify(&mut self, request: &BindingRequest<'_>, engine: &mut Engine) -> bool {
        let Some(restart) = &mut self.restart else {
            return request.verify(&self.password);
        };
        let of = |ice: &IceRestart| request.verify(ice.ours.password.as_bytes());
        if of(&restart.latest) {
            restart.is_used = true;
            engine.use_ice(&restart.latest.ours, &restart.latest.client);
            if request.nominates() {
                self.settle();
            }
            return true;
        }
        let is_former = of(&restart.former);
        if is_former {
            engine.use_ice(&restart.former.ours, &restart.former.client);
        }
        is_former
    }

    /// The epochs whose keys cookies of this session can have been made with.
    pub(super) fn epochs(&self) -> impl Iterator<Item = Epoch> {
        let restart = self.restart.as_deref();
        let both = restart.map(|restart| [restart.former.epoch, restart.latest.epoch]);
        std::iter::once(self.epoch).chain(both.into_iter().flatten())
    }

    fn settle(&mut self) {
        let Some(restart) = self.restart.take() else {
            return;
        };
        self.epoch = restart.latest.epoch;
        let password = restart.latest.ours.password.as_bytes();
        self.password = password
            .try_into()
            .expect("invariant: minted passwords have one length");
    }
}
