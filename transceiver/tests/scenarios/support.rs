//! The world of a scenario: a shard, a relay that is nothing but addressing, and clients.
//!
//! A [`Client`] is a complete WebRTC endpoint (str0m as the full, controlling ICE agent). Its
//! datagrams become records of the inner leg as a relay would make them, and the shard's records
//! become its datagrams. Time passes only in [`World::run`], in steps of five milliseconds.

mod checks;
mod losses;
mod shape;
mod speech;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::channel::{ChannelConfig, ChannelId};
use str0m::format::{Codec, FormatParams};
use str0m::media::{Frequency, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{Extension, RtpPacket, Ssrc};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};
use syrinx_shared::keys::{KeyRing, MasterSecret};
use syrinx_shared::route::{
    ClientSocket, ClusterId, Epoch, Generation, LocalEndpoint, Now, SessionRef, ShardIndex, Slot,
    TransceiverId, Transport, UnixMinutes,
};
use syrinx_shared::wire::encap::{
    Direction, Marks, Preamble, RawHeader, RecordHeader, push_record,
};
use syrinx_shared::wire::train::TrainDestination;
use syrinx_shared::wire::ufrag::mint;
use syrinx_transceiver::backend::Backend;
use syrinx_transceiver::backend::echo::Echo;
use syrinx_transceiver::engine::{Credentials, Offer, Template};
use syrinx_transceiver::session::events::Profile;
use syrinx_transceiver::session::{Lifetimes, Opening, TransmitSink};
use syrinx_transceiver::shard::counters::Fate;
use syrinx_transceiver::shard::{Shard, ShardConfig, ShardEvent};

pub(crate) use checks::check;
pub(crate) use losses::Loses;
use losses::is_dtls;
pub(crate) use shape::Shape;

/// One step of virtual time.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// How long an audio packet lasts, and what that is at 48 kHz.
pub(crate) const PACKET: Duration = Duration::from_millis(20);
pub(crate) const PACKET_SAMPLES: u32 = 960;
/// Payload types in str0m's offers.
pub(crate) const OPUS: u8 = 111;
pub(crate) const PCMU: u8 = 0;
/// The payload type of key presses.
pub(crate) const KEYS: u8 = 126;

pub(crate) const LIFETIMES: Lifetimes = Lifetimes {
    setup: Duration::from_secs(30),
    silence: Duration::from_secs(30),
};

const TRANSCEIVER: TransceiverId = TransceiverId(7);
const SHARD: ShardIndex = ShardIndex(1);
const SLOTS: usize = 16;

/// A record that the shard sent, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) to: TrainDestination,
    pub(crate) header: RecordHeader,
    pub(crate) payload: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct Wire(pub VecDeque<Sent>);

impl TransmitSink for Wire {
    fn transmit(&mut self, to: TrainDestination, header: &RawHeader, payload: &[u8]) {
        let header = RecordHeader::from_raw(header).expect("the shard writes valid headers");
        self.0.push_back(Sent {
            to,
            header,
            payload: payload.to_vec(),
        });
    }
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) shard: Shard,
    pub(crate) keys: Arc<KeyRing>,
    pub(crate) template: Template,
    pub(crate) clients: Vec<Client>,
    /// Records that belong to no client's present address, control records among them.
    pub(crate) strays: Vec<Sent>,
    pub(crate) ended: Vec<ShardEvent>,
    /// Sessions whose clients came through, in that order.
    pub(crate) connected: Vec<SessionRef>,
    next_slot: u32,
}

pub(crate) fn advertised() -> [SocketAddr; 2] {
    [
        "203.0.113.1:3478".parse().unwrap(),
        "[2001:db8::1]:3478".parse().unwrap(),
    ]
}

