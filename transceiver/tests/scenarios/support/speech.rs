//! What a client says: packets in its own numbers, which a scenario can bend.

use std::time::Instant;

use str0m::rtp::{ExtensionValues, RtpWrite};

use super::{Client, OPUS, PACKET_SAMPLES};

impl Client {
    /// One packet of audio leaves with the next tick.
    pub(crate) fn speak(&mut self, now: Instant, payload: &[u8]) {
        self.speak_with(now, payload, false);
    }

    pub(crate) fn speak_with(&mut self, now: Instant, payload: &[u8], marker: bool) {
        self.send(now, OPUS, payload, marker);
        self.sequence += 1;
        self.timestamp = self.timestamp.wrapping_add(PACKET_SAMPLES);
    }

    /// One packet of any payload type leaves with the next tick, in the numbers that are next; the
    /// caller moves them.
    pub(crate) fn send(&mut self, now: Instant, payload_type: u8, payload: &[u8], marker: bool) {
        let mid = self.mid.expect("the client has audio");
        let mut api = self.rtc.direct_api();
        let stream = match &self.source {
            Some(source) => api.stream_tx(source),
            None => api.stream_tx_by_mid(mid, None),
        };
        let stream = stream.expect("the client sends audio");
        let (sequence, timestamp) = (self.sequence.into(), self.timestamp);
        let packet = RtpWrite::new(
            payload_type.into(),
            sequence,
            timestamp,
            now,
            payload.to_vec(),
        );
        let extensions = ExtensionValues {
            audio_level: self.level_dbov,
            voice_activity: self.level_dbov.map(|_| true),
            ..Default::default()
        };
        stream.write_rtp(packet.marker(marker).ext_vals(extensions));
        self.handle_timeout(now);
    }

    /// Goes over to another source, with numbers of its own.
    pub(crate) fn change_source(&mut self, ssrc: u32) {
        let mid = self.mid.expect("the client has audio");
        let source = ssrc.into();
        let mut api = self.rtc.direct_api();
        let former = api.stream_tx_by_mid(mid, None).map(|stream| stream.ssrc());
        api.remove_stream_tx(former.expect("the client sends audio"));
        api.declare_stream_tx(source, None, mid, None);
        self.source = Some(source);
        (self.sequence, self.timestamp) = (u64::from(ssrc & 0xfff), ssrc.rotate_left(7));
    }

    /// Numbers for packets that are never sent.
    pub(crate) fn skip_packets(&mut self, count: u32) {
        self.sequence += u64::from(count);
        self.timestamp = self.timestamp.wrapping_add(count * PACKET_SAMPLES);
    }

    /// Silence: time passes without packets.
    pub(crate) fn stay_silent(&mut self, packets: u32) {
        self.timestamp = self.timestamp.wrapping_add(packets * PACKET_SAMPLES);
    }

    /// Numbers jump by so much.
    pub(crate) fn jump(&mut self, packets: u64, samples: u32) {
        self.sequence += packets;
        self.timestamp = self.timestamp.wrapping_add(samples);
    }
}
