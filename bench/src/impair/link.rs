//! One way of one path: the bottleneck and its queue, then the wire with its drawn fates.
//!
//! ```text
//! offered ─▶ MTU ─▶ queue ─▶ bottleneck ─▶ loss ─▶ delay + jitter ─▶ due
//!             │       │                     │
//!            Size    Queue            Random, Burst
//! ```
//!
//! What is lost on the wire has used the bottleneck, as on a radio link. Pure: `now` is given.

use std::time::{Duration, Instant};

use super::conditions::Impairment;
use super::fate::{Fates, Loss};

/// How much later an overtaken packet comes: at 20 ms a packet, one or two voice packets pass it.
pub const OVERTAKEN_BY: Duration = Duration::from_millis(30);

/// What becomes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does not arrive.
    Lost(Loss),
    /// It arrives.
    Due {
        /// When.
        at: Instant,
        /// Whether a copy follows it.
        duplicated: bool,
        /// Whether later packets may come first.
        reordered: bool,
    },
}

/// One way of one path.
#[derive(Clone, Debug)]
pub struct Link {
    conditions: Impairment,
    fates: Fates,
    /// When the bottleneck has sent what it took.
    free_at: Option<Instant>,
    /// When the last packet that keeps the order arrives.
    last_due: Option<Instant>,
}

impl Link {
    /// A link that carried nothing yet.
    #[must_use]
    pub fn new(conditions: Impairment, fates: Fates) -> Self {
        Self {
            conditions,
            fates,
            free_at: None,
            last_due: None,
        }
    }

    /// Judges a packet of `packet_bytes`, headers of IP and UDP included, that is offered at `now`.
    /// Its fate is drawn whatever happens before, so that packets are numbered as they are offered.
    pub fn offer(&mut self, now: Instant, packet_bytes: usize) -> Verdict {
        let fate = self.fates.draw(&self.conditions);
        let mtu_bytes = self.conditions.mtu_bytes.map_or(usize::MAX, usize::from);
        if packet_bytes > mtu_bytes {
            return Verdict::Lost(Loss::Size);
        }
        let Some(sent) = self.sent_at(now, packet_bytes) else {
            return Verdict::Lost(Loss::Queue);
        };
        if let Some(loss) = fate.lost {
            return Verdict::Lost(loss);
        }
        let mut at = sent + self.conditions.delay + fate.jitter;
        if fate.reordered {
            at += OVERTAKEN_BY;
        } else {
            at = self.last_due.map_or(at, |last| last.max(at));
            self.last_due = Some(at);
        }
        Verdict::Due {
            at,
            duplicated: fate.duplicated,
            reordered: fate.reordered,
        }
    }

    /// When the bottleneck has sent the packet; `None` if it would wait for too long.
    fn sent_at(&mut self, now: Instant, packet_bytes: usize) -> Option<Instant> {
        let Some(rate_bps) = self.conditions.rate_bps else {
            return Some(now);
        };
        let begins = self.free_at.map_or(now, |free| free.max(now));
        if begins - now > self.conditions.queue {
            return None;
        }
        let takes = Duration::from_secs_f64(packet_bytes as f64 * 8.0 / rate_bps as f64);
        self.free_at = Some(begins + takes);
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::super::Way;
    use super::*;

    const PACKET_BYTES: usize = 200;

    fn link(conditions: Impairment) -> Link {
        let client = ([127, 0, 0, 1], 1).into();
        Link::new(conditions, Fates::new(3, client, 0, Way::Up))
    }

    fn due(verdict: Verdict) -> Instant {
        match verdict {
            Verdict::Due { at, .. } => at,
            Verdict::Lost(loss) => panic!("lost: {loss:?}"),
        }
    }

    #[test]
    fn delays_every_packet_alike_without_jitter() {
        let delay = Duration::from_millis(40);
        let mut link = link(Impairment {
            delay,
            ..Impairment::default()
        });
        let start = Instant::now();
        for step in 0..100 {
            let now = start + Duration::from_millis(20) * step;
            assert_eq!(due(link.offer(now, PACKET_BYTES)), now + delay);
        }
    }

    #[test]
    fn jitter_never_changes_the_order() {
        let mut link = link(Impairment {
            jitter: Duration::from_millis(60),
            ..Impairment::default()
        });
        let start = Instant::now();
        let offered = (0..1_000).map(|step| start + Duration::from_millis(20) * step);
        let arrivals: Vec<Instant> = offered
            .map(|now| due(link.offer(now, PACKET_BYTES)))
            .collect();
        assert!(arrivals.is_sorted());
    }

    #[test]
    fn an_overtaken_packet_comes_after_its_successor() {
        let mut link = link(Impairment {
            reorder: 1.0,
            ..Impairment::default()
        });
        let now = Instant::now();
        let verdict = link.offer(now, PACKET_BYTES);
        let expected = Verdict::Due {
            at: now + OVERTAKEN_BY,
            duplicated: false,
            reordered: true,
        };
        assert_eq!(verdict, expected);
        link.conditions.reorder = 0.0;
        let next = now + Duration::from_millis(20);
        assert_eq!(due(link.offer(next, PACKET_BYTES)), next);
    }

    #[test]
    fn the_bottleneck_sends_at_its_rate_and_its_queue_ends() {
        // 200 bytes take 10 ms at 160 kbit/s; 30 ms of queue hold three more.
        let mut link = link(Impairment {
            rate_bps: Some(160_000),
            queue: Duration::from_millis(30),
            ..Impairment::default()
        });
        let now = Instant::now();
        for place in 1..=4 {
            let at = due(link.offer(now, PACKET_BYTES));
            assert_eq!(at, now + Duration::from_millis(10) * place);
        }
        assert_eq!(link.offer(now, PACKET_BYTES), Verdict::Lost(Loss::Queue));
        let later = now + Duration::from_millis(10);
        let at = due(link.offer(later, PACKET_BYTES));
        assert_eq!(
            at,
            now + Duration::from_millis(50),
            "one has left the queue"
        );
    }

    #[test]
    fn packets_beyond_the_mtu_vanish_and_use_nothing() {
        let mut link = link(Impairment {
            mtu_bytes: Some(1_200),
            rate_bps: Some(1_000),
            ..Impairment::default()
        });
        let now = Instant::now();
        assert_eq!(link.offer(now, 1_201), Verdict::Lost(Loss::Size));
        assert_eq!(due(link.offer(now, 1)), now + Duration::from_millis(8));
    }
}
