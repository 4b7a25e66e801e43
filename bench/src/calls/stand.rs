//! What the calls go to: a server with its signalling and the processes that are charged for it.
//!
//! Each round of each target gets a fresh one, so that memory is counted from a known start.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::process::Process;
use super::signalling::{Expected, Realtime, RealtimeOptions, Signalling};
use super::sources::Sources;
use crate::impair::conditions::Conditions;
use crate::impair::shim::{PATHS_MAX, Shim, ShimOptions};
use crate::peers::{self, Peer};
use crate::process::edge::{BackendAt, Dialect, Edge, EdgeOptions, Tuning};
use crate::process::pinned::Pinned;
use crate::process::settings::{self, Setting};
use crate::process::{binary, free_port};

/// Where clients are told to send.
const ADVERTISE_SETTING: &str = "media.advertise";
/// Sessions that the edge started here takes, unless it is told otherwise: the calls, however many,
/// and those of the storm that come before the old ones are gone.
const SESSIONS_SETTING: &str = "media.sessions_per_worker_count_max";
/// CPU time above which the edge takes no further calls: none here, because where it ends is what
/// is measured, and a refusal would hide it.
const BUSY_SETTING: &str = "media.busy_percent_max";

/// Which kind of server the calls go to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The project's relay and transceiver: a pair started for this, or the one at `--url`.
    Syrinx,
    /// The same pair with an echoing backend of this program behind a `media.v1` link: Opus passes
    /// through.
    MediaV1,
    /// The same with a backend of the Realtime protocol: the transceiver decodes and encodes. For
    /// `calls` and `setup`.
    Realtime,
    /// An echo server on Pion.
    Pion,
    /// Janus' EchoTest.
    Janus,
    /// The least a server can do: this program's own reflector, for the generator's ceiling.
    Reflector,
}

impl Kind {
    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Syrinx => "syrinx",
            Self::MediaV1 => "media-v1",
            Self::Realtime => "realtime",
            Self::Pion => "pion",
            Self::Janus => "janus",
            Self::Reflector => "reflector",
        }
    }

    /// What stands behind the edge, if not its own echo.
    pub fn dialect(self) -> Option<Dialect> {
        match self {
            Self::MediaV1 => Some(Dialect::MediaV1),
            Self::Realtime => Some(Dialect::Realtime),
            _ => None,
        }
    }

    /// Whether its echo, which is a process of this program on this machine, marks in each packet
    /// when it had it: where it does, each way has a delay of its own.
    pub fn marks(self) -> bool {
        matches!(self, Self::MediaV1 | Self::Reflector)
    }

    /// Whether payloads come back as they were sent. Where they do not, clients say bursts of
    /// sound, and those are counted instead of packets.
    pub fn keeps_payloads(self) -> bool {
        self.dialect() != Some(Dialect::Realtime)
    }
}

/// Which servers, and how to reach them.
#[derive(Clone, Debug, clap::Args)]
pub struct Servers {
    /// Which kinds of server, comma separated; each meets the load once a round.
    #[arg(
        long,
        alias = "target",
        value_enum,
        value_delimiter = ',',
        default_values_t = [Kind::Syrinx]
    )]
    pub targets: Vec<Kind>,
    /// Where a running server takes offers, as http://HOST:PORT/v1/realtime/calls [default: a relay
    /// and a transceiver are started on this machine]
    #[arg(long)]
    pub url: Option<String>,
    /// File with the API key to show to the server at --url.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub key_file: Option<PathBuf>,
    /// Certificates to trust beside the system's, PEM.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub ca: Option<PathBuf>,
    /// Processes of the server at --url to charge with what it costs; comma separated.
    #[arg(long, value_delimiter = ',', requires = "url")]
    pub pid: Vec<u32>,
    /// The core that servers started here work on [default: the last]
    #[arg(long)]
    pub server_core: Option<usize>,
    /// A configuration key of the relay started here, as `workers.coalesce_us=0`; repeatable.
    #[arg(long = "relay-set", value_name = "KEY=VALUE", value_parser = settings::parse)]
    pub relay_settings: Vec<Setting>,
    /// A configuration key of the transceiver started here; repeatable.
    #[arg(long = "transceiver-set", value_name = "KEY=VALUE", value_parser = settings::parse)]
    pub transceiver_settings: Vec<Setting>,
    /// An impaired network between clients and the relay started here, as `lte` or
    /// `wifi,loss=2%`; fates are drawn from --seed (see `impair --help`).
    #[arg(long, value_name = "SPECIFICATION", conflicts_with = "url")]
    pub impair: Option<Conditions>,
    /// The echo server on Pion [default: bench/peers/pion-echo under the build folder]
    #[arg(long, value_name = "PROGRAM")]
    pub pion: Option<PathBuf>,
    /// Janus' program.
    #[arg(long, value_name = "PROGRAM", default_value = "janus")]
    pub janus: PathBuf,
}

