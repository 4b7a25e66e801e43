//! Calls: real WebRTC clients as load, opened by a schedule and measured from what was intended.
//!
//! A [`client`] is a whole browser's worth of ICE, DTLS, SRTP and SCTP without a socket; the
//! [`engine`] runs thousands of them against one server, and a [`tally`] says what they met.

pub mod barge_in;
mod burst;
mod call;
pub mod capacity;
pub mod client;
mod clock;
pub mod ear;
pub mod emodel;
pub mod engine;
pub mod failure;
pub mod figures;
pub mod incident;
pub mod latency;
pub mod limits;
mod links;
pub mod load;
pub mod measure;
mod media;
pub mod process;
pub mod reflector;
pub mod report;
pub mod schedule;
pub mod signalling;
pub mod soak;
pub mod sources;
pub mod stand;
pub mod summary;
pub mod tally;
pub mod terms;
pub mod text;
pub mod voice;
pub mod watch;

pub use self::links::echo::run as echo_backend;
