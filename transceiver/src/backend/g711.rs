//! G.711 by the book: µ-law and A-law, eight bits for each sample of 8 kHz (ITU-T G.711).
//!
//! Both laws are a sign, a segment of three bits and a step of four; they differ in where the
//! segments begin and in which bits are sent inverted.

/// Which of the two laws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Law {
    /// µ-law: North America and Japan; `PCMU`.
    Mu,
    /// A-law: elsewhere; `PCMA`.
    A,
}

/// What µ-law adds to each magnitude, so that its first segment begins at a power of two.
const MU_BIAS: i32 = 132;
/// Magnitudes above this cannot be said in µ-law.
const MU_CLIP: i32 = 32_635;
/// Even bits of A-law are sent inverted.
const A_INVERTED: u8 = 0x55;

impl Law {
    /// One sample of 16 bits in eight.
    pub fn encode(self, sample: i16) -> u8 {
        match self {
            Self::Mu => encode_mu(sample),
            Self::A => encode_a(sample),
        }
    }

    /// Eight bits as the sample in the middle of what they stand for.
    pub fn decode(self, byte: u8) -> i16 {
        match self {
            Self::Mu => decode_mu(byte),
            Self::A => decode_a(byte),
        }
    }

    /// What silence is.
    pub fn silence(self) -> u8 {
        self.encode(0)
    }
}

fn encode_mu(sample: i16) -> u8 {
    let sign = if sample < 0 { 0x80 } else { 0 };
    let magnitude = i32::from(sample).abs().min(MU_CLIP) + MU_BIAS;
    // The bias sets bit 7 at least, the clip leaves bit 14 the highest: segments 0 to 7.
    let segment = (magnitude.ilog2() - 7) as u8;
    let step = ((magnitude >> (segment + 3)) & 0x0f) as u8;
    !(sign | (segment << 4) | step)
}

fn decode_mu(byte: u8) -> i16 {
    let byte = !byte;
    let segment = (byte >> 4) & 0x07;
    let magnitude = ((i32::from(byte & 0x0f) << 3) + MU_BIAS) << segment;
    signed(byte & 0x80 != 0, magnitude - MU_BIAS)
}

fn encode_a(sample: i16) -> u8 {
    let sign = if sample < 0 { 0 } else { 0x80 };
    // Negative numbers are complemented, so that zero has a code of its own on each side.
    let magnitude = i32::from(if sample < 0 { !sample } else { sample }) >> 4;
    // The first two segments have steps of 16, each further one twice as large ones.
    let code = if magnitude < 32 {
        magnitude as u8
    } else {
        let segment = (magnitude.ilog2() - 3) as u8;
        (segment << 4) | ((magnitude >> (segment - 1)) & 0x0f) as u8
    };
    (sign | code) ^ A_INVERTED
}

fn decode_a(byte: u8) -> i16 {
    let byte = byte ^ A_INVERTED;
    let segment = (byte >> 4) & 0x07;
    let step = i32::from(byte & 0x0f) << 4;
    let magnitude = match segment {
        0 => step + 8,
        _ => (step + 0x108) << (segment - 1),
    };
    signed(byte & 0x80 == 0, magnitude)
}

fn signed(is_negative: bool, magnitude: i32) -> i16 {
    let value = if is_negative { -magnitude } else { magnitude };
    i16::try_from(value).expect("invariant: seven segments stay within 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_are_the_standards() {
        assert_eq!(Law::Mu.silence(), 0xff);
        assert_eq!(Law::A.silence(), 0xd5);
        // The largest values of the tables of G.711, scaled to 16 bits.
        assert_eq!(
            (Law::Mu.decode(0x80), Law::Mu.decode(0x00)),
            (32_124, -32_124)
        );
        assert_eq!(
            (Law::A.decode(0xaa), Law::A.decode(0x2a)),
            (32_256, -32_256)
        );
        assert_eq!(Law::Mu.encode(i16::MAX), 0x80);
        assert_eq!(Law::Mu.encode(i16::MIN), 0x00);
        assert_eq!(Law::A.encode(i16::MAX), 0xaa);
        assert_eq!(Law::A.encode(i16::MIN), 0x2a);
    }

    #[test]
    fn every_code_stands_for_a_sample_that_is_coded_by_it() {
        for law in [Law::Mu, Law::A] {
            for byte in 0..=u8::MAX {
                // µ-law has two zeros.
                let expected = if law == Law::Mu && byte == 0x7f {
                    0xff
                } else {
                    byte
                };
                assert_eq!(law.encode(law.decode(byte)), expected, "{law:?} {byte:#x}");
            }
        }
    }

    #[test]
    fn coding_errs_by_half_a_step_at_most() {
        for law in [Law::Mu, Law::A] {
            for sample in i16::MIN..=i16::MAX {
                let error = (i32::from(law.decode(law.encode(sample))) - i32::from(sample)).abs();
                let allowed = (i32::from(sample).abs() / 27).max(16);
                let clipped = i32::from(sample).abs() > MU_CLIP;
                assert!(error <= allowed || clipped, "{law:?} {sample}: {error}");
            }
        }
    }
}
