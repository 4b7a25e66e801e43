//! Who may make a new flow, and how fast: a token bucket for each source prefix and one for all.
//!
//! Only requests that have verified come here, so nobody can spend another prefix's tokens with
//! forged packets. A prefix is what one subscriber holds: a whole IPv4 address, or an IPv6 /64.
//!
//! Buckets live in two generations. A bucket that was not used for as long as an empty one takes
//! to fill is full, so forgetting it changes nothing: every such period the older generation is
//! dropped, in O(1) per bucket and with a bound on memory. When a generation is full, prefixes
//! that are not in it share one bucket until the next turn.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use syrinx_shared::route::ClientSocket;

use super::verdict::DropReason;

/// What one subscriber holds: an IPv4 /32 or an IPv6 /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Prefix {
    bits: u64,
    is_v6: bool,
}

impl Prefix {
    /// The prefix that `client` lies in.
    pub fn of(client: ClientSocket) -> Self {
        match client.addr().ip() {
            IpAddr::V4(v4) => Self {
                bits: u64::from(v4.to_bits()),
                is_v6: false,
            },
            IpAddr::V6(v6) => Self {
                bits: (v6.to_bits() >> 64) as u64,
                is_v6: true,
            },
        }
    }
}

/// A rate of new flows, and how far it may be exceeded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Flows a second, lasting; at least one.
    pub per_second: u32,
    /// Flows at once; at least one.
    pub burst: u32,
}

impl Rate {
    /// How long an empty bucket takes to fill.
    fn fill_time(self) -> Duration {
        Duration::from_secs_f64(f64::from(self.burst) / f64::from(self.per_second))
    }
}

/// Limits on new flows of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionOptions {
    /// For each source prefix.
    pub per_prefix: Rate,
    /// For all of them together.
    pub total: Rate,
    /// How many prefixes are told apart in one generation.
    pub prefix_count_max: u32,
}

/// Tokens in 1/1000 of a flow, and when they were last counted.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    millitokens: u64,
    counted: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self {
            millitokens: u64::from(rate.burst) * 1_000,
            counted: now,
        }
    }

    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let elapsed_ms = now.saturating_duration_since(self.counted).as_millis();
        let elapsed_ms = u64::try_from(elapsed_ms).unwrap_or(u64::MAX);
        if elapsed_ms > 0 {
            let earned = elapsed_ms.saturating_mul(u64::from(rate.per_second));
            let most = u64::from(rate.burst) * 1_000;
            self.millitokens = self.millitokens.saturating_add(earned).min(most);
            self.counted += Duration::from_millis(elapsed_ms);
        }
        let enough = self.millitokens >= 1_000;
        if enough {
            self.millitokens -= 1_000;
        }
        enough
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    prefix: Prefix,
    bucket: Bucket,
}

/// See the module's description.
#[derive(Debug)]
pub struct Admission {
    options: AdmissionOptions,
    hasher: FixedState,
    current: HashTable<Entry>,
    previous: HashTable<Entry>,
    turned: Instant,
    total: Bucket,
    shared: Bucket,
}

impl Admission {
    /// Full buckets, and memory for all prefixes that may be told apart.
    pub fn new(options: AdmissionOptions, seed: u64, now: Instant) -> Self {
        let capacity = options.prefix_count_max as usize;
        Self {
            hasher: FixedState::with_seed(seed),
            current: HashTable::with_capacity(capacity),
            previous: HashTable::with_capacity(capacity),
            turned: now,
            total: Bucket::full(options.total, now),
            shared: Bucket::full(options.per_prefix, now),
            options,
        }
    }

    /// Takes one token of the client's prefix and one of the total.
    ///
    /// # Errors
    /// [`DropReason::AdmissionPrefix`] or [`DropReason::AdmissionTotal`]. A refusal by the prefix
    /// costs the total nothing, so one greedy prefix cannot starve the others.
    pub fn admit(&mut self, client: ClientSocket, now: Instant) -> Result<(), DropReason> {
        self.turn(now);
        let rate = self.options.per_prefix;
        if !self.bucket(Prefix::of(client), now).take(rate, now) {
            return Err(DropReason::AdmissionPrefix);
        }
        if !self.total.take(self.options.total, now) {
            return Err(DropReason::AdmissionTotal);
        }
        Ok(())
    }

