//! Judges by the sound whether a recording is the speech that was sent.
//!
//! A call can look healthy by every counter and still carry silence, another call's voice or
//! noise. So the browser test compares waveforms: [`likeness`] finds the sent speech inside what
//! was recorded, by normalised cross-correlation, and says how alike the two are. Codec, jitter
//! buffer and clock move the sound about a little, so the whole is aligned once, and each second
//! of it may then move on its own within [`WANDER_MAX_S`]. A different recording is given the
//! same freedom, which makes its low score the control of the measurement.
//!
//! Pure apart from [`Recording::read_wav`]. Called by tests only, so clarity goes before speed.

use std::f64::consts::PI;
use std::io;
use std::path::Path;

/// Telephone speech fits below 4 kHz, and codecs keep that band's phase.
const JUDGED_RATE_HZ: u32 = 8_000;
/// Taps of the low-pass filter before decimation: 2 ms each side at 48 kHz.
const FILTER_TAPS: usize = 193;
/// Edge of the low-pass filter, below half of the judged rate.
const FILTER_EDGE_HZ: f64 = 3_400.0;
/// Voices share their low harmonics: flattening the spectrum makes different speech differ.
const PRE_EMPHASIS: f32 = 0.9;
/// A window holds several syllables, which no other second of speech repeats.
const WINDOW_S: f64 = 1.0;
/// How far a window may move against the whole: a jitter buffer that grew or shrank.
const WANDER_MAX_S: f64 = 0.4;
/// Windows with less of the mean energy than this are pauses and prove nothing.
const SPOKEN_ENERGY_MIN: f64 = 0.1;

/// Sound of one channel.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Samples a second.
    pub rate_hz: u32,
    /// Full scale is 1.0.
    pub samples: Vec<f32>,
}

/// How alike two recordings are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likeness {
    /// Mean over the spoken windows, weighted by energy, of the best normalised correlation:
    /// 1 is the same waveform at any loudness, 0 has nothing in common.
    pub score: f64,
    /// Where the sent speech begins in the returned recording, in seconds.
    pub offset_s: f64,
    /// How many windows of speech were compared.
    pub windows: usize,
}

impl Recording {
    /// Reads a RIFF file of one channel of 16-bit samples.
    ///
    /// # Errors
    /// The file cannot be read, or is of another form (`InvalidData`).
    pub fn read_wav(path: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(path)?;
        Self::parse_wav(&bytes).ok_or_else(|| {
            let text = format!("{}: not a WAV file of one 16-bit channel", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Reads the chunks of a RIFF file; `None` for anything but one channel of 16-bit samples.
    fn parse_wav(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes
            .strip_prefix(b"RIFF")?
            .get(4..)?
            .strip_prefix(b"WAVE")?;
        let mut rate_hz = None;
        loop {
            let (id, after) = rest.split_at_checked(4)?;
            let (length, body) = after.split_at_checked(4)?;
            let length = usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()?;
            // A writer that streams leaves the length open; the chunk then ends with the file.
            let (chunk, next) = body.split_at(length.min(body.len()));
            match id {
                b"fmt " => rate_hz = Some(format_rate_hz(chunk)?),
                b"data" => {
                    let pairs = chunk.chunks_exact(2);
                    let samples = pairs.map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])));
                    let samples = samples.map(|s| s / 32_768.0).collect();
                    return Some(Self {
                        rate_hz: rate_hz?,
                        samples,
                    });
                }
                _ => {}
            }
            rest = next.get(length % 2..)?;
        }
    }

