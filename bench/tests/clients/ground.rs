//! Where the clients call from, and what is asked of each of their calls.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use syrinx_bench::hearing::{Recording, likeness};
use syrinx_bench::namespace::Network;
use syrinx_bench::process::edge::{Edge, EdgeOptions};
use syrinx_bench::speech::{Speaker, speak};

/// Where relay and transceiver are, as the clients see it.
const EDGE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
/// What a true echo reaches at least: through a codec and a jitter buffer it scores about 0.95, on
/// a machine too busy to keep a browser's sound going about 0.7, and another sentence about 0.1.
const SAME_SPEECH_MIN: f64 = 0.5;
/// What anything else stays below: other words in another voice score about 0.1.
const OTHER_SPEECH_MAX: f64 = 0.3;
/// Windows of speech that a judgement needs at least.
const WINDOWS_MIN: usize = 5;
/// Seconds of the sentence that are said, and of the pause behind them.
const JUDGED_S: &str = "4";
const PAUSE_S: &str = "0.3";
/// Audio packets that a client sends whose payloads are compared byte for byte: three seconds.
const FRAMES: usize = 150;
/// Of those, how many may be missing: what is sent before the way back is open.
const FRAMES_LOST_MAX: usize = 10;
/// Bytes of a frame after its number.
const FRAME_PATTERN_BYTES: u8 = 60;
/// First byte of an Opus packet: one frame of 20 ms, CELT, mono (RFC 6716, 3.1).
const OPUS_20_MS: u8 = 31 << 3;

/// What a client tells of its call.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) client: String,
    pub(crate) version: String,
    /// The status of the answer, and where it says the call is.
    status: u16,
    location: String,
    /// The first message on the data channel.
    greeting: String,
    /// What came back for the event that was sent.
    echo: String,
}

/// How a session ended, as its metric says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// The client closed its connection, and the transceiver understood.
    Closed,
    /// By a DELETE, since the client leaves without a word.
    #[cfg(feature = "every-client")]
    HungUp,
}

impl Ending {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Closed => "client_closed",
            #[cfg(feature = "every-client")]
            Self::HungUp => "hung_up",
        }
    }
}

/// By which API a call is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Api {
    Realtime,
    #[cfg(feature = "every-client")]
    Whip,
}

impl Api {
    /// Where the offer goes; the call is below it.
    fn path(self) -> &'static str {
        match self {
            Self::Realtime => "v1/realtime/calls",
            #[cfg(feature = "every-client")]
            Self::Whip => "whip",
        }
    }
}

/// An edge, clients behind a NAT, and a sentence to say.
pub(crate) struct Ground<'a> {
    pub(crate) network: &'a Network,
    pub(crate) edge: Edge,
    pub(crate) api: Api,
    /// The sentence as a WAV file.
    pub(crate) speech: PathBuf,
    sentence: Recording,
    calls: f64,
}

