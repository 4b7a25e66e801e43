//! The life of the process: everything is had before it says ready, and it leaves in order.
//!
//! ```text
//! keys, addresses, workers ─▶ ready ─▶ serve ─▶ (drain) ─▶ close every call ─▶ stop HTTP, workers
//! ```
//!
//! A worker that is lost ends the process, with an error, after the other workers' calls were
//! closed: a supervisor starts it anew, and a shard of silent sessions is worse than a restart.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use syrinx_shared::bind;
use syrinx_shared::http::tls::Tls;
use syrinx_shared::metrics::{self as exposition, Exposition};
use syrinx_shared::process::{self, Signals, Wish};
use syrinx_shared::route::Generation;
use tokio::time::{Instant, sleep_until};

use super::desk::Desk;
use super::directory::Pooled;
use super::gate::Gate;
use super::metrics::{AccessMetrics, CallMetrics};
use super::pool::{Pool, upkeep};
use super::secrets::Secrets;
use super::servers::{Listeners, Servers};
use super::workers::{News, Workers};
use crate::config::Config;
use crate::engine::Template;
use crate::signalling::api_keys::ApiKeys;
use crate::signalling::calls::Calls;
use crate::signalling::registrar::Registrar;

/// How long closing all calls may take: a worker ends a thousand in some tens of milliseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked whether the last link has been closed.
const FAREWELL_PACE: Duration = Duration::from_millis(5);
/// How often a draining process looks whether its last call has ended.
const DRAIN_PACE: Duration = Duration::from_millis(100);

/// Reads what links to the configured backends are made with.
///
/// # Errors
///
/// One line: the entry, what is wrong with its files, and the remedy.
pub fn read_backends(config: &Config) -> anyhow::Result<Pool> {
    Ok(Pool::new(&config.backends, std::time::Instant::now())?)
}

/// Each HTTP connection and each link is a descriptor, and shells give a process 1,024 of them
/// unless it asks for more.
fn raise_descriptor_limit() {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    let raised = limits.and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open descriptors stays as it is");
    }
}

/// Runs the transceiver until it is asked to stop.
///
/// # Errors
///
/// One line that ends in the remedy: what could not be had, or which worker was lost.
pub fn run(config: &Config) -> anyhow::Result<()> {
    let secrets = Secrets::read(config)?;
    let exposition = exposition::install().context("metrics")?;
    let template = Template::new(&config.media.advertise)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the control thread cannot start; check this process's limits")?;
    runtime.block_on(serve(config, secrets, template, exposition))
}

async fn serve(
    config: &Config,
    secrets: Secrets,
    template: Template,
    exposition: Exposition,
) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let signals = Signals::install().context("signal handlers")?;
    let signalling = bind::tcp("signalling.listen", config.signalling.listen)?;
    let admin = bind::tcp("admin.listen", config.admin.listen)?;
    let pool = Arc::new(read_backends(config)?);
    let (workers, news) = Workers::start(config, &secrets.ring, &pool)?;
    upkeep::resolve_all(&pool).await;
    tokio::spawn(upkeep::run(Arc::clone(&pool)));
    let desk = open_desk(config, &workers, template, &secrets, &pool)?;
    let tls = secrets.certificates.clone().map(Tls::new);
    let listeners = Listeners {
        signalling,
        tls: tls.clone(),
        admin,
    };
    let servers = Servers::start(config, listeners, &desk, &workers, exposition);
    tokio::spawn(process::feed_watchdog({
        let pulses = workers.pulses();
        move || pulses.are_alive()
    }));
    say_ready(config, &workers, secrets.api_keys.as_ref());

    let mut control = Control {
        config,
        desk,
        tls,
        news,
        signals,
        pool,
    };
    let loss = control.serve().await;
    if loss.is_none() {
        control
            .drain(Duration::from_millis(config.shutdown.drain_ms))
            .await;
    }
    process::notify_stopping("closing calls");
    control.close().await;
    servers.stop().await;
    let stopped = workers.stop();
    control.take_late_news();
    match loss {
        Some(loss) => Err(anyhow!(
            "{loss}; restart the process, and report the line above it"
        )),
        None => stopped,
    }
}

fn open_desk(
    config: &Config,
    workers: &Workers,
    template: Template,
    secrets: &Secrets,
    pool: &Arc<Pool>,
) -> anyhow::Result<Arc<Desk>> {
    let media = &config.media;
    let registrar = Registrar::new(
        media.transceiver_id(),
        workers.count(),
        media.sessions_per_worker_count_max,
        first_generation()?,
    );
    let limits = config.signalling.key_limits();
    let keys = Arc::clone(&secrets.ring);
    let calls = Calls::new(registrar, limits, template, keys, media.cluster_id())
        .with_directory(Box::new(Pooled::new(Arc::clone(pool))));
    let gate = Arc::new(Gate::new(secrets.access(), AccessMetrics::register()));
    let metrics = CallMetrics::register();
    let desk = Desk::new(calls, workers.mailboxes(), metrics, gate);
    let desk = desk.with_loads(
        workers.loads(),
        workers.codec_loads(),
        media.busy_percent_max,
    );
    Ok(Arc::new(desk))
}

