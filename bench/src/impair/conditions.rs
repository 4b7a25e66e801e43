//! What a network does to packets, in numbers: the named profiles, and how a user writes them.
//!
//! A specification is a profile and what differs from it: `lte`, `lte,loss=2%`,
//! `none,delay=40ms,down.rate=500kbps`. The profiles' numbers come from published settings where
//! there are any; where a profile says "our choice", nobody measured it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The queue before a bottleneck unless a specification says otherwise (RFC 8867, section 5.1).
const QUEUE: Duration = Duration::from_millis(300);
/// Longer delays than this are typing errors, and would hold packets without end.
const DURATION_MAX: Duration = Duration::from_secs(10);
/// The smallest MTU of IPv4 (RFC 791, section 3.2).
const MTU_BYTES_MIN: u16 = 68;

/// Both ways of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The specification as it was written.
    pub specification: String,
    /// Client to relay.
    pub up: Impairment,
    /// Relay to client.
    pub down: Impairment,
}

/// What happens on one way. The default does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Impairment {
    /// Every packet's delay.
    pub delay: Duration,
    /// Mean of what is added to it, exponentially distributed: two packets then differ by this
    /// much on average, which is what RFC 3550 (section 6.4.1) calls jitter. Packets never
    /// overtake each other by it, as in a queue.
    pub jitter: Duration,
    /// Part of the packets lost one by one, 0 to 1.
    pub loss: f64,
    /// Packets lost in a row.
    pub burst: Option<Burst>,
    /// Part of the packets that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// Part of the packets that are overtaken, 0 to 1.
    pub reorder: f64,
    /// Rate of the bottleneck in bits a second, headers of IP and UDP included.
    pub rate_bps: Option<u64>,
    /// How long a packet may wait before the bottleneck; it is lost otherwise.
    pub queue: Duration,
    /// Longer IP packets vanish without an ICMP error, as behind a broken tunnel.
    pub mtu_bytes: Option<u16>,
}

/// The bad state of the Gilbert-Elliott model, in which every packet is lost; `loss` is what is
/// lost in its good state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Part of all packets that fall into bursts, 0 to below 1.
    pub share: f64,
    /// Mean length of a burst in packets, at least 1.
    pub length: f64,
}

impl Burst {
    /// Probability that a packet ends the bad state.
    #[must_use]
    pub fn leave(&self) -> f64 {
        1.0 / self.length
    }

    /// Probability that a packet begins it: the stationary part of the bad state,
    /// `enter / (enter + leave)`, is the share.
    #[must_use]
    pub fn enter(&self) -> f64 {
        (self.leave() * self.share / (1.0 - self.share)).min(1.0)
    }
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            burst: None,
            duplicate: 0.0,
            reorder: 0.0,
            rate_bps: None,
            queue: QUEUE,
            mtu_bytes: None,
        }
    }
}

/// A network with a name.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// What a specification calls it.
    pub name: &'static str,
    /// What it is like and where its numbers come from.
    pub source: &'static str,
    /// Client to relay, then relay to client.
    ways: [Numbers; 2],
}

/// One way of a profile: milliseconds, percent and kilobits, as people compare them.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    delay_ms: u64,
    jitter_ms: u64,
    loss_percent: f64,
    /// Percent of the packets in bursts, and the bursts' mean length.
    burst: Option<(f64, f64)>,
    rate_kbps: u64,
}