pub(crate) fn relay() -> TrainDestination {
    TrainDestination {
        addr: "10.0.0.1:3480".parse().unwrap(),
        shard: ShardIndex(3),
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_lifetimes(LIFETIMES)
    }

    pub(crate) fn with_lifetimes(lifetimes: Lifetimes) -> Self {
        let start = Instant::now();
        let epoch = Epoch::new(2).unwrap();
        let keys = Arc::new(KeyRing::single(epoch, &MasterSecret::new([9; 32])));
        let config = ShardConfig {
            transceiver: TRANSCEIVER,
            index: SHARD,
            slots: SLOTS,
            lifetimes,
        };
        Self {
            now: start,
            shard: Shard::new(config, Arc::clone(&keys), start),
            keys,
            template: Template::new(&advertised()).unwrap(),
            clients: Vec::new(),
            strays: Vec::new(),
            ended: Vec::new(),
            connected: Vec::new(),
            next_slot: 0,
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            mono: self.now,
            wall: UnixMinutes(29_000_000),
        }
    }

    /// A fresh reference, one slot after the other.
    pub(crate) fn reference(&mut self) -> SessionRef {
        let slot = Slot::new(self.next_slot).unwrap();
        self.next_slot += 1;
        SessionRef {
            transceiver: TRANSCEIVER,
            shard: SHARD,
            slot,
            generation: Generation(5),
        }
    }

    /// A client with a microphone and a data channel calls the echo.
    pub(crate) fn call(&mut self, addr: &str) -> usize {
        self.call_shaped(addr, Shape::default())
    }

    /// The same by a client of another shape.
    pub(crate) fn call_shaped(&mut self, addr: &str, shape: Shape) -> usize {
        let (session, client) = (self.reference(), Client::with(self.now, addr, shape));
        self.call_with(session, client, Box::new(Echo::default()))
    }

    /// Two-way set-up of a client on a session of its own; returns its index.
    pub(crate) fn call_with(
        &mut self,
        session: SessionRef,
        mut client: Client,
        backend: Box<dyn Backend>,
    ) -> usize {
        let (opening, answer) =
            self.opening_with(session, &client.offer, client.negotiated, backend);
        client.accept(&answer);
        client.session = session;
        client.password = opening.password;
        let mut wire = Wire::default();
        self.shard.open(self.now(), opening, &mut wire).unwrap();
        assert!(wire.0.is_empty(), "nothing is sent before a check");
        self.clients.push(client);
        self.clients.len() - 1
    }

    /// What the control thread makes of an offer.
    pub(crate) fn opening(
        &self,
        session: SessionRef,
        offer: &str,
        backend: Box<dyn Backend>,
    ) -> (Opening, String) {
        self.opening_with(session, offer, None, backend)
    }

    fn opening_with(
        &self,
        session: SessionRef,
        offer: &str,
        negotiated: Option<u16>,
        backend: Box<dyn Backend>,
    ) -> (Opening, String) {
        let minted =
            mint(&self.keys, ClusterId(1), session, self.now().wall, 77).expect("the ring mints");
        let credentials = Credentials {
            ufrag: minted.ufrag.as_str().to_owned(),
            password: String::from_utf8(minted.password.to_vec()).unwrap(),
        };
        let offer = Offer::parse(offer.as_bytes()).unwrap();
        let (engine, answer) = self
            .template
            .answer(self.now, &offer, &credentials, negotiated)
            .unwrap();
        let opening = Opening {
            session,
            epoch: minted.epoch,
            password: minted.password,
            engine,
            backend,
            profile: Profile {
                id: "sess_test".into(),
                model: Some("echo-1".into()),
                members: Default::default(),
            },
            event_seed: 1,
            offered: self.now,
        };
        (opening, answer)
    }

    /// The header of a client's record, with the right cookie.
    pub(crate) fn header(&self, session: SessionRef, client: SocketAddr) -> RecordHeader {
        let client = ClientSocket::new(client);
        let (endpoint, transport) = (
            LocalEndpoint(u8::from(client.addr().is_ipv6())),
            Transport::Udp,
        );
        let epoch = self.keys.minting().unwrap();
        let cluster = self.keys.epoch(epoch).unwrap().cluster().unwrap();
        RecordHeader {
            direction: Direction::ToTransceiver,
            marks: Marks::default(),
            transport,
            endpoint,
            client,
            session,
            cookie: cluster.cookie(client, endpoint, transport, session),
        }
    }

    /// A record reaches the shard by the usual relay; what it sends meanwhile comes back.
    pub(crate) fn inject(&mut self, header: &RecordHeader, payload: &[u8]) -> Vec<Sent> {
        self.inject_by(relay(), header, payload)
    }

    pub(crate) fn inject_by(
        &mut self,
        by: TrainDestination,
        header: &RecordHeader,
        payload: &[u8],
    ) -> Vec<Sent> {
        let preamble = Preamble {
            destination: SHARD,
            source: by.shard,
            sender: 1,
            count: 1,
        };
        let mut bundle = preamble.to_bytes().to_vec();
        push_record(&mut bundle, &header.to_raw(), payload);
        let mut wire = Wire::default();
        let now = self.now();
        self.shard.handle_bundle(now, by.addr, &bundle, &mut wire);
        wire.0.into()
    }

    /// Lets `span` pass.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now += TICK;
            self.tick();
        }
    }

    /// Lets time pass until `done`, at most ten seconds.
    pub(crate) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(10);
        while !done(self) {
            assert!(self.now < end, "{what} within ten seconds");
            self.now += TICK;
            self.tick();
        }
    }

    /// Brings all clients to media and channel.
    pub(crate) fn connect(&mut self) {
        self.run_until("all clients connect", |world| {
            world
                .clients
                .iter()
                .all(|client| client.connected && !client.messages.is_empty())
        });
    }

    fn tick(&mut self) {
        for at in 0..self.clients.len() {
            self.clients[at].handle_timeout(self.now);
            while let Some((payload, addr)) = self.clients[at].outgoing.pop_front() {
                let header = self.header(self.clients[at].session, addr);
                let sent = self.inject_by(self.clients[at].relay, &header, &payload);
                self.deliver(sent);
            }
        }
        if self.shard.poll_timeout().is_some_and(|at| at <= self.now) {
            let mut wire = Wire::default();
            let now = self.now();
            self.shard.handle_timeout(now, &mut wire);
            self.deliver(wire.0.into());
        }
        while let Some(event) = self.shard.poll_event() {
            match event {
                ShardEvent::Connected(session) => self.connected.push(session),
                event => self.ended.push(event),
            }
        }
    }

    /// Hands records to the clients whose flows they are of.
    pub(crate) fn deliver(&mut self, sent: Vec<Sent>) {
        for sent in sent {
            let client = self.clients.iter_mut().find(|client| {
                sent.header.direction == Direction::ToClient
                    && client.session == sent.header.session
                    && client.addr == sent.header.client.addr()
                    && client.relay == sent.to
            });
            match client {
                Some(client) => client.handle_datagram(self.now, &sent.payload),
                None => self.strays.push(sent),
            }
        }
    }

    pub(crate) fn fate(&self, fate: Fate) -> u64 {
        self.shard.counters().records(fate)
    }

    /// All counters of records that are not zero, but those of `Taken`.
    pub(crate) fn dropped(&self) -> Vec<(&'static str, u64)> {
        Fate::ALL
            .into_iter()
            .filter(|&fate| fate != Fate::Taken && self.fate(fate) > 0)
            .map(|fate| (fate.label(), self.fate(fate)))
            .collect()
    }
}

