//! A real relay process on a hostile, changing network: NATs, floods, bursts, vanished peers,
//! crashes and key rotation. The kernel does the routing, the address translation and the ICMP;
//! the test plays callers and transceivers, and verifies every payload.
//!
//! Scenarios with NAT run in network namespaces (as root, or where a user may make a user
//! namespace), which vanish with the test. They need ip, nft, conntrack and unshare. The others
//! stay on loopback, whose 127.0.0.0/8 holds as many strangers as a flood wants.

mod abuse;
mod bursts;
mod caller;
mod calls;
mod crowd;
mod departures;
mod families;
mod floods;
mod ground;
mod marks;
mod nat;
mod restart;
mod rotation;
mod sizes;
mod softphone;
mod strangers;
mod transceiver;
