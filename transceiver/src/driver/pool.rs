//! The configured backends: which one answers for a model, and which of its addresses a link takes.
//!
//! Shared by the control thread, which chooses a backend when a call is opened and keeps names
//! resolved and secrets read ([`upkeep`]), and the workers, whose links take out a [`Lease`] for
//! each attempt to connect. What a link needs of it is an atomic or a short lock taken once an
//! attempt; nothing here is touched for a message or a packet.

mod health;
mod secrets;
mod tls;
pub mod upkeep;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_rustls::rustls::ClientConfig;
use futures_rustls::rustls::pki_types::ServerName;

use crate::backend::link::BackendId;
use crate::backend::realtime::RealtimeOptions;
use crate::config::backends::{BackendConfig, Dialect, ModelPattern};
use crate::config::url::{BackendUrl, Host};
use crate::signalling::directory::NoBackend;
use health::Health;
use secrets::Secrets;

pub use secrets::SecretError;
pub use tls::TlsError;

pub(in crate::driver) use tls::as_tls_error;

/// Why there are no backends to be had. Displays as one line that ends in the remedy.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A file with a secret.
    #[error("backends[{index}]: {cause}")]
    Secret {
        /// Which entry.
        index: usize,
        /// What is wrong.
        cause: SecretError,
    },
    /// TLS.
    #[error("backends[{index}]: {cause}")]
    Tls {
        /// Which entry.
        index: usize,
        /// What is wrong.
        cause: TlsError,
    },
}

/// How links of a backend are kept; see [`BackendConfig`].
#[derive(Debug, Clone, Copy)]
pub struct LinkOptions {
    /// For one attempt.
    pub connect_timeout: Duration,
    /// From the handshake.
    pub first_message_timeout: Duration,
    /// Silence before a ping, and after it.
    pub ping_period: Duration,
    /// Age at which waiting audio is dropped.
    pub audio_backlog: Duration,
    /// Attempts after the first.
    pub retry_count_max: u32,
    /// The first pause.
    pub retry_pause: Duration,
}

/// One entry of the configuration.
pub struct Backend {
    name: String,
    dialect: Dialect,
    realtime: RealtimeOptions,
    patterns: Vec<ModelPattern>,
    options: LinkOptions,
    headers: Vec<(String, String)>,
    secrets: Secrets,
    tls: Option<Arc<ClientConfig>>,
    health_check_period: Option<Duration>,
    endpoints: Vec<Endpoint>,
    /// Makes addresses that are alike take turns.
    turn: AtomicUsize,
}

/// One address of a backend.
struct Endpoint {
    url: BackendUrl,
    server_name: Option<ServerName<'static>>,
    resolved: Mutex<Arc<[SocketAddr]>>,
    links: AtomicUsize,
    health: Health,
}

