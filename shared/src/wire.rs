//! The wire formats: what a datagram's bytes mean, and nothing about how they travel.
//!
//! Every codec here is a pure function of its input, never panics on any bytes, and is documented
//! bit by bit in its own module:
//!
//! - [`demux`]: which protocol a datagram belongs to, from its first byte;
//! - [`stun`]: reading a Binding request without judging it, and judging its integrity;
//! - [`ufrag`]: the server ICE ufrag as a routable, unforgeable, opaque name of a session;
//! - [`encap`]: the inner leg's records and bundles;
//! - [`train`]: packing records for one destination into as few sends as the kernel allows.

pub mod demux;
pub mod encap;
pub mod stun;
pub mod train;
pub mod ufrag;
