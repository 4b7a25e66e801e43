//! A call whose backend has a link and a codec, both played by the test: what the session wants of
//! them is collected, and the codec answers like one.
//!
//! The codec decodes each packet to samples of the second byte, and encodes 20 ms of PCM to an Opus
//! frame that says the low byte of its first sample. Packets with [`WORDS`] for a second byte are
//! decoded to speech.

use std::collections::VecDeque;
use std::time::Duration;

use super::support::*;
use syrinx_shared::route::SessionRef;
use syrinx_transceiver::backend::Backend;
use syrinx_transceiver::backend::codec::{CodecCommand, CodecEpoch, CodecOutput, CodecSetup};
use syrinx_transceiver::backend::g711::Law;
use syrinx_transceiver::backend::link::{
    BackendId, LinkBody, LinkCause, LinkCommand, LinkDown, LinkEvent, LinkTarget,
};

/// The second byte of packets that are words.
pub(crate) const WORDS: u8 = 255;
/// Words of a speech synthesizer in µ-law at 8 kHz.
static SPEECH: &[u8] = include_bytes!("../data/question.ulaw");

pub(crate) fn target() -> LinkTarget {
    LinkTarget {
        backend: BackendId(0),
        model: Some("m".to_owned()),
        call: "sess_test".to_owned(),
        subprotocol: None,
    }
}

pub(crate) struct Served {
    pub(crate) world: World,
    pub(crate) session: SessionRef,
    /// What was sent on the link and not yet looked at.
    pub(crate) sent: VecDeque<LinkBody>,
    /// Every close of the link.
    pub(crate) closes: Vec<(u16, String)>,
    pub(crate) opens: usize,
    codec: Codec,
}

#[derive(Default)]
struct Codec {
    setup: Option<CodecSetup>,
    epoch: CodecEpoch,
    rest: Vec<i16>,
    /// Whether it gives nothing back for now.
    is_stuck: bool,
    waiting: VecDeque<CodecCommand>,
    spoken: usize,
    expected_loss_percent: Option<u8>,
}

impl Served {
    /// A call on `backend`; nobody is connected yet.
    pub(crate) fn new(backend: Box<dyn Backend>) -> Self {
        Self::with(backend, Shape::default())
    }

    pub(crate) fn with(backend: Box<dyn Backend>, shape: Shape) -> Self {
        let mut world = World::new();
        let session = world.reference();
        let client = Client::with(world.now, "192.0.2.10:5000", shape);
        world.call_with(session, client, backend);
        let mut served = Self {
            world,
            session,
            sent: VecDeque::new(),
            closes: Vec::new(),
            opens: 0,
            codec: Codec::default(),
        };
        served.pump();
        served
    }

    /// Lets `span` pass.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.world.now + span;
        while self.world.now < end {
            self.world.run(TICK);
            self.pump();
        }
    }

    /// Lets time pass until the client has media and channel.
    pub(crate) fn connect(&mut self) {
        for _ in 0..1_000 {
            self.run(TICK);
            let client = &self.world.clients[0];
            if client.connected && client.channel.is_some() {
                return;
            }
        }
        panic!("the client connects");
    }

    pub(crate) fn link(&mut self, event: LinkEvent) -> bool {
        let mut wire = Wire::default();
        let now = self.world.now();
        let is_there = self
            .world
            .shard
            .handle_link(now, self.session, event, &mut wire);
        self.world.deliver(wire.0.into());
        self.pump();
        is_there
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.link(LinkEvent::Text(text.to_owned()));
    }

    pub(crate) fn down(&mut self, will_retry: bool) {
        let reason = LinkDown {
            cause: LinkCause::Reset,
            detail: "as the test wants it".to_owned(),
        };
        self.link(LinkEvent::Down { reason, will_retry });
    }

    /// The caller says one packet of 20 ms, and 20 ms pass.
    pub(crate) fn speak(&mut self, n: u8) {
        let now = self.world.now;
        self.world.clients[0].speak(now, &opus(n));
        self.run(PACKET);
    }

    pub(crate) fn say(&mut self, event: &str) {
        let now = self.world.now;
        self.world.clients[0].say(now, event.as_bytes(), false);
        self.run(Duration::from_millis(10));
    }

    /// The text messages sent since the last time, as JSON.
    pub(crate) fn texts(&mut self) -> Vec<serde_json::Value> {
        let texts = self.sent.drain(..).filter_map(|body| match body {
            LinkBody::Text(text) => Some(serde_json::from_str(&text).unwrap()),
            LinkBody::Binary(_) => None,
        });
        texts.collect()
    }

    /// The binary messages sent since the last time.
    pub(crate) fn binaries(&mut self) -> Vec<Vec<u8>> {
        let binaries = self.sent.drain(..).filter_map(|body| match body {
            LinkBody::Binary(bytes) => Some(bytes),
            LinkBody::Text(_) => None,
        });
        binaries.collect()
    }

    /// The events the client has been told since the first one of this type.
    pub(crate) fn told(&self, kind: &str) -> Vec<serde_json::Value> {
        let events = self.world.clients[0].events();
        events
            .into_iter()
            .filter(|event| event["type"] == kind)
            .collect()
    }

    /// The second bytes of the packets the client has heard.
    pub(crate) fn heard(&self) -> Vec<u8> {
        let heard = &self.world.clients[0].heard;
        heard.iter().map(|packet| packet.payload[1]).collect()
    }

    pub(crate) fn stick_codec(&mut self, is_stuck: bool) {
        self.codec.is_stuck = is_stuck;
        self.pump();
    }

    /// The loss that the codec was told to expect last.
    pub(crate) fn expected_loss_percent(&self) -> Option<u8> {
        self.codec.expected_loss_percent
    }

    fn pump(&mut self) {
        loop {
            while let Some((session, command)) = self.world.shard.poll_link() {
                assert_eq!(session, self.session);
                match command {
                    LinkCommand::Open(_) => self.opens += 1,
                    LinkCommand::Send(message) => self.sent.push_back(message.body),
                    LinkCommand::Close { code, reason } => self.closes.push((code, reason)),
                }
            }
            while let Some((_, command)) = self.world.shard.poll_codec() {
                self.codec.waiting.push_back(command);
            }
            if self.codec.is_stuck {
                return;
            }
            let Some(command) = self.codec.waiting.pop_front() else {
                return;
            };
            for output in self.codec.run(command) {
                let mut wire = Wire::default();
                let now = self.world.now();
                let shard = &mut self.world.shard;
                shard.handle_codec(now, self.session, output, &mut wire);
                self.world.deliver(wire.0.into());
            }
        }
    }
}

