//! A backend that echoes, for an edge that is measured with a link: this program in a process of
//! its own, so that what it costs is neither the generator's nor the edge's.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use super::PeerError;
use crate::process::edge::{BackendAt, Dialect};
use crate::process::free_port;
use crate::process::pinned::Pinned;

/// Starts it on `core`, its log in `folder`.
///
/// # Errors
/// When it does not come up.
pub fn start(
    dialect: Dialect,
    core: usize,
    folder: &Path,
) -> Result<(Pinned, BackendAt), PeerError> {
    let own = std::env::current_exe()?;
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let arguments = [
        "echo-backend",
        "--listen",
        &listen.to_string(),
        "--dialect",
        dialect.name(),
    ]
    .map(str::to_owned);
    // A link that ends before its handshake is nothing to the backend.
    let is_ready = || TcpStream::connect(listen).is_ok();
    let process = super::start_until("backend", &own, &arguments, core, folder, is_ready)?;
    let url = format!("ws://{listen}/");
    Ok((process, BackendAt { url, dialect }))
}
