//! The configuration of a relay: each key once, with its unit, its default and why.
//!
//! `systemd/relay.toml` shows every key. Loaded and validated by
//! [`syrinx_shared::config::load`]. Keys and routes are read again on SIGHUP; the rest stays as it
//! was at start.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;
use syrinx_shared::admin::AdminConfig;
use syrinx_shared::config::keys::KeysConfig;
use syrinx_shared::config::workers::{WORKERS_COUNT_MAX, WorkersConfig, within};
use syrinx_shared::config::{Invalid, Validate};
use syrinx_shared::logging::LogConfig;
use syrinx_shared::route::{ClusterId, TransceiverId};

use crate::forwarder::admission::{AdmissionOptions, Rate};
use crate::forwarder::routes::{Route, Routes, RoutesError};
use crate::forwarder::{ForwarderOptions, Verify};

/// Prefix of the environment twins: `SYRINX_RELAY__PUBLIC__LISTEN` is `[public] listen`.
pub const ENVIRONMENT_PREFIX: &str = "SYRINX_RELAY";

/// Most public addresses of a relay: their indices share a byte with learned local addresses.
pub const LISTEN_COUNT_MAX: usize = 16;

/// What socket buffers can reasonably be, in bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=256 << 20;

/// What the MTU of an inner path can be, in bytes: IPv6's minimum to the largest IP packet.
const MTU_BYTES: std::ops::RangeInclusive<usize> = 1_280..=65_535;

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Config {
    /// What clients send to.
    pub public: PublicConfig,
    /// The leg to the transceivers.
    pub inner: InnerConfig,
    /// The threads of the data plane.
    pub workers: WorkersConfig,
    /// What is kept for each client, and who may make us keep it.
    pub flows: FlowsConfig,
    /// The cluster's keys, read again on SIGHUP.
    pub keys: KeysConfig,
    /// The transceivers of the cluster.
    pub routes: Vec<RouteConfig>,
    /// `/metrics` and `/healthz`. `listen` is 127.0.0.1:9464 by default.
    pub admin: AdminConfig,
    /// What is logged.
    pub log: LogConfig,
}

/// The `[public]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct PublicConfig {
    /// UDP addresses that clients send to. Default `127.0.0.1:3478` and `[::1]:3478`. A wildcard
    /// (0.0.0.0, ::) answers from whichever address the client used; naming the addresses costs
    /// less a packet, and lets a restarted relay heal from the transceivers' own traffic.
    pub listen: Vec<SocketAddr>,
    /// Receive buffer of each public socket, in bytes. Default 8 MiB: 50 ms of a fully busy worker,
    /// with the kernel's own overhead. Above `net.core.rmem_max` it needs CAP_NET_ADMIN.
    pub receive_buffer_bytes: usize,
    /// Send buffer of each public socket, in bytes. Default 4 MiB.
    pub send_buffer_bytes: usize,
}

/// The `[inner]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct InnerConfig {
    /// UDP address for bundles from transceivers, one port for all workers. Default 127.0.0.1:3480.
    pub listen: SocketAddr,
    /// This relay's number among those that share transceivers, 0 to 65,535. Default 1.
    pub relay: u16,
    /// The cluster's number, 0 to 65,535, as its transceivers have it. Default 1.
    pub cluster: u16,
    /// MTU of the way to the transceivers, in bytes; bundles fill it. Default 1,500. A higher value
    /// on networks with jumbo frames puts more records into a packet.
    pub mtu_bytes: usize,
    /// Receive buffer of each inner socket, in bytes. Default 8 MiB.
    pub receive_buffer_bytes: usize,
    /// Send buffer of each inner socket, in bytes. Default 4 MiB.
    pub send_buffer_bytes: usize,
}

