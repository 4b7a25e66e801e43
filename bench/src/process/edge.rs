//! A whole edge on this machine: one relay, one transceiver, one key.
//!
//! Everything is made for one test: a folder with keys and configurations, ports that nothing
//! else uses, two processes. All of it goes when the [`Edge`] is dropped.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::settings::{self, Setting};
use super::{Daemon, ProcessError, binary, free_port};

/// What an edge is started with.
#[derive(Clone, Copy, Debug)]
pub struct EdgeOptions {
    /// The address that everything listens on. Beyond loopback, which is to say in a network
    /// namespace of the test's own, the API asks nobody who he is.
    pub address: IpAddr,
    /// Workers of the relay, and of the transceiver.
    pub workers: u8,
}

/// Settings over the configurations that an edge is started with.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// The relay's.
    pub relay: Vec<Setting>,
    /// The transceiver's.
    pub transceiver: Vec<Setting>,
    /// The backend of every model; the built-in echo where there is none.
    pub backend: Option<BackendAt>,
}

/// How an edge speaks to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Dialect {
    /// The edge's own protocol, here with Opus passed through.
    #[default]
    #[serde(rename = "media.v1")]
    #[value(name = "media.v1")]
    MediaV1,
    /// The Realtime protocol with PCM16 at 24 kHz: the edge decodes and encodes.
    #[serde(rename = "realtime")]
    #[value(name = "realtime")]
    Realtime,
}

impl Dialect {
    /// The name in configurations and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MediaV1 => "media.v1",
            Self::Realtime => "realtime",
        }
    }
}

/// A backend that an edge is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAt {
    /// Where it is, as `ws://HOST:PORT/`.
    pub url: String,
    /// What it speaks.
    pub dialect: Dialect,
}

/// The ports that an edge listens on.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// The page and the API, TCP.
    pub signalling: u16,
    /// The relay's one port for clients, UDP.
    pub public: u16,
    /// The relay's side of the inner leg, UDP.
    pub relay_inner: u16,
    /// The transceiver's side of the inner leg, UDP.
    pub transceiver_inner: u16,
    /// The relay's metrics and health, TCP.
    pub relay_admin: u16,
    /// The transceiver's metrics and health, TCP.
    pub transceiver_admin: u16,
}

/// Datagrams that a relay passed on since it started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forwarded {
    /// From clients to the transceiver.
    pub to_transceiver: f64,
    /// From the transceiver to clients.
    pub to_client: f64,
}

/// A running relay and transceiver.
#[derive(Debug)]
pub struct Edge {
    /// The relay.
    pub relay: Daemon,
    /// The transceiver.
    pub transceiver: Daemon,
    /// Where both listen.
    pub ports: Ports,
    options: EdgeOptions,
    // Last, so that the daemons are gone before their folder is.
    folder: TempDir,
}

impl Ports {
    fn free() -> Self {
        Self {
            signalling: free_port(),
            public: free_port(),
            relay_inner: free_port(),
            transceiver_inner: free_port(),
            relay_admin: free_port(),
            transceiver_admin: free_port(),
        }
    }
}

impl Edge {
    /// Makes keys and configurations, starts both daemons and waits until they are healthy.
    ///
    /// # Errors
    /// A binary is missing, or a daemon does not become healthy.
    pub fn start(options: EdgeOptions) -> Result<Self, ProcessError> {
        Self::start_with(options, "")
    }

    /// The same with `backends`, TOML that goes behind the transceiver's configuration.
    ///
    /// # Errors
    /// As [`Edge::start`].
    pub fn start_with(options: EdgeOptions, backends: &str) -> Result<Self, ProcessError> {
        Self::make(options, &Tuning::default(), backends, Daemon::start)
    }

    /// The same for a measurement: with settings of its own, and out of reach of the terminal's ^C.
    ///
    /// # Errors
    /// As [`Edge::start`], and when a setting is none.
    pub fn start_tuned(options: EdgeOptions, tuning: &Tuning) -> Result<Self, ProcessError> {
        Self::make(options, tuning, "", Daemon::start_apart)
    }

    fn make(
        options: EdgeOptions,
        tuning: &Tuning,
        backends: &str,
        start: fn(&Path, &Path, SocketAddr) -> Result<Daemon, ProcessError>,
    ) -> Result<Self, ProcessError> {
        let folder = tempfile::tempdir().map_err(ProcessError::io("a temporary folder"))?;
        let ports = Ports::free();
        let relay = binary("syrinx-relay")?;
        let transceiver = binary("syrinx-transceiver")?;
        let keys = make_keys(&relay, folder.path())?;
        let at = |port| SocketAddr::new(options.address, port);
        let relay_config = folder.path().join("relay.toml");
        let relay_toml = relay_toml(options, ports, &keys);
        write(&relay_config, &settings::apply(&relay_toml, &tuning.relay)?)?;
        let transceiver_config = folder.path().join("transceiver.toml");
        let mut transceiver_toml = transceiver_toml(options, ports, &keys);
        if let Some(backend) = &tuning.backend {
            transceiver_toml.push_str(&backend_toml(backend));
        }
        write(
            &transceiver_config,
            &(settings::apply(&transceiver_toml, &tuning.transceiver)? + backends),
        )?;
        Ok(Self {
            relay: start(&relay, &relay_config, at(ports.relay_admin))?,
            transceiver: start(
                &transceiver,
                &transceiver_config,
                at(ports.transceiver_admin),
            )?,
            ports,
            options,
            folder,
        })
    }

