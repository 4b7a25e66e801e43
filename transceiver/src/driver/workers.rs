//! Starts the data plane: the inner sockets, then one worker with its shard for each data core.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use syrinx_shared::cores::{self, CoreId};
use syrinx_shared::inner_leg::{InnerLegOptions, open_inner_leg, warn_of_small_buffers};
use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::ShardIndex;
use syrinx_shared::uring::{UdpSocket, WorkerSocket};
use syrinx_shared::wire::train::Trains;
use syrinx_shared::worker::{self, Mailbox, WorkerHandle};
use tokio::sync::mpsc;

use super::codec::{Codecs, DeskMaker, thread_count};
use super::link::{self, Links};
use super::load::{Load, LoadMeter};
use super::metrics::ShardMetrics;
use super::pool::Pool;
use super::service::{Pulse, ShardMessage, ShardService, Ways};
use crate::config::Config;
use crate::shard::{Shard, ShardConfig, ShardEvent};

/// Relay workers that one pass can answer without sending in between; each train holds 64 KiB.
const TRAIN_COUNT: usize = 16;
/// Messages from the control thread that a worker has not taken yet: a burst of openings.
const MAILBOX_CAPACITY: usize = 256;
/// Ends of sessions that the control thread has not taken yet; more wait in the shards.
const EVENTS_CAPACITY: usize = 1_024;
/// A worker's loop beats once a second; one that missed this long is stuck. Less than half of the
/// unit's `WatchdogSec`.
const PULSE_AGE_MAX: Duration = Duration::from_secs(4);

/// The running workers.
pub struct Workers {
    handles: Vec<WorkerHandle<ShardMessage>>,
    pulses: Vec<Pulse>,
    loads: Vec<Load>,
    codecs: Codecs,
}

/// What workers tell the control thread.
pub struct News {
    /// Ends of sessions.
    pub events: mpsc::Receiver<ShardEvent>,
    /// Why a worker was lost.
    pub losses: mpsc::Receiver<String>,
}

/// The ends of workers' lines to the control thread, and to backends.
#[derive(Clone)]
struct Lines {
    pool: Arc<Pool>,
    events: mpsc::Sender<ShardEvent>,
    losses: mpsc::Sender<String>,
}

/// What a worker tells of itself without being asked.
#[derive(Clone)]
struct Vitals {
    pulse: Pulse,
    load: Load,
}

impl Workers {
    /// Opens the inner sockets and starts the workers.
    ///
    /// # Errors
    ///
    /// One line: the address or core that cannot be had, and the remedy.
    pub fn start(
        config: &Config,
        keys: &Arc<KeyRing>,
        pool: &Arc<Pool>,
    ) -> anyhow::Result<(Self, News)> {
        let available = cores::available_cores()?;
        let plan = cores::plan_cores(&config.workers.core_request(), &available)
            .context("workers.count or workers.cores")?;
        let media = &config.media;
        let options = InnerLegOptions {
            key: "media.inner_listen",
            listen: media.inner_listen,
            receive_buffer_bytes: media.receive_buffer_bytes,
            send_buffer_bytes: media.send_buffer_bytes,
        };
        let sockets = open_inner_leg(&options, plan.data.len())?;
        let key = "media.receive_buffer_bytes";
        warn_of_small_buffers(key, media.receive_buffer_bytes, &sockets);
        let (events, event_news) = mpsc::channel(EVENTS_CAPACITY);
        let (losses, loss_news) = mpsc::channel(plan.data.len());
        let lines = Lines {
            pool: Arc::clone(pool),
            events,
            losses,
        };
        // Only backends with a link have anything transcoded.
        let codec_threads = config.codec.threads_count;
        let codec_threads = thread_count(codec_threads, available.len());
        let mut workers = Self {
            handles: Vec::new(),
            pulses: Vec::new(),
            loads: Vec::new(),
            codecs: Codecs::new(if pool.has_links() { codec_threads } else { 0 }),
        };
        for (index, (core, socket)) in plan.data.iter().zip(sockets).enumerate() {
            let vitals = Vitals {
                pulse: Pulse::new(Instant::now()),
                load: Load::default(),
            };
            let place = Place {
                index,
                core: *core,
                socket,
                desk: workers.codecs.desk(index),
            };
            let handle = start_worker(config, place, keys, &vitals, lines.clone())
                .with_context(|| format!("worker {index} on core {core}"))?;
            workers.handles.push(handle);
            workers.pulses.push(vitals.pulse);
            workers.loads.push(vitals.load);
        }
        // Before the control thread is pinned, which they would share: they have all cores.
        let mailboxes = workers.mailboxes();
        workers.codecs.start(&mailboxes).context("codec threads")?;
        if let Some(core) = plan.control {
            cores::pin_current_thread(core)?;
        }
        Ok((
            workers,
            News {
                events: event_news,
                losses: loss_news,
            },
        ))
    }

