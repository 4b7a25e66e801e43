//! Places for connections: so many in all, and so many for one client.
//!
//! Whoever opens connections and says nothing on them takes places until the clock closes them, and
//! may come again at once. The second limit keeps one such host from taking all places. A client is
//! an IPv4 address or an IPv6 /64, which is what one household or host is given; this machine,
//! where a proxy speaks for everybody, is no client.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of one server. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    clients: Arc<Clients>,
}

#[derive(Debug)]
struct Clients {
    per_client_max: usize,
    /// Those that have a place, which bounds them.
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// A place that waits for its connection.
#[derive(Debug)]
pub(super) struct FreePlace(OwnedSemaphorePermit);

/// A place, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    client: Option<IpAddr>,
    clients: Arc<Clients>,
}

impl Places {
    pub(super) fn new(max: usize, per_client_max: usize) -> Self {
        let clients = Clients {
            per_client_max,
            taken: Mutex::new(HashMap::new()),
        };
        Self {
            free: Arc::new(Semaphore::new(max)),
            clients: Arc::new(clients),
        }
    }

    /// Waits for a place.
    pub(super) async fn free(&self) -> FreePlace {
        let permit = Arc::clone(&self.free).acquire_owned().await;
        FreePlace(permit.expect("invariant: the semaphore is never closed"))
    }

    /// Gives the place to a connection of `peer`, unless that client has its share.
    pub(super) fn take(&self, place: FreePlace, peer: IpAddr) -> Option<Place> {
        let client = client_of(peer);
        if let Some(client) = client {
            let mut taken = self.clients.taken();
            let count = taken.entry(client).or_default();
            // An entry is there only while it counts something, so a refused one has its count.
            if *count >= self.clients.per_client_max {
                return None;
            }
            *count += 1;
        }
        Some(Place {
            _permit: place.0,
            client,
            clients: Arc::clone(&self.clients),
        })
    }
}

impl Clients {
    fn taken(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(client) = self.client else { return };
        let mut taken = self.clients.taken();
        if let Some(count) = taken.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&client);
            }
        }
    }
}

/// Which client an address belongs to; `None` for this machine.
fn client_of(peer: IpAddr) -> Option<IpAddr> {
    match peer.to_canonical() {
        peer if peer.is_loopback() => None,
        IpAddr::V4(address) => Some(IpAddr::V4(address)),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Some(IpAddr::V6(Ipv6Addr::from(network)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn take(places: &Places, peer: &str) -> Option<Place> {
        let free = places.free().await;
        places.take(free, peer.parse().unwrap())
    }

    #[tokio::test]
    async fn one_client_has_its_share_and_others_have_theirs() {
        let places = Places::new(16, 2);
        let first = take(&places, "192.0.2.1").await.unwrap();
        let _second = take(&places, "::ffff:192.0.2.1").await.unwrap();
        assert!(take(&places, "192.0.2.1").await.is_none());
        let _other = take(&places, "192.0.2.2").await.unwrap();
        drop(first);
        let _again = take(&places, "192.0.2.1").await.unwrap();
        assert!(take(&places, "192.0.2.1").await.is_none());
        assert_eq!(places.free.available_permits(), 13);
    }

    #[tokio::test]
    async fn a_network_of_ipv6_is_one_client_and_this_machine_is_none() {
        let places = Places::new(16, 1);
        let one = take(&places, "2001:db8::1").await.unwrap();
        assert!(take(&places, "2001:db8::ffff").await.is_none());
        let two = take(&places, "2001:db8:0:1::1").await.unwrap();
        let here = [
            take(&places, "127.0.0.1").await,
            take(&places, "127.0.0.1").await,
        ];
        assert!(here.iter().all(Option::is_some));
        assert!(take(&places, "::1").await.is_some());
        drop((one, two, here));
        assert!(places.clients.taken().is_empty(), "nobody is remembered");
        assert_eq!(places.free.available_permits(), 16);
    }
}