    /// Length in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate_hz)
    }

    /// The loudest sample, 0 of nothing.
    #[must_use]
    pub fn peak(&self) -> f32 {
        self.samples.iter().fold(0.0, |peak, s| peak.max(s.abs()))
    }

    /// Band-limited, decimated to the judged rate and pre-emphasised.
    fn judged(&self) -> Vec<f32> {
        assert!(
            self.rate_hz.is_multiple_of(JUDGED_RATE_HZ),
            "a rate of {} Hz is no multiple of {JUDGED_RATE_HZ} Hz",
            self.rate_hz
        );
        let step = (self.rate_hz / JUDGED_RATE_HZ) as usize;
        let taps = low_pass(FILTER_EDGE_HZ / f64::from(self.rate_hz));
        let half = taps.len() / 2;
        let narrow: Vec<f32> = (0..self.samples.len())
            .step_by(step)
            .map(|centre| {
                let first = centre.saturating_sub(half);
                let last = (centre + half + 1).min(self.samples.len());
                let taps = &taps[first + half - centre..];
                self.samples[first..last]
                    .iter()
                    .zip(taps)
                    .map(|(s, t)| s * t)
                    .sum()
            })
            .collect();
        let before = std::iter::once(0.0).chain(narrow.iter().copied());
        narrow
            .iter()
            .zip(before)
            .map(|(s, b)| s - PRE_EMPHASIS * b)
            .collect()
    }
}

/// Finds the speech of `sent` in `returned`, which has to be the longer one.
///
/// # Panics
/// If a rate is no multiple of 8 kHz, or `sent` does not fit into `returned`.
#[must_use]
pub fn likeness(sent: &Recording, returned: &Recording) -> Likeness {
    let (sent, returned) = (sent.judged(), returned.judged());
    let whole = best(&correlation(&sent, &returned));
    let window = (WINDOW_S * f64::from(JUDGED_RATE_HZ)) as usize;
    let wander = (WANDER_MAX_S * f64::from(JUDGED_RATE_HZ)) as usize;
    let quiet = energy(&sent) / sent.len() as f64 * window as f64 * SPOKEN_ENERGY_MIN;
    let (mut score, mut weight, mut windows) = (0.0, 0.0, 0);
    for start in (0..=sent.len().saturating_sub(window)).step_by(window / 2) {
        let piece = &sent[start..sent.len().min(start + window)];
        let loudness = energy(piece);
        if loudness < quiet {
            continue;
        }
        let at = whole.index + start;
        let near =
            &returned[at.saturating_sub(wander)..returned.len().min(at + piece.len() + wander)];
        score += loudness * best(&correlation(piece, near)).value.max(0.0);
        weight += loudness;
        windows += 1;
    }
    let score = if weight > 0.0 { score / weight } else { 0.0 };
    let offset_s = whole.index as f64 / f64::from(JUDGED_RATE_HZ);
    Likeness {
        score,
        offset_s,
        windows,
    }
}

/// The sample rate of a `fmt ` chunk, if it says PCM, one channel, 16 bits.
fn format_rate_hz(chunk: &[u8]) -> Option<u32> {
    const PCM: u16 = 1;
    let field = |at: usize| Some(u16::from_le_bytes([*chunk.get(at)?, *chunk.get(at + 1)?]));
    let (format, channels, bits) = (field(0)?, field(2)?, field(14)?);
    let rate_hz = u32::from_le_bytes(chunk.get(4..8)?.try_into().ok()?);
    (format == PCM && channels == 1 && bits == 16).then_some(rate_hz)
}

/// A low-pass filter's taps (sinc under a Hann window), for an edge in cycles a sample.
fn low_pass(edge: f64) -> Vec<f32> {
    let half = (FILTER_TAPS / 2) as f64;
    let tap = |index: usize| {
        let x = index as f64 - half;
        let sinc = if x == 0.0 {
            2.0 * edge
        } else {
            (2.0 * PI * edge * x).sin() / (PI * x)
        };
        let hann = 0.5 + 0.5 * (PI * x / (half + 1.0)).cos();
        (sinc * hann) as f32
    };
    (0..FILTER_TAPS).map(tap).collect()
}

fn energy(samples: &[f32]) -> f64 {
    samples.iter().map(|&s| f64::from(s) * f64::from(s)).sum()
}

/// The largest of a list, and where it is.
struct Peak {
    index: usize,
    value: f64,
}

fn best(values: &[f64]) -> Peak {
    let start = Peak {
        index: 0,
        value: f64::NEG_INFINITY,
    };
    values
        .iter()
        .enumerate()
        .fold(start, |peak, (index, &value)| {
            if value > peak.value {
                Peak { index, value }
            } else {
                peak
            }
        })
}

