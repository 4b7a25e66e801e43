//! The least a server can do with a call: answer it, and send its audio back. What the generator's
//! own ceiling is measured against, and, with a delay that is known, what its clock is checked
//! against.
//!
//! One thread, one UDP socket, str0m for each session, nothing in between: no relay, no inner leg,
//! no session of the API. It speaks enough HTTP to take offers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl::set_timerslack;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use str0m::change::SdpOffer;
use str0m::media::Mid;
use str0m::net::{Protocol, Receive};
use str0m::rtp::{Extension, RtpPacket, RtpWrite};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};
use syrinx_shared::wire::stun::BindingRequest;
use syrinx_transceiver::engine::process_crypto;

use super::clock::Clock;
use super::latency::Latencies;
use super::voice::Stamp;

/// Largest DTLS datagram.
const DATAGRAM_BYTES_MAX: usize = 1_200;
/// Buffers of the one socket, for all sessions.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// Largest offer that is read.
const OFFER_BYTES_MAX: usize = 1 << 20;
/// Datagrams taken before time and offers get a look.
const RECEIVE_BURST: usize = 256;
/// The longest sleep, so that the end of the run is noticed.
const NAP: Duration = Duration::from_millis(100);
/// A session whose client is silent for so long is gone.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// What the kernel may add to a sleep, in nanoseconds.
const TIMER_SLACK_NS: u64 = 1_000;

/// A running reflector; ends when dropped.
pub struct Reflector {
    signalling: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    waker: EventFd,
    over: AtomicBool,
    delay_ns: AtomicU64,
    /// Whether audio is marked when its delay is over, rather than when it comes.
    marks_late: AtomicBool,
    stall_ns: AtomicU64,
    held: Mutex<Latencies>,
}

/// Which way of a packet a delay is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the reflector.
    Up,
    /// Back from it.
    Down,
}

/// An offer, and where its answer goes.
type Offered = (String, Sender<Option<String>>);

impl Reflector {
    /// Starts one on loopback, at ports that are free.
    ///
    /// # Errors
    /// When there are none, or the crypto library cannot do DTLS.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_at(([127, 0, 0, 1], 0).into())
    }

    /// Starts one that takes offers at `signalling`, and media at a free port of the same address.
    ///
    /// # Errors
    /// As [`Reflector::start`].
    pub fn start_at(signalling: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(signalling)
            .with_context(|| format!("cannot listen at {signalling}"))?;
        let signalling = listener.local_addr()?;
        let socket = UdpSocket::bind((signalling.ip(), 0))?;
        socket.set_nonblocking(true)?;
        // As much as the system grants: what is lost here shows in the result.
        let _ = setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER_BYTES);
        let _ = setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER_BYTES);
        let shared = Arc::new(Shared {
            waker: EventFd::from_flags(EfdFlags::EFD_NONBLOCK)?,
            over: AtomicBool::new(false),
            delay_ns: AtomicU64::new(0),
            marks_late: AtomicBool::new(false),
            stall_ns: AtomicU64::new(0),
            held: Mutex::default(),
        });
        let (offer, offers) = channel();
        let mut room = Room::new(socket, Arc::clone(&shared), offers)?;
        let thread = std::thread::spawn(move || room.run());
        let desk = Arc::clone(&shared);
        // Ends with the connection that Drop makes.
        std::thread::spawn(move || serve(&listener, &desk, &offer));
        Ok(Self {
            signalling,
            shared,
            thread: Some(thread),
        })
    }

    /// Where it takes offers.
    pub fn url(&self) -> String {
        format!("http://{}/calls", self.signalling)
    }

    /// From now on it keeps audio for `delay` before it sends it back, and marks it so that the
    /// delay is on this way.
    pub fn delay(&self, way: Way, delay: Duration) {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.shared.delay_ns.store(delay_ns, Ordering::Relaxed);
        let marks_late = way == Way::Up;
        self.shared.marks_late.store(marks_late, Ordering::Relaxed);
    }

    /// Stands still for `stall`, starting now.
    pub fn stall(&self, stall: Duration) {
        let stall_ns = u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX);
        self.shared.stall_ns.store(stall_ns, Ordering::Relaxed);
        let _ = self.shared.waker.write(1);
    }

    /// For how long it really kept the audio since the last look, by its own clock: from taking a
    /// packet off the socket to writing its echo.
    pub fn take_held(&self) -> Latencies {
        let held = self.shared.held.lock();
        std::mem::take(&mut *held.unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs until `stop` is set: the reflector as a program.
    pub fn wait(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(NAP);
        }
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = self.shared.waker.write(1);
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(self.signalling);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Takes connections; each has a thread of its own.
fn serve(listener: &TcpListener, shared: &Arc<Shared>, offers: &Sender<Offered>) {
    for stream in listener.incoming() {
        if shared.over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let (shared, offers) = (Arc::clone(shared), offers.clone());
        std::thread::spawn(move || {
            // A client that breaks off is no concern of the others.
            let _ = converse(stream, &shared, &offers);
        });
    }
}

/// Answers the requests of one connection: each is taken for an offer.
fn converse(stream: TcpStream, shared: &Shared, offers: &Sender<Offered>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut is_last) = (0, false);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            is_last |= line.ends_with(" http/1.0");
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.is_empty() {
                break;
            }
        }
        let mut offer = vec![0; length.min(OFFER_BYTES_MAX)];
        reader.read_exact(&mut offer)?;
        let (answer, answered) = channel();
        let offer = String::from_utf8_lossy(&offer).into_owned();
        if offers.send((offer, answer)).is_err() {
            return Ok(());
        }
        let _ = shared.waker.write(1);
        let (status, body) = match answered.recv() {
            Ok(Some(answer)) => ("201 Created", answer),
            _ => ("400 Bad Request", "no usable offer".to_owned()),
        };
        let length = body.len();
        write!(
            writer,
            "HTTP/1.1 {status}\r\nContent-Type: application/sdp\r\nContent-Length: {length}\r\n\r\n\
             {body}"
        )?;
        if is_last {
            return Ok(());
        }
    }
}

