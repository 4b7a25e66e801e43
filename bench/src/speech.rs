//! Spoken sentences as recordings, for a client's microphone. Called by tests only, which need
//! espeak-ng and sox, and flite for its voices.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::hearing::Recording;

/// Who says what. The two differ in voice and in words, so that each can serve as the other's
/// control.
#[derive(Clone, Copy, Debug)]
pub enum Speaker {
    /// A low voice.
    First,
    /// A high voice.
    Second,
}

impl Speaker {
    fn voice(self) -> &'static str {
        match self {
            Self::First => "en-gb",
            Self::Second => "en-us+f3",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::First => {
                "The quick brown fox jumps over the lazy dog, while nine grey geese fly south \
                 across the harbour."
            }
            Self::Second => {
                "Please call Stella. Ask her to bring these things with her from the store: six \
                 spoons of fresh snow peas."
            }
        }
    }
}

/// Speaks into a WAV file in `folder`, with a short pause at its end, since the browser plays it
/// round and round. Gives the file and what is in it.
///
/// # Panics
/// If a program is missing or fails.
#[must_use]
pub fn speak(folder: &Path, speaker: Speaker) -> (PathBuf, Recording) {
    let spoken = folder.join(format!("{}-spoken.wav", speaker.voice()));
    let file = folder.join(format!("{}.wav", speaker.voice()));
    run("espeak-ng", |command| {
        command
            .args(["-v", speaker.voice(), "-s", "165", "-w"])
            .arg(&spoken)
            .arg(speaker.words())
    });
    // 48 kHz is the rate of the call, so that no resampler stands between file and codec.
    run("sox", |command| {
        command
            .arg(&spoken)
            .args(["-r", "48000", "-c", "1", "-b", "16"])
            .arg(&file);
        command.args(["gain", "-n", "-6", "pad", "0.1", "0.4"])
    });
    let recording = Recording::read_wav(&file).expect("sox writes a WAV file");
    (file, recording)
}

/// A voice of one of two synthesisers.
#[derive(Clone, Copy, Debug)]
pub enum Voice {
    /// Of espeak-ng: made by rules.
    Espeak(&'static str),
    /// Of Flite: made from a person's recordings, and so what a recogniser knows.
    Flite(&'static str),
}

/// Speaks these words into a WAV file at this rate, without silence around them.
///
/// # Panics
/// If a program is missing or fails.
#[must_use]
pub fn speak_words(file: &Path, voice: Voice, words: &str, rate_hz: u32) -> Recording {
    let spoken = file.with_extension("spoken.wav");
    match voice {
        Voice::Espeak(name) => run("espeak-ng", |command| {
            let command = command.args(["-v", name, "-s", "165", "-w"]);
            command.arg(&spoken).arg(words)
        }),
        Voice::Flite(name) => run("flite", |command| {
            command
                .args(["-voice", name, "-t", words, "-o"])
                .arg(&spoken)
        }),
    }
    run("sox", |command| {
        let rate_hz = rate_hz.to_string();
        command
            .arg(&spoken)
            .args(["-r", &rate_hz, "-c", "1", "-b", "16"]);
        command.arg(file).args(["gain", "-n", "-6"])
    });
    Recording::read_wav(file).expect("sox writes a WAV file")
}

fn run(program: &str, arguments: impl FnOnce(&mut Command) -> &mut Command) {
    let output = arguments(&mut Command::new(program)).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{program} does not start ({error}); Debian: apt-get install {program}")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
}
