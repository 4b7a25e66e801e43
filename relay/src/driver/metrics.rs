//! One worker's counters as metrics: handles registered at start, published once a second.
//!
//! Labels come from closed sets (worker, side, reason, direction). `syrinx_relay_*_total` of one
//! worker add up as [`crate::forwarder::verdict`] describes.

use metrics::{Gauge, counter, gauge};
use syrinx_shared::metrics::{IoMetrics, Published};
use syrinx_shared::uring::IoStats;

use crate::forwarder::verdict::{Counters, DropReason, Side};

/// See the module's description.
#[derive(Debug)]
pub struct RelayMetrics {
    totals: Vec<(Published, Reader)>,
    drops: Vec<(Published, DropReason)>,
    flows: Gauge,
    io: IoMetrics,
}

/// Name, label and source of each plain counter; the label tells directions of one name apart.
type Total = (&'static str, Option<&'static str>, Reader);

/// Takes one total out of a worker's counters.
type Reader = fn(&Counters) -> u64;

const TOTALS: &[Total] = &[
    ("syrinx_relay_client_datagrams_total", None, |c| {
        c.client_datagrams
    }),
    (
        "syrinx_relay_forwarded_total",
        Some("to_transceiver"),
        |c| c.forwarded_to_transceiver,
    ),
    ("syrinx_relay_forwarded_total", Some("to_client"), |c| {
        c.forwarded_to_client
    }),
    ("syrinx_relay_inner_datagrams_total", None, |c| {
        c.inner_datagrams
    }),
    ("syrinx_relay_bundles_total", None, |c| c.bundles),
    ("syrinx_relay_records_total", None, |c| c.records),
    ("syrinx_relay_control_records_total", None, |c| {
        c.control_records
    }),
    ("syrinx_relay_flows_created_total", None, |c| {
        c.flows_created
    }),
    ("syrinx_relay_flows_healed_total", None, |c| c.flows_healed),
    ("syrinx_relay_flows_repointed_total", None, |c| {
        c.flows_repointed
    }),
    ("syrinx_relay_flows_expired_total", None, |c| {
        c.flows_expired
    }),
    ("syrinx_relay_flows_closed_total", None, |c| c.flows_closed),
    ("syrinx_relay_flows_evicted_total", None, |c| {
        c.flows_evicted
    }),
];

impl RelayMetrics {
    /// Registers the handles of one worker; `sockets` names its sockets, in their order.
    pub fn register(worker: usize, sockets: &[String]) -> Self {
        let worker = worker.to_string();
        let totals = TOTALS
            .iter()
            .map(|&(name, direction, read)| {
                let counter = match direction {
                    Some(direction) => {
                        counter!(name, "worker" => worker.clone(), "direction" => direction)
                    }
                    None => counter!(name, "worker" => worker.clone()),
                };
                (Published::new(counter), read)
            })
            .collect();
        let drops = DropReason::ALL
            .iter()
            .map(|&reason| {
                let side = match reason.side() {
                    Side::Client => "client",
                    Side::Transceiver => "transceiver",
                };
                let counter = counter!(
                    "syrinx_relay_drops_total",
                    "worker" => worker.clone(), "side" => side, "reason" => reason.label()
                );
                (Published::new(counter), reason)
            })
            .collect();
        let flows = gauge!("syrinx_relay_flows", "worker" => worker.clone());
        Self {
            totals,
            drops,
            flows,
            io: IoMetrics::register("syrinx_relay", &worker, sockets),
        }
    }

    /// Publishes what was added since the last call.
    pub fn publish(&mut self, counters: &Counters, flow_count: u32, io: &IoStats) {
        for (published, read) in &mut self.totals {
            published.publish(read(counters));
        }
        for (published, reason) in &mut self.drops {
            published.publish(counters.drops.count(*reason));
        }
        self.flows.set(f64::from(flow_count));
        self.io.publish(io);
    }
}
