//! One WebRTC client without a socket or a clock: an offer goes out, an answer comes in, and from
//! then on datagrams and time-outs go in, datagrams and events come out.
//!
//! **Contract.** After [`Offering::accept`] and after each `handle_*`, `say`, `move_to` or `close`,
//! [`Client::poll`] is called until it gives [`Output::Timeout`]. Who moves a client's socket
//! without telling it does what a NAT does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::channel::ChannelId;
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{Extension, ExtensionValues, RtpWrite};
use str0m::{Candidate, IceConnectionState, Input, Rtc, RtcConfig};
use syrinx_transceiver::engine::{DtlsSetupError, process_crypto};

/// Largest datagram a client writes, as browsers do: fits IPv6's minimum MTU under a tunnel.
const DATAGRAM_BYTES_MAX: usize = 1_200;
/// The payload type of Opus in str0m's offers.
const OPUS: u8 = 111;
/// Header extension ids of the offer.
const AUDIO_LEVEL_ID: u8 = 1;
const MID_ID: u8 = 4;
/// The level that spoken packets announce (RFC 6464), in dBov.
const SPEECH_LEVEL_DBOV: i8 = -20;
/// A Binding success response (RFC 8489, 5: class 0b10, method 1).
const BINDING_SUCCESS: [u8; 2] = [0x01, 0x01];
/// Audio packets that can wait between a write and the poll that sends them.
const AUDIO_BUFFER_PACKETS: usize = 4;
/// The label that clients of the Realtime API give their channel.
const CHANNEL_LABEL: &str = "oai-events";

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ClientError(String);

impl ClientError {
    fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// What all clients of a process share: the crypto, one certificate, the configuration.
pub struct Kit {
    config: RtcConfig,
    channel: bool,
}

/// A client that waits for the answer to its offer.
pub struct Offering {
    client: Client,
    pending: SdpPendingOffer,
}

/// One client.
pub struct Client {
    rtc: Box<Rtc>,
    local: SocketAddr,
    audio: Mid,
    channel: Option<ChannelId>,
    checked: Checked,
}

/// How far the first connectivity check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checked {
    Unanswered,
    Untold,
    Told,
}

/// What a client gives out.
#[derive(Debug)]
pub enum Output {
    /// A datagram to send.
    Transmit {
        /// Where to.
        to: SocketAddr,
        /// The datagram.
        bytes: Vec<u8>,
    },
    /// Something happened.
    Event(Event),
    /// Nothing more until this moment, or until the next input.
    Timeout(Instant),
}

/// What happened to a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The first connectivity check was answered.
    CheckAnswered,
    /// ICE has a path.
    IceConnected,
    /// DTLS is up: media can flow.
    DtlsConnected,
    /// The data channel is open.
    ChannelOpen,
    /// A text came on the data channel.
    Message(String),
    /// An audio packet came.
    Audio(Heard),
    /// The server ended the session.
    Closed,
}

/// An audio packet as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// RTP sequence number, extended over wraps.
    pub sequence: u64,
    /// RTP timestamp, extended over wraps, at 48 kHz.
    pub timestamp: u64,
    /// The payload.
    pub payload: Arc<[u8]>,
}

/// An audio packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// RTP sequence number, extended over wraps.
    pub sequence: u32,
    /// RTP timestamp at 48 kHz.
    pub timestamp: u32,
    /// Whether a talk spurt starts here.
    pub marker: bool,
    /// The payload.
    pub payload: Arc<[u8]>,
}

impl Kit {
    /// Makes what the clients share; `channel` says whether they open a data channel. Once a
    /// process, for the crypto is never freed.
    ///
    /// # Errors
    /// When the crypto library cannot do DTLS.
    pub fn new(channel: bool) -> Result<Self, DtlsSetupError> {
        let (crypto, certificate) = process_crypto(DATAGRAM_BYTES_MAX)?;
        let config = RtcConfig::new()
            .set_crypto_provider(crypto)
            .set_dtls_cert(certificate)
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_opus(true, false)
            .clear_extension_map()
            .set_extension(AUDIO_LEVEL_ID, Extension::AudioLevel)
            .set_extension(MID_ID, Extension::RtpMid)
            .set_send_buffer_audio(AUDIO_BUFFER_PACKETS);
        Ok(Self { config, channel })
    }

    /// A client at `local`, and the offer it makes.
    ///
    /// # Errors
    /// When the address cannot be a candidate.
    pub fn offer(
        &self,
        now: Instant,
        local: SocketAddr,
    ) -> Result<(Offering, String), ClientError> {
        let mut rtc = Box::new(self.config.clone().build(now));
        let candidate = Candidate::host(local, Protocol::Udp).map_err(ClientError::of)?;
        rtc.add_local_candidate(candidate);
        let mut api = rtc.sdp_api();
        let audio = api.add_media(MediaKind::Audio, Direction::SendRecv, None, None, None);
        if self.channel {
            api.add_channel(CHANNEL_LABEL.to_owned());
        }
        let (offer, pending) = api.apply().expect("invariant: a line of audio is a change");
        let client = Client {
            rtc,
            local,
            audio,
            channel: None,
            checked: Checked::Unanswered,
        };
        Ok((Offering { client, pending }, offer.to_sdp_string()))
    }
}