/// A WebRTC client.
pub(crate) struct Client {
    pub(crate) rtc: Rtc,
    /// Its address as the relay sees it. Change it, and the client has moved without knowing.
    pub(crate) addr: SocketAddr,
    /// The relay worker that its datagrams reach.
    pub(crate) relay: TrainDestination,
    local: SocketAddr,
    pub(crate) session: SessionRef,
    pub(crate) password: [u8; 32],
    /// Its certificate, DER.
    pub(crate) certificate: Vec<u8>,
    pub(crate) offer: String,
    pub(crate) answer: String,
    pending: Option<SdpPendingOffer>,
    negotiated: Option<u16>,
    pub(crate) mid: Option<Mid>,
    pub(crate) channel: Option<ChannelId>,
    pub(crate) connected: bool,
    pub(crate) closed: bool,
    pub(crate) heard: Vec<RtpPacket>,
    pub(crate) messages: Vec<String>,
    pub(crate) outgoing: VecDeque<(Vec<u8>, SocketAddr)>,
    /// Its source of audio, where that is not the first.
    source: Option<Ssrc>,
    /// How loud it says it is, from 0 (loudest) to -127 dBov.
    pub(crate) level_dbov: Option<i8>,
    sequence: u64,
    timestamp: u32,
    /// What of its datagrams is lost on the way to the relay.
    pub(crate) loses: Loses,
    /// All that it sends, lost or not, where somebody wants to know.
    pub(crate) record: Option<Vec<Vec<u8>>>,
    /// Datagrams of DTLS that it has sent, lost ones among them.
    dtls_count: usize,
    /// How many of the packets for it that come next are lost.
    pub(crate) misses: usize,
    /// Whether all DTLS for it is lost.
    pub(crate) misses_dtls: bool,
}

impl Client {
    /// A client with a microphone and a data channel.
    pub(crate) fn new(now: Instant, addr: &str) -> Self {
        Self::with(now, addr, Shape::default())
    }

