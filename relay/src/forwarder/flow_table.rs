//! The flows of one worker: a slab of fixed capacity, a hash index into it, and two lists in the
//! order of last activity, so that finding, touching, expiring and evicting a flow are all O(1).
//!
//! The index is `hashbrown` under a secret seed: an attacker who chooses addresses cannot choose
//! collisions. Time is a coarse [`Tick`] of 100 ms, four bytes that last 13 years.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use syrinx_shared::keys::Cookie;
use syrinx_shared::route::{ClientSocket, LocalEndpoint, SessionRef, Transport};

use super::admission::Prefix;

/// How many of the longest-idle unanswered flows are compared when one must go.
const VICTIM_SAMPLE_COUNT: usize = 32;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// What tells one client's flow from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The client.
    pub client: ClientSocket,
    /// Which of our addresses the client uses.
    pub endpoint: LocalEndpoint,
    /// How the client reaches us.
    pub transport: Transport,
}

/// A flow's place in the slab; valid until the flow is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId(u32);

/// Coarse time: steps of 100 ms since the forwarder was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u32);

impl Tick {
    const MS: u32 = 100;

    /// The tick that `offset` falls into.
    pub fn at(offset: Duration) -> Self {
        Self(
            (offset.as_millis() / u128::from(Self::MS))
                .try_into()
                .unwrap_or(u32::MAX),
        )
    }

    /// The time at which the tick begins.
    pub fn offset(self) -> Duration {
        Duration::from_millis(u64::from(self.0) * u64::from(Self::MS))
    }

    /// How long after `earlier` this is.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// Tells the ufrags of one client's sessions apart: the last six characters of a ufrag that
/// verified, which are 36 bits of its sealed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UfragId([u8; 6]);

impl UfragId {
    /// No ufrag was seen: the flow was made again from a transceiver's record.
    pub const UNKNOWN: Self = Self([0; 6]);

    /// The id of `ufrag`.
    ///
    /// # Panics
    /// When it is shorter than six characters, which no ufrag that verified is.
    pub fn of(ufrag: &[u8]) -> Self {
        Self(
            *ufrag
                .last_chunk()
                .expect("invariant: a verified ufrag has 32 characters"),
        )
    }
}

/// One client's way to its session, in one cache line: with more flows than the cache holds, each
/// datagram waits for its flow to come from memory, and should wait once.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub struct Flow {
    key: CompactKey,
    session: [u8; SessionRef::BYTES],
    cookie: Cookie,
    ufrag: UfragId,
    superseded: UfragId,
    repointed: Tick,
    active: Tick,
    older: u32,
    newer: u32,
}

// And at most 11 bytes for the index: a million flows are 75 MB.
const _: () = assert!(size_of::<Flow>() == 64);

/// A [`FlowKey`] in 20 bytes instead of `SocketAddr`'s 32, with the answered flag in the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CompactKey {
    octets: [u8; 16],
    port: u16,
    endpoint: u8,
    flags: u8,
}

const TCP: u8 = 1;
const ANSWERED: u8 = 2;

impl CompactKey {
    fn new(key: &FlowKey) -> Self {
        Self {
            octets: key.client.octets(),
            port: key.client.addr().port(),
            endpoint: key.endpoint.0,
            flags: if key.transport == Transport::Tcp {
                TCP
            } else {
                0
            },
        }
    }

    fn is(&self, other: &Self) -> bool {
        self.octets == other.octets
            && self.port == other.port
            && self.endpoint == other.endpoint
            && (self.flags ^ other.flags) & TCP == 0
    }

    fn hash(&self, state: &FixedState) -> u64 {
        let (high, low) = self.octets.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("invariant: 8 bytes"));
        let rest = u32::from(self.port) << 16
            | u32::from(self.endpoint) << 8
            | u32::from(self.flags & TCP);
        struct Words(u64, u64, u32);
        impl Hash for Words {
            fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
                hasher.write_u64(self.0);
                hasher.write_u64(self.1);
                hasher.write_u32(self.2);
            }
        }
        state.hash_one(Words(word(high), word(low), rest))
    }
}

impl Flow {
    /// A flow that no transceiver has answered yet, active at `now`.
    pub fn new(
        key: FlowKey,
        session: SessionRef,
        cookie: Cookie,
        ufrag: UfragId,
        now: Tick,
    ) -> Self {
        Self {
            key: CompactKey::new(&key),
            session: session.to_bytes(),
            cookie,
            ufrag,
            superseded: UfragId::UNKNOWN,
            repointed: now,
            active: now,
            older: NONE,
            newer: NONE,
        }
    }

