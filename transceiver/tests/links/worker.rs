//! A worker whose service does nothing but carry commands to links and events from them.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use syrinx_shared::route::{Generation, Now, SessionRef, ShardIndex, Slot, TransceiverId};
use syrinx_shared::uring::{Batch, IoStats, SendQueue};
use syrinx_shared::worker::{Service, WorkerHandle, WorkerOptions, spawn};
use syrinx_transceiver::backend::link::{
    BackendId, LinkBody, LinkCause, LinkClass, LinkCommand, LinkEvent, LinkMessage, LinkTarget,
};
use syrinx_transceiver::config::backends::{BackendConfig, Dialect};
use syrinx_transceiver::driver::link::{Links, tasks_max};
use syrinx_transceiver::driver::pool::Pool;

/// How long anything may take that should be a matter of milliseconds, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Sessions that a worker is made for.
const SESSIONS_MAX: usize = 1_200;

/// Tests share one process, and some of them count its descriptors.
static DESCRIPTORS: RwLock<()> = RwLock::new(());

/// While it lives, nobody counts descriptors.
pub(crate) fn among_others() -> RwLockReadGuard<'static, ()> {
    DESCRIPTORS.read().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, no other test opens or closes any.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    DESCRIPTORS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Descriptors of this process.
pub(crate) fn descriptor_count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// See the module.
struct Carrier {
    links: Links,
    events: Sender<(SessionRef, LinkEvent)>,
}

impl Service for Carrier {
    type Message = (SessionRef, LinkCommand);

    fn handle_datagrams(&mut self, _: Now, _: &Batch, _: &mut SendQueue) {}

    fn handle_message(&mut self, now: Now, message: Self::Message, _: &mut SendQueue) {
        self.links.handle(now.mono, message.0, message.1);
    }

    fn handle_timeout(&mut self, _: Now, _: &mut SendQueue) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_tasks(&mut self, _: Now, _: &mut SendQueue) {
        while let Some(event) = self.links.poll_event() {
            // A test that is over hears no more.
            let _ = self.events.send(event);
        }
    }

    fn handle_second(&mut self, _: Now, _: &IoStats) {
        self.links.publish();
    }

    fn handle_stop(&mut self, _: Now, _: &mut SendQueue) {}
}

/// A running worker with links.
pub(crate) struct Worker {
    handle: Option<WorkerHandle<(SessionRef, LinkCommand)>>,
    events: Receiver<(SessionRef, LinkEvent)>,
    pub(crate) pool: Arc<Pool>,
}

impl Worker {
    pub(crate) fn start(config: BackendConfig) -> Self {
        let pool = Arc::new(Pool::new(&[config], Instant::now()).unwrap());
        let mut options = WorkerOptions::new("links", Vec::new());
        options.tasks_max = tasks_max(SESSIONS_MAX);
        options.mailbox_capacity = 16_384;
        let (sender, events) = channel();
        let shared = Arc::clone(&pool);
        let handle = spawn(options, move |context| {
            let slices = context.slices().unwrap().clone();
            Carrier {
                links: Links::new(slices, shared, 0, SESSIONS_MAX),
                events: sender,
            }
        });
        Self {
            handle: Some(handle.unwrap()),
            events,
            pool,
        }
    }

    pub(crate) fn command(&self, session: SessionRef, command: LinkCommand) {
        let handle = self.handle.as_ref().unwrap();
        handle.send((session, command)).unwrap();
    }

    /// Opens the link of a session to the only backend.
    pub(crate) fn open(&self, session: SessionRef) {
        self.command(session, LinkCommand::Open(target(None)));
    }

    pub(crate) fn send(&self, session: SessionRef, message: LinkMessage) {
        self.command(session, LinkCommand::Send(message));
    }

    pub(crate) fn close(&self, session: SessionRef, code: u16, reason: &str) {
        let reason = reason.to_owned();
        self.command(session, LinkCommand::Close { code, reason });
    }

    /// The next event, of whichever session.
    pub(crate) fn event(&self) -> (SessionRef, LinkEvent) {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// The next event; all are of one session.
    pub(crate) fn next(&self) -> LinkEvent {
        self.event().1
    }

    /// What the next event says of a link that is down: cause, detail, and whether it is tried
    /// again.
    pub(crate) fn next_down(&self) -> (LinkCause, String, bool) {
        match self.next() {
            LinkEvent::Down { reason, will_retry } => (reason.cause, reason.detail, will_retry),
            other => panic!("the link should be down: {other:?}"),
        }
    }

    /// Nothing happens for this long.
    pub(crate) fn is_quiet_for(&self, while_: Duration) -> bool {
        self.events.recv_timeout(while_) == Err(RecvTimeoutError::Timeout)
    }

    /// Waits until no link is left.
    pub(crate) fn wait_for_no_links(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.pool.link_count() > 0 {
            assert!(Instant::now() < deadline, "links are left over");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let handle = self.handle.take().unwrap();
        handle.stop();
        let outcome = handle.join();
        if !std::thread::panicking() {
            outcome.unwrap();
        }
    }
}

/// A configuration in which everything happens quickly.
pub(crate) fn config(urls: &[&str]) -> BackendConfig {
    BackendConfig {
        name: "main".to_owned(),
        dialect: Some(Dialect::MediaV1),
        urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
        retry_count_max: 2,
        retry_ms: 10,
        ..BackendConfig::default()
    }
}

pub(crate) fn target(subprotocol: Option<&'static str>) -> LinkTarget {
    LinkTarget {
        backend: BackendId(0),
        model: Some("gpt realtime".to_owned()),
        call: "rtc_1".to_owned(),
        subprotocol,
    }
}

pub(crate) fn session(slot: u32) -> SessionRef {
    SessionRef {
        transceiver: TransceiverId(1),
        shard: ShardIndex(0),
        slot: Slot::new(slot).unwrap(),
        generation: Generation(0),
    }
}

pub(crate) fn control(text: &str) -> LinkMessage {
    LinkMessage {
        class: LinkClass::Control,
        body: LinkBody::Text(text.to_owned()),
    }
}

pub(crate) fn audio(bytes: Vec<u8>) -> LinkMessage {
    LinkMessage {
        class: LinkClass::Audio,
        body: LinkBody::Binary(bytes),
    }
}
