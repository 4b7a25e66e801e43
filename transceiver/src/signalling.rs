//! Signalling: how a client opens, looks at and ends a call, and who may.
//!
//! The core is pure and speaks no HTTP: [`calls`] makes an answer of an offer, with places from the
//! [`registrar`], somebody to answer from the [`directory`], names ([`call_id`]) and a look at how
//! many each key may have ([`owners`]).
//! [`access`] says who may do what, by [`api_keys`] and [`ephemeral`] ones; a [`session_config`] is
//! what they ask of a session. The HTTP skin over it, and the thread that carries it, need the
//! `driver` feature.

pub mod access;
pub mod api_keys;
pub mod call_id;
pub mod calls;
pub mod directory;
pub mod ephemeral;
#[cfg(feature = "driver")]
pub mod http;
pub mod owners;
pub mod registrar;
pub mod session_config;