/// What a stand is made for.
#[derive(Clone, Debug)]
pub struct Need {
    /// Most calls at once.
    pub calls: u32,
    /// What the clients want beyond audio.
    pub expected: Expected,
    /// How long an answer may take.
    pub http_timeout: Duration,
    /// Calls that are opened at once.
    pub diallers: usize,
    /// Who answers the calls, if not an echo.
    pub backend: Option<BackendAt>,
    /// The core that an echoing backend works on: the generator's, not the server's.
    pub backend_core: usize,
    /// What the fates of an impaired network are drawn from.
    pub seed: u64,
}

/// A server, ready for calls.
pub struct Stand {
    /// How calls are opened.
    pub signalling: Box<dyn Signalling>,
    /// The processes that are charged.
    pub processes: Vec<Process>,
    /// What it says of its version.
    pub version: String,
    /// The pair, if one was started here; gone with the stand.
    pub edge: Option<Edge>,
    /// The impaired network before it.
    pub shim: Option<Shim>,
    /// The echoing backend, if there is one; charged to nobody.
    pub backend: Option<Pinned>,
    /// The peer, if it is one; before its folder, which it outlives otherwise.
    pub peer: Option<Peer>,
    /// The files of the peer, or of the backend.
    pub folder: Option<TempDir>,
}

impl Stand {
    /// Where clients of this server must send from, whatever was asked for.
    pub fn sources(&self) -> Option<Sources> {
        self.peer.as_ref()?.sources
    }
}

impl Servers {
    /// Sets up a server of this kind.
    ///
    /// # Errors
    /// When it cannot be started, or what was said about the running one is wrong.
    pub fn set_up(&self, kind: Kind, need: &Need) -> anyhow::Result<Stand> {
        match (kind, &self.url) {
            (Kind::Syrinx, Some(url)) => self.running(url, need),
            (Kind::Syrinx, None) => self.started(need),
            (Kind::Pion | Kind::Janus | Kind::Reflector, _) => self.peer(kind, need),
            (Kind::MediaV1 | Kind::Realtime, Some(_)) => bail!(
                "{} starts an edge with a backend of its own: what answers at --url is syrinx",
                kind.name()
            ),
            (Kind::MediaV1, None) => self.linked(Dialect::MediaV1, need),
            (Kind::Realtime, None) => self.linked(Dialect::Realtime, need),
        }
    }

    /// An edge whose calls an echoing backend answers.
    fn linked(&self, dialect: Dialect, need: &Need) -> anyhow::Result<Stand> {
        let folder = tempfile::tempdir().context("a folder")?;
        let (backend, at) = peers::backend::start(dialect, need.backend_core, folder.path())?;
        let need = Need {
            backend: Some(at),
            ..need.clone()
        };
        Ok(Stand {
            backend: Some(backend),
            folder: Some(folder),
            ..self.started(&need)?
        })
    }

    fn peer(&self, kind: Kind, need: &Need) -> anyhow::Result<Stand> {
        if self.impair.is_some() {
            bail!("--impair is for syrinx: a peer tells its callers its own address");
        }
        let (core, folder) = (self.core(), tempfile::tempdir().context("a folder")?);
        let (peer, signalling, version): (Peer, Box<dyn Signalling>, String) = match kind {
            Kind::Janus => {
                let peer = peers::janus::start(&self.janus, core, folder.path())?;
                let signals = peers::janus::Signals::new(&peer.url, need)?;
                (peer, Box::new(signals), peers::janus::version(&self.janus)?)
            }
            Kind::Reflector => {
                let peer = peers::reflector::start(core, folder.path())?;
                let signals = Realtime::new(&RealtimeOptions {
                    url: &peer.url,
                    key: None,
                    expected: Expected {
                        session: false,
                        ..need.expected
                    },
                    trusted: None,
                    timeout: need.http_timeout,
                    diallers: need.diallers,
                })?;
                let version = env!("CARGO_PKG_VERSION").to_owned();
                (peer, Box::new(signals), version)
            }
            _ => {
                let program = self.pion()?;
                let peer = peers::pion::start(&program, core, folder.path())?;
                let signals = peers::pion::Signals::new(&peer.url, need)?;
                (peer, Box::new(signals), peers::pion::version(&program)?)
            }
        };
        Ok(Stand {
            signalling,
            processes: vec![Process::new(kind.name(), peer.process.pid())?],
            version,
            edge: None,
            shim: None,
            backend: None,
            peer: Some(peer),
            folder: Some(folder),
        })
    }