/// All sessions, and the socket.
struct Room {
    socket: UdpSocket,
    local: SocketAddr,
    shared: Arc<Shared>,
    offers: Receiver<Offered>,
    config: RtcConfig,
    sessions: BTreeMap<u64, Session>,
    by_ufrag: HashMap<String, u64>,
    by_address: HashMap<SocketAddr, u64>,
    next: u64,
    /// When sessions want to be woken.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Audio that is kept, in the order of its time.
    kept: BinaryHeap<Reverse<(Instant, u64)>>,
    buffer: Vec<u8>,
    clock: Clock,
}

struct Session {
    rtc: Box<Rtc>,
    ufrag: String,
    audio: Option<Mid>,
    wake: Instant,
    heard: Instant,
    kept: VecDeque<(Instant, RtpPacket)>,
    addresses: Vec<SocketAddr>,
}

impl Room {
    fn new(
        socket: UdpSocket,
        shared: Arc<Shared>,
        offers: Receiver<Offered>,
    ) -> anyhow::Result<Self> {
        let (crypto, certificate) = process_crypto(DATAGRAM_BYTES_MAX)?;
        let config = RtcConfig::new()
            .set_crypto_provider(crypto)
            .set_dtls_cert(certificate)
            .set_ice_lite(true)
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_opus(true, false)
            .clear_extension_map()
            .set_extension(1, Extension::AudioLevel)
            .set_extension(4, Extension::RtpMid)
            .set_send_buffer_audio(4);
        Ok(Self {
            local: socket.local_addr()?,
            socket,
            shared,
            offers,
            config,
            sessions: BTreeMap::new(),
            by_ufrag: HashMap::new(),
            by_address: HashMap::new(),
            next: 0,
            due: BinaryHeap::new(),
            kept: BinaryHeap::new(),
            buffer: vec![0; 2_048],
            clock: Clock::read(),
        })
    }

    fn run(&mut self) {
        let _ = set_timerslack(TIMER_SLACK_NS);
        while !self.shared.over.load(Ordering::Relaxed) {
            let stall_ns = self.shared.stall_ns.swap(0, Ordering::Relaxed);
            if stall_ns > 0 {
                std::thread::sleep(Duration::from_nanos(stall_ns));
            }
            self.receive();
            self.release();
            self.wake_due();
            while let Ok((offer, answer)) = self.offers.try_recv() {
                // A client that has gone meanwhile gets no answer.
                let _ = answer.send(self.open(&offer));
            }
            self.sleep();
        }
    }