/// All profiles.
pub const PROFILES: [Profile; 4] = [
    Profile {
        name: "wifi",
        source: "A busy wireless LAN on a cable line: 28 ms round trip and 5/1 Mbit/s are \
                 WebPageTest's `Cable`. Jitter and loss are our choice: 3 ms, and 0.3 % in \
                 bursts of 3, as retries that fail.",
        ways: [
            Numbers {
                delay_ms: 14,
                jitter_ms: 3,
                loss_percent: 0.1,
                burst: Some((0.3, 3.0)),
                rate_kbps: 1_000,
            },
            Numbers {
                delay_ms: 14,
                jitter_ms: 3,
                loss_percent: 0.1,
                burst: Some((0.3, 3.0)),
                rate_kbps: 5_000,
            },
        ],
    },
    Profile {
        name: "lte",
        source: "70 ms round trip and 12 Mbit/s both ways are WebPageTest's `LTE`. Jitter and \
                 loss are Loadero's `4G`: 15 ms up, 5 ms down, 0.2 %.",
        ways: [
            Numbers {
                delay_ms: 35,
                jitter_ms: 15,
                loss_percent: 0.2,
                burst: None,
                rate_kbps: 12_000,
            },
            Numbers {
                delay_ms: 35,
                jitter_ms: 5,
                loss_percent: 0.2,
                burst: None,
                rate_kbps: 12_000,
            },
        ],
    },
    Profile {
        name: "bad-lte",
        source: "The edge of a cell: 300 ms round trip and 1,600/768 kbit/s are WebPageTest's \
                 `3G`, the jitter of 30 ms is RFC 8867's (section 5.1). Loss is our choice: 1 % \
                 one by one and 2 % in bursts of 5, which are 100 ms of voice.",
        ways: [
            Numbers {
                delay_ms: 150,
                jitter_ms: 30,
                loss_percent: 1.0,
                burst: Some((2.0, 5.0)),
                rate_kbps: 768,
            },
            Numbers {
                delay_ms: 150,
                jitter_ms: 30,
                loss_percent: 1.0,
                burst: Some((2.0, 5.0)),
                rate_kbps: 1_600,
            },
        ],
    },
    Profile {
        name: "transatlantic",
        source: "90 ms round trip is what Verizon's service level allows between New York and \
                 London. Jitter of 1 ms and 0.1 % of loss are our choice for a backbone; it has \
                 no bottleneck that voice would notice.",
        ways: [Numbers {
            delay_ms: 45,
            jitter_ms: 1,
            loss_percent: 0.1,
            burst: None,
            rate_kbps: 0,
        }; 2],
    },
];

impl Numbers {
    fn impairment(self) -> Impairment {
        Impairment {
            delay: Duration::from_millis(self.delay_ms),
            jitter: Duration::from_millis(self.jitter_ms),
            loss: self.loss_percent / 100.0,
            burst: self.burst.map(|(percent, length)| Burst {
                share: percent / 100.0,
                length,
            }),
            rate_bps: (self.rate_kbps > 0).then_some(self.rate_kbps * 1_000),
            ..Impairment::default()
        }
    }
}

/// What is wrong with a specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecificationError {
    /// No profile of that name.
    #[error("there is no profile {0:?}: choose one of {names}", names = names())]
    Profile(String),
    /// No such key.
    #[error(
        "{0:?} is nothing a network has: write delay, jitter, loss, burst, duplicate, reorder, \
         rate, queue or mtu, with up. or down. before it for one way"
    )]
    Key(String),
    /// A value that cannot be read.
    #[error("{key}={value}: write {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

fn names() -> String {
    let profiles = PROFILES.iter().map(|profile| profile.name);
    let all: Vec<&str> = profiles.chain(["none"]).collect();
    all.join(", ")
}

impl FromStr for Conditions {
    type Err = SpecificationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let [up, down] = match PROFILES.iter().find(|profile| profile.name == name) {
            Some(profile) => profile.ways.map(Numbers::impairment),
            None if name == "none" => [Impairment::default(); 2],
            None => return Err(SpecificationError::Profile(name.to_owned())),
        };
        let mut conditions = Self {
            specification: text.to_owned(),
            up,
            down,
        };
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| SpecificationError::Key(part.to_owned()))?;
            match key.split_once('.') {
                Some(("up", key)) => conditions.up.set(key, value)?,
                Some(("down", key)) => conditions.down.set(key, value)?,
                _ => {
                    conditions.up.set(key, value)?;
                    conditions.down.set(key, value)?;
                }
            }
        }
        Ok(conditions)
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.specification)
    }
}