/// The `[flows]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct FlowsConfig {
    /// Flows each worker keeps; memory for them (64 bytes and an index entry each) is taken at
    /// start. Default 28,672: several times what one core carries, in an index of 160 KB that the
    /// core's cache holds; a larger one costs cache misses on every datagram.
    pub count_max_per_worker: u32,
    /// A flow is freed this long after its client's last verified check, in ms. Default 30,000, as
    /// consent does (RFC 7675, 5.1).
    pub idle_timeout_ms: u64,
    /// How a check is judged before it makes or moves a flow: `integrity` verifies its
    /// MESSAGE-INTEGRITY, `ufrag` leaves that to the transceiver. Default `integrity`.
    pub verify: VerifyKey,
    /// How old a ufrag may be, in minutes: the longest session it could name. Default 1,440.
    pub ufrag_lifetime_minutes: u16,
    /// New flows a second of one source prefix (IPv4 /32, IPv6 /64) and worker, lasting. Default
    /// 50: a carrier's NAT is one prefix.
    pub new_per_prefix_per_second: u32,
    /// New flows of one source prefix at once. Default 500.
    pub new_per_prefix_burst: u32,
    /// New flows a second of one worker, lasting. Default 5,000: a reconnect storm passes, a flood
    /// does not take the table.
    pub new_total_per_second: u32,
    /// New flows of one worker at once. Default 20,000.
    pub new_total_burst: u32,
    /// Source prefixes told apart at a time. Default 65,536.
    pub prefix_count_max: u32,
}

/// One `[[routes]]` entry.
#[derive(Debug, Clone, Deserialize)]
pub struct RouteConfig {
    /// The transceiver's number in the cluster.
    pub transceiver: u16,
    /// Its inner UDP address.
    pub address: SocketAddr,
    /// Its workers, at most. Default 128, which means any: a ufrag that verifies names a worker
    /// that exists, unless the transceiver was restarted with fewer.
    #[serde(default = "any_worker")]
    pub workers_count: u16,
}

fn any_worker() -> u16 {
    WORKERS_COUNT_MAX
}

/// `flows.verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerifyKey {
    /// Tag, age, block and MESSAGE-INTEGRITY.
    Integrity,
    /// Tag, age and block.
    Ufrag,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            public: PublicConfig::default(),
            inner: InnerConfig::default(),
            workers: WorkersConfig::default(),
            flows: FlowsConfig::default(),
            keys: KeysConfig::default(),
            routes: Vec::new(),
            admin: AdminConfig {
                listen: ([127, 0, 0, 1], 9464).into(),
            },
            log: LogConfig::default(),
        }
    }
}

impl Default for PublicConfig {
    fn default() -> Self {
        Self {
            listen: vec![
                ([127, 0, 0, 1], 3478).into(),
                (Ipv6Addr::LOCALHOST, 3478).into(),
            ],
            receive_buffer_bytes: 8 << 20,
            send_buffer_bytes: 4 << 20,
        }
    }
}

impl Default for InnerConfig {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 3480).into(),
            relay: 1,
            cluster: 1,
            mtu_bytes: 1_500,
            receive_buffer_bytes: 8 << 20,
            send_buffer_bytes: 4 << 20,
        }
    }
}

impl Default for FlowsConfig {
    fn default() -> Self {
        Self {
            count_max_per_worker: 28_672,
            idle_timeout_ms: 30_000,
            verify: VerifyKey::Integrity,
            ufrag_lifetime_minutes: 1_440,
            new_per_prefix_per_second: 50,
            new_per_prefix_burst: 500,
            new_total_per_second: 5_000,
            new_total_burst: 20_000,
            prefix_count_max: 65_536,
        }
    }
}

impl Validate for Config {
    fn validate(&self) -> Result<(), Invalid> {
        self.public.validate()?;
        self.inner.validate()?;
        self.workers.validate()?;
        self.flows.validate()?;
        self.validate_routes()?;
        self.log.validate()
    }
}

