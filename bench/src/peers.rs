//! What a user might run instead of the transceiver, started by the bench for one measurement: a
//! lean echo on Pion (`bench/peers/pion-echo`) and Janus' EchoTest.
//!
//! Each has a core to itself with all its threads, a folder for its files, and is gone when it is
//! dropped. Their signalling differs, so each brings its own.

pub mod backend;
pub mod janus;
pub mod pion;
pub mod reflector;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use thiserror::Error;

use crate::calls::sources::Sources;
use crate::process::http_get;
use crate::process::pinned::Pinned;

/// How long a peer may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// A running peer.
#[derive(Debug)]
pub struct Peer {
    /// The process that is charged.
    pub process: Pinned,
    /// Where it takes calls.
    pub url: String,
    /// Where its callers must send from, if not from wherever they like.
    pub sources: Option<Sources>,
}

/// Why a peer does not run.
#[derive(Debug, Error)]
pub enum PeerError {
    /// Its program could not be started.
    #[error("cannot start {program}: {source} (`make bench-peers` builds and installs it)")]
    Start {
        /// The program.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It ended by itself.
    #[error("{name} ended by itself ({status}); its last words:\n{log}")]
    Ended {
        /// The peer.
        name: &'static str,
        /// How it ended.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// It never answered.
    #[error("{name} did not answer within {READY_WITHIN:?}; its last words:\n{log}")]
    Late {
        /// The peer.
        name: &'static str,
        /// The end of its log.
        log: String,
    },
    /// Janus takes no calls on loopback, and there is nothing else.
    #[error(
        "Janus offers no loopback address to its callers, and this machine has no other IPv4 \
         address: give an interface one (ip address add 198.51.100.1/32 dev NAME)"
    )]
    NoAddress,
    /// Something around it failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Starts a peer and waits until `ready` of its HTTP address answers with `status`.
fn start(
    name: &'static str,
    program: &Path,
    arguments: &[String],
    core: usize,
    folder: &Path,
    (http, ready, status): (SocketAddr, &str, u16),
) -> Result<Pinned, PeerError> {
    let is_ready = || http_get(http, ready).is_ok_and(|(answered, _)| answered == status);
    start_until(name, program, arguments, core, folder, is_ready)
}

/// The same until `is_ready`.
fn start_until(
    name: &'static str,
    program: &Path,
    arguments: &[String],
    core: usize,
    folder: &Path,
    is_ready: impl Fn() -> bool,
) -> Result<Pinned, PeerError> {
    let log = folder.join(format!("{name}.log"));
    let process = Pinned::start(program, arguments, core, log);
    let mut process = process.map_err(|source| PeerError::Start {
        program: program.display().to_string(),
        source,
    })?;
    let begun = Instant::now();
    while !is_ready() {
        if let Some(status) = process.ended()? {
            let (status, log) = (status.to_string(), process.log_tail());
            return Err(PeerError::Ended { name, status, log });
        }
        if begun.elapsed() > READY_WITHIN {
            let log = process.log_tail();
            return Err(PeerError::Late { name, log });
        }
        std::thread::sleep(LOOK);
    }
    Ok(process)
}

/// The first line that `program` says about its version.
fn version(program: &Path, argument: &str) -> Result<String, PeerError> {
    let output = Command::new(program).arg(argument).output();
    let output = output.map_err(|source| PeerError::Start {
        program: program.display().to_string(),
        source,
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// An IPv4 address of this machine that is not loopback. Packets to it from clients on loopback
/// addresses never leave the machine.
fn own_address() -> Result<IpAddr, PeerError> {
    let interfaces = getifaddrs().map_err(io::Error::from)?;
    let up = interfaces.filter(|interface| {
        interface.flags.contains(InterfaceFlags::IFF_UP)
            && !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    });
    let mut addresses = up.filter_map(|interface| {
        let address = interface.address?;
        Some(address.as_sockaddr_in()?.ip())
    });
    addresses.next().map(IpAddr::V4).ok_or(PeerError::NoAddress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::free_port;

    #[test]
    fn a_program_that_is_not_there_is_named_with_the_remedy() {
        let folder = tempfile::tempdir().expect("folder");
        let missing = Path::new("/nonexistent/pion-echo");
        let error = pion::start(missing, 0, folder.path()).expect_err("no such program");
        let text = error.to_string();
        assert!(text.contains("/nonexistent/pion-echo"), "{text}");
        assert!(text.contains("make bench-peers"), "{text}");
    }

    #[test]
    fn a_peer_that_ends_is_told_from_one_that_is_slow() {
        let folder = tempfile::tempdir().expect("folder");
        let arguments = ["-c", "echo no such option; exit 3"].map(str::to_owned);
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let ready = (http, "/", 200);
        let error = start("sh", Path::new("sh"), &arguments, 0, folder.path(), ready);
        let text = error.expect_err("it ends").to_string();
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.contains("no such option"), "{text}");
    }
}
