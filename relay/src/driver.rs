//! What surrounds the pure forwarder: sockets, workers, metrics, and the control thread that reads
//! configuration and keys and answers on the admin address.
//!
//! Each worker owns one public socket an address and one inner socket, all of reuseport groups. The
//! kernel spreads clients over the public groups by their address, never by payload: a client must
//! not be able to choose its core. Inner sockets are steered by the shard that a bundle names.

pub mod endpoints;
pub mod metrics;
pub mod service;
pub mod trace;
pub mod trace_route;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use syrinx_shared::clock::Clock;
use syrinx_shared::cores::{self, CoreId};
use syrinx_shared::inner_leg::{InnerLegOptions, open_inner_leg, warn_of_small_buffers};
use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::ShardIndex;
use syrinx_shared::uring::{UdpOptions, UdpSocket, WorkerSocket, open_udp_group};
use syrinx_shared::wire::train::Trains;
use syrinx_shared::worker::{self, Mailbox, WorkerHandle, WorkerOptions};
use tokio::sync::Notify;

use crate::config::Config;
use crate::forwarder::Forwarder;
use crate::forwarder::routes::Routes;
use metrics::RelayMetrics;
use service::{RelayMessage, RelayService};

/// Destination shards that one pass can serve without sending in between; each train holds 64 KiB.
const TRAIN_COUNT: usize = 32;
/// Messages from the control thread that a worker has not taken yet.
const MAILBOX_CAPACITY: usize = 16;

/// The running data plane of a relay.
#[derive(Debug)]
pub struct DataPlane {
    workers: Vec<WorkerHandle<RelayMessage>>,
    vitals: Vitals,
}

/// Whether all workers run, for those who watch from elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Vitals(Arc<VitalsState>);

#[derive(Debug, Default)]
struct VitalsState {
    lost: AtomicBool,
    notify: Notify,
}

impl Vitals {
    /// Whether every worker runs.
    pub fn is_alive(&self) -> bool {
        !self.0.lost.load(Ordering::Acquire)
    }

    /// Resolves when a worker is lost.
    pub async fn lost(&self) {
        while self.is_alive() {
            self.0.notify.notified().await;
        }
    }

    fn lose(&self) {
        self.0.lost.store(true, Ordering::Release);
        self.0.notify.notify_one();
    }
}

impl DataPlane {
    /// Opens all sockets, then starts one worker a data core.
    ///
    /// # Errors
    /// One line: the address or core that cannot be had, and the remedy.
    pub fn start(config: &Config, keys: Arc<KeyRing>) -> anyhow::Result<Self> {
        let available = cores::available_cores()?;
        let plan = cores::plan_cores(&config.workers.core_request(), &available)
            .context("[workers] count or cores")?;
        let routes = Arc::new(config.route_table()?);
        let sockets = open_sockets(config, plan.data.len())?;
        let vitals = Vitals::default();
        let mut workers = Vec::with_capacity(plan.data.len());
        for (index, (core, sockets)) in plan.data.iter().zip(sockets).enumerate() {
            let on_exit = vitals.clone();
            let options = worker_options(config, index, *core, sockets, on_exit);
            let handle = start_worker(config, index, options, &keys, &routes)
                .with_context(|| format!("worker {index} on core {core}"))?;
            workers.push(handle);
        }
        if let Some(core) = plan.control {
            cores::pin_current_thread(core)?;
        }
        Ok(Self { workers, vitals })
    }

    /// Tells every worker. One that takes no messages has failed, and is reported as that.
    pub fn tell(&self, message: &RelayMessage) {
        for worker in &self.workers {
            if let Err(error) = worker.send(message.clone()) {
                tracing::error!(worker = worker.name(), "not told of a reload: {error}");
            }
        }
    }

    /// The workers' mailboxes, in the order of the workers.
    pub fn mailboxes(&self) -> Vec<Mailbox<RelayMessage>> {
        self.workers.iter().map(WorkerHandle::mailbox).collect()
    }

