//! One caller who is played an answer, interrupts it, and notes when the last of it came.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::burst::Bursts;
use super::super::call::client_socket;
use super::super::client::{Client, Event, Heard, Kit, Output, Said};
use super::super::failure::{Cause, Failure};
use super::super::signalling::Signalling;
use super::super::sources::Sources;
use super::super::voice::{FRAME, Speech, Stamp, Voice};
use super::backend::{CLEAR, INTRODUCTION, SEGMENT};
use crate::process::edge::Dialect;

/// How long the answer may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long after the interruption the caller listens for what still comes.
const LISTEN: Duration = Duration::from_millis(700);
/// Sockets know no wait of zero.
const WAIT_MIN: Duration = Duration::from_micros(50);
const WAIT_MAX: Duration = Duration::from_millis(20);

/// How a caller interrupts.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// He speaks, and the backend hears him.
    Speech,
    /// His client sends `output_audio_buffer.clear`.
    Clear,
}

impl Trigger {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Speech, Self::Clear];
}

/// What is the same for all callers.
pub(super) struct Ground<'a> {
    pub(super) kit: &'a Kit,
    pub(super) signalling: &'a dyn Signalling,
    /// What stands behind the edge.
    pub(super) dialect: Dialect,
    /// What is said where stamps do not pass.
    pub(super) bursts: &'a Bursts,
    pub(super) sources: Sources,
    pub(super) stop: &'a AtomicBool,
}

/// What one caller met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Met {
    /// The call, as signalling names it.
    pub(super) call: String,
    /// From the interruption to the last of the answer; zero when nothing came after it.
    pub(super) stop: Duration,
    /// What he heard of the answer in all.
    pub(super) heard: Duration,
}

/// Calls, listens for `listen` to the answer, and interrupts it.
pub(super) fn call(
    ground: &Ground<'_>,
    id: u32,
    trigger: Trigger,
    listen: Duration,
) -> Result<Met, Failure> {
    let mut line = Line::dial(ground, id)?;
    line.pump(Instant::now() + PATIENCE, ground.stop, |line| {
        line.first.is_some() && line.channel
    })?;
    let Some(first) = line.first.filter(|_| line.channel) else {
        return Err(Failure::new(Cause::NoAudio, "the answer did not begin"));
    };
    line.pump(first + listen, ground.stop, |_| false)?;
    let interrupted = line.interrupt(trigger)?;
    line.pump(interrupted + LISTEN, ground.stop, |_| false)?;
    let last = line.last.unwrap_or(first);
    line.hang_up();
    Ok(Met {
        call: line.call.clone(),
        stop: last.saturating_duration_since(interrupted),
        heard: line.heard,
    })
}

/// A client on its socket, and what it has heard.
struct Line<'a> {
    ground: &'a Ground<'a>,
    id: u32,
    client: Client,
    socket: UdpSocket,
    call: String,
    wake: Instant,
    channel: bool,
    /// When the answer began, and its latest packet.
    first: Option<Instant>,
    last: Option<Instant>,
    heard: Duration,
    /// Numbers of the answer's packets lie below this; one that comes twice counts once.
    next: u64,
    voice: Option<(Instant, Voice)>,
    buffer: Vec<u8>,
}

impl<'a> Line<'a> {
    fn dial(ground: &'a Ground<'a>, id: u32) -> Result<Self, Failure> {
        let address = ground.sources.address(id);
        let no_socket = |error| Failure::new(Cause::NoSocket, error);
        let socket = client_socket(address).map_err(no_socket)?;
        socket.set_nonblocking(false).map_err(no_socket)?;
        let local = socket.local_addr().map_err(no_socket)?;
        let broken = |error| Failure::new(Cause::Broken, error);
        let (offering, offer) = ground.kit.offer(Instant::now(), local).map_err(broken)?;
        let opened = ground.signalling.open(&offer)?;
        let location = opened.call.unwrap_or_default();
        let client = offering.accept(&opened.answer);
        Ok(Self {
            ground,
            id,
            client: client.map_err(|error| Failure::new(Cause::BadAnswer, error))?,
            socket,
            call: location.rsplit('/').next().unwrap_or_default().to_owned(),
            wake: Instant::now(),
            channel: false,
            first: None,
            last: None,
            heard: Duration::ZERO,
            next: 0,
            voice: None,
            buffer: vec![0; 2_048],
        })
    }

