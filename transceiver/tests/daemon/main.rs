//! The real binary, from outside: its command line, its HTTP contract, and how it ends.
//!
//! Each test starts a process of its own on a loopback address of its own, so ports are the
//! defaults and never collide.

mod backends;
mod calls;
mod cli;
mod client;
mod contract;
mod ending;
mod forms;
mod keys;
mod process;
mod sideband;
mod tls;
mod whip;
