//! The configuration of a transceiver: each key once, with its unit, its default and why.
//!
//! `systemd/transceiver.toml` shows every key. Loaded and validated by
//! [`syrinx_shared::config::load`]; nothing here changes while the process runs.

pub mod backends;
pub mod signalling;
pub mod url;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;
use syrinx_shared::admin::AdminConfig;
use syrinx_shared::config::keys::KeysConfig;
use syrinx_shared::config::workers::{WorkersConfig, within};
use syrinx_shared::config::{Invalid, Validate};
use syrinx_shared::logging::LogConfig;
use syrinx_shared::route::{ClusterId, Slot, TransceiverId};

use crate::session::Lifetimes;
use backends::BackendConfig;
use signalling::SignallingConfig;

/// Prefix of the environment twins: `SYRINX_TRANSCEIVER__MEDIA__CLUSTER` is `[media] cluster`.
pub const ENVIRONMENT_PREFIX: &str = "SYRINX_TRANSCEIVER";

/// Most addresses an answer names: clients check every pair they can form, so more only delay.
const ADVERTISE_COUNT_MAX: usize = 4;

/// What socket buffers can reasonably be, in bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=256 << 20;

/// What the MTU of an inner path can be, in bytes: IPv6's minimum to the largest IP packet.
const MTU_BYTES: std::ops::RangeInclusive<usize> = 1_280..=65_535;

/// What time-outs of a session can be, in ms.
const SESSION_TIMEOUT_MS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000;

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The HTTP API and the page.
    pub signalling: SignallingConfig,
    /// The inner leg and the sessions behind it.
    pub media: MediaConfig,
    /// The inference services that calls are connected to, chosen by the model a call names. With
    /// none, every call is answered by the built-in echo.
    pub backends: Vec<BackendConfig>,
    /// The threads that decode and encode for backends that take PCM.
    pub codec: CodecConfig,
    /// The threads of the data plane.
    pub workers: WorkersConfig,
    /// The cluster's keys.
    pub keys: KeysConfig,
    /// How the process ends.
    pub shutdown: ShutdownConfig,
    /// `/metrics` and `/healthz`. `listen` is 127.0.0.1:9465 by default.
    pub admin: AdminConfig,
    /// What is logged.
    pub log: LogConfig,
}

/// The `[media]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct MediaConfig {
    /// Address for the bundles of relays, one UDP port for all workers. Default 127.0.0.1:3490.
    pub inner_listen: SocketAddr,
    /// Addresses of the relay (or of the load balancer before it) that answers name as candidates,
    /// in order of preference. Default the local relay's: `127.0.0.1:3478` and `[::1]:3478`.
    pub advertise: Vec<SocketAddr>,
    /// The cluster's number, 0 to 65,535; relays of the cluster have the same. Default 1.
    pub cluster: u16,
    /// This process's number in the cluster, 0 to 65,535, which relays route by. Default 1.
    pub transceiver: u16,
    /// Receive buffer of each inner socket, in bytes. Default 4 MiB: a worker that the scheduler
    /// puts aside for some milliseconds loses nothing. The kernel grants no more than
    /// `net.core.rmem_max`.
    pub receive_buffer_bytes: usize,
    /// Send buffer of each inner socket, in bytes. Default 4 MiB; capped by `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
    /// MTU of the way to the relays, in bytes; bundles fill it. Default 1,500. A higher value on
    /// networks with jumbo frames puts more records into a packet.
    pub inner_mtu_bytes: usize,
    /// Sessions a worker holds at once; further offers get 503. Default 1,000: what one core can be
    /// expected to carry; `syrinx-bench calls` tells what it does carry on a given machine.
    pub sessions_per_worker_count_max: u32,
    /// Share of a core, in percent, above which a worker gets no further calls; where all are above
    /// it, offers get 503, and so they do while a codec thread has work for a larger share of its
    /// time. Default 85: what is open keeps its pace, and there is room for what comes in bursts.
    /// 100 admits whatever there are slots for.
    pub busy_percent_max: u32,
    /// Time from the answer until media can flow, in ms, before the session is given up. Default
    /// 30,000.
    pub setup_timeout_ms: u64,
    /// Time since the client's last authenticated packet, in ms, before it counts as gone. Default
    /// 30,000, as consent does (RFC 7675, 5.1).
    pub liveness_timeout_ms: u64,
}

/// The `[codec]` section.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct CodecConfig {
    /// Threads that decode and encode, none of which a backend that takes Opus needs; 0 takes one
    /// for each core. They are bound to no core and give way to packets. Default 0.
    pub threads_count: u16,
}

/// The `[shutdown]` section.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ShutdownConfig {
    /// Time to serve open calls while taking no more, in ms, after the first SIGTERM or SIGINT; a
    /// second one ends it. Default 0: calls are closed at once, with a reason.
    pub drain_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            signalling: SignallingConfig::default(),
            media: MediaConfig::default(),
            backends: Vec::new(),
            codec: CodecConfig::default(),
            workers: WorkersConfig::default(),
            keys: KeysConfig::default(),
            shutdown: ShutdownConfig::default(),
            admin: AdminConfig {
                listen: ([127, 0, 0, 1], 9465).into(),
            },
            log: LogConfig::default(),
        }
    }
}

impl Default for MediaConfig {
    fn default() -> Self {
        let localhost = IpAddr::from([127, 0, 0, 1]);
        let localhost_v6 = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
        Self {
            inner_listen: (localhost, 3490).into(),
            advertise: vec![(localhost, 3478).into(), (localhost_v6, 3478).into()],
            cluster: 1,
            transceiver: 1,
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            inner_mtu_bytes: 1_500,
            sessions_per_worker_count_max: 1_000,
            busy_percent_max: 85,
            setup_timeout_ms: 30_000,
            liveness_timeout_ms: 30_000,
        }
    }
}