    /// How many workers there are.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Whether every worker runs, to be watched from elsewhere.
    pub fn vitals(&self) -> Vitals {
        self.vitals.clone()
    }

    /// The I/O model in use, which is the same on every worker.
    pub fn io_model(&self) -> String {
        self.workers
            .first()
            .map_or_else(String::new, |worker| worker.io_model().to_string())
    }

    /// Stops the workers and waits for them.
    ///
    /// # Errors
    /// When a worker had failed, and how.
    pub fn stop(self) -> anyhow::Result<()> {
        Ok(worker::stop_all(self.workers)?)
    }
}

fn worker_options(
    config: &Config,
    index: usize,
    core: CoreId,
    sockets: Vec<WorkerSocket>,
    vitals: Vitals,
) -> WorkerOptions {
    let name = format!("relay-{index}");
    let mut options = config.workers.worker_options(name, core, sockets);
    options.mailbox_capacity = MAILBOX_CAPACITY;
    options.on_exit = Some(Box::new(move |failure| {
        if failure.is_some() {
            vitals.lose();
        }
    }));
    options
}

fn start_worker(
    config: &Config,
    index: usize,
    options: WorkerOptions,
    keys: &Arc<KeyRing>,
    routes: &Arc<Routes>,
) -> anyhow::Result<WorkerHandle<RelayMessage>> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).context("no randomness from the operating system")?;
    let forwarder_options = config.forwarder_options(u64::from_ne_bytes(seed));
    let (keys, routes) = (Arc::clone(keys), Arc::clone(routes));
    let shard = ShardIndex(u8::try_from(index).context("at most 128 workers")?);
    let (relay, bundle_bytes) = (config.inner.relay, config.inner.bundle_bytes());
    let public_count = config.public.listen.len();
    let mut names: Vec<String> = config
        .public
        .listen
        .iter()
        .map(SocketAddr::to_string)
        .collect();
    names.push("inner".to_owned());
    let handle = worker::spawn(options, move |_| {
        let now = Clock::new().now();
        let forwarder = Forwarder::new(forwarder_options, keys, routes, now);
        let trains = Trains::new(shard, relay, bundle_bytes, TRAIN_COUNT);
        let metrics = RelayMetrics::register(index, &names);
        RelayService::new(forwarder, trains, public_count, metrics)
    })?;
    Ok(handle)
}

/// The sockets of each worker: the public ones in the order of the configuration, then the inner.
fn open_sockets(config: &Config, worker_count: usize) -> anyhow::Result<Vec<Vec<WorkerSocket>>> {
    let mut workers: Vec<Vec<WorkerSocket>> = (0..worker_count).map(|_| Vec::new()).collect();
    for (index, address) in config.public.listen.iter().enumerate() {
        let mut options = UdpOptions::new(*address);
        options.receive_buffer_bytes = config.public.receive_buffer_bytes;
        options.send_buffer_bytes = config.public.send_buffer_bytes;
        let group = open_udp_group(&options, worker_count)
            .with_context(|| format!("public.listen[{index}]"))?;
        let wanted_bytes = options.receive_buffer_bytes;
        warn_of_small_buffers("public.receive_buffer_bytes", wanted_bytes, &group);
        deal(&mut workers, group, false);
    }
    let inner = open_inner_leg(
        &InnerLegOptions {
            key: "inner.listen",
            listen: config.inner.listen,
            receive_buffer_bytes: config.inner.receive_buffer_bytes,
            send_buffer_bytes: config.inner.send_buffer_bytes,
        },
        worker_count,
    )?;
    let wanted_bytes = config.inner.receive_buffer_bytes;
    warn_of_small_buffers("inner.receive_buffer_bytes", wanted_bytes, &inner);
    deal(&mut workers, inner, true);
    Ok(workers)
}

fn deal(workers: &mut [Vec<WorkerSocket>], group: Vec<UdpSocket>, large: bool) {
    for (worker, socket) in workers.iter_mut().zip(group) {
        worker.push(WorkerSocket { socket, large });
    }
}