impl Config {
    /// What each worker's forwarder is built with; `seed` is 64 random bits.
    pub fn forwarder_options(&self, seed: u64) -> ForwarderOptions {
        let flows = &self.flows;
        ForwarderOptions {
            cluster: ClusterId(self.inner.cluster),
            verify: match flows.verify {
                VerifyKey::Integrity => Verify::Integrity,
                VerifyKey::Ufrag => Verify::Ufrag,
            },
            flow_count_max: flows.count_max_per_worker,
            flow_idle: Duration::from_millis(flows.idle_timeout_ms),
            ufrag_lifetime_minutes: flows.ufrag_lifetime_minutes,
            admission: AdmissionOptions {
                per_prefix: Rate {
                    per_second: flows.new_per_prefix_per_second,
                    burst: flows.new_per_prefix_burst,
                },
                total: Rate {
                    per_second: flows.new_total_per_second,
                    burst: flows.new_total_burst,
                },
                prefix_count_max: flows.prefix_count_max,
            },
            seed,
        }
    }

    /// The route table of `[[routes]]`, which [`Validate::validate`] has found sound.
    ///
    /// # Errors
    /// When two routes have one number.
    pub fn route_table(&self) -> Result<Routes, RoutesError> {
        let routes: Vec<Route> = self
            .routes
            .iter()
            .map(|route| Route {
                transceiver: TransceiverId(route.transceiver),
                addr: route.address,
                shard_count: u8::try_from(route.workers_count).unwrap_or(u8::MAX),
            })
            .collect();
        Routes::new(&routes)
    }

    fn validate_routes(&self) -> Result<(), Invalid> {
        if self.routes.is_empty() {
            return Err(Invalid::new(
                "routes",
                "[]",
                "a relay without transceivers forwards nothing",
                "add a [[routes]] entry with the transceiver's number and inner address",
            ));
        }
        for (index, route) in self.routes.iter().enumerate() {
            let key = |name: &str| format!("routes[{index}].{name}");
            within(
                &key("workers_count"),
                route.workers_count,
                1..=WORKERS_COUNT_MAX,
            )?;
            if route.address.port() == 0 || route.address.ip().is_unspecified() {
                return Err(Invalid::new(
                    &key("address"),
                    route.address,
                    "nothing can be sent there",
                    "name the transceiver's media.inner_listen as seen from here",
                ));
            }
            if route.address.is_ipv4() != self.inner.listen.is_ipv4() {
                return Err(Invalid::new(
                    &key("address"),
                    route.address,
                    format!("not of the family of inner.listen = {}", self.inner.listen),
                    "use IPv4 for both or IPv6 for both",
                ));
            }
        }
        self.route_table().map(|_| ()).map_err(|error| {
            let count = format!("[{} routes]", self.routes.len());
            Invalid::new(
                "routes",
                count,
                error.to_string(),
                "correct the [[routes]] entries",
            )
        })
    }
}

impl PublicConfig {
    fn validate(&self) -> Result<(), Invalid> {
        let count = self.listen.len();
        if !(1..=LISTEN_COUNT_MAX).contains(&count) {
            return Err(Invalid::new(
                "public.listen",
                format!("[{count} addresses]"),
                format!("a relay listens on 1 to {LISTEN_COUNT_MAX} addresses"),
                "list the addresses that clients send to",
            ));
        }
        for (index, address) in self.listen.iter().enumerate() {
            let key = format!("public.listen[{index}]");
            let twice = self.listen[..index].contains(address);
            if address.port() == 0 || is_mapped(address.ip()) || twice {
                return Err(Invalid::new(
                    &key,
                    address,
                    "no port, an IPv4 address in IPv6 form, or a second time",
                    "name each address once, with its port, IPv4 as a.b.c.d",
                ));
            }
        }
        within(
            "public.receive_buffer_bytes",
            self.receive_buffer_bytes,
            BUFFER_BYTES,
        )?;
        within(
            "public.send_buffer_bytes",
            self.send_buffer_bytes,
            BUFFER_BYTES,
        )
    }
}