    /// The program that was named, or the one that `make bench-peers` left beside the build.
    fn pion(&self) -> anyhow::Result<PathBuf> {
        if let Some(program) = &self.pion {
            return Ok(program.clone());
        }
        let own = std::env::current_exe().context("cannot tell where this program lies")?;
        let build = own
            .ancestors()
            .nth(2)
            .context("this program lies at the root")?;
        Ok(build.join("bench/peers/pion-echo"))
    }

    fn core(&self) -> usize {
        let last = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
        self.server_core.unwrap_or(last)
    }

    fn running(&self, url: &str, need: &Need) -> anyhow::Result<Stand> {
        let key = self.key_file.as_ref().map(|path| {
            let key = std::fs::read_to_string(path);
            key.with_context(|| format!("cannot read {}", path.display()))
        });
        let key = key.transpose()?;
        let processes = self.pid.iter().map(|pid| Process::of_pid(*pid));
        Ok(Stand {
            signalling: Box::new(Realtime::new(&RealtimeOptions {
                url,
                key: key.as_deref().map(str::trim),
                expected: need.expected,
                trusted: self.ca.as_deref(),
                timeout: need.http_timeout,
                diallers: need.diallers,
            })?),
            processes: processes.collect::<anyhow::Result<_>>()?,
            version: url.to_owned(),
            edge: None,
            shim: None,
            backend: None,
            peer: None,
            folder: None,
        })
    }

    fn started(&self, need: &Need) -> anyhow::Result<Stand> {
        let core = self.core();
        let cores: Setting = ("workers.cores".to_owned(), format!("[{core}]"));
        // Calls that have just ended may be there a moment longer.
        let sessions = (
            SESSIONS_SETTING.to_owned(),
            (need.calls * 2 + 100).to_string(),
        );
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        // Clients send to where the answer points them: to the network before the relay.
        let before = self.impair.as_ref().map(|conditions| {
            let listen = SocketAddr::new(address, free_port());
            (conditions, listen)
        });
        let advertise = before.map(|(_, listen)| {
            let advertised = format!("[\"{listen}\"]");
            (ADVERTISE_SETTING.to_owned(), advertised)
        });
        let busy = (BUSY_SETTING.to_owned(), "100".to_owned());
        let own = [cores.clone(), sessions, busy].into_iter().chain(advertise);
        let tuning = Tuning {
            relay: [std::slice::from_ref(&cores), &self.relay_settings[..]].concat(),
            transceiver: own
                .chain(self.transceiver_settings.iter().cloned())
                .collect(),
            backend: need.backend.clone(),
        };
        let options = EdgeOptions {
            address,
            workers: 1,
        };
        let edge = Edge::start_tuned(options, &tuning)?;
        let shim = before.map(|(conditions, listen)| {
            Shim::start(ShimOptions {
                listen,
                to: SocketAddr::new(address, edge.ports.public),
                conditions: conditions.clone(),
                seed: need.seed,
                paths_max: PATHS_MAX.max(need.calls as usize * 2),
            })
        });
        let shim = shim.transpose()?;
        let signalling = Realtime::new(&RealtimeOptions {
            url: &edge.page_url("v1/realtime/calls"),
            key: None,
            expected: need.expected,
            trusted: None,
            timeout: need.http_timeout,
            diallers: need.diallers,
        })?;
        Ok(Stand {
            signalling: Box::new(signalling),
            processes: vec![
                Process::new("relay", edge.relay.pid())?,
                Process::new("transceiver", edge.transceiver.pid())?,
            ],
            version: version()?,
            edge: Some(edge),
            shim,
            backend: None,
            peer: None,
            folder: None,
        })
    }
}

/// What the transceiver beside this program says of its version.
fn version() -> anyhow::Result<String> {
    let program = binary("syrinx-transceiver")?;
    let output = std::process::Command::new(&program)
        .arg("--version")
        .output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
