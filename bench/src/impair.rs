//! An impaired network between clients and relay, in user space: delay, jitter, loss, duplicates,
//! reordering, a bottleneck and a small MTU, on machines whose kernel has no netem and for users
//! who are not root.
//!
//! What becomes of a packet is drawn from the seed, the client's path, the way and the packet's
//! number on it, and from nothing else: two runs with one seed lose the same packets. Only the
//! bottleneck's queue depends on when packets come, as in any network.
//!
//! [`conditions`], [`fate`] and [`link`] are pure and take `now` as an argument; [`shim`] drives
//! them with sockets, for the verbs that measure calls and for `syrinx-bench impair`.

pub mod conditions;
pub mod counts;
pub mod fate;
pub mod link;
pub mod run;
pub mod shim;

use serde::{Deserialize, Serialize};

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From a client to the relay.
    Up,
    /// From the relay to a client.
    Down,
}