    /// A folder for the test's own files, gone with the edge.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The page's address, with a query of its own (`?..`, or nothing).
    #[must_use]
    pub fn page_url(&self, query: &str) -> String {
        format!(
            "http://{}/{query}",
            SocketAddr::new(self.options.address, self.ports.signalling)
        )
    }

    /// What the relay forwarded since it started, as of its last publication, a second ago at most.
    ///
    /// # Errors
    /// The relay's metrics cannot be read.
    pub fn forwarded(&self) -> Result<Forwarded, ProcessError> {
        let metrics = self.relay.metrics()?;
        let count = |way| metrics.sum("syrinx_relay_forwarded_total", &[("direction", way)]);
        Ok(Forwarded {
            to_transceiver: count("to_transceiver"),
            to_client: count("to_client"),
        })
    }

    /// Waits until the transceiver's workers hold these numbers of sessions, in their order.
    ///
    /// # Errors
    /// It never comes to that, or the transceiver ended.
    pub fn wait_for_sessions(&mut self, by_worker: &[f64]) -> Result<(), ProcessError> {
        let what = format!("{by_worker:?} sessions by worker");
        self.transceiver.wait(&what, |transceiver| {
            let metrics = transceiver.metrics().unwrap_or_default();
            metrics.by(SESSIONS, "worker").values().eq(by_worker)
        })
    }

    /// Waits until the transceiver holds this number of sessions, on whichever workers.
    ///
    /// # Errors
    /// It never comes to that, or the transceiver ended.
    pub fn wait_for_sessions_in_all(&mut self, count: f64) -> Result<(), ProcessError> {
        self.transceiver
            .wait(&format!("{count} sessions in all"), |transceiver| {
                transceiver
                    .metrics()
                    .is_ok_and(|metrics| metrics.sum(SESSIONS, &[]) == count)
            })
    }
}

/// The gauge of sessions that a worker holds.
const SESSIONS: &str = "syrinx_transceiver_sessions";

/// Makes the cluster's keys as an operator does, and gives their file.
fn make_keys(relay: &Path, folder: &Path) -> Result<PathBuf, ProcessError> {
    let mut command = Command::new(relay);
    command.args(["keys", "new", "--dir"]).arg(folder);
    let output = command
        .output()
        .map_err(ProcessError::io(relay.display().to_string()))?;
    if !output.status.success() {
        return Err(ProcessError::Refused {
            command: format!("{command:?}"),
            status: output.status,
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    Ok(folder.join("cluster.keys"))
}

fn write(path: &Path, text: &str) -> Result<(), ProcessError> {
    std::fs::write(path, text).map_err(ProcessError::io(path.display().to_string()))
}

fn relay_toml(options: EdgeOptions, ports: Ports, keys: &Path) -> String {
    let at = |port| SocketAddr::new(options.address, port);
    format!(
        r#"
[public]
listen = ["{public}"]
[inner]
listen = "{inner}"
[workers]
count = {workers}
[keys]
file = "{keys}"
[[routes]]
transceiver = 1
address = "{transceiver}"
[admin]
listen = "{admin}"
"#,
        public = at(ports.public),
        inner = at(ports.relay_inner),
        workers = options.workers,
        keys = keys.display(),
        transceiver = at(ports.transceiver_inner),
        admin = at(ports.relay_admin),
    )
}

fn transceiver_toml(options: EdgeOptions, ports: Ports, keys: &Path) -> String {
    let at = |port| SocketAddr::new(options.address, port);
    format!(
        r#"
[signalling]
listen = "{signalling}"
allow_anonymous = {allow_anonymous}
[media]
inner_listen = "{inner}"
advertise = ["{public}"]
[workers]
count = {workers}
[keys]
file = "{keys}"
[admin]
listen = "{admin}"
"#,
        signalling = at(ports.signalling),
        allow_anonymous = !options.address.is_loopback(),
        inner = at(ports.transceiver_inner),
        public = at(ports.public),
        workers = options.workers,
        keys = keys.display(),
        admin = at(ports.transceiver_admin),
    )
}

fn backend_toml(backend: &BackendAt) -> String {
    format!(
        r#"
[[backends]]
name = "bench"
models = ["*"]
dialect = "{}"
urls = ["{}"]
"#,
        backend.dialect.name(),
        backend.url,
    )
}