/// Where a link connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// TCP, and the name to check the certificate against where TLS is spoken.
    Tcp(SocketAddr, Option<ServerName<'static>>),
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// All backends; see the module.
pub struct Pool {
    backends: Vec<Backend>,
    links: AtomicUsize,
}

impl Pool {
    /// The backends of a validated configuration; their files are read. Names are resolved by
    /// [`upkeep`].
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn new(configs: &[BackendConfig], now: Instant) -> Result<Self, PoolError> {
        let backends = configs.iter().enumerate();
        let backends = backends.map(|(index, config)| Backend::new(index, config, now));
        Ok(Self {
            backends: backends.collect::<Result<_, _>>()?,
            links: AtomicUsize::new(0),
        })
    }

    /// The backend for a call that asked for `model`; `None` when nothing is configured, which
    /// leaves it to the built-in echo.
    ///
    /// # Errors
    /// [`NoBackend`].
    pub fn choose(
        &self,
        model: Option<&str>,
        now: Instant,
    ) -> Result<Option<(BackendId, Dialect)>, NoBackend> {
        if self.backends.is_empty() {
            return Ok(None);
        }
        let strengths = self
            .backends
            .iter()
            .enumerate()
            .filter_map(|(index, backend)| {
                let strongest = backend
                    .patterns
                    .iter()
                    .filter_map(|pattern| pattern.strength(model))
                    .max();
                strongest.map(|strength| (strength, index))
            });
        let (_, index) = strengths.max().ok_or(NoBackend::Unknown)?;
        let backend = &self.backends[index];
        if backend.dialect != Dialect::Echo && !backend.endpoints.iter().any(|e| e.is_usable(now)) {
            return Err(NoBackend::Down);
        }
        let id = u16::try_from(index).expect("validated: at most 64 backends");
        Ok(Some((BackendId(id), backend.dialect)))
    }

    /// The backend with this id.
    ///
    /// # Panics
    /// When the id is not from [`Pool::choose`].
    pub fn backend(&self, id: BackendId) -> &Backend {
        &self.backends[usize::from(id.0)]
    }

    /// Every backend, in the order of their ids.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Whether any backend is reached by links.
    pub fn has_links(&self) -> bool {
        self.backends
            .iter()
            .any(|backend| !backend.endpoints.is_empty())
    }

    /// Takes an address for one attempt: of those that work the one with the fewest links, and not
    /// `avoided` where there is another; when all rest, the one that has rested longest. `None`
    /// when no address is known.
    pub fn lease(
        self: &Arc<Self>,
        id: BackendId,
        avoided: Option<usize>,
        now: Instant,
    ) -> Option<Lease> {
        let backend = self.backend(id);
        let turn = backend.turn.fetch_add(1, Ordering::Relaxed);
        let count = backend.endpoints.len();
        let in_turn = (0..count).map(|offset| turn.wrapping_add(offset) % count);
        let known = in_turn.filter(|index| backend.endpoints[*index].is_known());
        let endpoint = known.min_by_key(|index| {
            let endpoint = &backend.endpoints[*index];
            let rest = if endpoint.health.is_resting(now) {
                endpoint.health.rests_until()
            } else {
                0
            };
            (
                rest,
                avoided == Some(*index),
                endpoint.links.load(Ordering::Relaxed),
            )
        })?;
        let target = backend.endpoints[endpoint].target(turn)?;
        backend.endpoints[endpoint]
            .links
            .fetch_add(1, Ordering::Relaxed);
        self.links.fetch_add(1, Ordering::Relaxed);
        Some(Lease {
            pool: Arc::clone(self),
            id,
            endpoint,
            target,
        })
    }

    /// Links that are open or being opened, of all workers.
    pub fn link_count(&self) -> usize {
        self.links.load(Ordering::Relaxed)
    }
}

impl Backend {
    fn new(index: usize, config: &BackendConfig, now: Instant) -> Result<Self, PoolError> {
        let secrets = Secrets::read(config.secret_headers())
            .map_err(|cause| PoolError::Secret { index, cause })?;
        let is_tls = |url: &BackendUrl| matches!(url.host, Host::Tcp { tls: true, .. });
        let tls = config
            .urls
            .iter()
            .any(is_tls)
            .then(|| tls::client(&config.tls_ca_file));
        let tls = tls
            .transpose()
            .map_err(|cause| PoolError::Tls { index, cause })?;
        let endpoints = config.urls.iter().map(|url| Endpoint::new(url, now));
        Ok(Self {
            name: config.name.clone(),
            dialect: config.dialect.unwrap_or(Dialect::Echo),
            realtime: config.realtime_options(),
            patterns: config.patterns().collect(),
            options: LinkOptions {
                connect_timeout: config.connect_timeout(),
                first_message_timeout: config.first_message_timeout(),
                ping_period: config.ping_period(),
                audio_backlog: config.audio_backlog(),
                retry_count_max: config.retry_count_max,
                retry_pause: config.retry_pause(),
            },
            headers: config
                .plain_headers()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            secrets,
            tls,
            health_check_period: config.health_check_period(),
            endpoints: endpoints
                .collect::<Result<_, _>>()
                .map_err(|cause| PoolError::Tls { index, cause })?,
            turn: AtomicUsize::new(0),
        })
    }

    /// Its name in metrics and logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How a `realtime` one is spoken to.
    pub fn realtime_options(&self) -> RealtimeOptions {
        self.realtime
    }

    /// How its links are kept.
    pub fn options(&self) -> LinkOptions {
        self.options
    }

    /// Headers of its handshake, secrets as they were last read.
    pub fn headers(&self) -> Vec<(String, String)> {
        let mut headers = self.headers.clone();
        headers.extend(self.secrets.current().iter().cloned());
        headers
    }

    /// What its TLS connections are made with; `None` when it has none.
    pub fn tls(&self) -> Option<&Arc<ClientConfig>> {
        self.tls.as_ref()
    }

    /// How many of its addresses can be connected to, as far as is known, and how many there are.
    pub fn usable_count(&self, now: Instant) -> (usize, usize) {
        let usable = self.endpoints.iter().filter(|e| e.is_usable(now));
        (usable.count(), self.endpoints.len())
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Backend")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    fn new(url: &BackendUrl, now: Instant) -> Result<Self, TlsError> {
        let mut resolved = Vec::new();
        let mut server_name = None;
        if let Host::Tcp { name, port, tls } = &url.host {
            resolved.extend(name.parse().map(|ip| SocketAddr::new(ip, *port)));
            if *tls {
                let name = ServerName::try_from(name.clone());
                server_name = Some(name.map_err(|_| TlsError::ServerName(url.to_string()))?);
            }
        }
        Ok(Self {
            url: url.clone(),
            server_name,
            resolved: Mutex::new(resolved.into()),
            links: AtomicUsize::new(0),
            health: Health::new(now),
        })
    }

    fn resolved(&self) -> MutexGuard<'_, Arc<[SocketAddr]>> {
        // Replaced as a whole, so a panic leaves nothing half done.
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something to connect to.
    fn is_known(&self) -> bool {
        matches!(self.url.host, Host::Unix(_)) || !self.resolved().is_empty()
    }

    fn is_usable(&self, now: Instant) -> bool {
        self.is_known() && !self.health.is_resting(now)
    }

    /// Where attempt number `turn` goes: the addresses of a name take turns.
    fn target(&self, turn: usize) -> Option<Target> {
        if let Host::Unix(path) = &self.url.host {
            return Some(Target::Unix(path.clone()));
        }
        let resolved = self.resolved();
        let address = *resolved.get(turn.checked_rem(resolved.len())?)?;
        Some(Target::Tcp(address, self.server_name.clone()))
    }
}

/// An address taken by one link, from its attempt to its end.
pub struct Lease {
    pool: Arc<Pool>,
    id: BackendId,
    endpoint: usize,
    target: Target,
}

impl Lease {
    /// Where to connect.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Which of the backend's addresses it is.
    pub fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// The address as configured.
    pub fn url(&self) -> &BackendUrl {
        &self.taken().url
    }

    /// The connection came about.
    pub fn note_success(&self) {
        self.taken().health.note_success();
    }

    /// The connection did not come about.
    pub fn note_failure(&self, now: Instant) {
        if self.taken().health.note_failure(now) {
            let backend = self.pool.backend(self.id).name();
            tracing::warn!(backend, address = %self.url(), "a backend's address rests: it fails");
        }
    }

    fn taken(&self) -> &Endpoint {
        &self.pool.backend(self.id).endpoints[self.endpoint]
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.taken().links.fetch_sub(1, Ordering::Relaxed);
        self.pool.links.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, models: &[&str], urls: &[&str]) -> BackendConfig {
        BackendConfig {
            name: name.to_owned(),
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            dialect: Some(Dialect::MediaV1),
            urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
            ..BackendConfig::default()
        }
    }

    fn pool(configs: &[BackendConfig]) -> Arc<Pool> {
        Arc::new(Pool::new(configs, Instant::now()).unwrap())
    }

    const ADDRESSES: [&str; 3] = [
        "ws://127.0.0.1:1/",
        "ws://127.0.0.1:2/",
        "ws://127.0.0.1:3/",
    ];

    fn port(lease: &Lease) -> u16 {
        match lease.target() {
            Target::Tcp(address, _) => address.port(),
            Target::Unix(_) => panic!("a TCP address was configured"),
        }
    }

    #[test]
    fn the_model_chooses_the_backend() {
        let echo = BackendConfig {
            dialect: Some(Dialect::Echo),
            ..config("echo", &["echo"], &[])
        };
        let pool = pool(&[
            config("all", &["*"], &ADDRESSES),
            config("gpt", &["gpt-*"], &ADDRESSES),
            config("one", &["gpt-realtime", "other"], &ADDRESSES),
            echo,
        ]);
        let now = Instant::now();
        for (model, name) in [
            (Some("gpt-realtime"), "one"),
            (Some("gpt-realtime-mini"), "gpt"),
            (Some("other"), "one"),
            (Some("llama"), "all"),
            (Some("echo"), "echo"),
            (None, "all"),
        ] {
            let (id, _) = pool.choose(model, now).unwrap().unwrap();
            assert_eq!(pool.backend(id).name(), name, "{model:?}");
        }
    }

    #[test]
    fn without_backends_the_echo_answers_and_a_foreign_model_has_none() {
        let now = Instant::now();
        assert_eq!(pool(&[]).choose(Some("any"), now), Ok(None));
        let pool = pool(&[config("gpt", &["gpt-*"], &ADDRESSES)]);
        assert_eq!(pool.choose(Some("llama"), now), Err(NoBackend::Unknown));
        assert_eq!(pool.choose(None, now), Err(NoBackend::Unknown));
    }

    #[test]
    fn links_go_where_there_are_fewest() {
        let pool = pool(&[config("main", &["*"], &ADDRESSES)]);
        let now = Instant::now();
        let lease = || pool.lease(BackendId(0), None, now).unwrap();
        let mut leases: Vec<_> = (0..6).map(|_| lease()).collect();
        let mut ports: Vec<_> = leases.iter().map(port).collect();
        ports.sort_unstable();
        assert_eq!(ports, [1, 1, 2, 2, 3, 3]);
        assert_eq!(pool.link_count(), 6);
        leases.retain(|lease| port(lease) != 2);
        assert_eq!(port(&lease()), 2);
        drop(leases);
        assert_eq!(pool.link_count(), 0);
    }

    #[test]
    fn an_address_that_fails_is_left_alone_until_nothing_else_is_left() {
        let pool = pool(&[config("main", &["*"], &ADDRESSES[..2])]);
        let now = Instant::now();
        let lease = |avoided| pool.lease(BackendId(0), avoided, now).unwrap();
        let first = lease(None);
        let other = lease(Some(first.endpoint()));
        assert_ne!(port(&first), port(&other));
        first.note_failure(now);
        first.note_failure(now);
        for _ in 0..4 {
            assert_eq!(port(&lease(None)), port(&other));
        }
        assert!(pool.choose(None, now).is_ok());
        other.note_failure(now);
        other.note_failure(now);
        assert_eq!(pool.choose(None, now), Err(NoBackend::Down));
        assert!(
            pool.lease(BackendId(0), None, now).is_some(),
            "a call that is open tries on"
        );
        let later = now + Duration::from_secs(2);
        assert!(pool.choose(None, later).is_ok(), "and is tried again");
    }

    #[test]
    fn a_name_that_was_never_resolved_is_no_address() {
        let pool = pool(&[config("main", &["*"], &["ws://agent.internal/"])]);
        let now = Instant::now();
        assert!(pool.choose(None, now).is_err());
        assert!(pool.lease(BackendId(0), None, now).is_none());
    }
}
