//! What keeps the pool true on the control thread: names resolved anew, secrets read anew, failed
//! addresses tried.
//!
//! Workers cannot resolve names: it blocks. The runtime's blocking pool does, and puts the
//! addresses where links find them. A name that cannot be resolved keeps its last addresses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Backend, Endpoint, Pool, Target};
use crate::config::url::Host;

/// How often names are resolved and secrets read.
const REFRESH_PERIOD: Duration = Duration::from_secs(30);
/// How often a name is tried that has no address yet.
const UNRESOLVED_PERIOD: Duration = Duration::from_secs(2);
/// Addresses of a name that are used.
const ADDRESSES_COUNT_MAX: usize = 16;

/// Resolves every name once: called before the process says it is ready, so that its first call
/// finds addresses. Names that cannot be resolved are logged, and tried on by [`run`].
pub async fn resolve_all(pool: &Pool) {
    for backend in pool.backends() {
        for endpoint in &backend.endpoints {
            resolve(backend, endpoint).await;
        }
    }
}

/// Never returns.
pub async fn run(pool: Arc<Pool>) {
    let checks = pool.backends().iter().enumerate();
    for (index, period) in checks.filter_map(|(i, b)| Some((i, b.health_check_period?))) {
        tokio::spawn(check_health(Arc::clone(&pool), index, period));
    }
    let mut pace = interval(UNRESOLVED_PERIOD);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut refreshed = Instant::now();
    loop {
        pace.tick().await;
        let is_time = refreshed.elapsed() >= REFRESH_PERIOD;
        for backend in pool.backends() {
            if is_time && let Err(error) = backend.secrets.refresh() {
                tracing::warn!(backend = backend.name, %error, "the secret read before is kept");
            }
            for endpoint in &backend.endpoints {
                if is_time || !endpoint.is_known() {
                    resolve(backend, endpoint).await;
                }
            }
        }
        if is_time {
            refreshed = Instant::now();
        }
    }
}

async fn resolve(backend: &Backend, endpoint: &Endpoint) {
    let Host::Tcp { name, port, .. } = &endpoint.url.host else {
        return;
    };
    if name.parse::<std::net::IpAddr>().is_ok() {
        return;
    }
    let found = lookup_host((name.as_str(), *port)).await;
    let found = found.map(|addresses| addresses.take(ADDRESSES_COUNT_MAX).collect::<Vec<_>>());
    let mut known = endpoint.resolved();
    match found {
        Ok(addresses) if !addresses.is_empty() => *known = addresses.into(),
        outcome => {
            let error = outcome.err().map(tracing::field::display);
            let kept = known.len();
            tracing::warn!(
                backend = backend.name,
                name,
                kept,
                error,
                "a name has no address"
            );
        }
    }
}

/// Connects to addresses whose last connection failed, and forgives those that answer.
async fn check_health(pool: Arc<Pool>, index: usize, period: Duration) {
    let backend = &pool.backends()[index];
    let mut pace = interval(period);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pace.tick().await;
        for endpoint in backend.endpoints.iter().filter(|e| e.health.is_suspect()) {
            let Some(target) = endpoint.target(0) else {
                continue;
            };
            let answers = timeout(backend.options.connect_timeout, answers(target)).await;
            if answers == Ok(true) {
                endpoint.health.note_success();
                let address = endpoint.url.to_string();
                tracing::info!(
                    backend = backend.name,
                    address,
                    "a backend's address answers again"
                );
            }
        }
    }
}

async fn answers(target: Target) -> bool {
    match target {
        Target::Tcp(address, _) => TcpStream::connect(address).await.is_ok(),
        Target::Unix(path) => UnixStream::connect(path).await.is_ok(),
    }
}
