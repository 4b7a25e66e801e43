//! Homes behind a NAT, in network namespaces without names: a namespace lives as long as its
//! descriptor and the processes in it, so nothing is left behind however a test ends.
//!
//! ```text
//!   home                       NAT                               edge
//!   10.77.1.2, 10.77.1.3  ──  10.77.1.1 | 203.0.113.1       ──  203.0.113.10, 203.0.113.11
//!   fd77:1::2                  fd77:1::1 | fd77:2::1             fd77:2::10, fd77:2::11
//! ```
//!
//! The edge has no route to the homes: what arrives there was translated, or did not arrive.
//! Called by tests only: what fails here panics.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::panic::resume_unwind;
use std::process::{self, Command, Stdio};
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

/// Set in the run of a test that has got its powers from a user namespace.
const INSIDE: &str = "SYRINX_TEST_NAMESPACE";

/// One network namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

/// The three namespaces of the module's picture.
#[derive(Debug)]
pub struct Network {
    /// Where clients live.
    pub home: Namespace,
    /// Where relay and transceiver live.
    pub edge: Namespace,
    nat: Namespace,
}

/// Runs the test of this name with the power to make network namespaces: at once when this process
/// has it, otherwise once more in a user namespace of its own.
pub fn with_namespaces(test: &str, body: fn()) {
    match Namespace::new() {
        Ok(_) => return body(),
        Err(Errno::EPERM) => {}
        Err(error) => panic!("no network namespace: {error}"),
    }
    let needs_root = "network namespaces need root, or a kernel that lets users unshare them";
    assert!(env::var_os(INSIDE).is_none(), "{needs_root}");
    let output = Command::new("unshare")
        .args(["--map-root-user", "--net"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare, of util-linux, is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{needs_root}: {said}{complained}");
    assert!(said.contains("1 passed"), "the test ran inside: {said}");
}

impl Namespace {
    fn new() -> nix::Result<Self> {
        // A namespace is a thread's: this one makes it, and leaves it to the descriptor.
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(File::open("/proc/thread-self/ns/net").expect("proc is mounted"))
        });
        let file = made.join().expect("the thread returns what it got")?;
        Ok(Self { file })
    }

    /// Runs `body` inside. Sockets and processes that it makes stay inside for their life.
    ///
    /// # Panics
    /// If the body does, or the namespace cannot be entered.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).expect("the namespace can be entered");
                body()
            });
            inside.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// A path by which other programs find the namespace.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd())
    }

    /// Runs a program inside, which reads `input`.
    ///
    /// # Panics
    /// If it cannot be started, or fails.
    pub fn run(&self, program: &str, arguments: &[&str], input: &str) {
        self.enter(|| {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap_or_else(|error| panic!("{program}: {error}; .ci/prerequisites has it"));
            let mut stdin = child.stdin.take().expect("invariant: it is piped");
            stdin.write_all(input.as_bytes()).unwrap();
            drop(stdin);
            let output = child.wait_with_output().unwrap();
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program}: {complained}{input}");
        });
    }
}

impl Network {
    /// Makes the namespaces, links them and starts to translate.
    ///
    /// # Panics
    /// If the caller may not, or a tool is missing.
    #[expect(clippy::new_without_default, reason = "making one is no small matter")]
    #[must_use]
    pub fn new() -> Self {
        let [home, nat, edge] = [(); 3].map(|()| Namespace::new().expect("the caller may"));
        let network = Self { home, edge, nat };
        let ip = |namespace: &Namespace, lines: String| {
            namespace.run("ip", &["-batch", "-"], &lines);
        };
        // The peers' ends are made where they belong.
        let nat_path = network.nat.path();
        let edge_path = network.edge.path();
        ip(
            &network.home,
            format!(
                "link set lo up\n\
                 link add wan type veth peer name lan netns {nat_path}\n\
                 address add 10.77.1.2/24 dev wan\n\
                 address add 10.77.1.3/24 dev wan\n\
                 address add fd77:1::2/64 dev wan nodad\n\
                 link set wan up\n"
            ),
        );
        ip(
            &network.nat,
            format!(
                "link set lo up\n\
                 address add 10.77.1.1/24 dev lan\n\
                 address add fd77:1::1/64 dev lan nodad\n\
                 link set lan up\n\
                 link add out type veth peer name public netns {edge_path}\n\
                 address add 203.0.113.1/24 dev out\n\
                 address add fd77:2::1/64 dev out nodad\n\
                 link set out up\n"
            ),
        );
        ip(
            &network.edge,
            "link set lo up\n\
             address add 203.0.113.10/24 dev public\n\
             address add 203.0.113.11/24 dev public\n\
             address add fd77:2::10/64 dev public nodad\n\
             address add fd77:2::11/64 dev public nodad\n\
             link set public up\n"
                .to_owned(),
        );
        ip(
            &network.home,
            "route add default via 10.77.1.1\nroute add default via fd77:1::1\n".to_owned(),
        );
        network.nat.enter(|| {
            for switch in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                fs::write(format!("/proc/sys/net/{switch}"), "1").unwrap();
            }
        });
        network.masquerade(&[]);
        network
    }

    /// Gives the home a second uplink, as a telephone has a mobile network beside its WLAN:
    /// 10.78.1.2 on `mobile`, through the same NAT, taken by what is sent from that address.
    ///
    /// # Panics
    /// If a tool is missing.
    pub fn add_mobile_uplink(&self) {
        let nat_path = self.nat.path();
        let in_home = format!(
            "link add mobile type veth peer name mobile netns {nat_path}\n\
             address add 10.78.1.2/24 dev mobile\n\
             link set mobile up\n"
        );
        self.home.run("ip", &["-batch", "-"], &in_home);
        let in_nat = "address add 10.78.1.1/24 dev mobile\nlink set mobile up\n";
        self.nat.run("ip", &["-batch", "-"], in_nat);
        let routes = "route add default via 10.78.1.1 metric 100\n\
                      route add default via 10.78.1.1 table 78\n\
                      rule add from 10.78.1.2 table 78\n";
        self.home.run("ip", &["-batch", "-"], routes);
    }

    /// Translates everything that leaves; what these homes send, to these public ports.
    pub fn masquerade(&self, ports: &[(IpAddr, u16)]) {
        let fixed: String = ports
            .iter()
            .map(|(home, port)| {
                format!("oifname out ip saddr {home} meta l4proto udp masquerade to :{port}\n")
            })
            .collect();
        let rules = format!(
            "flush ruleset\n\
             table inet nat {{\n\
             chain postrouting {{\n\
             type nat hook postrouting priority srcnat; policy accept;\n\
             {fixed}\
             oifname out masquerade\n\
             }}\n\
             }}\n"
        );
        self.nat.run("nft", &["-f", "-"], &rules);
    }

    /// Makes the NAT forget every mapping, as one does that was restarted or is full.
    pub fn forget_mappings(&self) {
        self.nat.run("conntrack", &["-F"], "");
    }
}