/// Normalised correlation of `needle` with every stretch of `hay` of its length: entry `i` is
/// the cosine of the angle between `needle` and `hay[i..]`, from -1 to 1.
fn correlation(needle: &[f32], hay: &[f32]) -> Vec<f64> {
    assert!(
        needle.len() <= hay.len(),
        "the recording is shorter than the speech looked for"
    );
    let products = products(needle, hay);
    let own = energy(needle);
    let mut sums = Vec::with_capacity(hay.len() + 1);
    sums.push(0.0);
    for &sample in hay {
        sums.push(sums[sums.len() - 1] + f64::from(sample) * f64::from(sample));
    }
    // Silence is like nothing: without a floor its rounding errors would be divided by zero.
    let floor = sums[hay.len()] / hay.len() as f64 * needle.len() as f64 * 1e-4;
    (0..=hay.len() - needle.len())
        .map(|at| {
            let theirs = (sums[at + needle.len()] - sums[at]).max(floor);
            if own * theirs > 0.0 {
                products[at] / (own * theirs).sqrt()
            } else {
                0.0
            }
        })
        .collect()
}

/// The inner product of `needle` with each stretch of `hay`, by way of the frequency domain.
fn products(needle: &[f32], hay: &[f32]) -> Vec<f64> {
    let size = (needle.len() + hay.len()).next_power_of_two();
    let spectrum = |samples: &[f32]| {
        let mut line: Vec<Complex> = samples.iter().map(|&s| (f64::from(s), 0.0)).collect();
        line.resize(size, (0.0, 0.0));
        transform(&mut line);
        line
    };
    let (ours, theirs) = (spectrum(needle), spectrum(hay));
    // A second forward transform of the conjugate is the inverse, up to scale and conjugation.
    let mut line: Vec<Complex> = ours
        .iter()
        .zip(&theirs)
        .map(|(a, b)| (a.0 * b.0 + a.1 * b.1, -(a.0 * b.1 - a.1 * b.0)))
        .collect();
    transform(&mut line);
    line.iter()
        .take(hay.len())
        .map(|value| value.0 / size as f64)
        .collect()
}

/// Real and imaginary part.
type Complex = (f64, f64);

