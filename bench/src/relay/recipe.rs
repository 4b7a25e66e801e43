//! How each target is started and spoken to.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use syrinx_shared::keys::{KeyRing, MasterSecret, cluster_key_file};
use syrinx_shared::route::{
    ClusterId, Epoch, Generation, SessionRef, ShardIndex, Slot, TransceiverId, UnixMinutes,
};
use syrinx_shared::wire::ufrag;

use super::clients::{Clients, Framing, Invitation};
use super::passage::{self, Passage};
use super::port::Port;
use super::rig::Rig;
use super::sink::{Encapsulation, InnerLeg, Sink};
use super::target::{Kind, Recipe, Target, free_addr};
use crate::process::free_port;
use crate::process::settings;

/// The number of the project's cluster, relay and transceiver in a run.
const OWN_NUMBER: u16 = 1;
/// Bundles of the sink: Ethernet's MTU less IPv4 and UDP headers, as the relay's default.
const BUNDLE_BYTES: usize = 1_500 - 28;

/// What does not differ between targets.
#[derive(Clone, Debug)]
pub struct Ground {
    /// How many clients.
    pub client_count: u32,
    /// How many flows the relay's table is made for.
    pub flow_count: u32,
    /// The core of the process under test.
    pub relay_core: usize,
    /// The project's relay.
    pub syrinx_relay: PathBuf,
    /// Another build of it.
    pub baseline: PathBuf,
    /// Keys of the project's relay, `section.key=value`, for all its builds.
    pub relay_settings: Vec<(String, String)>,
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
pub fn set_up(kind: Kind, ground: &Ground, folder: &Path) -> anyhow::Result<Stand> {
    if kind == Kind::Dnat {
        return set_up_dnat(ground, folder).context("dnat");
    }
    let port = Port::bind(([127, 0, 0, 1], 0).into())?;
    let sink_addr = port.local_addr()?;
    let addr = if kind == Kind::Direct {
        sink_addr
    } else {
        free_addr()?
    };
    let count = ground.client_count;
    let mut invitations: Vec<Invitation> = (0..count).map(routed_by_number).collect();
    let mut framing = Framing::Bare;
    let mut encapsulation = Encapsulation::Bare;
    let command = match kind {
        Kind::Direct | Kind::Dnat => None,
        Kind::Go | Kind::GoRaw => {
            encapsulation = Encapsulation::Header;
            Some(go_command(kind, ground, addr, sink_addr))
        }
        Kind::Coturn => {
            framing = Framing::Channel { peer: sink_addr };
            Some(coturn_command(ground, addr, folder))
        }
        Kind::Syrinx | Kind::SyrinxMmsg | Kind::Baseline => {
            let master = MasterSecret::new(std::array::from_fn(|_| fastrand::u8(..)));
            let keys = KeyRing::single(own_epoch(), &master);
            invitations = (0..count)
                .map(|n| minted(&keys, n))
                .collect::<Result<_, _>>()?;
            let leg = InnerLeg::new(keys, OWN_NUMBER, BUNDLE_BYTES);
            encapsulation = Encapsulation::Bundles(Box::new(leg));
            Some(own_command(kind, ground, addr, sink_addr, &master, folder)?)
        }
    };
    let recipe = Recipe {
        kind,
        command,
        core: ground.relay_core,
    };
    let target = Target::start(&recipe, folder)?;
    let clients = Clients::open(addr, framing, invitations)?;
    let sink = Sink::new(port, encapsulation, count);
    Ok(Stand {
        target,
        rig: Rig::new(clients, sink),
    })
}

/// Clients and sink in namespaces of their own, with the kernel in between.
fn set_up_dnat(ground: &Ground, folder: &Path) -> anyhow::Result<Stand> {
    let passage = Passage::open(ground.relay_core)?;
    let port = passage.bind_sink()?;
    passage.lead_to(port.local_addr()?.port())?;
    let invitations = (0..ground.client_count).map(routed_by_number).collect();
    let clients = Clients::new(
        passage.bind_clients()?,
        passage::FIRST_CLIENT,
        passage::ENTRY,
        Framing::Bare,
        invitations,
    );
    let target = Target::kernel(passage, ground.relay_core, folder)?;
    let sink = Sink::new(port, Encapsulation::Bare, ground.client_count);
    Ok(Stand {
        target,
        rig: Rig::new(clients, sink),
    })
}

fn own_epoch() -> Epoch {
    Epoch::new(0).expect("invariant: zero is an epoch")
}

/// An invitation as the project's transceiver makes it: client *n* has slot *n* of shard 0.
fn minted(keys: &KeyRing, client: u32) -> anyhow::Result<Invitation> {
    let session = SessionRef {
        transceiver: TransceiverId(OWN_NUMBER),
        shard: ShardIndex(0),
        slot: Slot::new(client).context("more clients than slots")?,
        generation: Generation(1),
    };
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let issued = UnixMinutes(u32::try_from(since_epoch.as_secs() / 60)?);
    let minted = ufrag::mint(
        keys,
        ClusterId(OWN_NUMBER),
        session,
        issued,
        fastrand::u16(..),
    )?;
    Ok(Invitation {
        server_ufrag: minted.ufrag.as_bytes().to_vec(),
        password: minted.password.to_vec(),
        session: Some(session),
    })
}

/// One worker on the core under test. Admission is opened wide: a run makes all its flows at once,
/// which the defaults take for a storm.
fn own_command(
    kind: Kind,
    ground: &Ground,
    addr: SocketAddr,
    sink: SocketAddr,
    master: &MasterSecret,
    folder: &Path,
) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let at = |name: &str| folder.join(format!("{}.{name}", kind.name()));
    std::fs::write(at("keys"), cluster_key_file(own_epoch(), master))?;
    let text = format!(
        r#"
[public]
listen = ["{addr}"]
[inner]
listen = "{inner}"
relay = {OWN_NUMBER}
cluster = {OWN_NUMBER}
[workers]
count = 1
cores = [{core}]
io_model = "{io_model}"
[flows]
count_max_per_worker = {flow_count}
idle_timeout_ms = 600_000
new_total_per_second = 1_000_000
new_total_burst = 1_000_000
new_per_prefix_per_second = 1_000_000
new_per_prefix_burst = 1_000_000
[keys]
file = "{keys}"
[[routes]]
transceiver = {OWN_NUMBER}
address = "{sink}"
[admin]
listen = "127.0.0.1:{admin}"
"#,
        inner = free_addr()?,
        flow_count = ground.flow_count,
        core = ground.relay_core,
        io_model = if kind == Kind::SyrinxMmsg {
            "mmsg"
        } else {
            "auto"
        },
        keys = at("keys").display(),
        admin = free_port(),
    );
    let text = settings::apply(&text, &ground.relay_settings).context("--relay-set")?;
    std::fs::write(at("toml"), text)?;
    let program = if kind == Kind::Baseline {
        &ground.baseline
    } else {
        &ground.syrinx_relay
    };
    let arguments = vec!["--config".to_owned(), at("toml").display().to_string()];
    Ok((program.clone(), arguments))
}

