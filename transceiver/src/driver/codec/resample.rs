//! Changes the rate of PCM by a ratio of small whole numbers, for G.711's 8 kHz: a polyphase filter
//! (Crochiere and Rabiner, Multirate Digital Signal Processing, 3.3), a windowed sinc cut off below
//! the lower of both rates.

use std::f64::consts::{PI, TAU};

/// Taps of each phase, times the ratio where the rate falls. 32 keep what folds back more than
/// 40 dB below the signal.
const TAPS: usize = 32;
/// Where the pass band ends, as a part of half the lower rate: the filter needs room to fall off.
const CUTOFF: f64 = 0.9;

/// See the module.
#[derive(Debug)]
pub(super) struct Resampler {
    up: usize,
    down: usize,
    rate_out_hz: u32,
    /// `up` filters, the coefficient of the newest sample first.
    phases: Vec<Vec<f32>>,
    /// As many of the last samples, newest last.
    history: Vec<f32>,
    /// Which phase the next output has, counted from the newest input.
    phase: usize,
}

impl Resampler {
    /// From one rate to another, in Hz.
    pub(super) fn new(from_hz: u32, to_hz: u32) -> Self {
        let divisor = gcd(from_hz, to_hz);
        let (up, down) = ((to_hz / divisor) as usize, (from_hz / divisor) as usize);
        Self {
            up,
            down,
            rate_out_hz: to_hz,
            phases: (0..up).map(|phase| filter(phase, up, down)).collect(),
            history: vec![0.0; tap_count(up, down)],
            phase: 0,
        }
    }

    /// The rate of what comes out, in Hz.
    pub(super) fn rate_out_hz(&self) -> u32 {
        self.rate_out_hz
    }

    /// Appends what follows from `input`: `up / down` times as many samples over time.
    pub(super) fn run(&mut self, input: &[i16], output: &mut Vec<i16>) {
        if self.up == self.down {
            output.extend_from_slice(input);
            return;
        }
        for sample in input {
            self.history.rotate_left(1);
            let newest = self.history.last_mut().expect("invariant: there are taps");
            *newest = f32::from(*sample);
            while self.phase < self.up {
                let taps = self.history.iter().rev().zip(&self.phases[self.phase]);
                let sum: f32 = taps.map(|(sample, tap)| sample * tap).sum();
                // Saturates where the filter overshoots.
                output.push(sum.round() as i16);
                self.phase += self.down;
            }
            self.phase -= self.up;
        }
    }

    /// Forgets the past.
    pub(super) fn reset(&mut self) {
        self.history.fill(0.0);
        self.phase = 0;
    }
}

/// One phase of the prototype at `up` times the input's rate.
fn filter(phase: usize, up: usize, down: usize) -> Vec<f32> {
    let length = (tap_count(up, down) * up) as f64;
    let cutoff = CUTOFF / up.max(down) as f64;
    let tap = |tap: usize| {
        let position = (tap * up + phase) as f64;
        let x = position - (length - 1.0) / 2.0;
        let sinc = if x == 0.0 {
            cutoff
        } else {
            (PI * cutoff * x).sin() / (PI * x)
        };
        // Blackman's window.
        let at = TAU * position / (length - 1.0);
        let window = 0.42 - 0.5 * at.cos() + 0.08 * (2.0 * at).cos();
        sinc * window
    };
    let taps: Vec<f64> = (0..tap_count(up, down)).map(tap).collect();
    // Each phase passes a constant unchanged.
    let sum: f64 = taps.iter().sum();
    taps.iter().map(|tap| (tap / sum) as f32).collect()
}

/// The lower the rate that comes out, the longer its filter is in samples that go in.
fn tap_count(up: usize, down: usize) -> usize {
    TAPS * down.div_ceil(up)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(hz: f64, rate_hz: u32, count: usize) -> Vec<i16> {
        let sample = |n: usize| (TAU * hz * n as f64 / f64::from(rate_hz)).sin() * 10_000.0;
        (0..count).map(|n| sample(n) as i16).collect()
    }

    /// How much of a tone is in `pcm`, 1 being all that was said, and how much else, in its terms.
    fn tone_and_rest(pcm: &[i16], hz: f64, rate_hz: u32) -> (f64, f64) {
        let at = |n: usize| TAU * hz * n as f64 / f64::from(rate_hz);
        let half = pcm.len() as f64 / 2.0;
        let indexed = || pcm.iter().enumerate();
        let a: f64 = indexed()
            .map(|(n, s)| f64::from(*s) * at(n).sin())
            .sum::<f64>()
            / half;
        let b: f64 = indexed()
            .map(|(n, s)| f64::from(*s) * at(n).cos())
            .sum::<f64>()
            / half;
        let rest = indexed().map(|(n, s)| f64::from(*s) - a * at(n).sin() - b * at(n).cos());
        let rest = (rest.map(|r| r * r).sum::<f64>() / half).sqrt();
        (a.hypot(b) / 10_000.0, rest / 10_000.0)
    }

    #[test]
    fn tones_of_speech_pass_between_all_rates() {
        for (from_hz, to_hz) in [
            (8_000, 24_000),
            (8_000, 16_000),
            (8_000, 12_000),
            (8_000, 48_000),
            (24_000, 8_000),
            (16_000, 8_000),
            (12_000, 8_000),
            (48_000, 8_000),
        ] {
            for hz in [200.0, 1_000.0, 2_000.0] {
                let mut out = Vec::new();
                let input = tone(hz, from_hz, from_hz as usize);
                let mut resampler = Resampler::new(from_hz, to_hz);
                // In pieces, as packets come.
                for piece in input.chunks(from_hz as usize / 50) {
                    resampler.run(piece, &mut out);
                }
                assert_eq!(out.len(), to_hz as usize);
                let (level, rest) = tone_and_rest(&out[to_hz as usize / 10..], hz, to_hz);
                let what = format!("{from_hz} to {to_hz}, {hz} Hz: {level}, rest {rest}");
                assert!((0.95..1.05).contains(&level) && rest < 0.01, "{what}");
            }
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_hold_does_not_fold_back() {
        let mut out = Vec::new();
        Resampler::new(24_000, 8_000).run(&tone(6_000.0, 24_000, 24_000), &mut out);
        let peak = out[800..].iter().map(|sample| sample.abs()).max();
        assert!(peak < Some(100), "{peak:?} of 10,000");
    }

    #[test]
    fn the_same_rate_is_left_alone() {
        let mut out = Vec::new();
        let input = tone(440.0, 8_000, 800);
        Resampler::new(8_000, 8_000).run(&input, &mut out);
        assert_eq!(out, input);
    }
}
