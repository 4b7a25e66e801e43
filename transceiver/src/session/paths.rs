//! Which ways lead to the client: admission, and the choice of the current one.
//!
//! A path is a client address as one relay worker sees it, with the record header that leads back.
//! It is admitted only by a Binding request whose integrity verified, because nothing else a
//! client sends proves anything before DTLS is up; whatever else comes from elsewhere is refused.
//!
//! Where to send is decided here and not by the engine, which would hold on to a vanished address
//! for 13.5 s. The current path is the one that last carried
//!
//! - a nominating check (USE-CANDIDATE): the client chose it (RFC 8445, 8.1.1); or
//! - the newest audio: the client uses it, whether or not it nominates again, as after its NAT
//!   gave it another port; or
//! - any check, when there is no current path or it has been silent for [`SILENCE`].
//!
//! Checks that a client sends on a spare pair therefore do not pull the media over, and a captured
//! check that somebody replays from elsewhere is undone by the next audio packet.

use std::time::{Duration, Instant};

use syrinx_shared::route::ClientSocket;
use syrinx_shared::wire::encap::{Direction, Marks, RawHeader, return_header, same_flow};
use syrinx_shared::wire::train::TrainDestination;

/// Paths kept at once: two networks with both address families each.
const PATHS_MAX: usize = 4;
/// Paths admitted over a session's life. Only the client can make more; each leaves about 250
/// bytes in the engine.
const ADMISSIONS_MAX: u32 = 4096;
/// Silence after which any check may take over: longer than Opus DTX ever pauses (400 ms,
/// RFC 6716, 2.1.9), shorter than browsers leave between checks (2.5 s).
const SILENCE: Duration = Duration::from_secs(1);

/// One way to the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub(super) relay: TrainDestination,
    pub(super) client: ClientSocket,
    /// The way back, ready to be put before a payload.
    pub(super) back: RawHeader,
    heard: Instant,
}

impl Path {
    pub(super) fn new(
        relay: TrainDestination,
        client: ClientSocket,
        header: &RawHeader,
        now: Instant,
    ) -> Self {
        let back = return_header(header, Direction::ToClient, Marks::default());
        Self {
            relay,
            client,
            back,
            heard: now,
        }
    }

    /// The header of a control record about this path's flow.
    pub(super) fn control(&self) -> RawHeader {
        return_header(&self.back, Direction::Control, Marks::default())
    }
}

/// The place of a path among a session's; valid until the next admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathIndex(usize);

/// Too many paths were admitted over the session's life.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// A session's admitted paths.
#[derive(Debug, Default)]
pub(super) struct Paths {
    admitted: Vec<Path>,
    current: Option<usize>,
    admissions: u32,
    moves: u32,
}

impl Paths {
    /// The path by which a record with this header came from this relay worker, if admitted.
    pub(super) fn find(&self, relay: TrainDestination, header: &RawHeader) -> Option<PathIndex> {
        self.admitted
            .iter()
            .position(|path| path.relay == relay && same_flow(&path.back, header))
            .map(PathIndex)
    }

    /// Admits a path. The one not heard from for longest makes room, never the current one.
    pub(super) fn admit(&mut self, path: Path) -> Result<PathIndex, Exhausted> {
        if self.admissions == ADMISSIONS_MAX {
            return Err(Exhausted);
        }
        self.admissions += 1;
        if self.admitted.len() < PATHS_MAX {
            self.admitted.reserve_exact(1);
            self.admitted.push(path);
            return Ok(PathIndex(self.admitted.len() - 1));
        }
        let spare = (0..PATHS_MAX).filter(|&at| Some(at) != self.current);
        let oldest = spare
            .min_by_key(|&at| self.admitted[at].heard)
            .expect("invariant: there are more paths than current ones");
        self.admitted[oldest] = path;
        Ok(PathIndex(oldest))
    }

    /// A check that verified came on `at`.
    pub(super) fn heard_check(&mut self, at: PathIndex, nominates: bool, now: Instant) {
        let silent = self
            .current()
            .is_none_or(|path| now >= path.heard + SILENCE);
        self.admitted[at.0].heard = now;
        if nominates || silent {
            self.switch(at);
        }
    }

    /// Something that decrypted came on `at`; `newest_audio` when it is audio newer than all
    /// before it.
    pub(super) fn heard_media(&mut self, at: PathIndex, newest_audio: bool, now: Instant) {
        self.admitted[at.0].heard = now;
        if newest_audio {
            self.switch(at);
        }
    }