/// Runs a test on a new ground, in the edge's namespace; one at a time, since a browser takes a
/// whole core, and what listens to time would be torn on a machine of few.
pub(crate) fn on_ground(test: fn(&mut Ground<'_>)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let network = Network::new();
    network.edge.enter(|| {
        let options = EdgeOptions {
            address: EDGE,
            workers: 2,
        };
        let edge = Edge::start(options).expect("an edge");
        let (speech, sentence) = beginning(&speak(edge.folder(), Speaker::First).0);
        let mut ground = Ground {
            network: &network,
            edge,
            api: Api::Realtime,
            speech,
            sentence,
            calls: 0.0,
        };
        test(&mut ground);
    });
}

/// Enough of a sentence to know it by: the less is said, the sooner it has come round again.
fn beginning(whole: &Path) -> (PathBuf, Recording) {
    let file = whole.with_extension("beginning.wav");
    let status = Command::new("sox")
        .args([whole, &file])
        .args(["trim", "0", JUDGED_S, "pad", "0", PAUSE_S])
        .status();
    assert!(status.expect("sox starts").success());
    let recording = Recording::read_wav(&file).expect("sox writes a WAV file");
    (file, recording)
}

/// The event that every client sends.
pub(crate) fn event() -> String {
    json!({ "type": "test.greeting", "text": "Grüße \" \\ 語" }).to_string()
}

impl Ground<'_> {
    pub(crate) fn folder(&self) -> &Path {
        self.edge.folder()
    }

    /// Where the offer goes.
    pub(crate) fn calls_url(&self) -> String {
        self.edge.page_url(self.api.path())
    }

    /// Long enough for one whole sentence to be inside, wherever the recording begins.
    pub(crate) fn recording_s(&self) -> f64 {
        2.0 * self.sentence.seconds() + 1.0
    }

    /// The sentence round and round, as one file long enough for a recording.
    #[cfg(feature = "every-client")]
    pub(crate) fn long_speech(&self) -> PathBuf {
        let file = self.folder().join("long.wav");
        let status = Command::new("sox")
            .arg(&self.speech)
            .arg(&file)
            .args(["repeat", "3"])
            .status();
        assert!(status.expect("sox starts").success());
        file
    }

    /// Whether what came back is the sentence, by its waveform.
    pub(crate) fn is_sentence(&self, returned: &Recording) -> bool {
        likeness(&self.sentence, returned).score >= SAME_SPEECH_MIN
    }

    /// Insists that what came back is the sentence, and nothing else.
    pub(crate) fn judge_recording(&self, returned: &Recording) {
        let found = likeness(&self.sentence, returned);
        assert!(
            found.windows >= WINDOWS_MIN,
            "too little to judge by: {found:?}"
        );
        let what = format!("what came back is not what was said: {found:?}");
        assert!(found.score >= SAME_SPEECH_MIN, "{what}");
        let (_, other) = speak(self.folder(), Speaker::Second);
        let found = likeness(&other, returned);
        let what = format!("this should not be in there: {found:?}");
        assert!(found.score <= OTHER_SPEECH_MAX, "{what}");
    }

    /// A file of payloads, no two alike, one in hexadecimal a line.
    pub(crate) fn frames(&self) -> PathBuf {
        let file = self.folder().join("frames");
        let lines: Vec<String> = (0..FRAMES)
            .map(|number| {
                let low = number.to_le_bytes()[0];
                let pattern = (0..FRAME_PATTERN_BYTES).map(|at| at.wrapping_add(low));
                let bytes = std::iter::once(OPUS_20_MS).chain([low]).chain(pattern);
                bytes.map(|byte| format!("{byte:02x}")).collect()
            })
            .collect();
        std::fs::write(&file, lines.join("\n")).expect("the folder takes a file");
        file
    }

    /// Whether the payloads came back byte for byte, once and in their order.
    pub(crate) fn judge_frames(&self, returned: &Path) {
        let sent = std::fs::read_to_string(self.frames()).expect("the frames");
        let sent: Vec<&str> = sent.lines().collect();
        let returned = std::fs::read_to_string(returned).expect("what came back");
        let places: Vec<Option<usize>> = returned
            .lines()
            .map(|line| sent.iter().position(|frame| *frame == line))
            .collect();
        let whole = places.iter().all(Option::is_some);
        assert!(whole, "payloads that were never sent: {places:?}");
        let ordered = places.windows(2).all(|two| two[0] < two[1]);
        assert!(ordered, "each once and in order: {places:?}");
        let lost = sent.len() - places.len();
        assert!(lost <= FRAMES_LOST_MAX, "{lost} lost: {places:?}");
    }

    /// Whether the answer, the greeting and the echoed event are as they should be.
    pub(crate) fn judge_report(&self, report: &Report) {
        assert_eq!(report.status, 201, "{report:?}");
        let folder = format!("/{}/", self.api.path());
        let id = report.location.strip_prefix(&folder);
        let greeting: Value = serde_json::from_str(&report.greeting).expect("JSON");
        assert_eq!(greeting["type"], "session.created", "{report:?}");
        assert!(id.is_some_and(|id| greeting["session"]["id"] == id));
        assert_eq!(report.echo, event());
    }

    /// Counts the pieces of ClientHellos that arrive from here on.
    pub(crate) fn watch_client_hellos(&self) {
        let port = self.edge.ports.public;
        // Behind UDP's 8 bytes a DTLS record of type handshake, behind its 13 a ClientHello, and
        // 6 bytes further the offset of this piece of it (RFC 6347, 4.1 and 4.2.2). In bits.
        let hello = format!("udp dport {port} @th,64,8 0x16 @th,168,8 0x01 @th,216,24");
        let rules = format!(
            "table inet watch {{\n\
             counter first {{ }}\n\
             counter further {{ }}\n\
             chain arriving {{\n\
             type filter hook input priority filter; policy accept;\n\
             {hello} 0 counter name first\n\
             {hello} != 0 counter name further\n\
             }}\n\
             }}\n"
        );
        self.network.edge.run("nft", &["-f", "-"], &rules);
    }

    /// How many first pieces of a ClientHello have arrived, and how many further ones.
    pub(crate) fn client_hello_pieces(&self) -> [u64; 2] {
        ["first", "further"].map(|name| {
            let mut command = Command::new("nft");
            let output = command
                .args(["-j", "list", "counter", "inet", "watch", name])
                .output()
                .expect("nft starts");
            let told: Value = serde_json::from_slice(&output.stdout).expect("nft writes JSON");
            let objects = told["nftables"].as_array().expect("a list");
            let count = objects
                .iter()
                .find_map(|object| object["counter"]["packets"].as_u64());
            count.expect("a counter")
        })
    }

    /// Waits until one more session has ended, this way, and none is left.
    pub(crate) fn expect_end(&mut self, ending: Ending) {
        self.calls += 1.0;
        let calls = self.calls;
        self.edge
            .wait_for_sessions_in_all(0.0)
            .expect("the session is freed");
        let what = format!("{calls} sessions that ended as {}", ending.label());
        let ended = self.edge.transceiver.wait(&what, |transceiver| {
            let metrics = transceiver.metrics().unwrap_or_default();
            let name = "syrinx_transceiver_sessions_ended_total";
            metrics.sum(name, &[("reason", ending.label())]) == calls
                && metrics.sum(name, &[]) == calls
        });
        ended.expect("an end by the client's own will");
    }
}
