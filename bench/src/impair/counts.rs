//! What became of the packets that an impaired network was offered: each ends in one counter.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::fate::Loss;

/// What became of the packets of one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Taken from a socket.
    pub offered: u64,
    /// Sent on, copies included.
    pub delivered: u64,
    /// Lost on their own.
    pub lost_random: u64,
    /// Lost in bursts.
    pub lost_burst: u64,
    /// Lost before the bottleneck.
    pub lost_queue: u64,
    /// Lost by the MTU.
    pub lost_size: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Held back, so that others overtake them.
    pub reordered: u64,
    /// Dropped by the shim itself, because too much was under way: raise nothing, send less.
    pub overflowed: u64,
    /// Refused by a socket: nobody listens, or the kernel's buffers are full.
    pub unsent: u64,
}

impl Counts {
    /// Counts a packet that does not arrive.
    pub fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Random => self.lost_random += 1,
            Loss::Burst => self.lost_burst += 1,
            Loss::Queue => self.lost_queue += 1,
            Loss::Size => self.lost_size += 1,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.offered += other.offered;
        self.delivered += other.delivered;
        self.lost_random += other.lost_random;
        self.lost_burst += other.lost_burst;
        self.lost_queue += other.lost_queue;
        self.lost_size += other.lost_size;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.overflowed += other.overflowed;
        self.unsent += other.unsent;
    }
}

/// What became of all packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Client to relay.
    pub up: Counts,
    /// Relay to client.
    pub down: Counts,
    /// Clients that have a path now.
    pub path_count: usize,
    /// Datagrams of clients that got no path, because there were too many.
    pub refused: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.up += other.up;
        self.down += other.down;
        self.path_count += other.path_count;
        self.refused += other.refused;
    }
}
