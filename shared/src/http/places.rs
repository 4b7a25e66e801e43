//! Places for connections: so many in all, and so many for one client.
//!
//! Whoever opens connections and says nothing on them takes places until the clock closes them, and
//! may come again at once. Two rules keep places for those who want something: one client has its
//! share and no more; and where all places are taken, a newcomer gets the one whose client has kept
//! us waiting for longest. A client is an IPv4 address or an IPv6 /64, which is what one household
//! or host is given; this machine, where a proxy speaks for everybody, is no client.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The places of one server. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: usize,
    per_client_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Those that have a place, which bounds them.
    clients: HashMap<IpAddr, usize>,
    taken: usize,
    /// Those of the taken that wait for their client, longest first.
    waiting: BTreeMap<u64, Waiting>,
    next_turn: u64,
}

#[derive(Debug)]
struct Waiting {
    client: Option<IpAddr>,
    gives_way: Arc<Notify>,
}

/// Why a connection has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// Its client has its share.
    Share,
    /// All are taken by requests in progress.
    Full,
}

/// A place. It is given back when it is dropped, unless it had to give way before.
#[derive(Debug)]
pub(super) struct Place {
    client: Option<IpAddr>,
    /// Its key in [`Table::waiting`], if it has not been told to be busy since.
    turn: Mutex<Option<u64>>,
    was_busy: AtomicBool,
    gives_way: Arc<Notify>,
    shared: Arc<Shared>,
}

/// A place is busy while this is there: with a request, until its answer is written.
#[derive(Debug)]
pub(super) struct Busy(Arc<Place>);

impl Places {
    pub(super) fn new(max: usize, per_client_max: usize) -> Self {
        Self(Arc::new(Shared {
            max,
            per_client_max,
            table: Mutex::default(),
        }))
    }

    /// A place for a connection of `peer`, and whether another one had to give way for it.
    pub(super) fn take(&self, peer: IpAddr) -> Result<(Arc<Place>, bool), NoPlace> {
        let client = client_of(peer);
        let mut table = self.0.table();
        let held = client.and_then(|client| table.clients.get(&client));
        if held.is_some_and(|&count| count >= self.0.per_client_max) {
            return Err(NoPlace::Share);
        }
        let is_full = table.taken >= self.0.max;
        if is_full && !table.make_room() {
            return Err(NoPlace::Full);
        }
        table.taken += 1;
        if let Some(client) = client {
            *table.clients.entry(client).or_default() += 1;
        }
        let gives_way = Arc::new(Notify::new());
        let turn = table.wait(client, &gives_way);
        let place = Place {
            client,
            turn: Mutex::new(Some(turn)),
            was_busy: AtomicBool::new(false),
            gives_way,
            shared: Arc::clone(&self.0),
        };
        Ok((Arc::new(place), is_full))
    }

    /// Makes the connection that has waited for longest give way. Says whether there was one.
    pub(super) fn make_room(&self) -> bool {
        self.0.table().make_room()
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.0.table().taken
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn wait(&mut self, client: Option<IpAddr>, gives_way: &Arc<Notify>) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        let gives_way = Arc::clone(gives_way);
        self.waiting.insert(turn, Waiting { client, gives_way });
        turn
    }

    /// The place changes hands at once; the connection is told, and ends with its next turn.
    fn make_room(&mut self) -> bool {
        let Some((_, waiting)) = self.waiting.pop_first() else {
            return false;
        };
        self.give_back(waiting.client);
        waiting.gives_way.notify_one();
        true
    }

