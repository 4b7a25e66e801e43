//! A browser that talks to a backend: says things when the test wants, and counts what it hears.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use syrinx_bench::hearing::{Recording, likeness};
use syrinx_bench::process::edge::{Edge, EdgeOptions};
use syrinx_bench::speech::{Voice, speak_words};

use crate::OTHER_SPEECH_MAX;
use crate::chromium::Chromium;

/// What an answer that was heard reaches at least. It is said once, and the browser's jitter
/// buffer stretches it while it finds its depth: it scores about 0.8, and 0.55 on a machine with
/// eight times as much to do as it has cores. What was not said scores about 0.1; that nothing is
/// missing, the packets show.
const HEARD_MIN: f64 = 0.4;
const _: () = assert!(HEARD_MIN > OTHER_SPEECH_MAX);
/// What plays of a packet of the backend links, all of which are cut into frames of this length.
pub(crate) const FRAME_MS: u64 = 20;
/// Readings of the packet count that have to agree before the sound counts as stopped.
const STILL_READINGS: usize = 4;
const READING_PERIOD: Duration = Duration::from_millis(100);
/// Readings before the sound counts as never stopping: a minute.
const READINGS_MAX: usize = 600;

/// Something that is said in a test.
pub(crate) struct Utterance {
    pub(crate) file: PathBuf,
    pub(crate) sound: Recording,
    pub(crate) words: String,
}

impl Utterance {
    /// Speaks it into a file in `folder`, at the rate of the call.
    pub(crate) fn new(folder: &Path, name: &str, voice: Voice, words: &str) -> Self {
        Self::at_rate(folder, name, voice, words, 48_000)
    }

    /// The same at another rate.
    pub(crate) fn at_rate(
        folder: &Path,
        name: &str,
        voice: Voice,
        words: &str,
        rate_hz: u32,
    ) -> Self {
        let file = folder.join(format!("{name}.wav"));
        let sound = speak_words(&file, voice, words, rate_hz);
        let words = words.to_owned();
        Self { file, sound, words }
    }

    /// The part of it before, and the part behind, this many milliseconds.
    pub(crate) fn cut(&self, at_ms: u64) -> (Recording, Recording) {
        let at = usize::try_from(at_ms * u64::from(self.sound.rate_hz) / 1_000).expect("short");
        let (before, behind) = self
            .sound
            .samples
            .split_at(at.min(self.sound.samples.len()));
        let part = |samples: &[f32]| Recording {
            rate_hz: self.sound.rate_hz,
            samples: samples.to_vec(),
        };
        (part(before), part(behind))
    }
}

/// An edge whose calls go to these backends: entries of the transceiver's configuration.
pub(crate) fn edge_before(backends: &str) -> Edge {
    let options = EdgeOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        workers: 1,
    };
    Edge::start_with(options, backends).expect("an edge")
}

/// How often `sound` is in `recording` is not the question: whether it is, by its waveform.
pub(crate) fn assert_heard(sound: &Recording, recording: &Path, what: &str) {
    let mut returned = Recording::read_wav(recording).expect("the browser's recording");
    // The browser gives no frames before the first packet, and the test stops with the last.
    let more = (sound.seconds() * f64::from(returned.rate_hz)) as usize;
    let length = returned.samples.len() + more;
    returned.samples.resize(length, 0.0);
    let found = likeness(sound, &returned);
    assert!(found.score >= HEARD_MIN, "{what}: {found:?}");
}

impl Chromium {
    /// Has the caller say it; returns when it has been said.
    pub(crate) fn say(&mut self, utterance: &Utterance) {
        self.command(json!({ "do": "say", "wav": utterance.file }));
    }

    /// Audio packets that have come so far. None may have been lost on the way, or the count would
    /// say nothing of what was sent.
    pub(crate) fn packets(&mut self) -> u64 {
        let received = self.evaluate("window.probe.received()");
        assert_eq!(received["lost"], 0, "packets are lost on the loopback");
        received["packets"].as_u64().expect("a count")
    }

    /// Waits until no more packets come, and gives how many had.
    pub(crate) fn packets_when_still(&mut self) -> u64 {
        let mut readings = Vec::new();
        while readings.len() < READINGS_MAX {
            readings.push(self.packets());
            let last = readings.rchunks(STILL_READINGS).next().unwrap_or_default();
            if last.len() == STILL_READINGS && last.iter().all(|n| *n == last[0]) {
                return last[0];
            }
            std::thread::sleep(READING_PERIOD);
        }
        panic!("packets never stop coming: {:?}", readings.last());
    }

    /// Waits until so many packets more than `before` have come.
    pub(crate) fn wait_for_packets(&mut self, before: u64, more: u64) {
        for _ in 0..READINGS_MAX {
            if self.packets() >= before + more {
                return;
            }
            std::thread::sleep(READING_PERIOD);
        }
        panic!("{more} packets do not come after {before}");
    }

    /// The events that the page received of this type.
    pub(crate) fn received(&mut self, kind: &str) -> Vec<Value> {
        let events = self.evaluate(&format!(
            "window.syrinx.events.filter((e) => e.way === 'received' && e.type === '{kind}') \
             .map((e) => JSON.parse(e.text))"
        ));
        events.as_array().expect("a list").clone()
    }

    /// Waits until the page has received `count` events of this type, and gives the last.
    pub(crate) fn wait_for_events(&mut self, kind: &str, count: usize) -> Value {
        self.wait(&format!(
            "window.syrinx.events.filter((e) => e.way === 'received' && e.type === '{kind}') \
             .length >= {count}"
        ));
        self.received(kind).swap_remove(count - 1)
    }

    /// Sends an event from the page.
    pub(crate) fn send_event(&mut self, event: &Value) {
        self.fill("#event", &event.to_string());
        self.click("#send button");
    }

    /// Writes something in the page, in place of speaking.
    pub(crate) fn write(&mut self, words: &str) {
        self.fill("#words", words);
        self.click("#say button");
    }
}

/// The milliseconds of so many packets, and whether `told_ms` is that, to one frame.
pub(crate) fn assert_exact(packets: u64, told_ms: u64) {
    let heard_ms = packets * FRAME_MS;
    assert!(
        heard_ms.abs_diff(told_ms) <= FRAME_MS,
        "{packets} packets came, {heard_ms} ms, and {told_ms} ms were told of"
    );
}
