//! One client's WebRTC: ICE-lite, DTLS, SRTP and SCTP, as a state machine without sockets or a
//! clock. The only module that knows str0m.
//!
//! [`Template`] holds what all sessions of a process share: the certificate, the crypto, the tuned
//! configuration and the advertised addresses. It answers an [`Offer`] with an [`Engine`], which
//! takes datagrams and time-outs and gives [`Output`]s.
//!
//! **Contract.** Each call of a `handle_*`, `write_*` or [`Engine::close`] is one mutation. After
//! it, [`Engine::poll`] is called until it gives [`Output::Timeout`], and only then comes the next
//! mutation. No input from the network panics by design; callers still contain a step.
//!
//! The tuning, each measured on a session with 50 packets a second each way:
//!
//! - RTP mode: str0m hands packets through as they come. Its frame mode stalls 320 ms on one lost
//!   packet and then delivers a burst of 15 frames.
//! - No transport-wide congestion control: voice does not adapt to it, and it costs 100 KB and ten
//!   wake-ups a second for each session.
//! - A send buffer of four audio packets instead of 50: each packet is sent in the step that wrote
//!   it. With the former this takes a session from 188 KB to 84 KB.

mod answer;
mod audio;
mod dtls;
mod fingerprint;
mod fragment;
mod ice;
mod offer;
mod rtpmap;
mod sources;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use str0m::change::SdpOffer;
use str0m::channel::{ChannelConfig, ChannelId as StreamId};
use str0m::config::DtlsVersion;
use str0m::format::{Codec, FormatParams};
use str0m::media::{Direction, Frequency, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{Extension, RtpPacket, RtpWrite};
use str0m::{Candidate, Input, Rtc, RtcConfig, RtcError};

pub use audio::{AudioCodec, AudioFormat, AudioIn, AudioOut};
pub use dtls::{DtlsSetupError, process_crypto};
pub use fragment::{FRAGMENT_BYTES_MAX, Fragment};
pub use ice::{ClientCredentials, Credentials};
pub use offer::{OFFER_BYTES_MAX, Offer, OfferError};

/// Largest datagram the engine writes, in bytes: fits every path with IPv6's minimum MTU of 1,280
/// under a tunnel's headers (RFC 8200, 5; 8831, 5).
const DATAGRAM_BYTES_MAX: usize = 1150;
/// Largest message taken from a client's data channel, in bytes; announced in the answer. What
/// Chrome announces too.
pub const MESSAGE_IN_BYTES_MAX: usize = 256 * 1024;
/// What may wait in the engine for a client's data channels, in bytes; also the largest message
/// that can be sent at all.
pub const CHANNEL_BUFFER_BYTES: usize = 128 * 1024;
/// Audio packets that can wait between a write and the poll that sends them.
const AUDIO_BUFFER_PACKETS: usize = 4;
/// How often what receiver reports said is looked at: as often as browsers send them for audio.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Ids of our header extensions where the offer names none.
const AUDIO_LEVEL_ID: u8 = 1;
const MID_ID: u8 = 4;

/// Why an engine cannot go on. It ends its session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(String);

impl From<RtcError> for EngineError {
    fn from(error: RtcError) -> Self {
        Self(error.to_string())
    }
}

/// A datagram that the engine did not take, and that changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the datagram is no STUN, DTLS, SRTP or SRTCP that this session can use")]
pub struct Refused;

/// What all sessions of a process share.
pub struct Template {
    config: RtcConfig,
    cryptos: dtls::Cryptos,
    advertised: Advertised,
}

/// The relay addresses that answers name as candidates, in order of preference.
#[derive(Debug, Clone)]
struct Advertised {
    all: Arc<[SocketAddr]>,
    v4: SocketAddr,
    v6: SocketAddr,
}

/// One of the client's data channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelId(StreamId);

/// What an engine gives out; see the module's contract.
#[derive(Debug)]
pub enum Output {
    /// A datagram to send.
    Transmit(Transmit),
    /// Something happened.
    Event(Event),
    /// Nothing more until this moment, or until the next mutation.
    Timeout(Instant),
}

/// A datagram to send, and where the engine would send it. Only for STUN is that address
/// meaningful: it is where the request came from.
#[derive(Debug)]
pub struct Transmit {
    /// The client's address as the engine knows it.
    pub destination: SocketAddr,
    /// The datagram.
    pub bytes: Vec<u8>,
}

/// What happened in a session.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// ICE and DTLS are up: media and channels can flow.
    Connected,
    /// An audio packet came.
    Audio(AudioIn),
    /// A data channel is open for writing.
    ChannelOpen {
        /// The channel.
        channel: ChannelId,
        /// The label its opener gave it.
        label: String,
    },
    /// A message came on a data channel.
    ChannelData {
        /// The channel.
        channel: ChannelId,
        /// The message: text or not, as its sender said.
        binary: bool,
        /// Its bytes.
        data: Vec<u8>,
    },
    /// A data channel is closed.
    ChannelClosed(ChannelId),
    /// A receiver report came since the last one of these.
    Delivery(DeliveryReport),
    /// The client ended the session: DTLS `close_notify`, or the SCTP association went away.
    Closed,
}