    pub(crate) fn with(now: Instant, addr: &str, shape: Shape) -> Self {
        let addr: SocketAddr = addr.parse().unwrap();
        let crypto = Arc::new(str0m::crypto::from_feature_flags());
        let certificate = crypto.dtls_provider.generate_certificate().unwrap();
        let mut config = RtcConfig::new()
            .set_crypto_provider(crypto)
            .set_dtls_cert(certificate.clone())
            .set_dtls_version(shape.dtls)
            .clear_codecs()
            .enable_opus(shape.opus, false)
            .enable_pcmu(!shape.opus, false)
            .clear_extension_map()
            .set_extension(1, Extension::AudioLevel)
            .set_stats_interval(Some(Duration::from_secs(1)))
            .set_rtp_mode(true);
        if shape.mid {
            config = config.set_extension(4, Extension::RtpMid);
        }
        let (keys, rate, format) = (KEYS.into(), Frequency::EIGHT_KHZ, FormatParams::default());
        let codecs = config.codec_config();
        codecs.add_config(keys, None, Codec::Tele, rate, None, format);
        let mut rtc = config.build(now);
        rtc.add_local_candidate(Candidate::host(addr, Protocol::Udp).unwrap());
        let mut api = rtc.sdp_api();
        let mid = shape
            .audio
            .map(|way| api.add_media(MediaKind::Audio, way, None, None, None));
        let label = shape.label.to_owned();
        if shape.channel {
            let negotiated = shape.negotiated;
            api.add_channel_with_config(ChannelConfig {
                label,
                negotiated,
                ..Default::default()
            });
        }
        let (offer, pending) = api.apply().unwrap();
        Self {
            rtc,
            addr,
            relay: relay(),
            local: addr,
            session: SessionRef::from_bytes([0; 8]),
            password: [0; 32],
            certificate: certificate.certificate,
            offer: offer.to_sdp_string(),
            answer: String::new(),
            pending: Some(pending),
            negotiated: shape.negotiated,
            mid,
            channel: None,
            connected: false,
            closed: false,
            heard: Vec::new(),
            messages: Vec::new(),
            outgoing: VecDeque::new(),
            source: None,
            level_dbov: None,
            sequence: 30_000,
            timestamp: 123_456,
            loses: Loses::Nothing,
            record: None,
            dtls_count: 0,
            misses: 0,
            misses_dtls: false,
        }
    }

    pub(crate) fn accept(&mut self, answer: &str) {
        self.answer = answer.to_owned();
        let answer = SdpAnswer::from_sdp_string(answer).expect("the answer is SDP");
        let pending = self.pending.take().expect("the client answers once");
        self.rtc
            .sdp_api()
            .accept_answer(pending, answer)
            .expect("the client takes the answer");
    }

    pub(crate) fn say(&mut self, now: Instant, message: &[u8], binary: bool) {
        let channel = self.channel.expect("the channel is open");
        let mut channel = self.rtc.channel(channel).expect("the channel is open");
        assert!(
            channel.write(binary, message).unwrap(),
            "the client's buffer takes it"
        );
        self.handle_timeout(now);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.closed {
            return;
        }
        self.rtc.handle_input(Input::Timeout(now)).unwrap();
        self.drain();
    }

    pub(crate) fn handle_datagram(&mut self, now: Instant, payload: &[u8]) {
        if self.misses > 0 && payload[0] >= 0x80 {
            self.misses -= 1;
            return;
        }
        if self.misses_dtls && is_dtls(payload[0]) {
            return;
        }
        let from = advertised()[usize::from(self.local.is_ipv6())];
        let receive = Receive::new(Protocol::Udp, from, self.local, payload);
        let receive = receive.expect("the shard sends what a client can read");
        self.rtc.handle_input(Input::Receive(now, receive)).unwrap();
        self.drain();
    }

    pub(crate) fn drain(&mut self) {
        loop {
            let Ok(output) = self.rtc.poll_output() else {
                // A handshake that nobody answers fails in the end.
                self.closed = true;
                return;
            };
            match output {
                Output::Timeout(_) => return,
                Output::Transmit(transmit) => {
                    let first = transmit.contents[0];
                    self.dtls_count += usize::from(is_dtls(first));
                    let lost = self.loses.loses(first, self.dtls_count);
                    if let Some(sent) = &mut self.record {
                        sent.push(transmit.contents.to_vec());
                    }
                    if !lost {
                        self.outgoing
                            .push_back((transmit.contents.into(), self.addr));
                    }
                }
                Output::Event(Event::Connected) => self.connected = true,
                Output::Event(Event::ChannelOpen(channel, _)) => self.channel = Some(channel),
                Output::Event(Event::ChannelData(message)) => {
                    assert!(!message.binary, "events are text");
                    self.messages.push(String::from_utf8(message.data).unwrap());
                }
                Output::Event(Event::RtpPacket(packet)) => self.heard.push(packet),
                Output::Event(Event::Closed) => self.closed = true,
                Output::Event(_) => {}
            }
        }
    }

    /// The events received, as JSON.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        self.messages
            .iter()
            .map(|message| serde_json::from_str(message).unwrap())
            .collect()
    }
}

/// Opus at 20 ms, told apart by `n`.
pub(crate) fn opus(n: u8) -> Vec<u8> {
    vec![31 << 3, n, 0x55, n, 0xaa]
}