/// A ufrag of the process's former life must name nobody in this one.
fn first_generation() -> anyhow::Result<Generation> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).context("no randomness from the operating system")?;
    Ok(Generation(u16::from_ne_bytes(bytes)))
}

fn say_ready(config: &Config, workers: &Workers, api_keys: Option<&ApiKeys>) {
    let listen = config.signalling.listen;
    if let Some(keys) = api_keys {
        tracing::info!(keys = keys.count(), "calls need a key");
    } else if listen.ip().is_loopback() {
        tracing::info!("calls need no key: signalling.listen is a loopback address");
    } else {
        tracing::warn!(
            %listen,
            "calls need no key, and signalling is not on a loopback address: allow_anonymous = true"
        );
    }
    let (count, io_model) = (workers.count(), workers.io_model());
    let scheme = config.signalling.tls_files().map_or("http", |_| "https");
    let status = format!("{count} worker(s) on {io_model}, signalling on {scheme}://{listen}");
    let (inner, admin) = (config.media.inner_listen, config.admin.listen);
    tracing::info!(%inner, %admin, "serving: {status}");
    process::notify_ready(&status);
}

/// What the control thread waits for.
struct Control<'a> {
    config: &'a Config,
    desk: Arc<Desk>,
    tls: Option<Tls>,
    news: News,
    signals: Signals,
    pool: Arc<Pool>,
}

impl Control<'_> {
    /// Serves until the process should stop, or a worker is lost: then it says which and why.
    async fn serve(&mut self) -> Option<String> {
        loop {
            tokio::select! {
                Some(event) = self.news.events.recv() => self.desk.handle_event(event),
                Some(loss) = self.news.losses.recv() => return Some(loss),
                wish = self.signals.next() => match wish {
                    Wish::Stop => return None,
                    Wish::Reload => self.reload(),
                },
            }
        }
    }

    /// Reads again what may change while the process runs. A fault keeps what is in force.
    fn reload(&self) {
        match Secrets::read(self.config) {
            Ok(secrets) => self.take(secrets),
            Err(error) => tracing::error!(
                error = format!("{error:#}"),
                "SIGHUP: what is in force stays in force"
            ),
        }
    }

    fn take(&self, secrets: Secrets) {
        if let Err(error) = self.desk.set_keys(&secrets.ring) {
            tracing::error!(%error, "SIGHUP: the keys in force stay in force; send it again");
            return;
        }
        self.desk.gate().replace(secrets.access());
        let api_keys = secrets.api_keys.as_ref().map(ApiKeys::count);
        if let (Some(tls), Some(certificates)) = (&self.tls, secrets.certificates) {
            tls.replace(certificates);
        }
        tracing::info!(api_keys, "SIGHUP: keys and certificates were read again");
    }

    /// Serves what is open and takes nothing more, until the last call has ended, the time is up,
    /// or somebody asks a second time.
    async fn drain(&mut self, limit: Duration) {
        self.desk.drain();
        if limit.is_zero() || self.sessions() == 0 {
            return;
        }
        tracing::info!(
            sessions = self.sessions(),
            limit_s = limit.as_secs_f64(),
            "draining"
        );
        process::notify_stopping("draining");
        process::notify_extend_timeout(limit + CLOSE_TIMEOUT);
        let deadline = Instant::now() + limit;
        let mut pace = tokio::time::interval(DRAIN_PACE);
        while self.sessions() > 0 {
            tokio::select! {
                Some(event) = self.news.events.recv() => self.desk.handle_event(event),
                wish = self.signals.next() => match wish {
                    Wish::Stop => return,
                    Wish::Reload => self.reload(),
                },
                _ = pace.tick() => {}
                () = sleep_until(deadline) => return,
            }
        }
    }

    /// Closes every call, each with its reason told to its client, and hears of their ends.
    async fn close(&mut self) {
        self.desk.drain();
        self.desk.end_all();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while self.sessions() > 0 {
            tokio::select! {
                Some(event) = self.news.events.recv() => self.desk.handle_event(event),
                () = sleep_until(deadline) => {
                    tracing::warn!(sessions = self.sessions(), "not every call could be closed");
                    return;
                }
            }
        }
        // Links say good-bye after their sessions have ended.
        while self.pool.link_count() > 0 && Instant::now() < deadline {
            tokio::time::sleep(FAREWELL_PACE).await;
        }
    }

    /// Ends that were reported while the workers stopped.
    fn take_late_news(&mut self) {
        while let Ok(event) = self.news.events.try_recv() {
            self.desk.handle_event(event);
        }
    }

    fn sessions(&self) -> usize {
        self.desk.occupancy().sessions
    }
}