/// What the client reports of the audio it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryReport {
    /// Time to the client and back, where our last sender report had reached it.
    pub round_trip: Option<Duration>,
    /// Interarrival jitter, in units of the audio's clock.
    pub jitter: u32,
    /// Packets lost since the first, as 24 bits.
    pub lost_packets: u64,
}

/// What became of a message for a data channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelWrite {
    /// It will be sent.
    Taken,
    /// The buffer is full: try again once the client has acknowledged something.
    Full,
    /// It is larger than the client takes or than the buffer is.
    TooLarge,
    /// The channel is not open.
    Closed,
}

impl Template {
    /// Makes the certificate of the process and fixes the addresses that answers name.
    ///
    /// `advertised` is in order of preference; the first becomes the default destination.
    ///
    /// # Errors
    /// When the crypto library cannot do DTLS.
    ///
    /// # Panics
    /// When `advertised` is empty.
    pub fn new(advertised: &[SocketAddr]) -> Result<Self, DtlsSetupError> {
        let (cryptos, certificate) = dtls::process_cryptos(DATAGRAM_BYTES_MAX)?;
        let mut config = RtcConfig::new()
            .set_dtls_cert(certificate)
            .set_dtls_version(DtlsVersion::Auto)
            .set_ice_lite(true)
            .set_mtu(DATAGRAM_BYTES_MAX..=usize::MAX)
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_opus(true, false)
            .enable_pcmu(true, false)
            .enable_pcma(true, false)
            .clear_extension_map()
            .set_extension(AUDIO_LEVEL_ID, Extension::AudioLevel)
            .set_extension(MID_ID, Extension::RtpMid)
            .set_stats_interval(Some(REPORT_INTERVAL))
            .set_send_buffer_audio(AUDIO_BUFFER_PACKETS)
            .set_sctp_max_message_size(MESSAGE_IN_BYTES_MAX as u32)
            .set_sctp_max_buffered_amount(CHANNEL_BUFFER_BYTES);
        // The numbers are placeholders: an answer uses the offer's payload types.
        for (payload_type, rate) in [
            (110, Frequency::FORTY_EIGHT_KHZ),
            (126, Frequency::EIGHT_KHZ),
        ] {
            let format = FormatParams::default();
            let codecs = config.codec_config();
            codecs.add_config(payload_type.into(), None, Codec::Tele, rate, None, format);
        }
        Ok(Self {
            config,
            cryptos,
            advertised: Advertised::new(advertised),
        })
    }

    /// Answers `offer`: the engine of the session, and the answer's text.
    ///
    /// `negotiated_channel` is the SCTP stream id of a data channel that the client opens by
    /// agreement instead of in band (RFC 8832, 4); it needs an offer with data channels.
    ///
    /// # Errors
    /// [`OfferError::Refused`] when str0m cannot use what the offer parser let through.
    pub fn answer(
        &self,
        now: Instant,
        offer: &Offer,
        credentials: &Credentials,
        negotiated_channel: Option<u16>,
    ) -> Result<(Engine, String), OfferError> {
        let crypto = &self.cryptos[offer.fingerprint_hash().index()];
        let config = self.config.clone().set_crypto_provider(Arc::clone(crypto));
        let config = config.set_local_ice_credentials(credentials.to_str0m());
        let mut rtc = Box::new(config.build(now));
        for &address in self.advertised.all.iter() {
            let candidate = Candidate::host(address, Protocol::Udp).map_err(refused)?;
            rtc.add_local_candidate(candidate);
        }
        let canonical = SdpOffer::from_sdp_string(&offer.canonical()).map_err(refused)?;
        let answer = rtc
            .sdp_api()
            .accept_offer(canonical)
            .map_err(refused)?
            .to_sdp_string();
        if let Some(stream) = negotiated_channel.filter(|_| offer.has_channel()) {
            let config = ChannelConfig {
                negotiated: Some(stream),
                ..Default::default()
            };
            rtc.direct_api().create_data_channel(config);
        }
        let engine = Engine {
            rtc,
            client: offer.client_credentials(),
            advertised: self.advertised.clone(),
            is_connected: false,
            audio: None,
            sources: sources::Sources::default(),
            has_channel: offer.has_channel(),
            audio_format: offer.audio_format(),
            message_bytes_max: offer.message_bytes_max().min(CHANNEL_BUFFER_BYTES),
        };
        let text = answer::compose(offer, &answer, self.advertised.all[0]);
        Ok((engine, text))
    }
}