impl Offering {
    /// Takes the answer: the client's first checks go out with the next polls.
    ///
    /// # Errors
    /// When the answer is no SDP, or does not fit the offer.
    pub fn accept(mut self, answer: &str) -> Result<Client, ClientError> {
        let answer = SdpAnswer::from_sdp_string(answer).map_err(ClientError::of)?;
        let api = self.client.rtc.sdp_api();
        api.accept_answer(self.pending, answer)
            .map_err(ClientError::of)?;
        Ok(self.client)
    }
}

impl Client {
    /// A datagram came from `from`. What is no WebRTC, or cannot be used, is dropped.
    ///
    /// # Errors
    /// When the session cannot go on.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        payload: &[u8],
    ) -> Result<(), ClientError> {
        if self.checked == Checked::Unanswered && payload.starts_with(&BINDING_SUCCESS) {
            self.checked = Checked::Untold;
        }
        let Ok(receive) = Receive::new(Protocol::Udp, from, self.local, payload) else {
            return Ok(());
        };
        self.rtc
            .handle_input(Input::Receive(now, receive))
            .map_err(ClientError::of)
    }

    /// Time has come to the moment of the last [`Output::Timeout`], or something was said.
    ///
    /// # Errors
    /// When the session cannot go on.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ClientError> {
        self.rtc
            .handle_input(Input::Timeout(now))
            .map_err(ClientError::of)
    }

    /// What there is to do; called until it gives [`Output::Timeout`].
    ///
    /// # Errors
    /// When the session cannot go on.
    pub fn poll(&mut self) -> Result<Output, ClientError> {
        if self.checked == Checked::Untold {
            self.checked = Checked::Told;
            return Ok(Output::Event(Event::CheckAnswered));
        }
        loop {
            match self.rtc.poll_output().map_err(ClientError::of)? {
                str0m::Output::Timeout(at) => return Ok(Output::Timeout(at)),
                str0m::Output::Transmit(transmit) => {
                    return Ok(Output::Transmit {
                        to: transmit.destination,
                        bytes: transmit.contents.into(),
                    });
                }
                str0m::Output::Event(event) => {
                    if let Some(event) = self.translate(event) {
                        return Ok(Output::Event(event));
                    }
                }
            }
        }
    }

    fn translate(&mut self, event: str0m::Event) -> Option<Event> {
        match event {
            str0m::Event::IceConnectionStateChange(
                IceConnectionState::Connected | IceConnectionState::Completed,
            ) => Some(Event::IceConnected),
            str0m::Event::Connected => Some(Event::DtlsConnected),
            str0m::Event::ChannelOpen(channel, _) => {
                self.channel = Some(channel);
                Some(Event::ChannelOpen)
            }
            str0m::Event::ChannelData(data) => {
                String::from_utf8(data.data).ok().map(Event::Message)
            }
            str0m::Event::RtpPacket(packet) => Some(Event::Audio(Heard {
                sequence: *packet.seq_no,
                timestamp: packet.time.numer(),
                payload: packet.payload,
            })),
            str0m::Event::Closed => Some(Event::Closed),
            _ => None,
        }
    }

    /// Says an audio packet; [`Client::handle_timeout`] sends it. `false` when the server takes no
    /// audio.
    pub fn say(&mut self, now: Instant, said: Said) -> bool {
        let mut api = self.rtc.direct_api();
        let Some(stream) = api.stream_tx_by_mid(self.audio, None) else {
            return false;
        };
        let sequence = u64::from(said.sequence).into();
        let level = ExtensionValues {
            audio_level: Some(SPEECH_LEVEL_DBOV),
            voice_activity: Some(true),
            ..ExtensionValues::default()
        };
        stream.write_rtp(
            RtpWrite::new(OPUS.into(), sequence, said.timestamp, now, said.payload)
                .marker(said.marker)
                .ext_vals(level),
        );
        true
    }

    /// Writes a text on the data channel; `false` when it is not open or takes nothing now.
    pub fn write(&mut self, text: &str) -> bool {
        self.channel
            .and_then(|channel| self.rtc.channel(channel))
            .is_some_and(|mut channel| channel.write(false, text.as_bytes()).unwrap_or(false))
    }

    /// The client has another address from now on, and knows: it checks at once whether that leads
    /// to the server.
    ///
    /// # Errors
    /// When the address cannot be a candidate.
    pub fn move_to(&mut self, local: SocketAddr) -> Result<(), ClientError> {
        let candidate = Candidate::host(local, Protocol::Udp).map_err(ClientError::of)?;
        self.rtc.add_local_candidate(candidate);
        self.local = local;
        Ok(())
    }

    /// Says goodbye: what is left to send comes out of [`Client::poll`].
    ///
    /// # Errors
    /// When the session cannot even end.
    pub fn close(&mut self) -> Result<(), ClientError> {
        self.rtc.close().map_err(ClientError::of)
    }

    /// Whether the session can still do anything.
    pub fn is_alive(&self) -> bool {
        self.rtc.is_alive()
    }
}
