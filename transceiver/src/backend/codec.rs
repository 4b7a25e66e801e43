//! Words between a dialect and the codec threads: decoding the caller, encoding the answer.
//!
//! Packets of the client are Opus, or G.711 where he offered nothing better; PCM is mono, signed 16
//! bit, at the rate that [`CodecCommand::Open`] names. Commands of a session are carried out in
//! order. What was said before a flush still comes out, marked with its epoch, and is left aside by
//! who asked for it.
//!
//! Commands to encode are never refused: a session has at most [`ENCODE_SAMPLES_MAX`] of PCM with
//! the codec, so the room for it is a sum.

use std::sync::Arc;

use crate::engine::AudioCodec;

/// How much PCM a session has with the codec at once, in samples at 48 kHz: 600 ms. It is what a
/// flush throws away in vain, and what bridges a wait for the codec's turn.
pub const ENCODE_SAMPLES_MAX: u64 = 600 * 48;

/// A mark that a dialect changes at each flush, so that it knows late results for what they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodecEpoch(pub u32);

/// What a dialect wants of the codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodecCommand {
    /// Make a decoder and an encoder: the first command, and again when a rate changes. What was
    /// said before it is still carried out.
    Open(CodecSetup),
    /// Decode a packet of the caller. Gives one [`CodecOutput::Pcm`].
    Decode {
        /// Where it stands on the caller's time line, in samples at 48 kHz.
        at: u64,
        /// What the payload is; a client may change it.
        codec: AudioCodec,
        /// The payload.
        payload: Arc<[u8]>,
    },
    /// Make up for a gap: by the forward error correction in the packet behind it where there is
    /// one and it has any, by concealment otherwise. Gives one [`CodecOutput::Pcm`].
    Conceal {
        /// Where the gap begins.
        at: u64,
        /// How long it is, in samples at 48 kHz.
        samples: u64,
        /// The packet right behind the gap; it is decoded by its own command.
        behind: Option<Arc<[u8]>>,
    },
    /// Encode PCM behind what came before in the epoch. Gives a [`CodecOutput::Frame`] for each 20
    /// ms that are full; the rest waits for more.
    Encode {
        /// The epoch.
        epoch: CodecEpoch,
        /// Samples at the encoder's rate.
        pcm: Vec<i16>,
    },
    /// Encode what waits, filled up with silence, and give [`CodecOutput::Ended`].
    EndEncode {
        /// The epoch.
        epoch: CodecEpoch,
    },
    /// Throw away PCM that waits and jobs to encode that are not begun, and start the encoder
    /// afresh: an epoch older than `epoch` is of no use.
    Flush {
        /// The epoch that comes next.
        epoch: CodecEpoch,
    },
    /// Encode from now on for a client that loses so much: each packet then carries its
    /// predecessor once more, coarsely (RFC 6716, 2.1.7), which takes a third of the encoder's time
    /// again and bits from the speech itself. Nought, the beginning, is none of it.
    ExpectLoss {
        /// Of a hundred packets.
        percent: u8,
    },
    /// Forget the session. Nothing comes after it.
    Close,
}

/// What a session's codec does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecSetup {
    /// What the client is sent.
    pub client: AudioCodec,
    /// Rate of the PCM that decoding gives, in Hz: 8,000, 12,000, 16,000, 24,000 or 48,000.
    pub decode_rate_hz: u32,
    /// Rate of the PCM that is encoded, in Hz: likewise.
    pub encode_rate_hz: u32,
}

/// What the codec has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodecOutput {
    /// Speech of the caller.
    Pcm {
        /// Where it stands on his time line, in samples at 48 kHz.
        at: u64,
        /// Samples at the decoder's rate; none when the packet could not be decoded.
        pcm: Vec<i16>,
        /// Whether it stands in for what was lost.
        is_concealed: bool,
    },
    /// A frame for the client.
    Frame {
        /// The epoch of its PCM.
        epoch: CodecEpoch,
        /// The payload.
        payload: Arc<[u8]>,
        /// How long it plays, in samples at 48 kHz.
        samples: u32,
        /// How many of them were PCM that came, in samples at 48 kHz: less than `samples` only for
        /// a last frame filled up with silence.
        content: u32,
    },
    /// All PCM of the epoch up to [`CodecCommand::EndEncode`] has been given as frames.
    Ended {
        /// The epoch.
        epoch: CodecEpoch,
    },
    /// Too much waited, and commands to decode were not taken: the caller's speech has a hole.
    Overloaded,
}