    /// Drops the older generation once its buckets can only be full.
    fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.turned) >= self.options.per_prefix.fill_time() {
            self.turned = now;
            std::mem::swap(&mut self.current, &mut self.previous);
            self.current.clear();
        }
    }

    fn bucket(&mut self, prefix: Prefix, now: Instant) -> &mut Bucket {
        let hash = self.hash(prefix);
        if self
            .current
            .find(hash, |entry| entry.prefix == prefix)
            .is_none()
        {
            if self.current.len() >= self.options.prefix_count_max as usize {
                return &mut self.shared;
            }
            let known = self.previous.find(hash, |entry| entry.prefix == prefix);
            let full = Bucket::full(self.options.per_prefix, now);
            let bucket = known.map_or(full, |entry| entry.bucket);
            let hasher = &self.hasher;
            self.current
                .insert_unique(hash, Entry { prefix, bucket }, |entry| {
                    hasher.hash_one(entry.prefix)
                });
        }
        let found = self.current.find_mut(hash, |entry| entry.prefix == prefix);
        &mut found.expect("invariant: found or inserted above").bucket
    }

    fn hash(&self, prefix: Prefix) -> u64 {
        self.hasher.hash_one(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: AdmissionOptions = AdmissionOptions {
        per_prefix: Rate {
            per_second: 10,
            burst: 3,
        },
        total: Rate {
            per_second: 1_000,
            burst: 8,
        },
        prefix_count_max: 2,
    };

    fn client(text: &str) -> ClientSocket {
        ClientSocket::new(text.parse().unwrap())
    }

    #[test]
    fn a_prefix_gets_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut admission = Admission::new(OPTIONS, 1, start);
        let port = |port: u16| client(&format!("192.0.2.1:{port}"));
        for at in 0..3 {
            assert_eq!(admission.admit(port(at), start), Ok(()));
        }
        assert_eq!(
            admission.admit(port(4), start),
            Err(DropReason::AdmissionPrefix)
        );
        let later = start + Duration::from_millis(100);
        assert_eq!(admission.admit(port(5), later), Ok(()));
        assert_eq!(
            admission.admit(port(6), later),
            Err(DropReason::AdmissionPrefix)
        );
    }

    #[test]
    fn an_ipv6_subscriber_is_one_prefix_whatever_address_is_used() {
        let start = Instant::now();
        let mut admission = Admission::new(OPTIONS, 1, start);
        for host in 1..=3 {
            let from = client(&format!("[2001:db8:1:2::{host}]:9"));
            assert_eq!(admission.admit(from, start), Ok(()));
        }
        let same = client("[2001:db8:1:2:ffff::1]:9");
        let other = client("[2001:db8:1:3::1]:9");
        assert_eq!(
            admission.admit(same, start),
            Err(DropReason::AdmissionPrefix)
        );
        assert_eq!(admission.admit(other, start), Ok(()));
    }

    #[test]
    fn the_total_is_spent_only_by_those_whom_their_prefix_admits() {
        let start = Instant::now();
        let options = AdmissionOptions {
            prefix_count_max: 16,
            ..OPTIONS
        };
        let mut admission = Admission::new(options, 1, start);
        for _ in 0..20 {
            let _ = admission.admit(client("192.0.2.1:1"), start);
        }
        for host in 2..7 {
            assert_eq!(
                admission.admit(client(&format!("192.0.2.{host}:1")), start),
                Ok(())
            );
        }
        let refused = admission.admit(client("192.0.2.9:1"), start);
        assert_eq!(refused, Err(DropReason::AdmissionTotal));
    }

    #[test]
    fn prefixes_beyond_the_bound_share_one_bucket_and_memory_does_not_grow() {
        let start = Instant::now();
        let mut admission = Admission::new(OPTIONS, 1, start);
        let capacity = admission.current.capacity();
        for host in 1..=2 {
            assert_eq!(
                admission.admit(client(&format!("192.0.2.{host}:1")), start),
                Ok(())
            );
        }
        let mut admitted = 0;
        for host in 3..=9 {
            admitted += u32::from(
                admission
                    .admit(client(&format!("192.0.2.{host}:1")), start)
                    .is_ok(),
            );
        }
        assert_eq!(admitted, OPTIONS.per_prefix.burst);
        assert_eq!(admission.current.capacity(), capacity);
    }

    #[test]
    fn a_used_up_bucket_survives_one_turn_of_the_generations() {
        let start = Instant::now();
        let mut admission = Admission::new(OPTIONS, 1, start);
        let fill = OPTIONS.per_prefix.fill_time();
        let late = start + fill - Duration::from_millis(1);
        for _ in 0..3 {
            assert_eq!(admission.admit(client("192.0.2.1:1"), late), Ok(()));
        }
        let turned = start + fill;
        let refused = admission.admit(client("192.0.2.1:1"), turned);
        assert_eq!(refused, Err(DropReason::AdmissionPrefix));
    }
}
