//! The payload of a measured datagram, and its check: no packet counts unless every byte is right.
//!
//! ```text
//!  0  0x80 0x6f | sequence, low 16 bits      as an RTP header begins, so that a relay which
//!  4  client index, u32                      looks at first bytes sees media
//!  8  window, u32: number << 1 | direction   a straggler of an earlier window is not counted
//! 12  sequence, u64, over all clients
//! 20  intended send time, u64 ns since the program's epoch
//! 28  filler drawn from the client and the sequence
//! n-4 CRC-32 over all before it (IEEE 802.3)
//! ```

/// Which way a measured datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Client to transceiver.
    Up,
    /// Transceiver to client.
    Down,
}

/// Smallest payload, in bytes: an Opus frame at a low rate behind RTP and SRTP.
pub const PAYLOAD_BYTES_MIN: usize = 120;
/// Largest payload, in bytes: an Opus frame at a high rate behind RTP and SRTP.
pub const PAYLOAD_BYTES_MAX: usize = 200;

const FILLER_AT: usize = 28;
const CRC_BYTES: usize = 4;
const RTP_VERSION_BYTE: u8 = 0x80;
const OPUS_PAYLOAD_TYPE: u8 = 0x6f;

const _: () = assert!(FILLER_AT + CRC_BYTES < PAYLOAD_BYTES_MIN);

/// What a payload says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The client it comes from or is for.
    pub client: u32,
    /// The measured window it belongs to.
    pub window: u32,
    /// Which way it goes.
    pub way: Way,
    /// Its number within window and direction.
    pub sequence: u64,
    /// When it should have been sent, in nanoseconds of the program's epoch.
    pub intended_ns: u64,
}

impl Stamp {
    /// How long this stamp's payload is: spread evenly from the smallest to the largest.
    pub fn payload_bytes(&self) -> usize {
        let span = (PAYLOAD_BYTES_MAX - PAYLOAD_BYTES_MIN + 1) as u64;
        // The high bits of a multiplicative hash are its good ones.
        PAYLOAD_BYTES_MIN + (((self.mix() >> 32) * span) >> 32) as usize
    }

    /// Writes the payload to the front of `to` and returns its length.
    ///
    /// # Panics
    /// When `to` is shorter than [`PAYLOAD_BYTES_MAX`].
    pub fn write(&self, to: &mut [u8]) -> usize {
        let length = self.payload_bytes();
        let to = &mut to[..length];
        to[0] = RTP_VERSION_BYTE;
        to[1] = OPUS_PAYLOAD_TYPE;
        to[2..4].copy_from_slice(&(self.sequence as u16).to_be_bytes());
        to[4..8].copy_from_slice(&self.client.to_be_bytes());
        let down = u32::from(self.way == Way::Down);
        to[8..12].copy_from_slice(&(self.window << 1 | down).to_be_bytes());
        to[12..20].copy_from_slice(&self.sequence.to_be_bytes());
        to[20..28].copy_from_slice(&self.intended_ns.to_be_bytes());
        let mut filler = self.mix();
        for chunk in to[FILLER_AT..length - CRC_BYTES].chunks_mut(8) {
            chunk.copy_from_slice(&filler.to_be_bytes()[..chunk.len()]);
            filler = filler.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        }
        let crc = crc32fast::hash(&to[..length - CRC_BYTES]);
        to[length - CRC_BYTES..].copy_from_slice(&crc.to_be_bytes());
        length
    }

    /// Reads the payload back; `None` when a byte of it or its length is wrong.
    pub fn read(payload: &[u8]) -> Option<Self> {
        if !(PAYLOAD_BYTES_MIN..=PAYLOAD_BYTES_MAX).contains(&payload.len()) {
            return None;
        }
        let (body, crc) = payload.split_at(payload.len() - CRC_BYTES);
        if crc32fast::hash(body).to_be_bytes() != crc {
            return None;
        }
        let tagged = u32_at(body, 8);
        let stamp = Self {
            client: u32_at(body, 4),
            window: tagged >> 1,
            way: if tagged & 1 == 0 { Way::Up } else { Way::Down },
            sequence: u64_at(body, 12),
            intended_ns: u64_at(body, 20),
        };
        (stamp.payload_bytes() == payload.len()).then_some(stamp)
    }

    /// A hash of what makes the payload unique (the finaliser of SplitMix64).
    fn mix(&self) -> u64 {
        let seed = self.sequence ^ u64::from(self.client) << 40 ^ u64::from(self.window) << 20;
        let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(
        bytes[at..at + 8]
            .try_into()
            .expect("invariant: eight bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(sequence: u64) -> Stamp {
        Stamp {
            client: 1_999,
            window: 3,
            way: Way::Down,
            sequence,
            intended_ns: 77,
        }
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let mut bytes = [0_u8; PAYLOAD_BYTES_MAX];
        for sequence in 0..2_000 {
            let length = stamp(sequence).write(&mut bytes);
            assert_eq!(Stamp::read(&bytes[..length]), Some(stamp(sequence)));
        }
    }

    #[test]
    fn refuses_a_payload_with_any_bit_flipped() {
        let mut bytes = [0_u8; PAYLOAD_BYTES_MAX];
        let length = stamp(42).write(&mut bytes);
        for bit in 0..length * 8 {
            let mut bent = bytes;
            bent[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Stamp::read(&bent[..length]), None, "bit {bit}");
        }
    }

    #[test]
    fn refuses_a_payload_cut_or_lengthened() {
        let mut bytes = [0_u8; PAYLOAD_BYTES_MAX + 1];
        let length = stamp(42).write(&mut bytes);
        assert_eq!(Stamp::read(&bytes[..length - 1]), None);
        assert_eq!(Stamp::read(&bytes[..length + 1]), None);
        assert_eq!(Stamp::read(&[]), None);
    }

    #[test]
    fn spreads_lengths_over_the_whole_range() {
        let lengths: Vec<usize> = (0..10_000).map(|n| stamp(n).payload_bytes()).collect();
        assert_eq!(lengths.iter().min(), Some(&PAYLOAD_BYTES_MIN));
        assert_eq!(lengths.iter().max(), Some(&PAYLOAD_BYTES_MAX));
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        assert!((155.0..165.0).contains(&mean), "mean {mean}");
    }
}
