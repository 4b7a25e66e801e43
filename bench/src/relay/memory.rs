//! Memory a flow: what a relay's resident memory grows by for each flow it holds.
//!
//! The same program is started twice: with a table and clients for a thousand flows, and for as
//! many as asked. All clients get their flows; the difference in resident memory, divided by the
//! difference in flows, is what a flow costs with everything that belongs to it: its entry, its
//! place in the index, and what the allocator rounds up.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::recipe::{self, Ground, Stand};
use super::target::Kind;

/// The small table.
const FEW: u32 = 1_000;
/// Every flow costs client, relay and sink some 20 µs together; this allows for a slow machine.
const SETTLE_EACH: Duration = Duration::from_micros(200);
const SETTLE_AT_LEAST: Duration = Duration::from_secs(15);

/// What a target's flows cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowMemory {
    /// The target.
    pub kind: Kind,
    /// How many flows it held.
    pub flow_count: u32,
    /// Resident bytes for each.
    pub bytes_each: f64,
}

/// Measures `kind` with `flow_count` flows.
///
/// # Errors
/// When a target cannot be set up, ends, or does not give every client its flow; when there is no
/// process to look at, or no more flows than the small table has.
pub fn measure(
    kind: Kind,
    ground: &Ground,
    flow_count: u32,
    folder: &Path,
) -> anyhow::Result<FlowMemory> {
    if flow_count <= FEW {
        bail!("{flow_count} flows are too few to see their memory: ask for more than {FEW}");
    }
    let few = resident_bytes(kind, ground, FEW, folder)?;
    let many = resident_bytes(kind, ground, flow_count, folder)?;
    let bytes_each = (many - few) / f64::from(flow_count - FEW);
    Ok(FlowMemory {
        kind,
        flow_count,
        bytes_each,
    })
}

fn resident_bytes(kind: Kind, ground: &Ground, count: u32, folder: &Path) -> anyhow::Result<f64> {
    let ground = Ground {
        client_count: count,
        flow_count: count,
        ..ground.clone()
    };
    let Stand {
        mut target,
        mut rig,
    } = recipe::set_up(kind, &ground, folder)?;
    let missing = rig.settle(SETTLE_AT_LEAST.max(SETTLE_EACH * count))?;
    target.check()?;
    if missing > 0 {
        bail!("{}: {missing} of {count} clients got no flow", kind.name());
    }
    let kib = target
        .resident_kib()
        .context("no process to look at: direct has no memory")?;
    Ok(kib as f64 * 1024.0)
}
