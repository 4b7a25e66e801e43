//! The header of binary messages: 24 bytes, little endian, before the payload.
//!
//! ```text
//! type u8 | flags u8 | segment u16 | sequence u32 | media timestamp u64 | edge time u64 | payload
//! ```
//!
//! The manual (`backend-links.md`) says what each field means in which direction. Reading never
//! panics, and writing what was read gives the same bytes.

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 24;
/// Flag of `audio_in`: packets were lost here; the payload is the length of the gap.
pub const FLAG_LOST: u8 = 1 << 0;
/// Flag of `audio_in`: the caller sent nothing here; the payload is the length of the gap.
pub const FLAG_DTX: u8 = 1 << 1;
/// Flag of `audio_in`: the PCM was made up for what was lost.
pub const FLAG_CONCEALED: u8 = 1 << 2;
/// Flag of `audio_out`: the audio belongs to this moment.
pub const FLAG_LIVE: u8 = 1 << 0;
/// The `segment` of `audio_in` when the caller does not say how loud he is.
pub const LEVEL_UNKNOWN: u16 = u16::MAX;

/// What a binary message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaType {
    /// Speech of the caller, to the backend.
    AudioIn,
    /// Speech for the caller, from the backend.
    AudioOut,
}

/// The fields before the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub media: MediaType,
    /// Bits that depend on the type.
    pub flags: u8,
    /// Of `audio_out`: which segment. Of `audio_in`: loudness, 0 to 127 in -dBov, or
    /// [`LEVEL_UNKNOWN`].
    pub segment: u16,
    /// One more with each message.
    pub sequence: u32,
    /// Where the audio stands on the caller's time line, in samples at 48 kHz.
    pub timestamp: u64,
    /// Nanoseconds since the call was offered.
    pub time_ns: u64,
}

/// Why a binary message is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("a binary message begins with a header of 24 bytes")]
    Short,
    /// A type that this version does not know.
    #[error("the first byte of a binary message is its type: 1 is audio_in, 2 is audio_out")]
    UnknownType,
}

impl Header {
    /// The header and the payload of a message.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let (header, payload) = message
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(HeaderError::Short)?;
        let [media, flags, s0, s1, q0, q1, q2, q3, rest @ ..] = *header;
        let media = match media {
            1 => MediaType::AudioIn,
            2 => MediaType::AudioOut,
            _ => return Err(HeaderError::UnknownType),
        };
        let [
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7,
            n0,
            n1,
            n2,
            n3,
            n4,
            n5,
            n6,
            n7,
        ] = rest;
        let header = Self {
            media,
            flags,
            segment: u16::from_le_bytes([s0, s1]),
            sequence: u32::from_le_bytes([q0, q1, q2, q3]),
            timestamp: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            time_ns: u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
        };
        Ok((header, payload))
    }

    /// A message with room for `payload_bytes` behind the header.
    pub fn to_message(self, payload_bytes: usize) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER_BYTES + payload_bytes);
        message.push(match self.media {
            MediaType::AudioIn => 1,
            MediaType::AudioOut => 2,
        });
        message.push(self.flags);
        message.extend_from_slice(&self.segment.to_le_bytes());
        message.extend_from_slice(&self.sequence.to_le_bytes());
        message.extend_from_slice(&self.timestamp.to_le_bytes());
        message.extend_from_slice(&self.time_ns.to_le_bytes());
        message
    }
}

/// PCM as bytes: signed, little endian.
pub fn push_pcm(message: &mut Vec<u8>, pcm: &[i16]) {
    message.extend(pcm.iter().flat_map(|sample| sample.to_le_bytes()));
}

/// Bytes as PCM; `None` when they are no whole number of samples, or none at all.
pub fn parse_pcm(bytes: &[u8]) -> Option<Vec<i16>> {
    let (samples, rest) = bytes.as_chunks::<2>();
    let is_whole = rest.is_empty() && !samples.is_empty();
    is_whole.then(|| {
        samples
            .iter()
            .map(|&sample| i16::from_le_bytes(sample))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_written_as_the_manual_draws_it() {
        let header = Header {
            media: MediaType::AudioIn,
            flags: FLAG_CONCEALED,
            segment: 0x0102,
            sequence: 0x0304_0506,
            timestamp: 0x0708_090a_0b0c_0d0e,
            time_ns: 0x1112_1314_1516_1718,
        };
        let expected = [
            1, 4, 2, 1, 6, 5, 4, 3, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 9, 8, 7, 0x18, 0x17, 0x16, 0x15,
            0x14, 0x13, 0x12, 0x11,
        ];
        assert_eq!(header.to_message(0), expected);
    }

    #[test]
    fn what_is_too_short_or_of_no_known_type_is_refused() {
        assert_eq!(Header::parse(&[2; 23]), Err(HeaderError::Short));
        assert_eq!(Header::parse(&[0; 24]), Err(HeaderError::UnknownType));
        assert_eq!(Header::parse(&[3; 99]), Err(HeaderError::UnknownType));
    }

    #[test]
    fn pcm_is_whole_samples_or_nothing() {
        assert_eq!(parse_pcm(&[1, 0, 0xff, 0xff]), Some(vec![1, -1]));
        assert_eq!(parse_pcm(&[1, 0, 0xff]), None);
        assert_eq!(parse_pcm(&[]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            is_in: bool, flags: u8, segment: u16, sequence: u32, timestamp: u64, time_ns: u64,
            pcm in prop::collection::vec(any::<i16>(), 1..100),
        ) {
            let media = if is_in { MediaType::AudioIn } else { MediaType::AudioOut };
            let header = Header { media, flags, segment, sequence, timestamp, time_ns };
            let mut message = header.to_message(pcm.len() * 2);
            push_pcm(&mut message, &pcm);
            let (parsed, payload) = Header::parse(&message).unwrap();
            prop_assert_eq!(parsed, header);
            prop_assert_eq!(parse_pcm(payload), Some(pcm));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok((header, payload)) = Header::parse(&bytes) {
                let mut again = header.to_message(payload.len());
                again.extend_from_slice(payload);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