impl MediaConfig {
    /// [`MediaConfig::cluster`].
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId(self.cluster)
    }

    /// [`MediaConfig::transceiver`].
    pub fn transceiver_id(&self) -> TransceiverId {
        TransceiverId(self.transceiver)
    }

    /// Largest bundle, in bytes: the MTU less IP and UDP headers.
    pub fn bundle_bytes(&self) -> usize {
        let header_bytes = if self.inner_listen.is_ipv4() {
            20 + 8
        } else {
            40 + 8
        };
        self.inner_mtu_bytes - header_bytes
    }

    /// When sessions end by themselves.
    pub fn lifetimes(&self) -> Lifetimes {
        Lifetimes {
            setup: Duration::from_millis(self.setup_timeout_ms),
            silence: Duration::from_millis(self.liveness_timeout_ms),
        }
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.inner_listen.port() == 0 {
            return Err(Invalid::new(
                "media.inner_listen",
                self.inner_listen,
                "relays are configured with this port, so it cannot be left to chance",
                "name a port",
            ));
        }
        self.validate_advertise()?;
        within(
            "media.receive_buffer_bytes",
            self.receive_buffer_bytes,
            BUFFER_BYTES,
        )?;
        within(
            "media.send_buffer_bytes",
            self.send_buffer_bytes,
            BUFFER_BYTES,
        )?;
        within("media.inner_mtu_bytes", self.inner_mtu_bytes, MTU_BYTES)?;
        let sessions = self.sessions_per_worker_count_max;
        within(
            "media.sessions_per_worker_count_max",
            sessions,
            1..=Slot::MAX,
        )?;
        within("media.busy_percent_max", self.busy_percent_max, 1..=100)?;
        within(
            "media.setup_timeout_ms",
            self.setup_timeout_ms,
            SESSION_TIMEOUT_MS,
        )?;
        within(
            "media.liveness_timeout_ms",
            self.liveness_timeout_ms,
            SESSION_TIMEOUT_MS,
        )
    }

    fn validate_advertise(&self) -> Result<(), Invalid> {
        let count = self.advertise.len();
        if !(1..=ADVERTISE_COUNT_MAX).contains(&count) {
            return Err(Invalid::new(
                "media.advertise",
                format!("[{count} addresses]"),
                format!("an answer names 1 to {ADVERTISE_COUNT_MAX} addresses"),
                "list the public addresses of the relay",
            ));
        }
        for (index, address) in self.advertise.iter().enumerate() {
            if address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0 {
                return Err(Invalid::new(
                    &format!("media.advertise[{index}]"),
                    address,
                    "no client can send to it",
                    "name the address and port under which clients reach the relay",
                ));
            }
        }
        Ok(())
    }
}

impl Validate for Config {
    fn validate(&self) -> Result<(), Invalid> {
        self.signalling.validate()?;
        self.media.validate()?;
        backends::validate(&self.backends)?;
        within("codec.threads_count", self.codec.threads_count, 0..=64)?;
        self.workers.validate()?;
        within(
            "shutdown.drain_ms",
            self.shutdown.drain_ms,
            0..=24 * 3_600_000,
        )?;
        self.log.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem_of(change: impl FnOnce(&mut Config)) -> Invalid {
        let mut config = Config::default();
        change(&mut config);
        config.validate().unwrap_err()
    }

    #[test]
    fn defaults_are_valid_and_local() {
        let config = Config::default();
        config.validate().unwrap();
        assert_eq!(config.signalling.listen, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(config.media.inner_listen, "127.0.0.1:3490".parse().unwrap());
        let advertised: [SocketAddr; 2] = [
            "127.0.0.1:3478".parse().unwrap(),
            "[::1]:3478".parse().unwrap(),
        ];
        assert_eq!(config.media.advertise, advertised);
        assert_eq!(config.admin.listen, "127.0.0.1:9465".parse().unwrap());
    }

    #[test]
    fn what_no_client_could_reach_is_not_advertised() {
        for address in ["0.0.0.0:3478", "127.0.0.1:0", "[::]:3478", "224.0.0.1:3478"] {
            problem_of(|config| config.media.advertise = vec![address.parse().unwrap()]);
        }
        problem_of(|config| config.media.advertise.clear());
        problem_of(|config| config.media.advertise = vec!["127.0.0.1:1".parse().unwrap(); 5]);
    }

    #[test]
    fn numbers_have_their_ranges() {
        assert_eq!(
            problem_of(|config| config.media.inner_mtu_bytes = 576),
            Invalid::new(
                "media.inner_mtu_bytes",
                576,
                "out of range",
                "use 1280 to 65535"
            )
        );
        problem_of(|config| config.media.inner_listen.set_port(0));
        problem_of(|config| config.workers.count = 129);
        problem_of(|config| config.media.receive_buffer_bytes = 1_000);
        problem_of(|config| config.media.send_buffer_bytes = usize::MAX);
        problem_of(|config| config.media.sessions_per_worker_count_max = 0);
        problem_of(|config| config.media.sessions_per_worker_count_max = 1 << 24);
        problem_of(|config| config.media.busy_percent_max = 0);
        problem_of(|config| config.media.busy_percent_max = 101);
        problem_of(|config| config.media.setup_timeout_ms = 10);
        problem_of(|config| config.media.liveness_timeout_ms = u64::MAX);
        problem_of(|config| config.shutdown.drain_ms = u64::MAX);
        problem_of(|config| config.log.level = "loud".to_owned());
    }
}
