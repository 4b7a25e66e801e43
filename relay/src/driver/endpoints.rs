//! Which of the relay's own addresses a client used, as the one byte that records carry.
//!
//! A socket bound to one address is an endpoint by its place in the configuration, the same after
//! every restart. A wildcard socket has as many local addresses as the host; each becomes an
//! endpoint when it is first used, from [`LEARNED_ENDPOINTS_FROM`] on, and means nothing to the
//! next process.

use std::net::IpAddr;

use syrinx_shared::route::LocalEndpoint;

use crate::forwarder::LEARNED_ENDPOINTS_FROM;

/// How replies leave: from which socket, and, for a wildcard socket, from which address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointAddress {
    /// Index of the socket, in the order in which the worker was given its sockets.
    pub socket: usize,
    /// The source address to name; `None` where the socket has only one.
    pub ip: Option<IpAddr>,
}

/// One worker's table of endpoints.
#[derive(Debug)]
pub struct Endpoints {
    configured_count: usize,
    learned: Vec<EndpointAddress>,
}

const LEARNED_COUNT_MAX: usize = u8::MAX as usize + 1 - LEARNED_ENDPOINTS_FROM as usize;

impl Endpoints {
    /// A table for public sockets 0 to `configured_count - 1`.
    pub fn new(configured_count: usize) -> Self {
        assert!(configured_count <= usize::from(LEARNED_ENDPOINTS_FROM));
        Self {
            configured_count,
            learned: Vec::with_capacity(LEARNED_COUNT_MAX),
        }
    }

    /// The endpoint of a datagram that came in on `socket`, to `local_ip` where the socket is a
    /// wildcard; `None` when a 129th local address would be learned.
    pub fn of(&mut self, socket: usize, local_ip: Option<IpAddr>) -> Option<LocalEndpoint> {
        let Some(ip) = local_ip else {
            return u8::try_from(socket).ok().map(LocalEndpoint);
        };
        let address = EndpointAddress {
            socket,
            ip: Some(ip),
        };
        let known = self.learned.iter().position(|other| *other == address);
        let index = match known {
            Some(index) => index,
            None if self.learned.len() == LEARNED_COUNT_MAX => return None,
            None => {
                self.learned.push(address);
                self.learned.len() - 1
            }
        };
        let index = u8::try_from(index).expect("invariant: bounded by LEARNED_COUNT_MAX");
        Some(LocalEndpoint(LEARNED_ENDPOINTS_FROM + index))
    }

    /// How replies from `endpoint` leave; `None` for one that is not ours.
    pub fn address(&self, endpoint: LocalEndpoint) -> Option<EndpointAddress> {
        match endpoint.0.checked_sub(LEARNED_ENDPOINTS_FROM) {
            Some(index) => self.learned.get(usize::from(index)).copied(),
            None => {
                let socket = usize::from(endpoint.0);
                let configured = socket < self.configured_count;
                configured.then_some(EndpointAddress { socket, ip: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_address_is_its_place_and_a_wildcards_addresses_are_learned() {
        let mut endpoints = Endpoints::new(2);
        assert_eq!(endpoints.of(1, None), Some(LocalEndpoint(1)));
        let ip: IpAddr = "192.0.2.1".parse().unwrap();
        let learned = endpoints.of(0, Some(ip)).unwrap();
        assert_eq!(learned, LocalEndpoint(LEARNED_ENDPOINTS_FROM));
        assert_eq!(endpoints.of(0, Some(ip)), Some(learned));
        assert_ne!(endpoints.of(1, Some(ip)), Some(learned));
        let address = EndpointAddress {
            socket: 0,
            ip: Some(ip),
        };
        assert_eq!(endpoints.address(learned), Some(address));
        let configured = EndpointAddress {
            socket: 1,
            ip: None,
        };
        assert_eq!(endpoints.address(LocalEndpoint(1)), Some(configured));
        assert_eq!(endpoints.address(LocalEndpoint(2)), None);
        assert_eq!(endpoints.address(LocalEndpoint(200)), None);
    }

    #[test]
    fn learns_no_more_addresses_than_a_byte_can_name() {
        let mut endpoints = Endpoints::new(1);
        for host in 0..LEARNED_COUNT_MAX {
            let ip = IpAddr::from([10, 0, 0, host as u8]);
            assert!(endpoints.of(0, Some(ip)).is_some());
        }
        assert_eq!(endpoints.of(0, Some(IpAddr::from([10, 1, 0, 0]))), None);
    }
}
