//! The transceiver: terminates WebRTC behind a relay and speaks to a backend.
//!
//! The core is pure. A [`shard::Shard`] owns the sessions of one worker; it takes records of the
//! inner leg, commands and time, and gives datagrams, events and its next deadline. Each session
//! ([`session`]) owns one [`engine`] and one [`backend`]. No part of it touches a socket or a
//! clock.

#![forbid(unsafe_code)]

pub mod backend;
pub mod engine;
pub mod playout;
pub mod session;
pub mod shard;
pub mod signalling;

#[cfg(feature = "driver")]
pub mod config;
#[cfg(feature = "driver")]
pub mod driver;