    /// Mailboxes in the order of the shards.
    pub fn mailboxes(&self) -> Vec<Mailbox<ShardMessage>> {
        self.handles.iter().map(WorkerHandle::mailbox).collect()
    }

    /// How many there are; a shard index has 8 bits.
    pub fn count(&self) -> u8 {
        u8::try_from(self.handles.len()).expect("validated: at most 128 workers")
    }

    /// The I/O model in use, which is the same on every worker.
    pub fn io_model(&self) -> String {
        self.handles
            .first()
            .map_or_else(String::new, |worker| worker.io_model().to_string())
    }

    /// How busy the workers are, in the order of the shards.
    pub fn loads(&self) -> Vec<Load> {
        self.loads.clone()
    }

    /// How busy the codec threads are.
    pub fn codec_loads(&self) -> Vec<Load> {
        self.codecs.loads()
    }

    /// The oldest pulse of all workers, for as long as all are well.
    pub fn pulses(&self) -> Pulses {
        Pulses(self.pulses.clone())
    }

    /// Stops the workers and waits for them, which their loops bound by one pass.
    ///
    /// # Errors
    ///
    /// When a worker had failed, and how.
    pub fn stop(self) -> anyhow::Result<()> {
        let stopped = worker::stop_all(self.handles);
        self.codecs.stop();
        Ok(stopped?)
    }
}

/// Whether the workers' loops turn.
#[derive(Debug, Clone)]
pub struct Pulses(Vec<Pulse>);

impl Pulses {
    /// Whether every worker has beaten lately.
    pub fn are_alive(&self) -> bool {
        let now = Instant::now();
        self.0.iter().all(|pulse| pulse.age(now) < PULSE_AGE_MAX)
    }
}

/// What one worker has for itself.
struct Place {
    index: usize,
    core: CoreId,
    socket: UdpSocket,
    desk: DeskMaker,
}

fn start_worker(
    config: &Config,
    place: Place,
    keys: &Arc<KeyRing>,
    vitals: &Vitals,
    lines: Lines,
) -> anyhow::Result<WorkerHandle<ShardMessage>> {
    let Place {
        index,
        core,
        socket,
        desk,
    } = place;
    let media = &config.media;
    let shard_config = ShardConfig {
        transceiver: media.transceiver_id(),
        index: ShardIndex(u8::try_from(index).context("at most 128 workers")?),
        slots: media.sessions_per_worker_count_max as usize,
        lifetimes: media.lifetimes(),
    };
    let (sender, bundle_bytes) = (media.transceiver, media.bundle_bytes());
    let (keys, vitals, losses) = (Arc::clone(keys), vitals.clone(), lines.losses);

    let sockets = vec![WorkerSocket {
        socket,
        large: true,
    }];
    let name = format!("shard-{index}");
    let mut options = config.workers.worker_options(name, core, sockets);
    options.mailbox_capacity = MAILBOX_CAPACITY;
    if lines.pool.has_links() {
        options.tasks_max = link::tasks_max(shard_config.slots);
    }
    options.on_exit = Some(Box::new(move |failure| {
        if let Some(failure) = failure {
            // There is room for one from each worker.
            let _ = losses.try_send(failure.to_string());
        }
    }));
    let pool = lines.pool;
    let handle = worker::spawn(options, move |context| {
        let slices = context.slices().cloned();
        let links = slices.map(|slices| Links::new(slices, pool, index, shard_config.slots));
        let shard = Shard::new(shard_config, keys, Instant::now());
        let trains = Trains::new(shard_config.index, sender, bundle_bytes, TRAIN_COUNT);
        let metrics = ShardMetrics::register(index);
        let load = LoadMeter::new(vitals.load);
        let ways = Ways {
            links,
            codec: desk.make(),
            events: lines.events,
        };
        ShardService::new(shard, trains, ways, vitals.pulse, load, metrics)
    })?;
    Ok(handle)
}
