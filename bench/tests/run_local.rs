//! `make run` as a new user meets it: one command brings both daemons up with the shipped examples,
//! ^C or the death of either takes both down, and what is wrong is said.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syrinx_bench::process::{binary, free_port, http_get};
use tempfile::TempDir;

/// How long the script may take to end: its own patience with the daemons, and some.
const END_WAIT: Duration = Duration::from_secs(30);

/// The script with the examples, moved to free ports by the environment's twins.
struct Run {
    child: Child,
    out: BufReader<ChildStdout>,
    state: TempDir,
    signalling: SocketAddr,
    relay_admin: SocketAddr,
}

impl Run {
    fn start(signalling: SocketAddr) -> Self {
        let relay = binary("syrinx-relay").expect("the relay is built");
        let state = tempfile::tempdir().expect("a temporary folder");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the workspace");
        let (relay_admin, relay_inner, inner) = (free(), free(), free());
        let public = free();
        // A build service may start its jobs with interrupts ignored, which children inherit and
        // a shell cannot undo; a person's terminal does not.
        let mut child = Command::new("env")
            .arg("--default-signal=INT")
            .arg(root.join("systemd/run-local"))
            .arg(relay.parent().expect("a binary lies in a folder"))
            .env("SYRINX_RUN", state.path())
            .env("SYRINX_RELAY__PUBLIC__LISTEN", public.to_string())
            .env("SYRINX_RELAY__INNER__LISTEN", relay_inner.to_string())
            .env(
                "SYRINX_RELAY__ROUTES",
                format!("[{{transceiver = 1, address = '{inner}'}}]"),
            )
            .env("SYRINX_RELAY__ADMIN__LISTEN", relay_admin.to_string())
            .env("SYRINX_TRANSCEIVER__MEDIA__INNER_LISTEN", inner.to_string())
            .env("SYRINX_TRANSCEIVER__MEDIA__ADVERTISE", public.to_string())
            .env(
                "SYRINX_TRANSCEIVER__SIGNALLING__LISTEN",
                signalling.to_string(),
            )
            .env("SYRINX_TRANSCEIVER__ADMIN__LISTEN", free().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the script runs");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            out,
            state,
            signalling,
            relay_admin,
        }
    }

    /// Reads on until a line contains `text`; what was read is returned.
    fn read_until(&mut self, text: &str) -> String {
        let mut said = String::new();
        while !said.contains(text) {
            let read = self.out.read_line(&mut said).expect("readable output");
            assert!(
                read > 0,
                "the script ended before it said {text:?}: {said}{}",
                self.errors()
            );
        }
        said
    }

    /// The process id of one daemon, from the script's children.
    fn daemon(&self, name: &str) -> Pid {
        let script = self.child.id();
        let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
        let children = children.expect("the script's children are listed");
        let is_it = |pid: &&str| {
            // The kernel keeps the first 15 bytes of a name.
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            comm.trim() == &name[..name.len().min(15)]
        };
        let pid = children
            .split_whitespace()
            .find(is_it)
            .expect("the daemon is a child");
        Pid::from_raw(pid.parse().expect("a process id"))
    }

    fn signal(&self, signal: Signal) {
        let script = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        kill(script, signal).expect("the script is there");
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + END_WAIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "the script does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Run {
    /// The script stops its daemons itself, also when a test fails half-way.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

fn free() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

#[test]
fn one_command_serves_the_page_and_an_interrupt_stops_both() {
    let mut run = Run::start(free());
    let said = run.read_until("^C");
    assert!(
        said.contains(&format!("open  http://{}/ ", run.signalling)),
        "{said}"
    );
    let (status, page) = http_get(run.signalling, "/").expect("the page is served");
    assert_eq!(status, 200);
    assert!(page.contains("<html"), "{page}");
    let keys = run.state.path().join("cluster.keys");
    let mode = fs::metadata(&keys)
        .expect("keys were made")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "keys are their owner's alone");

    run.signal(Signal::SIGINT);
    assert!(run.end().success());
    assert_eq!(run.errors(), "");
    assert!(
        http_get(run.relay_admin, "/healthz").is_err(),
        "the relay is gone"
    );
    assert!(
        http_get(run.signalling, "/").is_err(),
        "the transceiver is gone"
    );
}

#[test]
fn a_daemon_that_dies_is_named_and_takes_the_other_with_it() {
    let mut run = Run::start(free());
    run.read_until("^C");
    kill(run.daemon("syrinx-relay"), Signal::SIGKILL).expect("the relay is there");
    assert!(!run.end().success());
    let errors = run.errors();
    assert!(errors.contains("syrinx-relay has stopped"), "{errors}");
    assert!(
        http_get(run.signalling, "/").is_err(),
        "the transceiver is gone"
    );
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_left_running() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = taken.local_addr().expect("an address");
    let mut run = Run::start(address);
    assert!(!run.end().success());
    let errors = run.errors();
    assert!(
        errors.contains("syrinx-transceiver has stopped"),
        "{errors}"
    );
    assert!(errors.contains(&address.to_string()), "{errors}");
    assert!(
        http_get(run.relay_admin, "/healthz").is_err(),
        "the relay is gone"
    );
}