/// An invitation whose ufrag names the first transceiver, as the Go relay reads it.
fn routed_by_number(client: u32) -> Invitation {
    Invitation {
        server_ufrag: format!("go0000{client:08x}").into_bytes(),
        password: b"no relay but ours looks at this".to_vec(),
        session: None,
    }
}

fn go_command(
    kind: Kind,
    ground: &Ground,
    addr: SocketAddr,
    sink: SocketAddr,
) -> (PathBuf, Vec<String>) {
    let arguments = [
        "-io".to_owned(),
        if kind == Kind::GoRaw { "raw" } else { "net" }.to_owned(),
        "-listen".to_owned(),
        addr.to_string(),
        "-transceivers".to_owned(),
        sink.to_string(),
        "-flows".to_owned(),
        ground.flow_count.to_string(),
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
        Kind::Dnat => return Ok("the kernel".to_owned()),
        Kind::Syrinx | Kind::SyrinxMmsg => (&ground.syrinx_relay, "--version"),
        Kind::Baseline => (&ground.baseline, "--version"),
        Kind::Go | Kind::GoRaw => (&ground.go_relay, "-version"),
        Kind::Coturn => (&ground.coturn, "--version"),
    };
    let output = std::process::Command::new(program).arg(argument).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().last().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_is_invited_to_a_session_of_its_own() {
        let keys = KeyRing::single(own_epoch(), &MasterSecret::new([7; 32]));
        let (one, two) = (
            minted(&keys, 1).expect("one"),
            minted(&keys, 2).expect("two"),
        );
        assert_ne!(one.session, two.session);
        assert_ne!(one.server_ufrag, two.server_ufrag);
        let decoded = ufrag::decode_undated(&keys, &one.server_ufrag).expect("our own");
        assert_eq!(Some(decoded.session), one.session);
    }
}
