//! What the Syrinx daemons have in common: the nouns of routing, the wire formats, the key
//! schedule, and (behind the `driver` feature) the io_uring machinery and the control-plane pieces.
//!
//! With `--no-default-features` only the vocabulary of the pure cores is left: [`route`], [`keys`]
//! and [`wire`]. They take bytes, addresses and time as arguments, and never touch the operating
//! system, so the forwarder and the session shard are tested, fuzzed and simulated without one.

pub mod keys;
pub mod route;
pub mod wire;

#[cfg(feature = "driver")]
pub mod admin;
#[cfg(feature = "driver")]
pub mod bind;
#[cfg(feature = "driver")]
pub mod clock;
#[cfg(feature = "driver")]
pub mod config;
#[cfg(feature = "driver")]
pub mod cores;
#[cfg(feature = "driver")]
pub mod http;
#[cfg(feature = "driver")]
pub mod inner_leg;
#[cfg(feature = "driver")]
pub mod logging;
#[cfg(feature = "driver")]
pub mod metrics;
#[cfg(feature = "driver")]
pub mod process;
#[cfg(feature = "driver")]
pub mod uring;
#[cfg(feature = "driver")]
pub mod worker;
