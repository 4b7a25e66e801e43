//! The command line as an operator meets it: keys, decode, and one clear line for each mistake.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::{
    ClusterId, Generation, SessionRef, ShardIndex, Slot, TransceiverId, UnixMinutes,
};
use syrinx_shared::wire::ufrag::mint;

const RELAY: &str = env!("CARGO_BIN_EXE_syrinx-relay");

fn relay(arguments: &[&str]) -> Output {
    Command::new(RELAY).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The one line that a run which must fail leaves behind.
fn refusal(arguments: &[&str]) -> String {
    let output = relay(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("syrinx-relay: "))
        .collect();
    assert_eq!(lines.len(), 1, "{text}");
    let parts: Vec<&str> = lines[0].split(": ").collect();
    let said_twice = (1..parts.len()).find(|&at| parts[..at].contains(&parts[at]));
    assert_eq!(said_twice, None, "{text}");
    lines[0].to_owned()
}

fn keys_in(dir: &Path) -> KeyRing {
    let output = relay(&["keys", "new", "--dir", dir.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    KeyRing::parse(&std::fs::read_to_string(dir.join("cluster.keys")).unwrap()).unwrap()
}

fn config_in(dir: &Path, toml: &str) -> String {
    let path = dir.join("relay.toml");
    let keys = dir.join("cluster.keys");
    let route = "[[routes]]\ntransceiver = 1\naddress = \"127.0.0.1:3490\"\n";
    let text = format!("{toml}\n[keys]\nfile = {keys:?}\n{route}");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn new_keys_are_private_differ_each_time_and_are_never_overwritten() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    keys_in(one.path());
    keys_in(two.path());
    for name in ["cluster.keys", "edge.keys"] {
        let path = one.path().join(name);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read(&path).unwrap();
        assert_ne!(text, std::fs::read(two.path().join(name)).unwrap());
    }
    let before = std::fs::read(one.path().join("cluster.keys")).unwrap();
    let line = refusal(&["keys", "new", "--dir", one.path().to_str().unwrap()]);
    assert!(line.contains("exists and is kept"), "{line}");
    assert_eq!(
        std::fs::read(one.path().join("cluster.keys")).unwrap(),
        before
    );
}

#[test]
fn decode_explains_a_ufrag_as_far_as_the_keys_allow() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys_in(dir.path());
    let session = SessionRef {
        transceiver: TransceiverId(7),
        shard: ShardIndex(2),
        slot: Slot::new(4_711).unwrap(),
        generation: Generation(3),
    };
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / 60;
    let minted = mint(
        &keys,
        ClusterId(5),
        session,
        UnixMinutes(u32::try_from(now).unwrap()),
        1,
    )
    .unwrap();
    let ufrag = format!("{}:client", minted.ufrag.as_str());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();

    let whole = stdout(&relay(&["decode", &ufrag, "--keys", &file("cluster.keys")]));
    for line in [
        "cluster      5",
        "transceiver  7",
        "shard        2",
        "slot         4711",
    ] {
        assert!(whole.contains(line), "{whole}");
    }
    let edge = stdout(&relay(&["decode", &ufrag, "--keys", &file("edge.keys")]));
    assert!(
        edge.contains("cluster      5") && edge.contains("hidden"),
        "{edge}"
    );
    let forged = ufrag.replacen(
        &ufrag[10..11],
        if &ufrag[10..11] == "A" { "B" } else { "A" },
        1,
    );
    let line = refusal(&["decode", &forged, "--keys", &file("cluster.keys")]);
    assert!(
        line.contains("is dropped by a relay with these keys"),
        "{line}"
    );
}

#[test]
fn a_good_configuration_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    keys_in(dir.path());
    let output = relay(&["--config", &config_in(dir.path(), ""), "--check"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("1 routes, epochs [0]"));
}

#[test]
fn each_mistake_is_one_line_that_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let config = |toml: &str| config_in(dir.path(), toml);
    let line = refusal(&["--config", &config("")]);
    assert!(
        line.contains("cluster.keys") && line.contains("syrinx-relay keys new"),
        "{line}"
    );

    std::fs::write(dir.path().join("cluster.keys"), "[[epoch]]\nid = 9\n").unwrap();
    let line = refusal(&["--config", &config("")]);
    assert!(line.contains("epoch id 9 is out of range"), "{line}");

    std::fs::remove_file(dir.path().join("cluster.keys")).unwrap();
    keys_in(dir.path());
    let line = refusal(&["--config", &config("[public]\nlistne = []")]);
    assert!(
        line.contains("public.listne") && line.contains("listen"),
        "{line}"
    );
    let line = refusal(&["--config", "/nowhere/relay.toml"]);
    assert!(line.contains("/nowhere/relay.toml"), "{line}");
    let line = refusal(&["--config", &config("[workers]\ncores = [900]")]);
    assert!(line.contains("core 900 is not available"), "{line}");
}

#[test]
fn a_port_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    keys_in(dir.path());
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let inner = format!(
        "[public]\nlisten = [\"127.0.0.2:{}\"]\n[inner]\nlisten = \"{address}\"",
        address.port()
    );
    for (section, key) in [
        (
            format!("[public]\nlisten = [\"{address}\"]"),
            "public.listen[0]",
        ),
        (inner, "inner.listen"),
    ] {
        let toml = format!("{section}\n[admin]\nlisten = \"127.0.0.1:0\"\n[workers]\ncount = 1");
        let line = refusal(&["--config", &config_in(dir.path(), &toml)]);
        for part in [key, &address.to_string(), "in use"] {
            assert!(line.contains(part), "no {part}: {line}");
        }
    }
}