    /// Points the flow at another session, remembering the ufrag it leaves.
    pub fn repoint(&mut self, session: SessionRef, cookie: Cookie, ufrag: UfragId, now: Tick) {
        self.superseded = self.ufrag;
        self.repointed = now;
        self.session = session.to_bytes();
        self.cookie = cookie;
        self.ufrag = ufrag;
    }

    /// Where the flow leads.
    pub fn session(&self) -> SessionRef {
        SessionRef::from_bytes(self.session)
    }

    /// What the flow's records carry.
    pub fn cookie(&self) -> Cookie {
        self.cookie
    }

    /// Notes another ufrag of the same session: an ICE restart.
    pub fn set_ufrag(&mut self, ufrag: UfragId) {
        self.ufrag = ufrag;
    }

    /// Whether `ufrag` is the one that this flow left less than `window` ago: a late duplicate,
    /// which must not flap the flow back.
    pub fn is_superseded(&self, ufrag: UfragId, now: Tick, window: Tick) -> bool {
        self.superseded != UfragId::UNKNOWN
            && self.superseded == ufrag
            && now.since(self.repointed) < window
    }

    /// Whether a transceiver has answered this client.
    pub fn is_answered(&self) -> bool {
        self.key.flags & ANSWERED != 0
    }

    /// The client.
    pub fn client(&self) -> ClientSocket {
        ClientSocket::from_octets(self.key.octets, self.key.port)
    }
}

/// Ends of a list in the order of last activity.
#[derive(Debug, Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
}

impl List {
    const EMPTY: Self = Self {
        oldest: NONE,
        newest: NONE,
    };
}

/// See the module's description.
#[derive(Debug)]
pub struct FlowTable {
    hasher: FixedState,
    index: HashTable<u32>,
    /// Grows up to its capacity, which is fixed; freed places are chained through `older`.
    slab: Vec<Flow>,
    free: u32,
    count_max: u32,
    unanswered: List,
    answered: List,
}

impl FlowTable {
    /// An empty table; memory for `count_max` flows is reserved at once.
    ///
    /// # Panics
    /// When `count_max` is zero or `u32::MAX`.
    pub fn new(count_max: u32, seed: u64) -> Self {
        assert!(count_max > 0 && count_max < NONE);
        Self {
            hasher: FixedState::with_seed(seed),
            index: HashTable::with_capacity(count_max as usize),
            slab: Vec::with_capacity(count_max as usize),
            free: NONE,
            count_max,
            unanswered: List::EMPTY,
            answered: List::EMPTY,
        }
    }

    /// How many flows there are.
    pub fn len(&self) -> u32 {
        u32::try_from(self.index.len()).expect("invariant: bounded by count_max")
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether [`FlowTable::insert`] would exceed the capacity.
    pub fn is_full(&self) -> bool {
        self.len() == self.count_max
    }

    /// The flow of `key`.
    pub fn find(&self, key: &FlowKey) -> Option<FlowId> {
        let key = CompactKey::new(key);
        self.index
            .find(key.hash(&self.hasher), |&at| {
                self.slab[at as usize].key.is(&key)
            })
            .map(|&at| FlowId(at))
    }

    /// The flow at `id`.
    pub fn flow(&self, id: FlowId) -> &Flow {
        &self.slab[id.0 as usize]
    }

    /// The flow at `id`, to change where it leads.
    pub fn flow_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.slab[id.0 as usize]
    }

    /// Adds a flow whose key is not in the table.
    ///
    /// # Panics
    /// When the table is full, or the key is in it: the caller asked before.
    pub fn insert(&mut self, flow: Flow) -> FlowId {
        assert!(!self.is_full(), "invariant: the caller made room");
        let hash = flow.key.hash(&self.hasher);
        debug_assert!(
            self.index
                .find(hash, |&at| self.slab[at as usize].key.is(&flow.key))
                .is_none()
        );
        let at = if self.free == NONE {
            let at = u32::try_from(self.slab.len()).expect("invariant: bounded by count_max");
            self.slab.push(flow);
            at
        } else {
            let at = self.free;
            self.free = self.slab[at as usize].older;
            self.slab[at as usize] = flow;
            at
        };
        let (slab, hasher) = (&self.slab, &self.hasher);
        self.index
            .insert_unique(hash, at, |&at| slab[at as usize].key.hash(hasher));
        self.link(at);
        FlowId(at)
    }

