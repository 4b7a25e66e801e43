//! One call on a media thread: its client, its socket, what it says and what it hears.
//!
//! A call is driven by [`Call::wake`] at the time it asked for and by [`Call::receive`] when its
//! socket has something. It goes from setting up over talking to lingering, in which it says
//! nothing more and waits for what is still on its way. When it is over, [`Call::account`] writes
//! it into the thread's tally.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::burst::{Bursts, Onset};
use super::client::{Client, ClientError, Event, Heard, Output, Said};
use super::ear::{Arrival, Ear};
use super::failure::{Cause, Failure};
use super::latency::Latencies;
use super::schedule::{Ending, Move, Planned};
use super::tally::{Milestones, Phase, Tally};
use super::terms::{Sound, Terms, ns};
use super::voice::{FRAME, Frame, Stamp, Voice};

/// After its end a call still hears what is on its way for this long.
const LINGER: Duration = Duration::from_millis(500);
/// A call that heard nothing for so long when it ends is lost: several comfort frames of DTX.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Datagrams taken from one socket before others get their turn.
const RECEIVE_BURST: usize = 4;
/// Packets after which the fastest round trip of a call is its floor: two seconds of speech.
const FLOOR_AFTER: u32 = 100;
/// Packets that a late thread says at once before it looks at its sockets.
const SAY_BURST: usize = 8;

/// A call that signalling has opened.
pub(super) struct Dialled {
    pub(super) planned: Planned,
    pub(super) client: Client,
    pub(super) socket: UdpSocket,
    /// When the answer was here.
    pub(super) answered_ns: u64,
    /// What hangs it up, if its goodbye does not.
    pub(super) handle: Option<String>,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    SettingUp,
    Talking,
    Lingering {
        until_ns: u64,
    },
    /// Over: to be taken out.
    Over,
}

/// Whether a call still has the socket it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Stayed,
    Moved,
}

/// What a media thread's calls write into.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) tally: Tally,
    /// Round trips since the last slice.
    pub(super) slice: Latencies,
    pub(super) slice_said: u64,
    pub(super) slice_heard: u64,
}

/// See the module's description.
pub(super) struct Call {
    pub(super) planned: Planned,
    pub(super) socket: UdpSocket,
    pub(super) handle: Option<String>,
    pub(super) stage: Stage,
    client: Client,
    milestones: Milestones,
    established_ns: Option<u64>,
    voice: Option<Voice>,
    next: Option<Frame>,
    media_ns: u64,
    ear: Ear,
    /// The latest burst that was said, and the bursts that come back.
    burst: Option<Stamp>,
    onset: Onset,
    floor_ns: u64,
    heard: u32,
    client_wake_ns: u64,
    moves: Option<Move>,
    set_up_until_ns: u64,
    end: Option<End>,
    cut_short: bool,
}

/// How a call ended.
#[derive(Debug)]
enum End {
    Completed,
    CutShort,
    Failed(Failure),
}

impl Call {
    pub(super) fn new(dialled: Dialled, terms: &Terms) -> Self {
        let Dialled {
            planned,
            client,
            socket,
            answered_ns,
            handle,
        } = dialled;
        let mut milestones = Milestones::default();
        milestones.reach(Phase::Http, answered_ns);
        Self {
            moves: planned.moves,
            set_up_until_ns: ns(planned.start + terms.set_up_timeout),
            planned,
            socket,
            handle,
            stage: Stage::SettingUp,
            client,
            milestones,
            established_ns: None,
            voice: None,
            next: None,
            media_ns: 0,
            ear: Ear::default(),
            burst: None,
            onset: Onset::default(),
            floor_ns: u64::MAX,
            heard: 0,
            client_wake_ns: 0,
            end: None,
            cut_short: false,
        }
    }

    /// The run ends early: the call ends now, and is not to blame for it.
    pub(super) fn cut_short(&mut self, terms: &Terms) {
        self.cut_short = true;
        self.planned.end = self.planned.end.min(terms.epoch.elapsed());
    }

    /// When [`Call::wake`] is due.
    pub(super) fn wake_ns(&self) -> u64 {
        let said_ns = self.next.map_or(u64::MAX, |frame| self.intended_ns(&frame));
        // A client that talks looks at its own clocks when it talks: a timer that is up to a frame
        // late changes nothing, and a wake-up costs as much as a packet.
        let client_ns = match self.stage {
            Stage::Talking if said_ns < self.client_wake_ns.saturating_add(ns(FRAME)) => said_ns,
            _ => self.client_wake_ns,
        };
        let stage_ns = match self.stage {
            Stage::SettingUp if self.cut_short => 0,
            Stage::SettingUp => self.set_up_until_ns,
            Stage::Talking => ns(self.planned.end),
            Stage::Lingering { until_ns } => until_ns,
            Stage::Over => 0,
        };
        let moves_ns = self.moves.map_or(u64::MAX, |moves| ns(moves.at));
        said_ns.min(client_ns).min(stage_ns).min(moves_ns)
    }