    fn sleep(&self) {
        let next = [self.due.peek(), self.kept.peek()];
        let next = next.into_iter().flatten().map(|Reverse((at, _))| *at).min();
        let now = Instant::now();
        let wait = next.map_or(NAP, |at| at.saturating_duration_since(now).min(NAP));
        let mut sources = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.shared.waker.as_fd(), PollFlags::POLLIN),
        ];
        // Interrupted or not: the loop looks at everything anyhow.
        let _ = ppoll(&mut sources, Some(TimeSpec::from_duration(wait)), None);
        let _ = self.shared.waker.read();
    }

    fn open(&mut self, offer: &str) -> Option<String> {
        let now = Instant::now();
        let mut rtc = Box::new(self.config.clone().build(now));
        rtc.add_local_candidate(Candidate::host(self.local, Protocol::Udp).ok()?);
        let offer = SdpOffer::from_sdp_string(offer).ok()?;
        let answer = rtc.sdp_api().accept_offer(offer).ok()?;
        let ufrag = rtc.direct_api().local_ice_credentials().ufrag;
        let id = self.next;
        self.next += 1;
        self.by_ufrag.insert(ufrag.clone(), id);
        let session = Session {
            rtc,
            ufrag,
            audio: None,
            wake: now,
            heard: now,
            kept: VecDeque::new(),
            addresses: Vec::new(),
        };
        self.sessions.insert(id, session);
        self.follow(id, now);
        Some(answer.to_sdp_string())
    }

    fn receive(&mut self) {
        for _ in 0..RECEIVE_BURST {
            let Ok((length, from)) = self.socket.recv_from(&mut self.buffer) else {
                return;
            };
            let now = Instant::now();
            let datagram = &self.buffer[..length];
            let known = self.by_address.get(&from).copied();
            let id = known.or_else(|| {
                let check = BindingRequest::peek(datagram).ok()?;
                let ufrag = std::str::from_utf8(check.server_ufrag()).ok()?;
                self.by_ufrag.get(ufrag).copied()
            });
            let Some(session) = id.and_then(|id| self.sessions.get_mut(&id)) else {
                continue;
            };
            let id = id.expect("invariant: a session was found by it");
            if known.is_none() {
                self.by_address.insert(from, id);
                session.addresses.push(from);
            }
            session.heard = now;
            let receive = Receive::new(Protocol::Udp, from, self.local, datagram);
            let taken =
                receive.map(|receive| session.rtc.handle_input(Input::Receive(now, receive)));
            if matches!(taken, Ok(Ok(()))) {
                self.follow(id, now);
            }
        }
    }

    /// Sends the audio back whose time has come.
    fn release(&mut self) {
        while let Some(&Reverse((at, id))) = self.kept.peek() {
            if at > Instant::now() {
                return;
            }
            self.kept.pop();
            if let Some(session) = self.sessions.get_mut(&id)
                && let Some((taken, packet)) = session.kept.pop_front()
            {
                self.echo(id, packet, taken);
                self.follow(id, Instant::now());
            }
        }
    }

    fn wake_due(&mut self) {
        let now = Instant::now();
        while let Some(&Reverse((at, id))) = self.due.peek() {
            if at > now {
                return;
            }
            self.due.pop();
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            if session.wake != at {
                continue;
            }
            if now - session.heard > IDLE_MAX
                || session.rtc.handle_input(Input::Timeout(now)).is_err()
            {
                self.close(id);
            } else {
                self.follow(id, now);
            }
        }
    }

    /// Sends and does everything that an input to a session brought about.
    fn follow(&mut self, id: u64, now: Instant) {
        let delay = Duration::from_nanos(self.shared.delay_ns.load(Ordering::Relaxed));
        loop {
            let Some(session) = self.sessions.get_mut(&id) else {
                return;
            };
            match session.rtc.poll_output() {
                Ok(Output::Timeout(at)) => {
                    if !session.rtc.is_alive() {
                        return self.close(id);
                    }
                    if at != session.wake {
                        session.wake = at;
                        self.due.push(Reverse((at, id)));
                    }
                    return;
                }
                Ok(Output::Transmit(transmit)) => {
                    let _ = self
                        .socket
                        .send_to(&transmit.contents, transmit.destination);
                }
                Ok(Output::Event(Event::MediaAdded(added))) => session.audio = Some(added.mid),
                Ok(Output::Event(Event::RtpPacket(packet))) if delay.is_zero() => {
                    self.echo(id, packet, now);
                }
                Ok(Output::Event(Event::RtpPacket(packet))) => {
                    session.kept.push_back((now, packet));
                    self.kept.push(Reverse((now + delay, id)));
                }
                Ok(Output::Event(Event::Closed)) | Err(_) => return self.close(id),
                Ok(Output::Event(_)) => {}
            }
        }
    }

    /// Writes one packet back as it came, but for its mark; [`Room::follow`] sends it.
    fn echo(&mut self, id: u64, packet: RtpPacket, taken: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let mut api = session.rtc.direct_api();
        let stream = session
            .audio
            .and_then(|audio| api.stream_tx_by_mid(audio, None));
        let Some(stream) = stream else {
            return;
        };
        let now = Instant::now();
        let marks_late = self.shared.marks_late.load(Ordering::Relaxed);
        let turned = if marks_late { now } else { taken };
        let mut payload = packet.payload.to_vec();
        Stamp::mark(&mut payload, self.clock.ns(turned));
        let timestamp = packet.time.numer() as u32;
        let payload_type = packet.header.payload_type;
        stream.write_rtp(
            RtpWrite::new(payload_type, packet.seq_no, timestamp, now, payload)
                .marker(packet.header.marker),
        );
        // What it wants to send, and whether it broke, comes out of the polls that follow.
        let _ = session.rtc.handle_input(Input::Timeout(now));
        let held = self.shared.held.lock();
        held.unwrap_or_else(PoisonError::into_inner)
            .record(taken.elapsed());
    }

    fn close(&mut self, id: u64) {
        if let Some(session) = self.sessions.remove(&id) {
            self.by_ufrag.remove(&session.ufrag);
            for address in session.addresses {
                self.by_address.remove(&address);
            }
        }
    }
}
