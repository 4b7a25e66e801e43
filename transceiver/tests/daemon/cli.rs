//! What an operator sees who has made a mistake: one line, with the remedy, and a non-zero exit.

use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;

use crate::process::{Ground, output_of};

/// Runs a command that should fail, and returns the one line it says.
fn complaint_of(command: &mut Command) -> String {
    let output = output_of(command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("syrinx-transceiver: "))
        .collect();
    assert_eq!(complaints.len(), 1, "one line names the fault: {said}");
    complaints[0]["syrinx-transceiver: ".len()..].to_owned()
}

#[test]
fn version_and_help_are_given() {
    let binary = || Command::new(env!("CARGO_BIN_EXE_syrinx-transceiver"));
    let version = output_of(binary().arg("--version"));
    assert!(version.status.success());
    assert_eq!(
        String::from_utf8(version.stdout).unwrap(),
        format!("syrinx-transceiver {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = output_of(binary().arg("--help"));
    assert!(String::from_utf8(help.stdout).unwrap().contains("--check"));
}

#[test]
fn check_accepts_the_shipped_example_and_starts_nothing() {
    let ground = Ground::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd/transceiver.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_syrinx-transceiver"));
    command.arg("--config").arg(example).arg("--check");
    command.env("SYRINX_TRANSCEIVER__KEYS__FILE", ground.keys());
    let output = output_of(&mut command);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "configuration and keys are valid: signalling on 127.0.0.1:8080, \
         inner leg on 127.0.0.1:3490\n"
    );
}

#[test]
fn unknown_key_in_the_file_is_named_with_line_and_known_keys() {
    let ground = Ground::new();
    let line = complaint_of(&mut ground.command("cluter = 1"));
    let expected = "transceiver.toml:9: media.cluter = 1: unknown key; known keys of media are: ";
    assert!(line.contains(expected), "{line}");
}

#[test]
fn unknown_key_in_the_environment_is_named() {
    let ground = Ground::new();
    let mut command = ground.command("");
    let line = complaint_of(command.env("SYRINX_TRANSCEIVER__MEDIA__CLUTER", "1"));
    let expected = "environment variable SYRINX_TRANSCEIVER__MEDIA__CLUTER: media.cluter = \"1\": \
                    unknown key; known keys of media are: ";
    assert!(line.starts_with(expected), "{line}");
}

#[test]
fn absent_configuration_file_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syrinx-transceiver"));
    let line = complaint_of(command.args(["--config", "/nowhere/transceiver.toml"]));
    assert!(
        line.starts_with("/nowhere/transceiver.toml: cannot be read: No such file"),
        "{line}"
    );
}

#[test]
fn calls_from_afar_without_keys_are_refused_until_allowed() {
    let ground = Ground::new();
    let mut command = ground.command("");
    command
        .env("SYRINX_TRANSCEIVER__SIGNALLING__LISTEN", "0.0.0.0:0")
        .arg("--check");
    let line = complaint_of(&mut command);
    assert_eq!(
        line,
        "environment variable SYRINX_TRANSCEIVER__SIGNALLING__LISTEN: signalling.listen = \
         0.0.0.0:0: anyone who reaches this address could open calls, as there are no API keys; \
         set signalling.api_keys_file (`syrinx-transceiver api-key new` makes one), listen on a \
         loopback address behind a proxy that authenticates, or set \
         signalling.allow_anonymous = true"
    );
    command.env("SYRINX_TRANSCEIVER__SIGNALLING__ALLOW_ANONYMOUS", "true");
    assert!(output_of(&mut command).status.success());
}

#[test]
fn absent_bad_and_verify_only_key_files_are_named_and_no_secret_is_shown() {
    let ground = Ground::new();
    let keys = ground.keys();
    let mut check = ground.command("");
    check.arg("--check");

    let text = std::fs::read_to_string(&keys).unwrap();
    std::fs::remove_file(&keys).unwrap();
    let line = complaint_of(&mut check);
    let expected = format!(
        "keys.file = {}: cannot be read: No such file",
        keys.display()
    );
    assert!(line.starts_with(&expected), "{line}");
    assert!(line.contains("syrinx-relay keys new"), "{line}");

    let secret = text.split('"').nth(1).unwrap();
    std::fs::write(&keys, text.replace(secret, &secret[1..])).unwrap();
    let line = complaint_of(&mut check);
    assert!(
        line.contains("the master of epoch 0 is not 32 bytes"),
        "{line}"
    );
    assert!(!line.contains(&secret[1..]), "{line}");

    std::fs::write(&keys, text.replace("mint = 0", "")).unwrap();
    let line = complaint_of(&mut check);
    assert!(
        line.contains("names no epoch to mint with: set mint"),
        "{line}"
    );
}

#[test]
fn ports_in_use_are_named_with_their_keys() {
    let ground = Ground::new();
    let taken = TcpListener::bind(ground.at(8080)).unwrap();
    let line = complaint_of(&mut ground.command(""));
    let expected = format!(
        "signalling.listen = {}: cannot listen on TCP",
        ground.at(8080)
    );
    assert!(line.starts_with(&expected), "{line}");
    assert!(
        line.contains("another process has this port: stop it"),
        "{line}"
    );
    drop(taken);

    let taken = TcpListener::bind(ground.at(9465)).unwrap();
    let line = complaint_of(&mut ground.command(""));
    assert!(
        line.starts_with(&format!("admin.listen = {}", ground.at(9465))),
        "{line}"
    );
    drop(taken);

    let _taken = UdpSocket::bind(ground.at(3490)).unwrap();
    let line = complaint_of(&mut ground.command(""));
    let expected = format!("media.inner_listen: UDP {} is in use", ground.at(3490));
    assert!(line.starts_with(&expected), "{line}");
}

#[test]
fn a_second_transceiver_does_not_share_the_first_ones_inner_port() {
    let running = Ground::new().start("");
    let other = Ground::new();
    let mut command = other.command("");
    let inner = running.ground.at(3490).to_string();
    let line = complaint_of(command.env("SYRINX_TRANSCEIVER__MEDIA__INNER_LISTEN", inner));
    assert!(line.contains("is in use"), "{line}");
}

#[test]
fn cores_that_are_not_there_are_named() {
    let ground = Ground::new();
    let line = complaint_of(&mut ground.command("[workers]\ncores = [4095]"));
    assert!(
        line.contains("workers.cores: core 4095 is not available"),
        "{line}"
    );
}

#[test]
fn without_io_uring_the_ring_is_refused_and_auto_falls_back() {
    // strace makes the kernel refuse, as a seccomp filter would; timeout ends the whole group.
    let run = |io_model: &str, seconds: &str| {
        let ground = Ground::new();
        let config = ground.write_config(&format!("[workers]\ncount = 1\nio_model = {io_model:?}"));
        let mut command = Command::new("timeout");
        command.args(["--signal=TERM", seconds, "strace", "-f", "-o", "/dev/null"]);
        command.args(["-e", "inject=io_uring_setup:error=EPERM"]);
        command
            .arg(env!("CARGO_BIN_EXE_syrinx-transceiver"))
            .arg("--config")
            .arg(config);
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, said) = run("ring", "20");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("syrinx-transceiver: worker 0 on core "),
        "{said}"
    );
    assert!(
        said.contains("set `sysctl kernel.io_uring_disabled=0`"),
        "{said}"
    );
    let (_, said) = run("auto", "3");
    assert!(
        said.contains("model=mmsg") && said.contains("io_uring is not permitted"),
        "{said}"
    );
    assert!(said.contains("1 worker(s) on mmsg"), "{said}");
}
