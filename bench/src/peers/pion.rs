//! The echo on Pion: `bench/peers/pion-echo`, which takes an offer by POST and gives the answer
//! with 201 and a Location, as the Realtime API does.

use std::net::SocketAddr;
use std::path::Path;

use super::{Peer, PeerError};
use crate::calls::failure::Failure;
use crate::calls::signalling::{Expected, Opened, Realtime, RealtimeOptions, Signalling};
use crate::calls::stand::Need;
use crate::process::free_port;

/// Starts `program` on `core`, its files in `folder`. It takes calls at [`Peer::url`].
///
/// # Errors
/// It is not built, or ends by itself.
pub fn start(program: &Path, core: usize, folder: &Path) -> Result<Peer, PeerError> {
    let [media, http] = [free_port(), free_port()].map(|port| {
        // A port for UDP and one for TCP, both known to be free.
        SocketAddr::from(([127, 0, 0, 1], port))
    });
    let arguments = [
        "-media".to_owned(),
        media.to_string(),
        "-http".to_owned(),
        http.to_string(),
    ];
    // It takes nothing but POST there, and so is ready once it says that.
    let ready = (http, "/calls", 405);
    let process = super::start("pion", program, &arguments, core, folder, ready)?;
    Ok(Peer {
        process,
        url: format!("http://{http}/calls"),
        sources: None,
    })
}

/// Versions of Pion and Go.
///
/// # Errors
/// It is not built.
pub fn version(program: &Path) -> Result<String, PeerError> {
    super::version(program, "-version")
}

/// How calls to it are opened: by the Realtime API's exchange, without `session.created`. It is
/// told of each call's end, since a peer that waits for its own timers would be charged for calls
/// that are over.
pub struct Signals(Realtime);

impl Signals {
    /// For the peer at `url`.
    ///
    /// # Errors
    /// When HTTP cannot be set up.
    pub fn new(url: &str, need: &Need) -> anyhow::Result<Self> {
        Ok(Self(Realtime::new(&RealtimeOptions {
            url,
            key: None,
            expected: Expected {
                session: false,
                ..need.expected
            },
            trusted: None,
            timeout: need.http_timeout,
            diallers: need.diallers,
        })?))
    }
}

impl Signalling for Signals {
    fn open(&self, offer: &str) -> Result<Opened, Failure> {
        self.0.open(offer)
    }

    fn hang_up(&self, call: &str) {
        self.0.hang_up(call);
    }

    fn needs_hang_up(&self) -> bool {
        true
    }

    fn expected(&self) -> Expected {
        self.0.expected()
    }
}
