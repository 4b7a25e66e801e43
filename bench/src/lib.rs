//! The load generator and yardstick of the Syrinx edge.
//!
//! Every claim the project makes about speed, memory or loss comes out of this program, as a
//! ratio between runs that were interleaved on one machine. It may see every other crate; no other
//! crate sees it.

pub mod calls;
pub mod chart;
pub mod compare;
pub mod cpu;
pub mod figure;
pub mod hearing;
pub mod impair;
pub mod live;
pub mod machine;
pub mod namespace;
pub mod origin;
pub mod page;
pub mod peers;
pub mod process;
pub mod progress;
pub mod relay;
pub mod result_file;
pub mod slo;
pub mod speech;
pub mod stats;
pub mod summary;
pub mod table;
