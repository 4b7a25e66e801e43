//! The registrar: which calls exist, and where their sessions live.
//!
//! It owns the free slots of every shard and their generations, so a place is given out here,
//! before the session exists, and named in the session's ufrag; the shard that owns the place
//! learns of it with the session. Invariants: a slot has at most one tenant, and each tenancy of a
//! slot has a generation of its own, so what is late for the last tenant never reaches the next.
//!
//! **A slot returns to use as late as possible** (first in, first out). A ufrag names slot and
//! generation and is good for hours; generations have 16 bits. Reusing the most recent slot would
//! wrap them within minutes at a high rate of calls; going round all slots makes it days.
//! Generations start at random, so a ufrag of the process's former life names nobody.
//!
//! Pure: randomness is an argument. Used by the control thread only.

use std::collections::{HashMap, VecDeque};

use syrinx_shared::route::{Generation, SessionRef, ShardIndex, Slot, TransceiverId};

use super::call_id::CallId;

/// All calls of a process.
#[derive(Debug)]
pub struct Registrar {
    transceiver: TransceiverId,
    shards: Vec<ShardPlaces>,
    sessions: HashMap<CallId, SessionRef>,
    draining: bool,
}

/// The slots of one shard.
#[derive(Debug)]
struct ShardPlaces {
    /// Oldest first.
    free: VecDeque<Slot>,
    /// Indexed by slot.
    places: Vec<Place>,
    /// Whether its worker has CPU time to spare.
    has_headroom: bool,
}

#[derive(Debug, Clone)]
struct Place {
    generation: Generation,
    tenant: Option<CallId>,
}

/// Why no call was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Every slot of every shard is taken.
    #[error("every session slot is in use")]
    Full,
    /// There are slots, but the workers that have them are busy, or the codec threads are.
    #[error("the threads that would serve another call have no time to spare")]
    NoHeadroom,
    /// The process serves what is open and takes nothing more.
    #[error("the process is draining")]
    Draining,
}

impl Registrar {
    /// A registrar of `shard_count` shards with `sessions_per_shard_max` slots each, whose slots
    /// start at `first_generation`, which is drawn at random.
    ///
    /// # Panics
    ///
    /// When `shard_count` is zero, or there are more slots than [`Slot::MAX`] can name.
    pub fn new(
        transceiver: TransceiverId,
        shard_count: u8,
        sessions_per_shard_max: u32,
        first_generation: Generation,
    ) -> Self {
        assert!(shard_count > 0, "a transceiver has at least one shard");
        let slots: VecDeque<Slot> = (0..sessions_per_shard_max)
            .map(|slot| Slot::new(slot).expect("validated: slots fit 24 bits"))
            .collect();
        let place = Place {
            generation: first_generation,
            tenant: None,
        };
        let shard = || ShardPlaces {
            places: vec![place.clone(); slots.len()],
            free: slots.clone(),
            has_headroom: true,
        };
        Self {
            transceiver,
            shards: (0..shard_count).map(|_| shard()).collect(),
            sessions: HashMap::new(),
            draining: false,
        }
    }

    /// Gives `call` a place on the shard with the fewest sessions.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; nothing was given out.
    ///
    /// # Panics
    ///
    /// When the call is admitted already: its id is 128 random bits.
    pub fn admit(&mut self, call: CallId) -> Result<SessionRef, Refusal> {
        self.check()?;
        // The shard with the most room has the fewest sessions; the first of equals.
        let index = (0..self.shards.len())
            .rev()
            .filter(|index| self.shards[*index].has_headroom)
            .max_by_key(|index| self.shards[*index].free.len())
            .expect("invariant: there is a shard");
        let shard = &mut self.shards[index];
        let slot = shard
            .free
            .pop_front()
            .expect("invariant: a shard has room, as was checked");
        let place = &mut shard.places[slot.index()];
        place.generation = place.generation.next();
        assert!(
            place.tenant.replace(call).is_none(),
            "invariant: a free slot has no tenant"
        );
        let session = SessionRef {
            transceiver: self.transceiver,
            shard: ShardIndex(u8::try_from(index).expect("invariant: shards are counted in a u8")),
            slot,
            generation: place.generation,
        };
        let former = self.sessions.insert(call, session);
        assert!(former.is_none(), "a call id was drawn twice");
        Ok(session)
    }

    /// Forgets the name of a call that is about to end: it can be found no more, and its place is
    /// free once the shard says that the session has ended ([`Registrar::release`]).
    pub fn unlist(&mut self, call: CallId) -> Option<SessionRef> {
        self.sessions.remove(&call)
    }

