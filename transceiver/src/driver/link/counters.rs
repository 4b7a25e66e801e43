//! What a worker counts of its links, by backend, in plain integers; published once a second.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use metrics::{Counter, Gauge, Histogram, Unit};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use syrinx_shared::metrics::Published;

use crate::backend::link::{LinkCause, LinkEvent};

/// The links of one backend on one worker.
#[derive(Debug)]
pub(super) struct BackendCounters {
    pub(super) connecting: Cell<usize>,
    pub(super) open: Cell<usize>,
    pub(super) opened: Cell<u64>,
    pub(super) failed: [Cell<u64>; LinkCause::ALL.len()],
    pub(super) retried: Cell<u64>,
    pub(super) dropped: Cell<u64>,
    messages: [Cell<u64>; 2],
    bytes: [Cell<u64>; 2],
    connect_seconds: Histogram,
}

/// Index of a direction.
const IN: usize = 0;
const OUT: usize = 1;
const DIRECTIONS: [&str; 2] = ["from_backend", "to_backend"];

impl BackendCounters {
    fn new(connect_seconds: Histogram) -> Self {
        Self {
            connecting: Cell::new(0),
            open: Cell::new(0),
            opened: Cell::new(0),
            failed: std::array::from_fn(|_| Cell::new(0)),
            retried: Cell::new(0),
            dropped: Cell::new(0),
            messages: [Cell::new(0), Cell::new(0)],
            bytes: [Cell::new(0), Cell::new(0)],
            connect_seconds,
        }
    }

    pub(super) fn note_opened(&self, took: std::time::Duration) {
        add(&self.opened, 1);
        self.connect_seconds.record(took.as_secs_f64());
    }

    pub(super) fn note_failed(&self, cause: LinkCause) {
        add(&self.failed[cause.index()], 1);
    }

    pub(super) fn note_received(&self, event: &LinkEvent) {
        let bytes = match event {
            LinkEvent::Text(text) => text.len(),
            LinkEvent::Binary(bytes) => bytes.len(),
            LinkEvent::Up | LinkEvent::Down { .. } => return,
        };
        add(&self.messages[IN], 1);
        add(&self.bytes[IN], bytes as u64);
    }

    pub(super) fn note_sent(&self, bytes: usize) {
        add(&self.messages[OUT], 1);
        add(&self.bytes[OUT], bytes as u64);
    }
}

/// Adds to a plain counter.
pub(super) fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

/// Counts something for as long as it lives.
pub(super) struct Presence<'a>(&'a Cell<usize>);

impl<'a> Presence<'a> {
    pub(super) fn new(cell: &'a Cell<usize>) -> Self {
        cell.set(cell.get() + 1);
        Self(cell)
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Handles of one backend on one worker, and what they publish.
pub(super) struct BackendMetrics {
    pub(super) counters: Rc<BackendCounters>,
    connecting: Gauge,
    open: Gauge,
    queue_bytes: Gauge,
    published: RefCell<Totals>,
}

struct Totals {
    opened: Published,
    failed: Vec<Published>,
    retried: Published,
    dropped: Published,
    messages: [Published; 2],
    bytes: [Published; 2],
}

impl BackendMetrics {
    /// Registers the handles of a backend on the worker with this index.
    pub(super) fn register(backend: &str, worker: usize) -> Self {
        let (backend, worker) = (backend.to_owned(), worker.to_string());
        let links = |state: &'static str| {
            gauge!(
                "syrinx_transceiver_links",
                "worker" => worker.clone(), "backend" => backend.clone(), "state" => state
            )
        };
        let plain = |name: &'static str| {
            let labels = [("worker", worker.clone()), ("backend", backend.clone())];
            counter!(name, &labels)
        };
        let directed = |name: &'static str, direction: &'static str| -> Counter {
            counter!(
                name,
                "worker" => worker.clone(), "backend" => backend.clone(), "direction" => direction
            )
        };
        let failed = LinkCause::ALL.map(|cause| {
            let reason = cause.label();
            Published::new(counter!(
                "syrinx_transceiver_link_failures_total",
                "worker" => worker.clone(), "backend" => backend.clone(), "reason" => reason
            ))
        });
        let published = Totals {
            opened: Published::new(plain("syrinx_transceiver_links_opened_total")),
            failed: failed.into(),
            retried: Published::new(plain("syrinx_transceiver_link_retries_total")),
            dropped: Published::new(plain("syrinx_transceiver_link_audio_dropped_total")),
            messages: DIRECTIONS.map(|direction| {
                Published::new(directed(
                    "syrinx_transceiver_link_messages_total",
                    direction,
                ))
            }),
            bytes: DIRECTIONS.map(|direction| {
                Published::new(directed("syrinx_transceiver_link_bytes_total", direction))
            }),
        };
        let connect_seconds = histogram!(
            "syrinx_transceiver_link_connect_seconds", "backend" => backend.clone()
        );
        Self {
            counters: Rc::new(BackendCounters::new(connect_seconds)),
            connecting: links("connecting"),
            open: links("open"),
            queue_bytes: gauge!(
                "syrinx_transceiver_link_queue_bytes",
                "worker" => worker.clone(), "backend" => backend.clone()
            ),
            published: RefCell::new(published),
        }
    }

    /// Publishes what was added since the last call; `queue_bytes` wait on all links.
    pub(super) fn publish(&self, queue_bytes: usize) {
        let counters = &self.counters;
        // Links and their queues are far below 2^53.
        self.connecting.set(counters.connecting.get() as f64);
        self.open.set(counters.open.get() as f64);
        self.queue_bytes.set(queue_bytes as f64);
        let mut totals = self.published.borrow_mut();
        totals.opened.publish(counters.opened.get());
        totals.retried.publish(counters.retried.get());
        totals.dropped.publish(counters.dropped.get());
        let failed = totals.failed.iter_mut().zip(&counters.failed);
        failed.for_each(|(published, total)| published.publish(total.get()));
        let messages = totals.messages.iter_mut().zip(&counters.messages);
        messages.for_each(|(published, total)| published.publish(total.get()));
        let bytes = totals.bytes.iter_mut().zip(&counters.bytes);
        bytes.for_each(|(published, total)| published.publish(total.get()));
    }
}

/// Describes the metrics of links.
pub fn describe() {
    describe_gauge!(
        "syrinx_transceiver_links",
        "Links to a backend, by their state"
    );
    describe_counter!(
        "syrinx_transceiver_links_opened_total",
        "WebSockets to a backend that were opened"
    );
    describe_counter!(
        "syrinx_transceiver_link_failures_total",
        "Links that could not be opened or were lost, by the reason"
    );
    describe_counter!(
        "syrinx_transceiver_link_retries_total",
        "Further attempts to open a link"
    );
    describe_counter!(
        "syrinx_transceiver_link_audio_dropped_total",
        "Messages with audio that a backend read too slowly to be sent"
    );
    describe_counter!(
        "syrinx_transceiver_link_messages_total",
        "Messages on links, by direction"
    );
    describe_counter!(
        "syrinx_transceiver_link_bytes_total",
        Unit::Bytes,
        "Bytes of messages on links, by direction"
    );
    describe_gauge!(
        "syrinx_transceiver_link_queue_bytes",
        Unit::Bytes,
        "Bytes that wait for a backend to read them"
    );
    describe_histogram!(
        "syrinx_transceiver_link_connect_seconds",
        Unit::Seconds,
        "From an attempt to open a link to its success"
    );
}