fn refused(error: impl std::fmt::Display) -> OfferError {
    OfferError::Refused(error.to_string())
}

impl Advertised {
    fn new(all: &[SocketAddr]) -> Self {
        let first = *all.first().expect("at least one address is advertised");
        let of = |v4: bool| all.iter().copied().find(|address| address.is_ipv4() == v4);
        Self {
            v4: of(true).unwrap_or(first),
            v6: of(false).unwrap_or(first),
            all: all.into(),
        }
    }

    /// The address a client of this family is taken to have used. str0m drops a check silently
    /// unless it came to exactly one of its candidates; which of a family matters to nobody.
    fn of_family(&self, client: SocketAddr) -> SocketAddr {
        if client.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// One client's WebRTC; see the module's contract.
pub struct Engine {
    rtc: Box<Rtc>,
    client: ClientCredentials,
    advertised: Advertised,
    /// Whether DTLS is up. What ICE thinks is of no account: it gives up a client whose checks
    /// pause, which the session does not.
    is_connected: bool,
    audio: Option<Mid>,
    sources: sources::Sources,
    has_channel: bool,
    audio_format: Option<AudioFormat>,
    message_bytes_max: usize,
}

impl Engine {
    /// A datagram came from the client at `from`.
    ///
    /// # Errors
    /// [`Refused`] when it was not taken. The engine is as good as before, unless
    /// [`Engine::is_alive`] says otherwise.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        payload: &[u8],
    ) -> Result<(), Refused> {
        let to = self.advertised.of_family(from);
        let receive = Receive::new(Protocol::Udp, from, to, payload).map_err(|_| Refused)?;
        if self.is_connected
            && let Some(mid) = self.audio
            && let Some(change) = self.sources.note(payload)
        {
            let mut api = self.rtc.direct_api();
            if let Some(source) = change.forget {
                api.remove_stream_rx(source);
            }
            api.expect_stream_rx(change.expect, None, mid, None)
                .suppress_nack(true);
        }
        self.rtc
            .handle_input(Input::Receive(now, receive))
            .map_err(|_| Refused)
    }

    /// Time has come to the moment of the last [`Output::Timeout`], or something was written.
    ///
    /// # Errors
    /// [`EngineError`] when the session cannot go on.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), EngineError> {
        Ok(self.rtc.handle_input(Input::Timeout(now))?)
    }

    /// What there is to do; called until it gives [`Output::Timeout`].
    ///
    /// # Errors
    /// [`EngineError`] when the session cannot go on: the client's certificate is not the offered
    /// one, the handshake failed, or a protocol broke down.
    pub fn poll(&mut self) -> Result<Output, EngineError> {
        loop {
            let event = match self.rtc.poll_output()? {
                str0m::Output::Timeout(at) => return Ok(Output::Timeout(at)),
                str0m::Output::Transmit(transmit) => {
                    return Ok(Output::Transmit(Transmit {
                        destination: transmit.destination,
                        bytes: transmit.contents.into(),
                    }));
                }
                str0m::Output::Event(event) => event,
            };
            if let Some(event) = self.translate(event) {
                return Ok(Output::Event(event));
            }
        }
    }

    /// Whether the engine can still do anything.
    pub fn is_alive(&self) -> bool {
        self.rtc.is_alive()
    }