fn is_mapped(ip: IpAddr) -> bool {
    ip.to_canonical() != ip
}

impl InnerConfig {
    /// The longest bundle: the MTU less the IP and UDP headers of the inner leg's family.
    pub fn bundle_bytes(&self) -> usize {
        let header_bytes = if self.listen.is_ipv4() {
            20 + 8
        } else {
            40 + 8
        };
        self.mtu_bytes - header_bytes
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.listen.port() == 0 || self.listen.ip().is_unspecified() {
            return Err(Invalid::new(
                "inner.listen",
                self.listen,
                "transceivers answer to this very address, so it cannot be left to chance",
                "name one address and port of this host",
            ));
        }
        within("inner.mtu_bytes", self.mtu_bytes, MTU_BYTES)?;
        within(
            "inner.receive_buffer_bytes",
            self.receive_buffer_bytes,
            BUFFER_BYTES,
        )?;
        within(
            "inner.send_buffer_bytes",
            self.send_buffer_bytes,
            BUFFER_BYTES,
        )
    }
}

impl FlowsConfig {
    fn validate(&self) -> Result<(), Invalid> {
        within(
            "flows.count_max_per_worker",
            self.count_max_per_worker,
            1..=1 << 24,
        )?;
        within(
            "flows.idle_timeout_ms",
            self.idle_timeout_ms,
            1_000..=3_600_000,
        )?;
        within(
            "flows.ufrag_lifetime_minutes",
            self.ufrag_lifetime_minutes,
            1..=20_160,
        )?;
        for (key, value) in [
            (
                "flows.new_per_prefix_per_second",
                self.new_per_prefix_per_second,
            ),
            ("flows.new_per_prefix_burst", self.new_per_prefix_burst),
            ("flows.new_total_per_second", self.new_total_per_second),
            ("flows.new_total_burst", self.new_total_burst),
            ("flows.prefix_count_max", self.prefix_count_max),
        ] {
            within(key, value, 1..=1 << 24)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(toml: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("relay.toml");
        std::fs::write(&path, toml).unwrap();
        syrinx_shared::config::load(Some(&path), "SYRINX_RELAY_TEST_OF_CONFIG")
            .map_err(|error| error.to_string())
    }

    const ROUTE: &str = "[[routes]]\ntransceiver = 1\naddress = \"127.0.0.1:3490\"\n";

    #[test]
    fn one_route_is_a_whole_configuration() {
        let config = config(ROUTE).unwrap();
        assert_eq!(config.public.listen.len(), 2);
        assert_eq!(config.inner.bundle_bytes(), 1_472);
        assert_eq!(config.routes[0].workers_count, 128);
    }

    #[test]
    fn each_fault_is_one_line_with_key_value_and_remedy() {
        for (toml, key, remedy) in [
            (String::new(), "routes", "add a [[routes]] entry"),
            (format!("{ROUTE}{ROUTE}"), "routes", "id of its own"),
            (
                format!("[public]\nlisten = []\n{ROUTE}"),
                "public.listen",
                "list the addresses",
            ),
            (
                format!("[inner]\nlisten = \"0.0.0.0:3480\"\n{ROUTE}"),
                "inner.listen",
                "name one address",
            ),
            (
                format!("[inner]\nlisten = \"[::1]:3480\"\n{ROUTE}"),
                "routes[0].address",
                "IPv4 for both or IPv6 for both",
            ),
            (
                format!("[flows]\nidle_timeout_ms = 1\n{ROUTE}"),
                "flows.idle_timeout_ms = 1",
                "use 1000 to 3600000",
            ),
            (
                format!("[flows]\nidle_timeout = 1\n{ROUTE}"),
                "flows.idle_timeout",
                "idle_timeout_ms",
            ),
        ] {
            let line = config(&toml).unwrap_err();
            assert!(line.contains(key) && line.contains(remedy), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }
}