    fn switch(&mut self, at: PathIndex) {
        if self.current != Some(at.0) {
            self.moves += u32::from(self.current.is_some());
            self.current = Some(at.0);
        }
    }

    pub(super) fn at(&self, at: PathIndex) -> &Path {
        &self.admitted[at.0]
    }

    /// Where everything but answers to checks is sent.
    pub(super) fn current(&self) -> Option<&Path> {
        self.current.map(|at| &self.admitted[at])
    }

    /// All admitted paths.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.admitted.iter()
    }

    /// How often the current path changed.
    pub(super) fn moves(&self) -> u32 {
        self.moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syrinx_shared::keys::Cookie;
    use syrinx_shared::route::{LocalEndpoint, SessionRef, ShardIndex, Transport};
    use syrinx_shared::wire::encap::RecordHeader;

    fn relay() -> TrainDestination {
        TrainDestination {
            addr: "10.0.0.1:3480".parse().unwrap(),
            shard: ShardIndex(0),
        }
    }

    fn header(port: u16) -> RawHeader {
        RecordHeader {
            direction: Direction::ToTransceiver,
            marks: Marks::default(),
            transport: Transport::Udp,
            endpoint: LocalEndpoint(0),
            client: ClientSocket::new(([192, 0, 2, 1], port).into()),
            session: SessionRef::from_bytes([0; 8]),
            cookie: Cookie([port as u8; 8]),
        }
        .to_raw()
    }

    fn path(port: u16, now: Instant) -> Path {
        Path::new(
            relay(),
            ClientSocket::new(([192, 0, 2, 1], port).into()),
            &header(port),
            now,
        )
    }

    #[test]
    fn finds_a_path_by_its_flow_whatever_its_length_and_marks() {
        let mut paths = Paths::default();
        let now = Instant::now();
        let at = paths.admit(path(1, now)).unwrap();
        let marked = return_header(
            &header(1),
            Direction::ToTransceiver,
            Marks::from_traffic_class(0xb8),
        );
        assert_eq!(paths.find(relay(), &marked), Some(at));
        assert_eq!(paths.find(relay(), &header(2)), None);
        let elsewhere = TrainDestination {
            shard: ShardIndex(1),
            ..relay()
        };
        assert_eq!(paths.find(elsewhere, &header(1)), None);
    }

    #[test]
    fn a_spare_check_does_not_move_a_live_session_but_a_nomination_or_audio_does() {
        let mut paths = Paths::default();
        let now = Instant::now();
        let first = paths.admit(path(1, now)).unwrap();
        paths.heard_check(first, true, now);
        let second = paths.admit(path(2, now)).unwrap();
        paths.heard_check(second, false, now + SILENCE / 2);
        assert_eq!(paths.current().unwrap().client.addr().port(), 1);
        paths.heard_media(second, false, now + SILENCE / 2);
        assert_eq!(paths.current().unwrap().client.addr().port(), 1);
        paths.heard_media(second, true, now + SILENCE / 2);
        assert_eq!(paths.current().unwrap().client.addr().port(), 2);
        paths.heard_check(first, true, now + SILENCE / 2);
        assert_eq!(
            (paths.current().unwrap().client.addr().port(), paths.moves()),
            (1, 2)
        );
    }

    #[test]
    fn any_check_takes_over_from_a_silent_path() {
        let mut paths = Paths::default();
        let now = Instant::now();
        let first = paths.admit(path(1, now)).unwrap();
        paths.heard_check(first, true, now);
        let second = paths.admit(path(2, now)).unwrap();
        paths.heard_check(second, false, now + SILENCE);
        assert_eq!(paths.current().unwrap().client.addr().port(), 2);
    }

    #[test]
    fn the_fifth_path_replaces_the_quietest_but_never_the_current() {
        let mut paths = Paths::default();
        let now = Instant::now();
        for port in 1..=4u16 {
            let at = paths
                .admit(path(port, now + Duration::from_millis(port.into())))
                .unwrap();
            paths.heard_check(at, port == 1, now + Duration::from_millis(port.into()));
        }
        paths.admit(path(5, now + SILENCE)).unwrap();
        assert!(paths.find(relay(), &header(1)).is_some());
        assert!(paths.find(relay(), &header(2)).is_none());
        assert!(paths.find(relay(), &header(5)).is_some());
    }

    #[test]
    fn a_client_cannot_move_for_ever() {
        let mut paths = Paths::default();
        let now = Instant::now();
        for port in 0..ADMISSIONS_MAX {
            paths.admit(path(port as u16, now)).unwrap();
        }
        assert_eq!(paths.admit(path(1, now)).unwrap_err(), Exhausted);
    }
}
