//! What an operator sees of a running relay: `top` and `trace` against a real process.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use syrinx_bench::process::{Daemon, binary, free_port, http_get};
use syrinx_shared::keys::{MasterSecret, cluster_key_file};
use syrinx_shared::route::Epoch;

struct Ground {
    relay: Daemon,
    public: SocketAddr,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Ground {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("cluster.keys");
        let epoch = Epoch::new(0).unwrap();
        let text = cluster_key_file(epoch, &MasterSecret::new([7; 32]));
        std::fs::write(&keys, text).unwrap();
        let [public, inner, admin] =
            [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let config = folder.path().join("relay.toml");
        let text = format!(
            "[public]\nlisten = [\"{public}\"]\n[inner]\nlisten = \"{inner}\"\n\
             [admin]\nlisten = \"{admin}\"\n[keys]\nfile = {keys:?}\n\
             [[routes]]\ntransceiver = 1\naddress = \"127.0.0.1:9\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let program = binary("syrinx-relay").unwrap();
        let relay = Daemon::start(&program, &config, admin).unwrap();
        Self {
            relay,
            public,
            admin,
            _folder: folder,
        }
    }

    fn command(&self, arguments: &[&str]) -> Child {
        Command::new(binary("syrinx-relay").unwrap())
            .args(arguments)
            .args(["--admin", &self.admin.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

fn lines(output: &Output) -> Vec<String> {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone())
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn trace_shows_the_verdicts_on_one_client_and_ends_at_its_bound() {
    let ground = Ground::start();
    let traced = UdpSocket::bind("127.0.0.1:0").unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = traced.local_addr().unwrap();
    let mut trace = ground.command(&["trace", &client.to_string(), "--lines", "3"]);
    // Nothing shows when the trace has begun, so the datagrams go on until it ends.
    while trace.try_wait().unwrap().is_none() {
        other.send_to(&[0x80; 40], ground.public).unwrap();
        traced.send_to(&[0x80; 50], ground.public).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let lines = lines(&trace.wait_with_output().unwrap());
    assert_eq!(lines.len(), 3, "{lines:?}");
    let want = format!("{client} > RTP 50 bytes x no_flow");
    assert!(lines.iter().all(|line| line.ends_with(&want)), "{lines:?}");
}

#[test]
fn a_second_trace_is_told_to_wait_and_a_wrong_one_what_is_wrong() {
    let ground = Ground::start();
    let busy = || http_get(ground.admin, "/trace?of=192.0.2.1&seconds=0").unwrap();
    let start = || ground.command(&["trace", "192.0.2.1", "--seconds", "30"]);
    let mut first = start();
    while busy().0 != 409 {
        std::thread::sleep(Duration::from_millis(20));
        // One of our own questions may have had the turn when it asked.
        if first.try_wait().unwrap().is_some() {
            first = start();
        }
    }
    let (status, body) = http_get(ground.admin, "/trace?of=everybody").unwrap();
    assert_eq!(status, 400);
    assert!(
        body.contains("\"code\":\"bad_trace\"") && body.contains("everybody"),
        "{body}"
    );
    first.kill().unwrap();
    first.wait().unwrap();
    // Its end is noticed when the next line finds nobody: the turn is free again.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    while busy().0 != 200 {
        stranger.send_to(b"anything", ground.public).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn top_shows_rates_and_drops_by_reason() {
    let mut ground = Ground::start();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&[0x80; 40], ground.public).unwrap();
    let counted = |relay: &Daemon| {
        let metrics = relay.metrics();
        metrics.is_ok_and(|all| all.sum("syrinx_relay_client_datagrams_total", &[]) == 1.0)
    };
    ground
        .relay
        .wait("the datagram's counter", counted)
        .unwrap();
    let top = ground.command(&["top", "--count", "1", "--interval", "1"]);
    let lines = lines(&top.wait_with_output().unwrap());
    assert!(lines[0].starts_with("worker"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("all")),
        "{lines:?}"
    );
    let reason = lines
        .iter()
        .find(|line| line.starts_with("no_flow"))
        .expect("the reason");
    assert_eq!(
        reason.split_whitespace().collect::<Vec<_>>(),
        ["no_flow", "0", "1"]
    );
}