impl Impairment {
    fn set(&mut self, key: &str, value: &str) -> Result<(), SpecificationError> {
        let wrong = |expected| SpecificationError::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        };
        let time = || duration(value).ok_or_else(|| wrong("a time up to 10s, as 40ms"));
        let part = || share(value).ok_or_else(|| wrong("a part from 0% to 100%, as 2%"));
        match key {
            "delay" => self.delay = time()?,
            "jitter" => self.jitter = time()?,
            "queue" => self.queue = time()?,
            "loss" => self.loss = part()?,
            "duplicate" => self.duplicate = part()?,
            "reorder" => self.reorder = part()?,
            "burst" => {
                let expected = "a part below 100% and a mean length of 1 or more, as 2%x5";
                self.burst = Some(burst(value).ok_or_else(|| wrong(expected))?);
            }
            "rate" => {
                let expected = "bits a second, as 500kbps or 12mbps";
                self.rate_bps = Some(rate(value).ok_or_else(|| wrong(expected))?);
            }
            "mtu" => {
                let bytes = value.parse().ok().filter(|bytes| *bytes >= MTU_BYTES_MIN);
                self.mtu_bytes = Some(bytes.ok_or_else(|| wrong("bytes from 68 to 65535"))?);
            }
            other => return Err(SpecificationError::Key(other.to_owned())),
        }
        Ok(())
    }
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s')?, 1.0),
    };
    let seconds = number.parse::<f64>().ok()? * unit;
    (0.0..=DURATION_MAX.as_secs_f64())
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

fn burst(text: &str) -> Option<Burst> {
    let (part, length) = text.split_once('x')?;
    let burst = Burst {
        share: share(part).filter(|share| *share < 1.0)?,
        length: length.parse().ok()?,
    };
    (1.0..=1e6).contains(&burst.length).then_some(burst)
}

fn rate(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix("kbps") {
        Some(number) => (number, 1_000),
        None => (text.strip_suffix("mbps")?, 1_000_000),
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(unit).filter(|bps| *bps > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Conditions {
        text.parse().expect("a specification")
    }

    #[test]
    fn reads_every_profile_by_its_name() {
        for profile in PROFILES {
            let conditions = parsed(profile.name);
            assert!(conditions.up.delay > Duration::ZERO, "{}", profile.name);
            assert!(conditions.down.loss > 0.0, "{}", profile.name);
            assert_eq!(conditions.to_string(), profile.name);
        }
        let clear = parsed("none");
        assert_eq!(
            (clear.up, clear.down),
            (Impairment::default(), Impairment::default())
        );
    }

    #[test]
    fn changes_a_profile_on_both_ways_or_on_one() {
        let conditions = parsed("lte,loss=2%,down.rate=500kbps,up.burst=1%x4,mtu=1200,jitter=0.5s");
        assert_eq!((conditions.up.loss, conditions.down.loss), (0.02, 0.02));
        assert_eq!(conditions.up.rate_bps, Some(12_000_000));
        assert_eq!(conditions.down.rate_bps, Some(500_000));
        assert_eq!(conditions.down.burst, None);
        assert_eq!(conditions.up.mtu_bytes, Some(1_200));
        assert_eq!(conditions.up.jitter, Duration::from_millis(500));
        let burst = conditions.up.burst.expect("set");
        let stationary = burst.enter() / (burst.enter() + burst.leave());
        assert!((stationary - 0.01).abs() < 1e-12 && burst.leave() == 0.25);
    }

    #[test]
    fn says_what_is_wrong_and_what_would_be_right() {
        let error = |text: &str| {
            let error = text.parse::<Conditions>().expect_err("no specification");
            error.to_string()
        };
        assert!(error("5g").contains("wifi, lte, bad-lte, transatlantic, none"));
        assert!(error("lte,speed=1").contains("rate, queue or mtu"));
        assert!(error("lte,loss").contains("\"loss\""));
        for value in ["loss=2", "loss=101%", "loss=-1%", "loss=nan%"] {
            let text = error(&format!("lte,{value}"));
            assert!(text.contains("as 2%"), "{text}");
        }
        for value in ["delay=40", "delay=11s", "up.delay=-1ms", "jitter=nans"] {
            let text = error(&format!("lte,{value}"));
            assert!(text.contains("as 40ms"), "{text}");
        }
        for value in ["burst=2%", "burst=100%x2", "burst=1%x0.5", "burst=1%xnan"] {
            let text = error(&format!("lte,{value}"));
            assert!(text.contains("as 2%x5"), "{text}");
        }
        for value in ["rate=0kbps", "rate=9", "rate=99999999999999999mbps"] {
            let text = error(&format!("lte,{value}"));
            assert!(text.contains("500kbps"), "{text}");
        }
        assert!(error("lte,mtu=10").contains("68"));
    }
}