    /// Carries the call on until `until`, or until `done`.
    fn pump(
        &mut self,
        until: Instant,
        stop: &AtomicBool,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), Failure> {
        loop {
            let now = Instant::now();
            if now >= until || done(self) {
                return Ok(());
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::new(Cause::Stopped, "before the interruption"));
            }
            let spoken = self.speak(now)?;
            if self.wake <= now {
                self.client.handle_timeout(now).map_err(broken)?;
                self.follow(now)?;
            }
            let next = self.wake.min(until).min(spoken.unwrap_or(until));
            let wait = next.saturating_duration_since(Instant::now());
            let wait = wait.clamp(WAIT_MIN, WAIT_MAX);
            let timed = self.socket.set_read_timeout(Some(wait));
            timed.map_err(|error| Failure::new(Cause::NoSocket, error))?;
            match self.socket.recv_from(&mut self.buffer) {
                Ok((length, from)) => {
                    let now = Instant::now();
                    let datagram = &self.buffer[..length];
                    let taken = self.client.handle_datagram(now, from, datagram);
                    taken.map_err(broken)?;
                    self.follow(now)?;
                }
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {}
                Err(error) => return Err(Failure::new(Cause::Broken, error)),
            }
        }
    }

    /// Says what is due of the caller's speech, if he speaks; gives when more is.
    fn speak(&mut self, now: Instant) -> Result<Option<Instant>, Failure> {
        let Some((due, mut voice)) = self.voice.take() else {
            return Ok(None);
        };
        if due > now {
            self.voice = Some((due, voice));
            return Ok(Some(due));
        }
        let frame = voice.speak();
        let stamp = Stamp {
            call: self.id,
            sequence: frame.sequence,
            intended_ns: 0,
        };
        self.client.say(
            now,
            Said {
                sequence: frame.sequence,
                timestamp: frame.timestamp,
                marker: frame.marker,
                payload: match self.ground.dialect {
                    Dialect::MediaV1 => stamp.write(),
                    Dialect::Realtime => self.ground.bursts.packet(frame.sequence),
                },
            },
        );
        self.voice = Some((due + FRAME, voice));
        self.client.handle_timeout(now).map_err(broken)?;
        self.follow(now)?;
        Ok(Some(due + FRAME))
    }

    /// Interrupts; gives the moment.
    fn interrupt(&mut self, trigger: Trigger) -> Result<Instant, Failure> {
        let now = Instant::now();
        match trigger {
            Trigger::Speech => {
                let voice = Voice::new(Speech::Continuous, u64::from(self.id));
                self.voice = Some((now, voice));
                self.speak(now)?;
            }
            Trigger::Clear => {
                if !self.client.write(&json!({ "type": CLEAR }).to_string()) {
                    return Err(Failure::new(Cause::NoChannel, "it takes no event"));
                }
                self.client.handle_timeout(now).map_err(broken)?;
                self.follow(now)?;
            }
        }
        Ok(now)
    }

    fn follow(&mut self, now: Instant) -> Result<(), Failure> {
        loop {
            match self.client.poll().map_err(broken)? {
                Output::Timeout(at) => {
                    self.wake = at;
                    return Ok(());
                }
                Output::Transmit { to, bytes } => {
                    // Lost like any datagram.
                    let _ = self.socket.send_to(&bytes, to);
                }
                Output::Event(Event::ChannelOpen) => {
                    self.channel = true;
                    self.introduce()?;
                }
                Output::Event(Event::Audio(heard)) => self.hear(&heard, now),
                Output::Event(Event::Closed) => {
                    return Err(Failure::new(Cause::Closed, "it said goodbye"));
                }
                Output::Event(_) => {}
            }
        }
    }

    /// Tells the backend which call this is, where the protocol does not.
    fn introduce(&mut self) -> Result<(), Failure> {
        if self.ground.dialect == Dialect::MediaV1 {
            return Ok(());
        }
        let event = json!({ "type": INTRODUCTION, "call": self.call });
        if self.client.write(&event.to_string()) {
            Ok(())
        } else {
            Err(Failure::new(Cause::NoChannel, "it takes no event"))
        }
    }

    fn hear(&mut self, heard: &Heard, now: Instant) {
        let (number, length) = match self.ground.dialect {
            Dialect::MediaV1 => {
                let stamp = Stamp::read(&heard.payload);
                let answer = stamp.filter(|stamp| stamp.call == u32::from(SEGMENT));
                let Some(stamp) = answer else { return };
                (u64::from(stamp.sequence), FRAME)
            }
            // Nothing but the answer is sent: whatever sounds is of it.
            Dialect::Realtime => (heard.sequence, length(&heard.payload)),
        };
        if number < self.next {
            return;
        }
        self.next = number + 1;
        self.heard += length;
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    fn hang_up(&mut self) {
        let now = Instant::now();
        if self.client.close().is_ok() && self.client.handle_timeout(now).is_ok() {
            while let Ok(Output::Transmit { to, bytes }) = self.client.poll() {
                let _ = self.socket.send_to(&bytes, to);
            }
        }
    }
}

/// How long an Opus packet sounds.
fn length(packet: &[u8]) -> Duration {
    let samples = opus_pure::packet::samples_48k(packet).unwrap_or(0);
    Duration::from_nanos(samples as u64 * 1_000_000_000 / 48_000)
}

fn broken(error: super::super::client::ClientError) -> Failure {
    Failure::new(Cause::Broken, error)
}