/// The discrete Fourier transform in place, of a power of two of values (Cooley and Tukey 1965).
fn transform(line: &mut [Complex]) {
    let size = line.len();
    assert!(
        size.is_power_of_two(),
        "invariant: the caller pads to a power of two"
    );
    let bits = size.trailing_zeros();
    for index in 0..size {
        let mirrored = index
            .reverse_bits()
            .checked_shr(usize::BITS - bits)
            .unwrap_or(0);
        if index < mirrored {
            line.swap(index, mirrored);
        }
    }
    let mut half = 1;
    while half < size {
        let turn: Vec<Complex> = (0..half)
            .map(|k| -PI * k as f64 / half as f64)
            .map(|angle| (angle.cos(), angle.sin()))
            .collect();
        for block in line.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for ((a, b), t) in low.iter_mut().zip(high).zip(&turn) {
                let turned = (b.0 * t.0 - b.1 * t.1, b.0 * t.1 + b.1 * t.0);
                *b = (a.0 - turned.0, a.1 - turned.1);
                *a = (a.0 + turned.0, a.1 + turned.1);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something like speech: pulses of a gliding pitch through a resonance, in syllables.
    fn babble(seed: u64, seconds: f64) -> Recording {
        let rate_hz = 48_000;
        let count = (seconds * f64::from(rate_hz)) as usize;
        let (mut state, mut phase, mut ring) = (seed, 0.0f64, (0.0f64, 0.0f64));
        let (mut pitch, mut tone, mut loud) = (120.0, 700.0, 1.0);
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let samples = (0..count).map(|index| {
            if index % 7_200 == 0 {
                pitch = 90.0 + 80.0 * random();
                tone = 400.0 + 2_000.0 * random();
                loud = if random() < 0.2 {
                    0.05
                } else {
                    0.5 + random() / 2.0
                };
            }
            phase += pitch / f64::from(rate_hz);
            let pulse = if phase >= 1.0 { 1.0 } else { 0.0 };
            phase = phase.fract();
            let angle = 2.0 * PI * tone / f64::from(rate_hz);
            let next = loud * pulse + 2.0 * 0.985 * angle.cos() * ring.0 - 0.985 * 0.985 * ring.1;
            ring = (next, ring.0);
            (next * 0.2) as f32
        });
        Recording {
            rate_hz,
            samples: samples.collect(),
        }
    }

    fn behind(silence_s: f64, sound: &Recording, gain: f32) -> Recording {
        let lead = (silence_s * f64::from(sound.rate_hz)) as usize;
        let quiet = std::iter::repeat_n(0.0, lead);
        let samples = quiet
            .chain(sound.samples.iter().map(|s| s * gain))
            .collect();
        Recording {
            rate_hz: sound.rate_hz,
            samples,
        }
    }

    #[test]
    fn finds_the_same_speech_later_and_softer() {
        let sent = babble(1, 5.0);
        let found = likeness(&sent, &behind(1.25, &sent, 0.3));
        assert!(found.score > 0.99, "{found:?}");
        assert!((found.offset_s - 1.25).abs() < 0.001, "{found:?}");
        assert!(found.windows >= 5, "{found:?}");
    }

    #[test]
    fn follows_a_jitter_buffer_that_grows_in_the_middle() {
        let sent = babble(2, 6.0);
        let mut moved = behind(0.5, &sent, 1.0);
        let middle = moved.samples.len() / 2;
        moved
            .samples
            .splice(middle..middle, std::iter::repeat_n(0.0, 4_800));
        let found = likeness(&sent, &moved);
        assert!(found.score > 0.8, "{found:?}");
    }

    #[test]
    fn scores_other_speech_low() {
        let found = likeness(&babble(3, 5.0), &behind(1.0, &babble(4, 7.0), 1.0));
        assert!(found.score < 0.5, "{found:?}");
    }

    #[test]
    fn scores_silence_and_noise_low() {
        let sent = babble(5, 4.0);
        let silence = Recording {
            rate_hz: 48_000,
            samples: vec![0.0; 48_000 * 6],
        };
        assert_eq!(likeness(&sent, &silence).score, 0.0);
        let mut state = 9u32;
        let noise = (0..48_000 * 6).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state as f32 / u32::MAX as f32 - 0.5
        });
        let noise = Recording {
            rate_hz: 48_000,
            samples: noise.collect(),
        };
        let found = likeness(&sent, &noise);
        assert!(found.score < 0.3, "{found:?}");
    }

    #[test]
    fn falls_with_the_share_of_noise() {
        let sent = babble(6, 4.0);
        let mut noisy = behind(0.5, &sent, 1.0);
        let other = babble(7, 5.0);
        noisy
            .samples
            .iter_mut()
            .zip(&other.samples)
            .for_each(|(s, o)| *s += o);
        let found = likeness(&sent, &noisy);
        assert!(found.score > 0.4 && found.score < 0.9, "{found:?}");
    }

    #[test]
    fn correlates_in_the_frequency_domain_as_in_the_plain_sum() {
        let needle: Vec<f32> = (0..37u8).map(|i| (f32::from(i) * 0.7).sin()).collect();
        let hay: Vec<f32> = (0..200u8).map(|i| (f32::from(i) * 0.31).cos()).collect();
        let fast = products(&needle, &hay);
        for (at, value) in fast.iter().enumerate().take(hay.len() - needle.len() + 1) {
            let pairs = needle.iter().zip(&hay[at..]);
            let plain: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((plain - value).abs() < 1e-6, "at {at}: {plain} and {value}");
        }
    }

    #[test]
    fn reads_a_wav_with_an_extra_chunk_and_refuses_stereo() {
        let mut file = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0\x01\0\x01\0".to_vec();
        file.extend_from_slice(&48_000u32.to_le_bytes());
        file.extend_from_slice(&96_000u32.to_le_bytes());
        file.extend_from_slice(b"\x02\0\x10\0data\x04\0\0\0\0\x40\0\xc0");
        let sound = Recording::parse_wav(&file).expect("one 16-bit channel");
        assert_eq!(sound.peak(), 0.5);
        assert_eq!((sound.rate_hz, sound.samples), (48_000, vec![0.5, -0.5]));
        let channels = 12 + 12 + 8 + 2;
        file[channels] = 2;
        assert!(Recording::parse_wav(&file).is_none());
    }
}
