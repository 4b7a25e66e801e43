//! How each target is started and spoken to.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::clients::{Clients, Framing, Invitation};
use super::port::Port;
use super::rig::Rig;
use super::sink::{Encapsulation, Sink};
use super::target::{Kind, Recipe, Target, TargetError, free_addr};

/// What does not differ between targets.
#[derive(Clone, Debug)]
pub struct Ground {
    /// How many clients.
    pub client_count: u32,
    /// The core of the process under test.
    pub relay_core: usize,
    /// The Go relay's program.
    pub go_relay: PathBuf,
    /// coturn's program.
    pub coturn: PathBuf,
}

/// A target with the clients and the sink that speak its language.
#[derive(Debug)]
pub struct Stand {
    /// The process, or nothing.
    pub target: Target,
    /// Both its faces.
    pub rig: Rig,
}

/// Starts a target of `kind`, with files of its own in `folder`.
///
/// # Errors
/// When the program is missing or a socket cannot be opened.
pub fn set_up(kind: Kind, ground: &Ground, folder: &Path) -> Result<Stand, TargetError> {
    let port = Port::bind(([127, 0, 0, 1], 0).into())?;
    let sink_addr = port.local_addr()?;
    let addr = if kind == Kind::Direct {
        sink_addr
    } else {
        free_addr()?
    };
    let command = match kind {
        Kind::Direct => None,
        Kind::Go => Some(go_command(ground, addr, sink_addr)),
        Kind::Coturn => Some(coturn_command(ground, addr, folder)),
    };
    let recipe = Recipe {
        kind,
        command,
        addr,
        core: ground.relay_core,
    };
    let target = Target::start(&recipe, folder)?;
    let framing = match kind {
        Kind::Coturn => Framing::Channel { peer: sink_addr },
        _ => Framing::Bare,
    };
    let encapsulation = match kind {
        Kind::Go => Encapsulation::Header,
        Kind::Direct | Kind::Coturn => Encapsulation::Bare,
    };
    let invitations = (0..ground.client_count).map(routed_by_number).collect();
    let clients = Clients::open(addr, framing, invitations)?;
    let sink = Sink::new(port, encapsulation, ground.client_count);
    Ok(Stand {
        target,
        rig: Rig::new(clients, sink),
    })
}

/// An invitation whose ufrag names the first transceiver, as the Go relay reads it.
fn routed_by_number(client: u32) -> Invitation {
    Invitation {
        server_ufrag: format!("go0000{client:08x}").into_bytes(),
        password: b"no relay but ours looks at this".to_vec(),
        session: None,
    }
}

fn go_command(ground: &Ground, addr: SocketAddr, sink: SocketAddr) -> (PathBuf, Vec<String>) {
    let arguments = [
        "-listen".to_owned(),
        addr.to_string(),
        "-transceivers".to_owned(),
        sink.to_string(),
        "-flows".to_owned(),
        (ground.client_count * 2).to_string(),
    ];
    (ground.go_relay.clone(), arguments.into())
}

/// One relay thread, no credentials, no other listeners, nothing written but the log.
fn coturn_command(ground: &Ground, addr: SocketAddr, folder: &Path) -> (PathBuf, Vec<String>) {
    let (ip, port) = (addr.ip(), addr.port());
    let at = |name: &str| folder.join(name).display().to_string();
    let arguments = [
        "-n".to_owned(),
        format!("--listening-ip={ip}"),
        format!("--relay-ip={ip}"),
        format!("--listening-port={port}"),
        "--relay-threads=1".to_owned(),
        "--no-auth".to_owned(),
        "--no-tcp".to_owned(),
        "--no-tls".to_owned(),
        "--no-dtls".to_owned(),
        "--no-cli".to_owned(),
        "--allow-loopback-peers".to_owned(),
        "--no-stdout-log".to_owned(),
        "--simple-log".to_owned(),
        format!("--log-file={}", at("coturn.txt")),
        format!("--pidfile={}", at("coturn.pid")),
        format!("--db={}", at("coturn.db")),
    ];
    (ground.coturn.clone(), arguments.into())
}

/// The version that a target's program states, for the result file.
///
/// # Errors
/// When the program cannot be run.
pub fn version(kind: Kind, ground: &Ground) -> io::Result<String> {
    let (program, argument) = match kind {
        Kind::Direct => return Ok("no relay".to_owned()),
        Kind::Go => (&ground.go_relay, "-version"),
        Kind::Coturn => (&ground.coturn, "--version"),
    };
    let output = std::process::Command::new(program).arg(argument).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().last().unwrap_or_default().trim().to_owned())
}