    fn intended_ns(&self, frame: &Frame) -> u64 {
        self.media_ns + ns(frame.at)
    }

    /// Does everything that is due.
    pub(super) fn wake(&mut self, terms: &Terms, notes: &mut Notes) -> Woken {
        let (mut woken, mut looked) = (Woken::Stayed, false);
        let now = Instant::now();
        let now_ns = terms.since_epoch(now);
        self.move_on(now_ns, terms);
        if let Some(moves) = self.moves.take_if(|moves| now_ns >= ns(moves.at)) {
            if let Err(failure) = self.move_away(moves.known, terms) {
                self.over(End::Failed(failure));
            }
            woken = Woken::Moved;
        }
        for _ in 0..SAY_BURST {
            let due = self.next.filter(|frame| self.intended_ns(frame) <= now_ns);
            let Some(frame) = due else { break };
            self.say(&frame, now, terms, notes);
            looked = true;
        }
        // Who said something has looked at the client's clocks, too.
        if !looked && self.stage != Stage::Over {
            let outcome = self.client.handle_timeout(now);
            self.follow(outcome, now, terms, notes);
        }
        woken
    }

    /// Goes to the next stage when its time has come.
    fn move_on(&mut self, now_ns: u64, terms: &Terms) {
        let planned_end = now_ns >= ns(self.planned.end);
        match self.stage {
            Stage::SettingUp if planned_end && self.cut_short => self.over(End::CutShort),
            // However short a call is to be, it has the same time to come about.
            Stage::SettingUp if now_ns >= self.set_up_until_ns => {
                let cause = self.missing(terms);
                let words = format!("not within {:?}", terms.set_up_timeout);
                self.over(End::Failed(Failure::new(cause, words)));
            }
            Stage::Talking if planned_end && self.planned.ending == Ending::Vanishing => {
                self.over(End::Completed);
            }
            Stage::Talking if planned_end => {
                self.next = None;
                self.voice = None;
                let until_ns = now_ns + ns(LINGER);
                self.stage = Stage::Lingering { until_ns };
            }
            Stage::Lingering { until_ns } if now_ns >= until_ns => self.over(self.outcome()),
            _ => {}
        }
    }

    /// How a call that talked until its end went.
    fn outcome(&self) -> End {
        let silent = self
            .ear
            .silent_for(ns(self.planned.end))
            .unwrap_or(Duration::MAX);
        if self.cut_short {
            End::CutShort
        } else if silent > SILENCE_MAX {
            let words = format!("nothing heard for the last {:.1} s", silent.as_secs_f64());
            End::Failed(Failure::new(Cause::Silent, words))
        } else {
            End::Completed
        }
    }

    /// The first end is the one that counts.
    fn over(&mut self, end: End) {
        self.stage = Stage::Over;
        self.next = None;
        self.end.get_or_insert(end);
    }

    /// From here on the client's datagrams leave from another address.
    fn move_away(&mut self, known: bool, terms: &Terms) -> Result<(), Failure> {
        let no_socket = |error| Failure::new(Cause::NoSocket, error);
        let address = terms.sources.second_address(self.planned.id);
        self.socket = client_socket(address).map_err(no_socket)?;
        if known {
            let local = self.socket.local_addr().map_err(no_socket)?;
            let moved = self.client.move_to(local);
            moved.map_err(|error| Failure::new(Cause::Broken, error))?;
        }
        Ok(())
    }

    fn say(&mut self, frame: &Frame, now: Instant, terms: &Terms, notes: &mut Notes) {
        let intended_ns = self.intended_ns(frame);
        let stamp = Stamp {
            call: self.planned.id,
            sequence: frame.sequence,
            intended_ns,
        };
        let measured = self.established_ns.is_some() && terms.measures(intended_ns);
        let payload = self.sound(stamp, measured, terms);
        notes.slice_said += 1;
        let said = Said {
            sequence: frame.sequence,
            timestamp: frame.timestamp,
            marker: frame.marker,
            payload,
        };
        self.client.say(now, said);
        self.next = self.voice.as_mut().map(Voice::speak);
        // Each is sent before the next is written: the client keeps few.
        let outcome = self.client.handle_timeout(now);
        self.follow(outcome, now, terms, notes);
        if measured {
            let lag_ns = terms.now_ns().saturating_sub(intended_ns);
            notes.tally.send_lag.record_ns(lag_ns);
        }
    }

