//! Loudspeaker and microphone of a browser that has no pretended ones: two devices of a sound
//! server of the test's own. Without any device Firefox's audio clock stands still.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syrinx_bench::hearing::Recording;

/// The rate of the call, so that nothing is resampled.
const RATE_HZ: u32 = 48_000;
/// Time for the server to offer its socket, on a machine whose cores are busy.
const START_WAIT: Duration = Duration::from_secs(30);
/// How often the sentence is said: for longer than any test lasts.
const REPEATS: &str = "60";
/// Pause between two looks at a recording that grows.
const POLL_PAUSE: Duration = Duration::from_millis(250);
/// Longest time for a recording, beside its own length.
const RECORD_WAIT: Duration = Duration::from_secs(30);

/// A sound server, and the speaker before its microphone.
pub(crate) struct Sound {
    folder: PathBuf,
    // In the order of their ends.
    children: Vec<Child>,
}

impl Sound {
    /// Starts the server, and speaks into its microphone from then on.
    pub(crate) fn start(folder: &Path, speech: &Path) -> Self {
        let mut sound = Self {
            folder: folder.to_owned(),
            children: Vec::new(),
        };
        let module = |sink: &str| {
            format!("--load=module-null-sink sink_name={sink} rate={RATE_HZ} channels=1")
        };
        let socket = folder.join("sound");
        let offer = "--load=module-native-protocol-unix auth-anonymous=1 socket=";
        sound.spawn(
            Command::new("pulseaudio")
                .args(["-n", "--daemonize=no", "--exit-idle-time=-1"])
                .args([
                    "--disable-shm=yes",
                    "--use-pid-file=no",
                    "--log-level=error",
                ])
                .args([module("ear"), module("mouth")])
                .arg(format!("{offer}{}", socket.display()))
                .env("HOME", folder)
                .env("XDG_RUNTIME_DIR", folder)
                .stdout(Stdio::null()),
        );
        let start = Instant::now();
        while !socket.exists() {
            assert!(start.elapsed() < START_WAIT, "pulseaudio offers no socket");
            std::thread::sleep(Duration::from_millis(50));
        }
        for (what, device) in [("sink", "ear"), ("source", "mouth.monitor")] {
            let status = sound
                .client("pactl")
                .args([&format!("set-default-{what}"), device])
                .status();
            assert!(status.expect("pactl starts").success());
        }
        let long = folder.join("long.wav");
        let status = Command::new("sox")
            .arg(speech)
            .arg(&long)
            .args(["repeat", REPEATS])
            .status();
        assert!(status.expect("sox starts").success());
        let mut speaker = sound.client("paplay");
        speaker.arg("--device=mouth").arg(long);
        sound.spawn(&mut speaker);
        sound
    }

    /// Where programs find the server: the value of PULSE_SERVER.
    pub(crate) fn server(&self) -> String {
        format!("unix:{}", self.folder.join("sound").display())
    }

    /// Records what the loudspeaker plays.
    pub(crate) fn record(&self, seconds: f64) -> Recording {
        let file = self.folder.join("heard");
        let mut recorder = self
            .client("parec")
            .args(["--device=ear.monitor", "--channels=1", "--format=s16le"])
            .arg(format!("--rate={RATE_HZ}"))
            .arg(&file)
            .spawn()
            .expect("parec starts");
        let bytes_wanted = 2.0 * seconds * f64::from(RATE_HZ);
        let start = Instant::now();
        let length = || std::fs::metadata(&file).map_or(0.0, |file| file.len() as f64);
        while length() < bytes_wanted {
            let waited = start.elapsed().as_secs_f64();
            let late = waited > seconds + RECORD_WAIT.as_secs_f64();
            assert!(!late, "the loudspeaker gave {} bytes", length());
            std::thread::sleep(POLL_PAUSE);
        }
        end(&mut recorder);
        let bytes = std::fs::read(&file).expect("the recording");
        let pairs = bytes.chunks_exact(2);
        let samples = pairs.map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32_768.0);
        Recording {
            rate_hz: RATE_HZ,
            samples: samples.collect(),
        }
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("PULSE_SERVER", self.server());
        command.env("HOME", &self.folder);
        command
    }

    fn spawn(&mut self, command: &mut Command) {
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        self.children.insert(0, child);
    }
}

impl Drop for Sound {
    fn drop(&mut self) {
        for child in &mut self.children {
            end(child);
        }
    }
}

/// Ends a child as a terminal does, so that it closes its files.
fn end(child: &mut Child) {
    let pid = i32::try_from(child.id()).expect("invariant: process ids are positive");
    // Fails only for a child that is gone already.
    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    let _ = child.wait();
}
