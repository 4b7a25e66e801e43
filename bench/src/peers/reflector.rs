//! The least a server can do, as a peer: this program's own reflector in a process of its own, so
//! that what it costs is not the generator's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use super::{Peer, PeerError};
use crate::process::free_port;

/// A request that is no offer is refused with this: the reflector is there.
const NO_OFFER: u16 = 400;

/// Starts it on `core`, its log in `folder`.
///
/// # Errors
/// When it does not come up.
pub fn start(core: usize, folder: &Path) -> Result<Peer, PeerError> {
    let own = std::env::current_exe()?;
    let listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free_port());
    let arguments = ["reflect", "--listen", &listen.to_string()].map(str::to_owned);
    let ready = (listen, "/", NO_OFFER);
    let process = super::start("reflector", &own, &arguments, core, folder, ready)?;
    Ok(Peer {
        process,
        url: format!("http://{listen}/calls"),
        sources: None,
    })
}