    /// Frees a flow.
    pub fn remove(&mut self, id: FlowId) {
        let key = self.flow(id).key;
        let entry = self
            .index
            .find_entry(key.hash(&self.hasher), |&at| at == id.0);
        entry
            .expect("invariant: every flow of the slab is indexed")
            .remove();
        self.unlink(id.0);
        self.slab[id.0 as usize].older = self.free;
        self.free = id.0;
    }

    /// Notes that the flow's client was heard of at `now`, which never goes back.
    pub fn touch(&mut self, id: FlowId, now: Tick) {
        self.unlink(id.0);
        self.slab[id.0 as usize].active = now;
        self.link(id.0);
    }

    /// Notes whether a transceiver answers the flow's client. A change counts as activity: an
    /// answer is given only to a client that has just proved itself.
    pub fn set_answered(&mut self, id: FlowId, answered: bool, now: Tick) {
        if self.flow(id).is_answered() == answered {
            return;
        }
        self.unlink(id.0);
        let flow = &mut self.slab[id.0 as usize];
        flow.key.flags ^= ANSWERED;
        flow.active = now;
        self.link(id.0);
    }

    /// The flow whose client has been silent longest, and since when.
    pub fn longest_idle(&self) -> Option<(FlowId, Tick)> {
        [self.unanswered.oldest, self.answered.oldest]
            .into_iter()
            .filter(|&at| at != NONE)
            .map(|at| (FlowId(at), self.slab[at as usize].active))
            .min_by_key(|(_, active)| *active)
    }

    /// The flow to free when there is no room: among the longest-idle unanswered ones, the oldest
    /// of the prefix that holds most of them. Answered flows are spared.
    pub fn unanswered_victim(&self) -> Option<FlowId> {
        let mut sample = [(0u32, Prefix::default()); VICTIM_SAMPLE_COUNT];
        let mut count = 0;
        let mut at = self.unanswered.oldest;
        while at != NONE && count < VICTIM_SAMPLE_COUNT {
            let flow = &self.slab[at as usize];
            sample[count] = (at, Prefix::of(flow.client()));
            count += 1;
            at = flow.newer;
        }
        let sample = &sample[..count];
        let held = |prefix: Prefix| sample.iter().filter(|(_, other)| *other == prefix).count();
        sample
            .iter()
            // The last of several maxima is taken: going backwards, that is the oldest.
            .rev()
            .max_by_key(|(_, prefix)| held(*prefix))
            .map(|&(at, _)| FlowId(at))
    }

    fn list(&mut self, at: u32) -> &mut List {
        if self.slab[at as usize].is_answered() {
            &mut self.answered
        } else {
            &mut self.unanswered
        }
    }

