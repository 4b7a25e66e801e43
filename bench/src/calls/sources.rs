//! Where clients send from: an address of its own for each, so that no server sees a crowd behind
//! one address and no port range runs out.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network of this machine's addresses, as `127.64.0.0/10`; a lone address is a network of one.
/// All of 127.0.0.0/8 is this machine's by itself (RFC 1122, 3.2.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    base: IpAddr,
    prefix_bits: u32,
}

impl Sources {
    /// What clients use unless told otherwise: clear of the addresses that servers on loopback
    /// have.
    pub const LOOPBACK: Self = Self {
        base: IpAddr::V4(Ipv4Addr::new(127, 64, 0, 0)),
        prefix_bits: 10,
    };

    /// One address for all clients, with a port each.
    pub fn one(address: IpAddr) -> Self {
        Self {
            base: address,
            prefix_bits: if address.is_ipv4() { 32 } else { 128 },
        }
    }

    /// The address of client `index`. The first of a network is left out, and clients beyond the
    /// last share addresses: they have ports of their own all the same.
    pub fn address(&self, index: u32) -> IpAddr {
        let host_bits = self.bits() - self.prefix_bits;
        if host_bits == 0 {
            return self.base;
        }
        let hosts = (1_u128 << host_bits.min(64)) - 1;
        let offset = 1 + u128::from(index) % hosts;
        match self.base {
            IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() + offset as u32).into(),
            IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() + offset).into(),
        }
    }

    /// Where client `index` moves to: half the network away.
    pub fn second_address(&self, index: u32) -> IpAddr {
        let host_bits = self.bits() - self.prefix_bits;
        self.address(index.wrapping_add(1 << host_bits.min(32).saturating_sub(1)))
    }

    fn bits(&self) -> u32 {
        if self.base.is_ipv4() { 32 } else { 128 }
    }
}

impl FromStr for Sources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no network: write ADDRESS or ADDRESS/BITS");
        let (base, bits) = match text.split_once('/') {
            Some((base, bits)) => (base, Some(bits.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.unwrap_or(most);
        if prefix_bits > most {
            return Err(wrong());
        }
        let host_bits = most - prefix_bits;
        let ends_in_zeros = match base {
            IpAddr::V4(base) => base.to_bits().trailing_zeros() >= host_bits,
            IpAddr::V6(base) => base.to_bits().trailing_zeros() >= host_bits,
        };
        if !ends_in_zeros {
            return Err(format!(
                "{text}: the address has bits beyond the first {prefix_bits}"
            ));
        }
        Ok(Self { base, prefix_bits })
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_client_has_an_address_of_its_own_before_and_after_a_move() {
        let sources = Sources::LOOPBACK;
        let addresses = (0..20_000).flat_map(|n| [sources.address(n), sources.second_address(n)]);
        let all: BTreeSet<IpAddr> = addresses.collect();
        assert_eq!(all.len(), 40_000);
        assert!(all.iter().all(IpAddr::is_loopback));
    }

    #[test]
    fn reads_networks_of_both_families_and_lone_addresses() {
        let parse = |text: &str| text.parse::<Sources>();
        assert_eq!(parse("127.64.0.0/10"), Ok(Sources::LOOPBACK));
        let lone = parse("192.0.2.7").expect("an address");
        assert_eq!(
            (lone.address(5), lone.second_address(5)),
            (lone.base, lone.base)
        );
        let six = parse("fd00::/64").expect("a network");
        assert_eq!(six.address(0).to_string(), "fd00::1");
        let small = parse("10.0.0.0/30").expect("a network");
        assert_eq!(small.address(3), small.address(0));
        for wrong in ["", "127.0.0.1/8", "10.0.0.0/33", "host/8", "10.0.0.0/x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