impl Codec {
    fn run(&mut self, command: CodecCommand) -> Vec<CodecOutput> {
        let scale = |rate_hz: u32| 48_000 / u64::from(rate_hz);
        match command {
            CodecCommand::Open(setup) => {
                self.setup = Some(setup);
                vec![]
            }
            CodecCommand::ExpectLoss { percent } => {
                self.expected_loss_percent = Some(percent);
                vec![]
            }
            CodecCommand::Decode { at, payload, .. } => {
                let rate_hz = self.setup.expect("opened").decode_rate_hz;
                let samples = 960 / scale(rate_hz) as usize;
                let pcm = if payload[1] == WORDS {
                    self.words(samples)
                } else {
                    vec![i16::from(payload[1]); samples]
                };
                vec![CodecOutput::Pcm {
                    at,
                    pcm,
                    is_concealed: false,
                }]
            }
            CodecCommand::Conceal {
                at,
                samples,
                behind,
            } => {
                let rate_hz = self.setup.expect("opened").decode_rate_hz;
                let value = behind.map_or(-1, |payload| i16::from(payload[1]) + 1_000);
                let pcm = vec![value; (samples / scale(rate_hz)) as usize];
                vec![CodecOutput::Pcm {
                    at,
                    pcm,
                    is_concealed: true,
                }]
            }
            CodecCommand::Encode { epoch, pcm } => {
                self.epoch = epoch;
                self.rest.extend(pcm);
                let mut frames = Vec::new();
                let frame_samples = 960 / self.scale();
                while self.rest.len() >= frame_samples {
                    let pcm: Vec<_> = self.rest.drain(..frame_samples).collect();
                    frames.push(self.frame(&pcm));
                }
                frames
            }
            CodecCommand::EndEncode { epoch } => {
                self.epoch = epoch;
                let rest = std::mem::take(&mut self.rest);
                let last = (!rest.is_empty()).then(|| self.frame(&rest));
                last.into_iter()
                    .chain([CodecOutput::Ended { epoch }])
                    .collect()
            }
            CodecCommand::Flush { .. } => {
                self.rest.clear();
                vec![]
            }
            CodecCommand::Close => vec![],
        }
    }

    /// The next 20 ms of speech, over and over.
    fn words(&mut self, samples: usize) -> Vec<i16> {
        let from = self.spoken;
        self.spoken += 160;
        let at = |n: usize| SPEECH[(from + n * 160 / samples) % SPEECH.len()];
        (0..samples).map(|n| Law::Mu.decode(at(n))).collect()
    }

    fn scale(&self) -> usize {
        48_000 / self.setup.expect("opened").encode_rate_hz as usize
    }

    fn frame(&self, pcm: &[i16]) -> CodecOutput {
        CodecOutput::Frame {
            epoch: self.epoch,
            payload: opus(pcm[0] as u8).into(),
            samples: 960,
            content: (pcm.len() * self.scale()) as u32,
        }
    }
}
