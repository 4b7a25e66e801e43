//! The packet-level yardstick: what a relay costs a delivered, verified datagram.

pub mod clients;
pub mod drive;
pub mod figures;
pub mod header;
pub mod ledger;
pub mod memory;
pub mod passage;
pub mod payload;
pub mod plot;
pub mod port;
pub mod recipe;
pub mod report;
pub mod rig;
pub mod run;
pub mod scenario;
pub mod sink;
pub mod summary;
pub mod target;
pub mod text;
pub mod turn;