    /// What is said in the place of this stamp; notes what of it can be known again.
    fn sound(&mut self, stamp: Stamp, measured: bool, terms: &Terms) -> Arc<[u8]> {
        match &terms.sound {
            Sound::Stamped { .. } => {
                self.ear.said(&stamp, measured);
                stamp.write()
            }
            Sound::Bursts(bursts) => {
                if let Some(burst) = Bursts::beginning(stamp.sequence) {
                    let sequence = burst;
                    let stamp = Stamp { sequence, ..stamp };
                    self.ear.said(&stamp, measured);
                    self.burst = Some(stamp);
                }
                bursts.packet(stamp.sequence)
            }
        }
    }

    /// Takes what the socket has, and acts on it.
    pub(super) fn receive(&mut self, buffer: &mut [u8], terms: &Terms, notes: &mut Notes) {
        for _ in 0..RECEIVE_BURST {
            let (length, from) = match self.socket.recv_from(buffer) {
                Ok(arrived) => arrived,
                // ICMP errors of earlier sends: the server is away, which shows in what is missing.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let now = Instant::now();
            let outcome = self.client.handle_datagram(now, from, &buffer[..length]);
            self.follow(outcome, now, terms, notes);
            // A talking client rarely has a second datagram, and finding none costs a system call;
            // if there is one, the next look at the sockets shows it.
            if self.stage != Stage::SettingUp {
                return;
            }
        }
    }

    /// Sends and notes everything that an input brought about.
    fn follow(
        &mut self,
        outcome: Result<(), ClientError>,
        now: Instant,
        terms: &Terms,
        notes: &mut Notes,
    ) {
        let mut error = outcome.err();
        while error.is_none() {
            match self.client.poll() {
                Ok(Output::Timeout(at)) => {
                    self.client_wake_ns = terms.since_epoch(at);
                    break;
                }
                Ok(Output::Transmit { to, bytes }) => {
                    // A full buffer and ICMP errors lose a datagram, as networks do.
                    let sent = self.socket.send_to(&bytes, to);
                    notes.tally.refused_sends += u64::from(sent.is_err());
                }
                Ok(Output::Event(event)) => self.note(event, now, terms, notes),
                Err(broken) => error = Some(broken),
            }
        }
        if let Some(error) = error {
            self.over(End::Failed(Failure::new(Cause::Broken, error)));
        } else if !self.client.is_alive() {
            self.over(End::Failed(Failure::new(
                Cause::Closed,
                "the session is over",
            )));
        }
    }

    fn note(&mut self, event: Event, now: Instant, terms: &Terms, notes: &mut Notes) {
        let now_ns = terms.since_epoch(now);
        match event {
            Event::CheckAnswered => self.reach(Phase::Check, now_ns, terms, notes),
            Event::IceConnected => self.reach(Phase::Ice, now_ns, terms, notes),
            Event::DtlsConnected => {
                self.media_ns = now_ns;
                let mut voice = Voice::new(terms.speech, self.planned.seed);
                self.next = Some(voice.speak());
                self.voice = Some(voice);
                self.reach(Phase::Dtls, now_ns, terms, notes);
            }
            Event::ChannelOpen => self.reach(Phase::Channel, now_ns, terms, notes),
            Event::Message(text) => {
                notes.tally.messages += 1;
                if self.milestones.at(Phase::Session).is_none() && is_session_created(&text) {
                    self.reach(Phase::Session, now_ns, terms, notes);
                }
            }
            Event::Audio(heard) => self.listen(&heard, now_ns, terms, notes),
            Event::Closed if matches!(self.stage, Stage::Lingering { .. }) => {
                self.over(self.outcome());
            }
            Event::Closed => {
                self.over(End::Failed(Failure::new(Cause::Closed, "it said goodbye")));
            }
        }
    }

    fn listen(&mut self, heard: &Heard, now_ns: u64, terms: &Terms, notes: &mut Notes) {
        match terms.sound {
            Sound::Stamped { .. } => {
                let stamp = Stamp::read(&heard.payload);
                let known = stamp.and_then(|stamp| {
                    let turned_ns = terms.turned_ns(&heard.payload, &stamp, now_ns)?;
                    (stamp.call == self.planned.id).then_some((stamp, turned_ns))
                });
                match known {
                    Some((stamp, turned)) => self.hear(&stamp, turned, now_ns, terms, notes),
                    None => notes.tally.foreign += 1,
                }
            }
            Sound::Bursts(_) => {
                self.reach(Phase::Audio, now_ns, terms, notes);
                let begins = self.onset.hear(heard.timestamp);
                if let Some(stamp) = self.burst.filter(|_| begins) {
                    self.hear(&stamp, None, now_ns, terms, notes);
                }
            }
        }
    }

    fn hear(
        &mut self,
        stamp: &Stamp,
        turned_ns: Option<u64>,
        now_ns: u64,
        terms: &Terms,
        notes: &mut Notes,
    ) {
        self.reach(Phase::Audio, now_ns, terms, notes);
        let arrival = self.ear.heard(stamp, now_ns);
        if arrival == Arrival::Duplicate {
            return;
        }
        notes.slice_heard += 1;
        let round_trip_ns = now_ns.saturating_sub(stamp.intended_ns);
        notes.slice.record_ns(round_trip_ns);
        // One that is too late to be heard still says how long the server kept it.
        if arrival == (Arrival::Fresh { measured: false }) || !terms.measures(stamp.intended_ns) {
            return;
        }
        notes.tally.round_trip.record_ns(round_trip_ns);
        if let Some(turned_ns) = turned_ns {
            notes.tally.up.record_ns(turned_ns - stamp.intended_ns);
            notes.tally.down.record_ns(now_ns - turned_ns);
        }
        self.floor_ns = self.floor_ns.min(round_trip_ns);
        self.heard += 1;
        if self.heard > FLOOR_AFTER {
            let above_ns = round_trip_ns - self.floor_ns;
            notes.tally.above_floor.record_ns(above_ns);
        }
    }

    fn reach(&mut self, phase: Phase, now_ns: u64, terms: &Terms, notes: &mut Notes) {
        if self.milestones.reach(phase, now_ns)
            && self.stage == Stage::SettingUp
            && self.missing_phase(terms).is_none()
        {
            self.stage = Stage::Talking;
            self.established_ns = Some(now_ns);
            notes.tally.calls.established += 1;
            let start_ns = ns(self.planned.start);
            if self.planned.counts {
                notes.tally.set_up(&self.milestones, start_ns);
            }
            // A call that was made after the incident has recovered from it now.
            if let Some(incident_ns) = terms.incident_ns.filter(|at_ns| start_ns >= *at_ns) {
                notes.tally.recovery.record_ns(now_ns - incident_ns);
            }
        }
    }

    /// The first milestone that a call must reach and this one has not.
    fn missing_phase(&self, terms: &Terms) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| {
            let wanted = match phase {
                Phase::Channel => terms.expected.channel,
                Phase::Session => terms.expected.session,
                _ => true,
            };
            wanted && self.milestones.at(*phase).is_none()
        })
    }

    fn missing(&self, terms: &Terms) -> Cause {
        match self.missing_phase(terms) {
            Some(Phase::Http) => Cause::HttpTimeout,
            Some(Phase::Check) => Cause::NoCheckAnswered,
            Some(Phase::Ice) => Cause::NoIce,
            Some(Phase::Dtls) => Cause::NoDtls,
            Some(Phase::Channel) => Cause::NoChannel,
            Some(Phase::Session) => Cause::NoSession,
            Some(Phase::Audio) | None => Cause::NoAudio,
        }
    }

    /// Says goodbye and writes the call into the tally. Gives what signalling must hang up, because
    /// nothing else tells the server that the call is over.
    pub(super) fn account(mut self, terms: &Terms, notes: &mut Notes) -> Option<String> {
        let says_goodbye = self.planned.ending == Ending::Goodbye;
        if says_goodbye && self.client.is_alive() {
            self.say_goodbye();
        }
        let tally = &mut notes.tally;
        let end = self.end.unwrap_or(End::CutShort);
        let failed = matches!(end, End::Failed(_));
        match (end, self.established_ns) {
            (End::Completed, _) => tally.calls.completed += 1,
            (End::CutShort, _) => tally.calls.cut_short += 1,
            (End::Failed(failure), established_ns) => {
                tally.calls.lost += u64::from(established_ns.is_some());
                tally.calls.failed += u64::from(established_ns.is_none());
                tally.failures.count(failure);
            }
        }
        if let Some(established_ns) = self.established_ns {
            let ended_ns = ns(self.planned.end).min(terms.now_ns());
            let from_ns = established_ns.max(terms.window_ns.start);
            let until_ns = ended_ns.min(terms.window_ns.end);
            tally.call_time += Duration::from_nanos(until_ns.saturating_sub(from_ns));
        }
        let incident_ns = self
            .planned
            .moves
            .map(|moves| ns(moves.at))
            .or(terms.incident_ns);
        tally.hear(&self.ear.finish(), incident_ns);
        self.handle
            .filter(|_| terms.needs_hang_up || (failed && says_goodbye))
    }

    fn say_goodbye(&mut self) {
        if self.client.close().is_err() || self.client.handle_timeout(Instant::now()).is_err() {
            return;
        }
        while let Ok(Output::Transmit { to, bytes }) = self.client.poll() {
            // Lost like any datagram: the server's own clocks end the session then.
            let _ = self.socket.send_to(&bytes, to);
        }
    }
}

/// A non-blocking socket of a client at `address`.
pub(super) fn client_socket(address: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn is_session_created(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(rename = "type", borrow)]
        name: Option<&'a str>,
    }
    serde_json::from_str::<Named<'_>>(text).is_ok_and(|event| event.name == Some("session.created"))
}
