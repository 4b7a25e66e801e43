//! Signalling: how a client opens, looks at and ends a call.
//!
//! The core is pure and speaks no HTTP: [`calls`] makes an answer of an offer, with places from the
//! [`registrar`] and names ([`call_id`]). The HTTP skin over it, and the thread that carries it,
//! need the `driver` feature; further skins (WHIP, the older aliases) go beside the first.

pub mod call_id;
pub mod calls;
#[cfg(feature = "driver")]
pub mod http;
pub mod registrar;
