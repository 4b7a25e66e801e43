//! What surrounds the pure cores: sockets, workers, metrics, and the control thread that carries
//! signalling and the admin surface.
//!
//! Each worker owns one inner socket and one [`crate::shard::Shard`]; bundles are steered to it by
//! the shard they name. The control thread opens calls ([`desk::Desk`]), hands sessions to workers
//! through their mailboxes, and hears of their ends.

pub mod codec;
pub mod desk;
pub mod directory;
pub mod gate;
pub mod link;
pub mod load;
pub mod metrics;
pub mod pool;
pub mod run;
pub mod secrets;
mod servers;
pub mod service;
pub mod workers;
