//! How runs end: with objectives met or missed, at servers that are none, by ^C; and what is seen
//! of them by Prometheus meanwhile.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use syrinx_bench::process::free_port;
use syrinx_bench::result_file;

use crate::{assert_told, command, words};

/// A relay yardstick that takes about a second.
const RELAY: &str = "--targets direct --scenarios to-transceiver-paced --rounds 2 --window-ms 100 \
                     --clients 20 --rate 1000";

fn status(output: &Output) -> Option<i32> {
    output.status.code()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn objectives_end_a_run_of_any_verb_with_a_status_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let calls = "--targets reflector --calls 2 --rate 20 --settle-s 0.2 --window-s 0.5";
    let answers = "--calls 2 --at-once 2";
    for (verb, arguments, met, missed) in [
        ("relay", RELAY, "loss<=0%", "to_transceiver_paced_vs_go>1"),
        ("calls", calls, "loss<=0%,up_p50<1s", "rtt_p50<1us"),
        ("barge-in", answers, "answers>=2,unreported<1", "answers>2"),
    ] {
        let json = folder.path().join(format!("{verb}.json"));
        let judged = |objectives: &str| {
            let mut bench = command(verb, &words(arguments));
            bench.args(["--slo", objectives, "--json"]).arg(&json);
            bench.output().expect("the bench runs")
        };
        let fine = judged(met);
        assert_eq!(status(&fine), Some(0), "{verb}: {fine:?}");
        assert!(out(&fine).contains("met"), "{verb}: {fine:?}");
        let failed = judged(missed);
        assert_eq!(status(&failed), Some(3), "{verb}: {failed:?}");
        assert!(err(&failed).contains("1 of 1 objectives"), "{failed:?}");
        // The result is whole all the same, and says what was missed.
        let result: Value = result_file::read_json(&json).expect("a result");
        assert_eq!(result["slo"][0]["met"], false, "{verb}");
        assert_told(&json, &["Objectives", "MISSED"]);
    }
}

#[test]
fn a_wrong_objective_ends_a_run_before_it_begins() {
    for (verb, objective, known) in [
        ("relay", "rtt_p50<1ms", "bytes_per_flow"),
        ("calls", "bytes_per_flow<1", "rtt_p50"),
        ("capacity", "rtt_p50<1ms", "carried"),
        ("barge-in", "loss<1%", "reported_error"),
    ] {
        let output = command(verb, &["--slo", objective]).output();
        let output = output.expect("the bench runs");
        assert_eq!(status(&output), Some(2), "{verb}: {output:?}");
        assert!(err(&output).contains(known), "{verb}: {output:?}");
    }
}

