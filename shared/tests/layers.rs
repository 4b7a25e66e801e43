//! Proves that the pure cores stand alone: without the `driver` feature, no crate that owns
//! sockets, rings, runtimes, HTTP, configuration files or command lines is anywhere below them.
//!
//! `tidy` judges what sources name; this judges what Cargo would build, so a driver crate that
//! comes in through a third one is seen too. `make check` then really compiles the cores this way.

use std::collections::BTreeSet;
use std::process::Command;

/// What only a driver may bring in, directly or through another crate.
const DRIVER_CRATES: [&str; 20] = [
    "anyhow",
    "axum",
    "clap",
    "config",
    "core_affinity",
    "futures-lite",
    "glommio",
    "glommio-ng",
    "hyper",
    "io-uring",
    "metrics",
    "metrics-exporter-prometheus",
    "mio",
    "nix",
    "redis",
    "rustix",
    "sd-notify",
    "socket2",
    "tokio",
    "tracing-subscriber",
];

/// What the relay's core and the wire formats have no business with: media, and randomness of
/// their own. The transceiver's engine brings both, by way of DTLS.
const ENGINE_CRATES: [&str; 5] = ["aws-lc-rs", "dimpl", "getrandom", "rand", "str0m"];

/// How far below the package to look.
#[derive(Clone, Copy)]
enum Depth {
    Direct,
    All,
}

#[test]
fn no_core_has_a_driver_crate_below_it() {
    for package in ["syrinx-shared", "syrinx-relay", "syrinx-transceiver"] {
        let below = dependencies(package, &["--no-default-features"], Depth::All);
        assert_eq!(
            among(&below, &DRIVER_CRATES),
            [""; 0],
            "below the core of {package}"
        );
    }
}

#[test]
fn the_wire_and_the_forwarder_have_no_engine_below_them() {
    for package in ["syrinx-shared", "syrinx-relay"] {
        let below = dependencies(package, &["--no-default-features"], Depth::All);
        assert_eq!(
            among(&below, &ENGINE_CRATES),
            [""; 0],
            "below the core of {package}"
        );
    }
}

/// Ciphers read the processor's features through libc on some targets, so only naming it is ours
/// to forbid.
#[test]
fn no_core_names_libc() {
    for package in ["syrinx-shared", "syrinx-relay", "syrinx-transceiver"] {
        let named = dependencies(package, &["--no-default-features"], Depth::Direct);
        assert!(
            !named.contains("libc"),
            "{package} names libc without its driver"
        );
    }
}

#[test]
fn the_relay_never_has_the_transceiver_below_it() {
    let below = dependencies("syrinx-relay", &[], Depth::All);
    assert!(!below.contains("syrinx-transceiver"));
    assert!(!below.contains("str0m"), "the relay terminates nothing");
}

/// The same question of the whole daemon must find them, or the tests above could not fail.
#[test]
fn the_drivers_do_have_them() {
    let below = dependencies("syrinx-relay", &[], Depth::All);
    let found = among(&below, &DRIVER_CRATES);
    for expected in ["clap", "glommio-ng", "io-uring", "tokio"] {
        assert!(
            found.contains(&expected),
            "{expected} is missing from {found:?}"
        );
    }
    let engine = dependencies("syrinx-transceiver", &["--no-default-features"], Depth::All);
    assert!(engine.contains("str0m"), "{engine:?}");
    assert!(dependencies("syrinx-shared", &[], Depth::Direct).contains("libc"));
}

fn among<'a>(found: &BTreeSet<String>, names: &[&'a str]) -> Vec<&'a str> {
    names
        .iter()
        .copied()
        .filter(|name| found.contains(*name))
        .collect()
}

/// Names of the packages that an ordinary build of `package` compiles, itself among them.
fn dependencies(package: &str, features: &[&str], depth: Depth) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let depth = match depth {
        Depth::Direct => "1",
        Depth::All => "1000",
    };
    let output = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .args(["--depth", depth, "--package", package])
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree {package}: {complaint}");
    let tree = String::from_utf8(output.stdout).expect("package names are text");
    let names = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    assert!(
        names.contains(package),
        "cargo tree of {package} does not name it: {tree}"
    );
    names
}