    /// Puts a flow at the newest end. Whoever links a flow has just made it active, so the lists
    /// stay in the order of activity with no search.
    fn link(&mut self, at: u32) {
        let older = self.list(at).newest;
        debug_assert!(
            older == NONE || self.slab[older as usize].active <= self.slab[at as usize].active
        );
        self.slab[at as usize].older = older;
        self.slab[at as usize].newer = NONE;
        match older {
            NONE => self.list(at).oldest = at,
            _ => self.slab[older as usize].newer = at,
        }
        self.list(at).newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Flow { older, newer, .. } = self.slab[at as usize];
        match older {
            NONE => self.list(at).oldest = newer,
            _ => self.slab[older as usize].newer = newer,
        }
        match newer {
            NONE => self.list(at).newest = older,
            _ => self.slab[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(host: u8, port: u16) -> FlowKey {
        FlowKey {
            client: ClientSocket::new(([192, 0, 2, host], port).into()),
            endpoint: LocalEndpoint(0),
            transport: Transport::Udp,
        }
    }

    fn flow(key: FlowKey, session: u8, now: u32) -> Flow {
        let session = SessionRef::from_bytes([session; 8]);
        Flow::new(
            key,
            session,
            Cookie([session.shard.0; 8]),
            UfragId::UNKNOWN,
            Tick(now),
        )
    }

    #[test]
    fn endpoint_and_transport_are_part_of_the_key() {
        let mut table = FlowTable::new(4, 1);
        let udp = key(1, 1);
        let tcp = FlowKey {
            transport: Transport::Tcp,
            ..udp
        };
        let other = FlowKey {
            endpoint: LocalEndpoint(1),
            ..udp
        };
        let ids = [udp, tcp, other].map(|key| table.insert(flow(key, 1, 0)));
        assert_eq!([udp, tcp, other].map(|key| table.find(&key).unwrap()), ids);
        table.set_answered(ids[0], true, Tick(0));
        assert_eq!(table.find(&udp), Some(ids[0]));
    }

    #[test]
    fn the_victim_is_the_oldest_of_the_heaviest_prefix_and_never_an_answered_flow() {
        let mut table = FlowTable::new(8, 1);
        let answered = table.insert(flow(key(9, 1), 1, 0));
        table.set_answered(answered, true, Tick(0));
        assert_eq!(table.unanswered_victim(), None);
        table.insert(flow(key(1, 1), 1, 1));
        let oldest_of_two = table.insert(flow(key(2, 1), 1, 2));
        table.insert(flow(key(2, 2), 1, 3));
        table.insert(flow(key(3, 1), 1, 4));
        assert_eq!(table.unanswered_victim(), Some(oldest_of_two));
    }

    #[test]
    fn memory_is_taken_once() {
        let mut table = FlowTable::new(1_000, 1);
        let (slab, index) = (table.slab.capacity(), table.index.capacity());
        for round in 0..3u16 {
            for port in 0..1_000 {
                table.insert(flow(key(1, port), 1, u32::from(round)));
            }
            assert!(table.is_full());
            for port in 0..1_000 {
                table.remove(table.find(&key(1, port)).unwrap());
            }
        }
        assert_eq!(
            (table.slab.capacity(), table.index.capacity()),
            (slab, index)
        );
    }

    /// What the table must agree with: a map, and a scan for every question about order.
    #[derive(Default)]
    struct Model(HashMap<FlowKey, (u32, bool)>);

    impl Model {
        fn longest_idle(&self) -> Option<u32> {
            self.0.values().map(|(active, _)| *active).min()
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u8, u16),
        Remove(u8, u16),
        Touch(u8, u16),
        Answer(u8, u16, bool),
        Wait(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let place = (0u8..4, 0u16..8);
        let step = prop_oneof![
            4 => place.clone().prop_map(|(host, port)| Step::Insert(host, port)),
            1 => place.clone().prop_map(|(host, port)| Step::Remove(host, port)),
            2 => place.clone().prop_map(|(host, port)| Step::Touch(host, port)),
            2 => (place, any::<bool>()).prop_map(|((host, port), on)| Step::Answer(host, port, on)),
            2 => (0u32..5).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_map(steps in steps()) {
            let mut table = FlowTable::new(16, 7);
            let mut model = Model::default();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Wait(ticks) => now += ticks,
                    Step::Insert(host, port) => {
                        let key = key(host, port);
                        if table.find(&key).is_none() && !table.is_full() {
                            table.insert(flow(key, host, now));
                            model.0.insert(key, (now, false));
                        }
                    }
                    Step::Remove(host, port) => {
                        let found = table.find(&key(host, port));
                        let known = model.0.remove(&key(host, port)).is_some();
                        prop_assert_eq!(found.is_some(), known);
                        found.into_iter().for_each(|id| table.remove(id));
                    }
                    Step::Touch(host, port) => {
                        if let Some(id) = table.find(&key(host, port)) {
                            table.touch(id, Tick(now));
                            model.0.get_mut(&key(host, port)).unwrap().0 = now;
                        }
                    }
                    Step::Answer(host, port, answered) => {
                        if let Some(id) = table.find(&key(host, port)) {
                            table.set_answered(id, answered, Tick(now));
                            let entry = model.0.get_mut(&key(host, port)).unwrap();
                            if entry.1 != answered {
                                *entry = (now, answered);
                            }
                        }
                    }
                }
                prop_assert_eq!(table.len() as usize, model.0.len());
                let oldest = table.longest_idle().map(|(_, active)| active.0);
                prop_assert_eq!(oldest, model.longest_idle());
                for (key, (active, answered)) in &model.0 {
                    let flow = table.flow(table.find(key).unwrap());
                    prop_assert_eq!(flow.client(), key.client);
                    prop_assert_eq!((flow.active.0, flow.is_answered()), (*active, *answered));
                }
            }
        }
    }
}