#[test]
fn without_io_uring_the_ring_is_refused_and_auto_falls_back() {
    let dir = tempfile::tempdir().unwrap();
    keys_in(dir.path());
    // The relay wants its ports named; these two are free, having just been used.
    let free = || {
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let run = |io_model: &str, seconds: &str| {
        let (public, inner) = (free(), free());
        let toml = format!(
            "[public]\nlisten = [\"{public}\"]\n[inner]\nlisten = \"{inner}\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n\
             [workers]\ncount = 1\nio_model = \"{io_model}\""
        );
        let config = config_in(dir.path(), &toml);
        Command::new("timeout")
            .args(["--signal=TERM", seconds, "strace", "-f", "-o", "/dev/null"])
            .args([
                "-e",
                "inject=io_uring_setup:error=EPERM",
                RELAY,
                "--config",
                &config,
            ])
            .output()
            .unwrap()
    };
    let refused = run("ring", "20");
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("kernel.io_uring_disabled=0"), "{text}");
    let text = stderr(&run("auto", "3"));
    assert!(
        text.contains("model=mmsg") && text.contains("io_uring is not permitted"),
        "{text}"
    );
}

#[test]
fn keys_rotate_in_three_steps_and_an_epoch_in_use_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    keys_in(dir.path());
    let path = dir.path().join("cluster.keys");
    let file = path.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let output = relay(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
    };
    run(&["keys", "add", "--file", file]);
    run(&["keys", "mint", "--file", file, "--epoch", "1"]);
    let line = refusal(&["keys", "retire", "--file", file, "--epoch", "0"]);
    assert!(
        line.contains("may still name sessions for 1440 minutes"),
        "{line}"
    );
    let ring = KeyRing::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(ring.live().count(), 2);
    assert_eq!(ring.minting().unwrap().value(), 1);

    let edge = dir.path().join("rotated.keys");
    run(&[
        "keys",
        "edge",
        "--file",
        file,
        "--out",
        edge.to_str().unwrap(),
    ]);
    let edge = KeyRing::parse(&std::fs::read_to_string(edge).unwrap()).unwrap();
    assert_eq!((edge.live().count(), edge.reads_sessions()), (2, false));

    run(&["keys", "retire", "--file", file, "--epoch", "0", "--force"]);
    let ring = KeyRing::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(ring.live().count(), 1);
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(!path.with_extension("keys.new").exists());
}