/// A bench that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `GET /metrics` says, once it says `words`.
fn scraped(address: SocketAddr, words: &[&str]) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut text = String::new();
    while Instant::now() < deadline {
        if let Ok(mut stream) = TcpStream::connect(address) {
            text.clear();
            let request = b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
            let answered = stream.write_all(request);
            if answered
                .and_then(|()| stream.read_to_string(&mut text))
                .is_ok()
                && words.iter().all(|word| text.contains(word))
            {
                return text;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{words:?} did not come: {text}");
}

#[test]
fn prometheus_sees_a_run_while_it_goes() {
    let relay = "--targets direct --scenarios to-transceiver-paced --rounds 1000 --window-ms 100 \
                 --clients 20 --rate 1000";
    let calls = "--targets reflector --calls 2 --rate 20 --settle-s 0.2 --window-s 600";
    let answers = "--calls 10000 --at-once 2";
    let situation = "{target=\"direct\",situation=\"to_transceiver_paced\"}";
    let delivered = format!("syrinx_bench_datagrams_delivered{situation} 100\n");
    let lost = format!("syrinx_bench_datagrams_lost{situation} 0\n");
    let relay_words = [
        delivered.as_str(),
        lost.as_str(),
        "# HELP syrinx_bench_datagram_delay_seconds",
        "quantile=\"0.99\"",
    ];
    let calls_words = ["syrinx_bench_calls_active{target=\"reflector\"} 2"];
    let answers_words = [
        "syrinx_bench_answers_failed 0",
        "syrinx_bench_answer_stop_seconds{quantile=\"0.99\"}",
    ];
    for (verb, arguments, wanted) in [
        ("relay", relay, &relay_words[..]),
        ("calls", calls, &calls_words),
        ("barge-in", answers, &answers_words),
    ] {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let child = command(verb, &words(arguments))
            .args(["--prometheus", &address.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut running = Running(child.expect("the bench runs"));
        scraped(address, wanted);
        interrupt(&running.0);
        assert!(running.0.wait().expect("it ends").success(), "{verb}");
    }
}

/// A server that says `bytes` to whoever comes, and nothing else; it serves as long as the tests.
fn saying(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let _ = stream.write_all(bytes);
                // The client hangs up when it has had enough of it.
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    address
}

/// Where nobody listens.
fn dead() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    free.local_addr().expect("bound")
}

/// Insists that a run against `url` fails with these words, soon, and leaves no file.
fn assert_fails(verb: &str, arguments: &[&str], url: &str, words: &str, folder: &Path) {
    let (json, summary) = (folder.join("result.json"), folder.join("summary.json"));
    let output = command(verb, arguments)
        .args(["--url", url, "--set-up-timeout-s", "1"])
        .arg("--json")
        .arg(&json)
        .arg("--summary")
        .arg(&summary)
        .output()
        .expect("the bench runs");
    assert_eq!(status(&output), Some(1), "{verb} {url}: {output:?}");
    let text = err(&output);
    assert!(text.contains(words), "{verb} {url}: {text}");
    let left = std::fs::read_dir(folder).expect("a folder").count();
    assert_eq!(left, 0, "{verb} {url}");
}

#[test]
fn a_server_that_is_none_ends_in_a_message_and_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let refusing = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\
                     Connection: close\r\n\r\nfull";
    let path = "v1/realtime/calls";
    for (url, words) in [
        (format!("http://{}/{path}", dead()), "nothing listens"),
        (format!("http://edge.invalid/{path}"), "name not resolved"),
        (format!("http://{}/{path}", saying(refusing)), "503"),
        (format!("https://{}/{path}", saying(refusing)), "TLS failed"),
        (format!("http://{}/{path}", saying(b"")), "HTTP timed out"),
        ("edge:8080".to_owned(), "write http://HOST:PORT"),
    ] {
        let arguments = ["--calls", "40", "--rate", "500"];
        assert_fails("calls", &arguments, &url, words, folder.path());
    }
}

#[test]
fn every_verb_that_makes_calls_gives_up_on_a_dead_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("http://{}/v1/realtime/calls", dead());
    let many: &[&str] = &["--calls", "40", "--rate", "500"];
    for (verb, arguments) in [
        ("setup", many),
        ("soak", many),
        ("roam", many),
        ("storm", many),
        (
            "recovery",
            &["--command", "true", "--calls", "40", "--rate", "500"],
        ),
        ("capacity", &["--from", "500"]),
        ("barge-in", &["--calls", "40"]),
    ] {
        assert_fails(verb, arguments, &url, "nothing listens", folder.path());
    }
}

#[test]
fn too_few_descriptors_are_noticed_before_a_call_is_made() {
    let bench = env!("CARGO_BIN_EXE_syrinx-bench");
    let script = format!("ulimit -n 256 && exec {bench} calls --calls 1000 --url http://[::1]:9/c");
    let output = Command::new("sh").args(["-c", &script]).output();
    let output = output.expect("a shell");
    assert_eq!(status(&output), Some(1), "{output:?}");
    assert!(err(&output).contains("ulimit -Hn"), "{output:?}");
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGINT).expect("it runs");
}

#[test]
fn an_interrupted_run_tells_and_writes_what_it_measured() {
    let calls = "--calls 4 --rate 20 --settle-s 0.5 --window-s 600";
    let soak = "--calls 1000000 --rate 20 --hold-s 1";
    let relay = "--targets direct --scenarios to-transceiver-paced --rounds 1000 --window-ms 100 \
                 --clients 20 --rate 1000 --flow-memory 1000000";
    let answers = "--calls 10000 --at-once 2";
    for (verb, arguments, begun, told) in [
        ("calls", calls, " 4 up", "4 of 4 calls established"),
        ("soak", soak, " up", "of 1000000 calls established"),
        ("relay", relay, "[3/", "to_transceiver_paced"),
        ("barge-in", answers, "[3/", "the caller's first word"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let json = folder.path().join("result.json");
        let mut child = command(verb, &words(arguments))
            .arg("--json")
            .arg(&json)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the bench runs");
        let progress = BufReader::new(child.stderr.take().expect("piped"));
        let mut lines = progress.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(begun)), "{verb} begins");
        interrupt(&child);
        // Whoever reads no further must not keep it from ending.
        let rest = std::thread::spawn(move || lines.collect::<Vec<_>>());
        let interrupted = Instant::now();
        let output = child.wait_with_output().expect("it ends");
        assert!(interrupted.elapsed() < Duration::from_secs(60), "{verb}");
        let rest = rest.join().expect("read");
        assert!(output.status.success(), "{verb}: {output:?} {rest:?}");
        let text = out(&output).to_lowercase();
        assert!(text.contains(told), "{verb}: {text}");
        assert!(text.contains("stopped early"), "{verb}: {text}");
        let result: Value = result_file::read_json(&json).expect("a whole result");
        assert_eq!(result["complete"], false, "{verb}");
        // What was up is not held against the server.
        let failures = &result["runs"][0]["failures"];
        assert!(
            failures.as_object().is_none_or(|all| all.is_empty()),
            "{failures}"
        );
        assert_told(&json, &["stopped before its end"]);
    }
}