    /// Sends an audio packet. `false` when the client takes none: it is not connected, or its
    /// offer receives no audio. Follow with [`Engine::handle_timeout`], which sends it.
    pub fn write_audio(&mut self, now: Instant, audio: AudioOut) -> bool {
        let Some(mid) = self.audio.filter(|_| self.is_connected) else {
            return false;
        };
        let sends = self
            .rtc
            .media(mid)
            .is_some_and(|media| media.direction().is_sending());
        let mut api = self.rtc.direct_api();
        let Some(stream) = api.stream_tx_by_mid(mid, None).filter(|_| sends) else {
            return false;
        };
        let AudioOut {
            sequence,
            timestamp,
            marker,
            payload_type,
            payload,
        } = audio;
        let packet = RtpWrite::new(
            payload_type.into(),
            sequence.into(),
            timestamp,
            now,
            payload,
        );
        stream.write_rtp(packet.marker(marker));
        true
    }

    /// Sends a text message on `channel`. Follow with [`Engine::handle_timeout`], which sends it.
    ///
    /// # Errors
    /// [`EngineError`] when the SCTP association is broken.
    pub fn write_channel(
        &mut self,
        channel: ChannelId,
        text: &str,
    ) -> Result<ChannelWrite, EngineError> {
        if text.len() > self.message_bytes_max {
            return Ok(ChannelWrite::TooLarge);
        }
        let Some(mut channel) = self.rtc.channel(channel.0) else {
            return Ok(ChannelWrite::Closed);
        };
        let taken = channel.write(false, text.as_bytes())?;
        Ok(if taken {
            ChannelWrite::Taken
        } else {
            ChannelWrite::Full
        })
    }

    /// Whether the client has offered data channels at all.
    pub fn has_channel(&self) -> bool {
        self.has_channel
    }

    /// What audio for the client is made of; `None` when it offered none that is served.
    pub fn audio_format(&self) -> Option<AudioFormat> {
        self.audio_format
    }

    /// Largest message [`Engine::write_channel`] takes, in bytes.
    pub fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// Says good-bye: RTCP BYE, SCTP shutdown and DTLS `close_notify` follow from
    /// [`Engine::poll`].
    pub fn close(&mut self) {
        // What cannot be said good-bye to is gone already.
        let _ = self.rtc.close();
    }

    fn translate(&mut self, event: str0m::Event) -> Option<Event> {
        Some(match event {
            str0m::Event::Connected => {
                self.is_connected = true;
                Event::Connected
            }
            str0m::Event::MediaAdded(added) => {
                if added.kind == MediaKind::Audio && added.direction != Direction::Inactive {
                    self.audio = Some(added.mid);
                }
                return None;
            }
            str0m::Event::RtpPacket(packet) => {
                self.sources.heard(packet.header.ssrc);
                Event::Audio(self.audio_in(packet)?)
            }
            str0m::Event::ChannelOpen(id, label) => Event::ChannelOpen {
                channel: ChannelId(id),
                label,
            },
            str0m::Event::ChannelData(message) => Event::ChannelData {
                channel: ChannelId(message.id),
                binary: message.binary,
                data: message.data,
            },
            str0m::Event::ChannelClose(id) => Event::ChannelClosed(ChannelId(id)),
            str0m::Event::MediaEgressStats(stats) => {
                let remote = stats.remote?;
                Event::Delivery(DeliveryReport {
                    round_trip: stats.rtt,
                    jitter: remote.jitter,
                    lost_packets: remote.packets_lost,
                })
            }
            str0m::Event::Closed => Event::Closed,
            // ICE states and other statistics: liveness and counting are the session's own.
            _ => return None,
        })
    }

    fn audio_in(&self, packet: RtpPacket) -> Option<AudioIn> {
        let payload_type = packet.header.payload_type;
        let known = self
            .rtc
            .codec_config()
            .find(|known| known.pt() == payload_type)?;
        let codec = match known.spec().codec {
            Codec::Opus => AudioCodec::Opus,
            Codec::PCMU => AudioCodec::Pcmu,
            Codec::PCMA => AudioCodec::Pcma,
            Codec::Tele => AudioCodec::TelephoneEvent,
            _ => return None,
        };
        Some(AudioIn {
            sequence: *packet.seq_no,
            timestamp: packet.time.numer(),
            clock_rate_hz: packet.time.frequency().get(),
            marker: packet.header.marker,
            ssrc: *packet.header.ssrc,
            payload_type: *payload_type,
            codec,
            level_dbov: packet.header.ext_vals.audio_level,
            payload: packet.payload,
        })
    }
}
