//! A whole WebRTC client on a real socket and the real clock: it calls the echo by the HTTP API,
//! speaks a packet every 20 ms, and knows what it hears.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{Extension, RtpWrite};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};

use crate::transceiver::PATIENCE;

const PACKET: Duration = Duration::from_millis(20);
/// The same at 48 kHz.
const PACKET_SAMPLES: u32 = 960;
/// The payload type of Opus in str0m's offers.
const OPUS: u8 = 111;
/// The longest wait for a datagram before the clock is looked at.
const LISTEN: Duration = Duration::from_millis(5);
/// Sockets know no wait of zero.
const LISTEN_MIN: Duration = Duration::from_micros(100);
/// Several times what a client takes to check again, and to find its way after a move.
const CALL_PATIENCE: Duration = PATIENCE.saturating_mul(3);

/// See the module's description.
pub(crate) struct Softphone {
    rtc: Rtc,
    socket: UdpSocket,
    local: SocketAddr,
    mid: Mid,
    connected: bool,
    spoken: u32,
    /// Numbers of the packets that were heard, in the order in which they came.
    pub(crate) heard: Vec<u32>,
    next: Instant,
}

/// Opus of 20 ms that carries `number` where sound would be.
fn opus(number: u32) -> Vec<u8> {
    // RFC 6716, 3.1: configuration 15 (hybrid, 20 ms), mono, one frame.
    let mut packet = vec![15 << 3];
    packet.extend_from_slice(&number.to_be_bytes());
    packet.extend([0x5a; 60]);
    packet
}

fn number(packet: &[u8]) -> u32 {
    let bytes = packet[1..5].try_into().expect("invariant: four bytes");
    let number = u32::from_be_bytes(bytes);
    assert_eq!(packet, opus(number), "what is heard was said");
    number
}

impl Softphone {
    /// Calls the echo behind `signalling` from the address `local`, in the network of this thread.
    pub(crate) fn call(local: SocketAddr, signalling: SocketAddr) -> Self {
        let now = Instant::now();
        let mut rtc = RtcConfig::new()
            .set_crypto_provider(Arc::new(str0m::crypto::from_feature_flags()))
            .clear_codecs()
            .enable_opus(true, false)
            .clear_extension_map()
            .set_extension(4, Extension::RtpMid)
            .set_rtp_mode(true)
            .build(now);
        rtc.add_local_candidate(Candidate::host(local, Protocol::Udp).unwrap());
        let mut api = rtc.sdp_api();
        let mid = api.add_media(MediaKind::Audio, Direction::SendRecv, None, None, None);
        let (offer, pending) = api.apply().unwrap();
        let answer = post_offer(signalling, &offer.to_sdp_string());
        accept(&mut rtc, pending, &answer);
        Self {
            rtc,
            socket: UdpSocket::bind(local).unwrap(),
            local,
            mid,
            connected: false,
            spoken: 0,
            heard: Vec::new(),
            next: now,
        }
    }

    /// Speaks until `count` packets that were spoken from now on have been heard.
    pub(crate) fn hear_itself(&mut self, count: usize) {
        let (first, start) = (self.spoken, Instant::now());
        let fresh = |heard: &[u32]| heard.iter().filter(|&&number| number >= first).count();
        while fresh(&self.heard) < count {
            let (spoken, heard) = (self.spoken - first, fresh(&self.heard));
            assert!(
                start.elapsed() < CALL_PATIENCE,
                "said {spoken} packets and heard {heard} of them, connected: {}",
                self.connected
            );
            self.step();
        }
    }

    /// Speaks `count` packets, heard or not.
    pub(crate) fn speak_for(&mut self, count: usize) {
        let last = self.spoken + u32::try_from(count).unwrap();
        while self.spoken < last {
            self.step();
        }
    }

    fn step(&mut self) {
        let now = Instant::now();
        if self.connected && now >= self.next {
            self.speak(now);
            self.next = now + PACKET;
        }
        self.rtc.handle_input(Input::Timeout(now)).unwrap();
        let mut outgoing = VecDeque::new();
        let wake = self.drain(&mut outgoing);
        for (to, datagram) in outgoing {
            // Errors are those of the way, which this test breaks on purpose.
            let _ = self.socket.send_to(&datagram, to);
        }
        let wait = wake.saturating_duration_since(Instant::now());
        self.listen(wait.clamp(LISTEN_MIN, LISTEN));
    }

    fn listen(&mut self, wait: Duration) {
        self.socket.set_read_timeout(Some(wait)).unwrap();
        let mut bytes = [0; 2_048];
        match self.socket.recv_from(&mut bytes) {
            Ok((count, from)) => {
                let receive = Receive::new(Protocol::Udp, from, self.local, &bytes[..count]);
                let input = Input::Receive(Instant::now(), receive.expect("it is for WebRTC"));
                self.rtc.handle_input(input).unwrap();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn speak(&mut self, now: Instant) {
        let mut api = self.rtc.direct_api();
        let stream = api
            .stream_tx_by_mid(self.mid, None)
            .expect("the call has audio");
        let timestamp = self.spoken.wrapping_mul(PACKET_SAMPLES);
        let sequence = u64::from(self.spoken).into();
        let payload = opus(self.spoken);
        stream.write_rtp(RtpWrite::new(
            OPUS.into(),
            sequence,
            timestamp,
            now,
            payload,
        ));
        self.spoken += 1;
    }

    /// Takes everything that the client has to say, and gives the time at which it has more.
    fn drain(&mut self, outgoing: &mut VecDeque<(SocketAddr, Vec<u8>)>) -> Instant {
        loop {
            match self.rtc.poll_output().expect("the client lives") {
                Output::Timeout(at) => return at,
                Output::Transmit(transmit) => {
                    outgoing.push_back((transmit.destination, transmit.contents.into()));
                }
                Output::Event(Event::Connected) => self.connected = true,
                Output::Event(Event::RtpPacket(packet)) => {
                    self.heard.push(number(&packet.payload));
                }
                Output::Event(_) => {}
            }
        }
    }
}

fn accept(rtc: &mut Rtc, pending: SdpPendingOffer, answer: &str) {
    let answer = SdpAnswer::from_sdp_string(answer).expect("the answer is SDP");
    rtc.sdp_api()
        .accept_answer(pending, answer)
        .expect("the client takes the answer");
}

/// Posts the offer as a page does, and gives the answer.
fn post_offer(signalling: SocketAddr, offer: &str) -> String {
    let mut stream = TcpStream::connect(signalling).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "POST /v1/realtime/calls HTTP/1.1\r\nhost: {signalling}\r\nconnection: close\r\n\
         content-type: application/sdp\r\ncontent-length: {}\r\n\r\n{offer}",
        offer.len()
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an HTTP answer");
    assert!(head.starts_with("HTTP/1.1 201 "), "{text}");
    body.to_owned()
}
