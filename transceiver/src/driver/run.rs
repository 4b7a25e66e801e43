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
use serde_json::{Map, Value};
use syrinx_shared::admin::{self, Health, Status};
use syrinx_shared::bind;
use syrinx_shared::http::{self, HttpLimits};
use syrinx_shared::keys::KeyRing;
use syrinx_shared::metrics::{self as exposition, Exposition};
use syrinx_shared::process::{self, Signals, Wish};
use syrinx_shared::route::Generation;
use syrinx_shared::wire::ufrag::MintError;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::desk::Desk;
use super::metrics::CallMetrics;
use super::workers::{News, Pulses, Workers};
use crate::config::Config;
use crate::engine::Template;
use crate::signalling::calls::Calls;
use crate::signalling::http::{AllowedOrigins, Signalling, router};
use crate::signalling::registrar::Registrar;

/// How long closing all calls may take: a worker ends a thousand in some tens of milliseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a draining process looks whether its last call has ended.
const DRAIN_PACE: Duration = Duration::from_millis(100);

/// Reads the keys and makes sure that calls can be opened with them.
///
/// # Errors
///
/// One line: the file, what is wrong with it, and the remedy.
pub fn read_keys(config: &Config) -> anyhow::Result<KeyRing> {
    let keys = config.keys.read()?;
    match keys.minting() {
        Some(_) => Ok(keys),
        None => Err(MintError::NoMintingEpoch)
            .with_context(|| format!("keys.file = {}", config.keys.file.display())),
    }
}

/// Runs the transceiver until it is asked to stop.
///
/// # Errors
///
/// One line that ends in the remedy: what could not be had, or which worker was lost.
pub fn run(config: &Config) -> anyhow::Result<()> {
    let keys = Arc::new(read_keys(config)?);
    let exposition = exposition::install().context("metrics")?;
    let template = Template::new(&config.media.advertise)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the control thread cannot start; check this process's limits")?;
    runtime.block_on(serve(config, keys, template, exposition))
}

async fn serve(
    config: &Config,
    keys: Arc<KeyRing>,
    template: Template,
    exposition: Exposition,
) -> anyhow::Result<()> {
    let signals = Signals::install().context("signal handlers")?;
    let signalling = bind::tcp("signalling.listen", config.signalling.listen).await?;
    let admin = bind::tcp("admin.listen", config.admin.listen).await?;
    let (workers, news) = Workers::start(config, &keys)?;

    let media = &config.media;
    let registrar = Registrar::new(
        media.transceiver_id(),
        workers.count(),
        media.sessions_per_worker_count_max,
        first_generation()?,
    );
    let calls = Calls::new(registrar, template, keys, media.cluster_id());
    let desk = Arc::new(Desk::new(
        calls,
        workers.mailboxes(),
        CallMetrics::register(),
    ));
    let servers = Servers::start(config, signalling, admin, &desk, &workers, exposition);
    tokio::spawn(process::feed_watchdog({
        let pulses = workers.pulses();
        move || pulses.are_alive()
    }));
    say_ready(config, &workers);

    let mut control = Control {
        desk,
        news,
        signals,
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

/// A ufrag of the process's former life must name nobody in this one.
fn first_generation() -> anyhow::Result<Generation> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).context("no randomness from the operating system")?;
    Ok(Generation(u16::from_ne_bytes(bytes)))
}

fn say_ready(config: &Config, workers: &Workers) {
    let listen = config.signalling.listen;
    if listen.ip().is_loopback() {
        tracing::info!("calls need no key: signalling.listen is a loopback address");
    } else {
        tracing::warn!(
            %listen,
            "calls need no key, and signalling is not on a loopback address: allow_anonymous = true"
        );
    }
    let (count, io_model) = (workers.count(), workers.io_model());
    let status = format!("{count} worker(s) on {io_model}, signalling on {listen}");
    let (inner, admin) = (config.media.inner_listen, config.admin.listen);
    tracing::info!(%inner, %admin, "serving: {status}");
    process::notify_ready(&status);
}

/// What the control thread waits for.
struct Control {
    desk: Arc<Desk>,
    news: News,
    signals: Signals,
}

impl Control {
    /// Serves until the process should stop, or a worker is lost: then it says which and why.
    async fn serve(&mut self) -> Option<String> {
        loop {
            tokio::select! {
                Some(event) = self.news.events.recv() => self.desk.handle_event(event),
                Some(loss) = self.news.losses.recv() => return Some(loss),
                wish = self.signals.next() => match wish {
                    Wish::Stop => return None,
                    Wish::Reload => tracing::info!("SIGHUP: read nothing: restart for that"),
                },
            }
        }
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
                wish = self.signals.next() => if wish == Wish::Stop { return },
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

/// The two HTTP servers.
struct Servers {
    stop: watch::Sender<bool>,
    tasks: [JoinHandle<()>; 2],
}

impl Servers {
    fn start(
        config: &Config,
        signalling: TcpListener,
        admin: TcpListener,
        desk: &Arc<Desk>,
        workers: &Workers,
        exposition: Exposition,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let when_stopped = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let limits = HttpLimits {
            connections_max: config.signalling.connections_count_max,
            header_timeout: config.signalling.header_timeout(),
        };
        let routes = router(
            Signalling {
                desk: Arc::clone(desk),
                body_timeout: config.signalling.body_timeout(),
            },
            AllowedOrigins::new(&config.signalling.allowed_origins),
        );
        let health = health(Arc::clone(desk), workers.pulses(), workers);
        let tasks = [
            tokio::spawn(http::serve(
                signalling,
                routes,
                limits,
                when_stopped(stopped.clone()),
            )),
            tokio::spawn(admin::serve(
                admin,
                health,
                exposition,
                axum::Router::new(),
                when_stopped(stopped),
            )),
        ];
        Self { stop, tasks }
    }

    async fn stop(self) {
        let _ = self.stop.send(true);
        for task in self.tasks {
            // Bounded by the servers themselves; a panic of one must not keep the process.
            let _ = task.await;
        }
    }
}

fn health(
    desk: Arc<Desk>,
    pulses: Pulses,
    workers: &Workers,
) -> impl Fn() -> Health + Clone + Send + Sync + 'static {
    let (worker_count, io_model) = (workers.count(), workers.io_model());
    move || {
        let occupancy = desk.occupancy();
        let status = match (pulses.are_alive(), occupancy.draining) {
            (false, _) => Status::Failing,
            (true, true) => Status::Draining,
            (true, false) => Status::Ok,
        };
        let facts = Map::from_iter([
            ("sessions".to_owned(), Value::from(occupancy.sessions)),
            ("capacity".to_owned(), Value::from(occupancy.capacity)),
            ("draining".to_owned(), Value::from(occupancy.draining)),
            ("workers".to_owned(), Value::from(worker_count)),
            ("io_model".to_owned(), Value::from(io_model.clone())),
            ("version".to_owned(), Value::from(env!("CARGO_PKG_VERSION"))),
        ]);
        Health { status, facts }
    }
}