    fn give_back(&mut self, client: Option<IpAddr>) {
        self.taken -= 1;
        let Some(client) = client else { return };
        if let Some(count) = self.clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

impl Place {
    /// Resolves when the place has been given to another connection.
    pub(super) async fn gives_way(&self) {
        self.gives_way.notified().await;
    }

    /// A request is here: the place is kept until its answer is written.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.was_busy.store(true, Ordering::Relaxed);
        let mut turn = self.turn();
        // What had to give way already has no place to keep, and is about to hear of it.
        if let Some(waited) = *turn
            && self.shared.table().waiting.remove(&waited).is_some()
        {
            *turn = None;
        }
        Busy(Arc::clone(self))
    }

    /// Whether a request has ever been here.
    pub(super) fn was_busy(&self) -> bool {
        self.was_busy.load(Ordering::Relaxed)
    }

    fn turn(&self) -> MutexGuard<'_, Option<u64>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Place {
            client, gives_way, ..
        } = &*self.0;
        let mut turn = self.0.turn();
        if turn.is_none() {
            *turn = Some(self.0.shared.table().wait(*client, gives_way));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let turn = *self.turn();
        let mut table = self.shared.table();
        // Without an entry it gave way, and the place is another's.
        if turn.is_none_or(|turn| table.waiting.remove(&turn).is_some()) {
            table.give_back(self.client);
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
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn take(places: &Places, peer: &str) -> Result<Arc<Place>, NoPlace> {
        places.take(peer.parse().unwrap()).map(|(place, _)| place)
    }

    fn must_give_way(place: &Place) -> bool {
        let waiting = pin!(place.gives_way());
        waiting
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn one_client_has_its_share_and_others_have_theirs() {
        let places = Places::new(16, 2);
        let first = take(&places, "192.0.2.1").unwrap();
        let _second = take(&places, "::ffff:192.0.2.1").unwrap();
        assert_eq!(take(&places, "192.0.2.1").unwrap_err(), NoPlace::Share);
        let _other = take(&places, "192.0.2.2").unwrap();
        drop(first);
        let _again = take(&places, "192.0.2.1").unwrap();
        assert_eq!(take(&places, "192.0.2.1").unwrap_err(), NoPlace::Share);
        assert_eq!(places.taken(), 3);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_this_machine_is_none() {
        let places = Places::new(16, 1);
        let one = take(&places, "2001:db8::1").unwrap();
        assert!(take(&places, "2001:db8::ffff").is_err());
        let two = take(&places, "2001:db8:0:1::1").unwrap();
        let here = [take(&places, "127.0.0.1"), take(&places, "127.0.0.1")];
        assert!(here.iter().all(Result::is_ok));
        assert!(take(&places, "::1").is_ok());
        drop((one, two, here));
        let table = places.0.table();
        assert!(table.clients.is_empty(), "nobody is remembered");
        assert_eq!((table.taken, table.waiting.len()), (0, 0));
    }

    #[test]
    fn a_newcomer_takes_the_place_of_whoever_has_waited_longest() {
        let places = Places::new(3, 3);
        let [first, second, third] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|peer| take(&places, peer).unwrap());
        // A request makes the first one the last to have begun to wait.
        let busy = first.begin();
        drop(busy);
        let (fourth, made_room) = places.take("192.0.2.4".parse().unwrap()).unwrap();
        assert!(made_room);
        let gave_way = [&first, &second, &third, &fourth].map(|place| must_give_way(place));
        assert_eq!(gave_way, [false, true, false, false]);
        assert_eq!(places.taken(), 3);
        // Its own end gives nothing back a second time, nor does a request that came too late.
        drop(second.begin());
        drop(second);
        assert_eq!(places.taken(), 3);
        assert!(
            !places
                .0
                .table()
                .clients
                .contains_key(&client_of("192.0.2.2".parse().unwrap()).unwrap())
        );
        drop((first, third, fourth));
        assert_eq!(places.taken(), 0);
        assert!(places.0.table().waiting.is_empty());
    }

    #[test]
    fn requests_in_progress_keep_their_places() {
        let places = Places::new(2, 2);
        let [first, second] = ["192.0.2.1", "192.0.2.2"].map(|peer| take(&places, peer).unwrap());
        let busy = [first.begin(), second.begin()];
        assert_eq!(take(&places, "192.0.2.3").unwrap_err(), NoPlace::Full);
        assert!(!places.make_room());
        drop(busy);
        assert!(take(&places, "192.0.2.3").is_ok());
        assert!(must_give_way(&first) && !must_give_way(&second));
    }
}
