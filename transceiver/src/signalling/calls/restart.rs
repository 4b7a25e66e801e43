//! Restarting the ICE of a call: new credentials for the session, which stays where it is.

use syrinx_shared::route::{Now, SessionRef};
use syrinx_shared::wire::ufrag::{MintError, mint};

use super::{Calls, credentials};
use crate::engine::{ClientCredentials, Credentials, Fragment};
use crate::session::IceRestart;

impl Calls {
    /// How often the ICE of a session was restarted.
    pub fn restarts(&self, session: SessionRef) -> Option<u16> {
        self.owners.ice_restarts(session)
    }

    /// The session has been told to restart: how often that was by now.
    pub fn count_restart(&mut self, session: SessionRef) -> Option<u16> {
        self.owners.count_restart(session)
    }

    /// Mints new credentials for `session`, whose client goes on with `client`. The ufrag names the
    /// same place; `random` makes it differ from the former.
    ///
    /// # Errors
    ///
    /// [`MintError`]; the session has not been told anything.
    pub fn restart(
        &self,
        now: Now,
        random: u16,
        session: SessionRef,
        client: ClientCredentials,
    ) -> Result<IceRestart, MintError> {
        let minted = mint(&self.keys, self.cluster, session, now.wall, random)?;
        Ok(IceRestart {
            epoch: minted.epoch,
            ours: credentials(&minted),
            client,
        })
    }

    /// The answer to the fragment that asked for a restart.
    pub fn answer_fragment(&self, fragment: &Fragment, ours: &Credentials) -> String {
        self.template.answer_fragment(fragment, ours)
    }
}