    /// Takes the place of an ended session back, and says which call it was. `None` for a session
    /// that has no place any more: ends may be reported twice.
    pub fn release(&mut self, session: SessionRef) -> Option<CallId> {
        let shard = self.shards.get_mut(usize::from(session.shard.0))?;
        let place = shard.places.get_mut(session.slot.index())?;
        if place.generation != session.generation {
            return None;
        }
        let call = place.tenant.take()?;
        shard.free.push_back(session.slot);
        let listed = self.sessions.remove(&call);
        assert!(
            listed.is_none_or(|listed| listed == session),
            "invariant: calls and places name each other"
        );
        Some(call)
    }

    /// Where the session of a call lives.
    pub fn session_of(&self, call: CallId) -> Option<SessionRef> {
        self.sessions.get(&call).copied()
    }

    /// Whether a call would be admitted.
    ///
    /// # Errors
    ///
    /// [`Refusal`], as [`Registrar::admit`] would give it.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        if self.shards.iter().all(|shard| shard.free.is_empty()) {
            return Err(Refusal::Full);
        }
        let admits = |shard: &ShardPlaces| shard.has_headroom && !shard.free.is_empty();
        if !self.shards.iter().any(admits) {
            return Err(Refusal::NoHeadroom);
        }
        Ok(())
    }

    /// Whether the worker of a shard has CPU time to spare for further calls; it has until this is
    /// told.
    pub fn set_headroom(&mut self, shard: ShardIndex, has_headroom: bool) {
        if let Some(shard) = self.shards.get_mut(usize::from(shard.0)) {
            shard.has_headroom = has_headroom;
        }
    }

    /// Admits no further call, for the rest of the process's life.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether [`Registrar::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Calls that have a place, listed or not.
    pub fn session_count(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.places.len() - shard.free.len())
            .sum()
    }

    /// Calls that can have a place at once.
    pub fn capacity(&self) -> usize {
        self.shards.iter().map(|shard| shard.places.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn registrar(shard_count: u8, sessions_per_shard_max: u32) -> Registrar {
        Registrar::new(
            TransceiverId(7),
            shard_count,
            sessions_per_shard_max,
            Generation(65_534),
        )
    }

    fn call(number: u64) -> CallId {
        CallId::new(u128::from(number).to_be_bytes())
    }

    #[test]
    fn calls_go_to_the_emptiest_shard_until_all_are_full() {
        let mut registrar = registrar(2, 2);
        let admitted: Vec<_> = (0..4).map(|n| registrar.admit(call(n)).unwrap()).collect();
        let places: Vec<_> = admitted
            .iter()
            .map(|s| (s.shard.0, s.slot.value()))
            .collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1), (1, 1)]);
        assert!(
            admitted
                .iter()
                .all(|session| session.transceiver == TransceiverId(7))
        );
        assert_eq!(registrar.admit(call(9)), Err(Refusal::Full));
        assert_eq!((registrar.session_count(), registrar.capacity()), (4, 4));
        registrar.release(admitted[2]).unwrap();
        assert_eq!(registrar.admit(call(9)).unwrap().shard, ShardIndex(0));
    }

    #[test]
    fn a_busy_shard_gets_no_calls_and_where_all_are_busy_nobody_does() {
        let mut registrar = registrar(2, 2);
        registrar.set_headroom(ShardIndex(0), false);
        assert_eq!(registrar.admit(call(1)).unwrap().shard, ShardIndex(1));
        registrar.set_headroom(ShardIndex(1), false);
        assert_eq!(registrar.admit(call(2)), Err(Refusal::NoHeadroom));
        registrar.set_headroom(ShardIndex(1), true);
        assert_eq!(registrar.admit(call(2)).unwrap().shard, ShardIndex(1));
        assert_eq!(
            registrar.admit(call(3)),
            Err(Refusal::NoHeadroom),
            "the other shard is full"
        );
        registrar.set_headroom(ShardIndex(0), true);
        assert_eq!(registrar.admit(call(3)).unwrap().shard, ShardIndex(0));
        registrar.set_headroom(ShardIndex(9), false);
    }

    #[test]
    fn a_call_is_found_until_it_is_released() {
        let mut registrar = registrar(1, 2);
        let session = registrar.admit(call(1)).unwrap();
        assert_eq!(registrar.session_of(call(1)), Some(session));
        assert_eq!(registrar.release(session), Some(call(1)));
        assert_eq!(registrar.session_of(call(1)), None);
        assert_eq!(
            registrar.release(session),
            None,
            "the second report of an end is ignored"
        );
    }

    #[test]
    fn an_unlisted_call_is_found_no_more_and_keeps_its_place_until_released() {
        let mut registrar = registrar(1, 1);
        let session = registrar.admit(call(1)).unwrap();
        assert_eq!(registrar.unlist(call(1)), Some(session));
        assert_eq!(registrar.unlist(call(1)), None);
        assert_eq!(registrar.session_of(call(1)), None);
        assert_eq!(registrar.session_count(), 1);
        assert_eq!(registrar.admit(call(2)), Err(Refusal::Full));
        assert_eq!(registrar.release(session), Some(call(1)));
        registrar.admit(call(2)).unwrap();
    }

    #[test]
    fn late_news_of_the_former_tenant_leaves_the_next_alone() {
        let mut registrar = registrar(1, 1);
        let first = registrar.admit(call(1)).unwrap();
        registrar.release(first).unwrap();
        let second = registrar.admit(call(2)).unwrap();
        assert_eq!(second.slot, first.slot);
        assert_eq!(second.generation, first.generation.next());
        assert_eq!(registrar.release(first), None);
        assert_eq!(registrar.session_of(call(2)), Some(second));
    }

    #[test]
    fn a_slot_returns_to_use_as_late_as_possible() {
        let mut registrar = registrar(1, 3);
        let first = registrar.admit(call(1)).unwrap();
        registrar.release(first).unwrap();
        let slots: Vec<_> = (2..5)
            .map(|n| registrar.admit(call(n)).unwrap().slot.value())
            .collect();
        assert_eq!(slots, [1, 2, 0]);
    }

    #[test]
    fn draining_admits_nothing_and_keeps_what_is_open() {
        let mut registrar = registrar(1, 2);
        let session = registrar.admit(call(1)).unwrap();
        registrar.drain();
        assert_eq!(registrar.admit(call(2)), Err(Refusal::Draining));
        assert_eq!(registrar.session_of(call(1)), Some(session));
        assert!(registrar.is_draining());
    }

    #[test]
    fn a_session_of_no_shard_here_is_nobodys() {
        let mut registrar = registrar(1, 1);
        let foreign = SessionRef::from_bytes([0, 7, 9, 0, 0, 0, 0, 0]);
        assert_eq!(registrar.release(foreign), None);
        let beyond = SessionRef::from_bytes([0, 7, 0, 0, 0, 1, 0, 0]);
        assert_eq!(registrar.release(beyond), None);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Admit,
        Release(prop::sample::Index),
        ReleaseAgain(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Admit),
            2 => any::<prop::sample::Index>().prop_map(Step::Release),
            1 => any::<prop::sample::Index>().prop_map(Step::ReleaseAgain),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Against a plain model: the set of open sessions, and every session ever given out.
        #[test]
        fn a_slot_is_never_handed_out_twice_and_its_generation_advances(steps in steps()) {
            let (shard_count, sessions_per_shard_max) = (3u8, 4u32);
            let mut registrar = registrar(shard_count, sessions_per_shard_max);
            let capacity = usize::from(shard_count) * sessions_per_shard_max as usize;
            let mut open = Vec::new();
            let mut ended = Vec::new();
            let mut last_generation = BTreeMap::new();
            for (number, step) in (0u64..).zip(steps) {
                match step {
                    Step::Admit => match registrar.admit(call(number)) {
                        Ok(session) => {
                            let place = (session.shard, session.slot);
                            prop_assert!(open.iter().all(|(_, other): &(CallId, SessionRef)|
                                (other.shard, other.slot) != place));
                            if let Some(last) = last_generation.insert(place, session.generation) {
                                prop_assert_eq!(session.generation, last.next());
                            }
                            open.push((call(number), session));
                        }
                        Err(refusal) => {
                            prop_assert_eq!(refusal, Refusal::Full);
                            prop_assert_eq!(open.len(), capacity);
                        }
                    },
                    Step::Release(which) if !open.is_empty() => {
                        let (call, session) = open.swap_remove(which.index(open.len()));
                        prop_assert_eq!(registrar.release(session), Some(call));
                        ended.push(session);
                    }
                    Step::ReleaseAgain(which) if !ended.is_empty() => {
                        prop_assert_eq!(registrar.release(ended[which.index(ended.len())]), None);
                    }
                    Step::Release(_) | Step::ReleaseAgain(_) => {}
                }
                prop_assert_eq!(registrar.session_count(), open.len());
                for (call, session) in &open {
                    prop_assert_eq!(registrar.session_of(*call), Some(*session));
                }
            }
        }
    }
}
