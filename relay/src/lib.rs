//! The Syrinx relay: a thin UDP forwarder between WebRTC clients and the transceivers that own
//! their sessions.
//!
//! [`forwarder`] is the pure core: a datagram and its sender go in, a verdict comes out. It never
//! decrypts, never runs ICE and never answers a stranger. The driver around it (feature `driver`)
//! owns sockets, rings, clocks and the command line.

#[cfg(feature = "driver")]
pub mod config;
#[cfg(feature = "driver")]
pub mod driver;
pub mod forwarder;
