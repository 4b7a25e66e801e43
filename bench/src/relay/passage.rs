//! Kernel DNAT as a relay: what the kernel alone takes to pass a datagram on, with no user space.
//!
//! ```text
//!  clients' namespace       the relay's namespace          the sink's namespace
//!  10.16.0.0/12 local       nftables: dnat to the sink     10.99.1.2
//!  10.99.0.2 ══ veth ══ 10.99.0.1        10.99.1.1 ══ veth ══
//! ```
//!
//! The two devices of the middle namespace are switched to threaded NAPI, and the threads pinned to
//! the relay's core: receive, translation, forwarding and delivery into the next socket are their
//! CPU time, which can be read like a process'. The namespaces go when the value is dropped.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Output};

use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::unistd::Pid;

use super::port::Port;

/// The first client's address.
pub const FIRST_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 16, 0, 0);
/// Where clients send.
pub const ENTRY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)), 3478);
const SINK: Ipv4Addr = Ipv4Addr::new(10, 99, 1, 2);

/// The three namespaces.
#[derive(Debug)]
pub struct Passage {
    /// Tells this process' namespaces from another's.
    tag: u32,
    thread_pids: Vec<u32>,
}

impl Passage {
    /// Makes the namespaces; nothing is translated before [`Passage::lead_to`].
    ///
    /// # Errors
    /// Without root, or where `ip`, `nft` or `ethtool` is missing.
    pub fn open(core: usize) -> io::Result<Self> {
        let mut passage = Self {
            tag: std::process::id(),
            thread_pids: Vec::new(),
        };
        passage.make_namespaces()?;
        passage.thread_devices()?;
        passage.thread_pids = passage.find_threads()?;
        let mut cores = CpuSet::new();
        cores.set(core)?;
        for pid in &passage.thread_pids {
            sched_setaffinity(Pid::from_raw(pid.cast_signed()), &cores)?;
        }
        Ok(passage)
    }

    /// The kernel threads that do the work.
    pub fn thread_pids(&self) -> &[u32] {
        &self.thread_pids
    }

    /// The clients' socket, in their namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bind_clients(&self) -> io::Result<Port> {
        bind_within(&self.name('c'), (Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// The sink's socket, in its namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bind_sink(&self) -> io::Result<Port> {
        bind_within(&self.name('s'), (SINK, 0).into())
    }

    /// Translates what comes to [`ENTRY`] to the sink's `port`, and what it answers back.
    ///
    /// # Errors
    /// What nft says.
    pub fn lead_to(&self, port: u16) -> io::Result<()> {
        let rules = format!(
            "table ip nat {{\nchain pre {{\ntype nat hook prerouting priority -100\n\
             ip daddr {} udp dport {} dnat to {SINK}:{port}\n}}\n}}\n",
            ENTRY.ip(),
            ENTRY.port()
        );
        self.within_middle(&["nft", &rules]).map(drop)
    }

    fn make_namespaces(&self) -> io::Result<()> {
        let (clients, middle, sink) = (self.name('c'), self.name('m'), self.name('s'));
        for name in [&clients, &middle, &sink] {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        for (outer, device, namespace) in [("toc", "c0", &clients), ("tos", "s0", &sink)] {
            ip(&[
                "link", "add", device, "netns", namespace, "type", "veth", "peer", "name", outer,
                "netns", &middle,
            ])?;
        }
        for (namespace, device, address) in [
            (&clients, "c0", "10.99.0.2/30"),
            (&middle, "toc", "10.99.0.1/30"),
            (&middle, "tos", "10.99.1.1/30"),
            (&sink, "s0", "10.99.1.2/30"),
        ] {
            ip(&["-n", namespace, "addr", "add", address, "dev", device])?;
            ip(&["-n", namespace, "link", "set", device, "up"])?;
        }
        let range = format!("{FIRST_CLIENT}/12");
        ip(&["-n", &clients, "route", "add", "local", &range, "dev", "lo"])?;
        ip(&[
            "-n",
            &clients,
            "route",
            "add",
            "default",
            "via",
            "10.99.0.1",
        ])?;
        ip(&["-n", &sink, "route", "add", "default", "via", "10.99.1.1"])?;
        ip(&["-n", &middle, "route", "add", &range, "via", "10.99.0.2"])?;
        self.within_middle(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
            .map(drop)
    }

    /// GRO gives a veth device NAPI, and NAPI a thread. Its sender's device must not offer TSO, or
    /// `veth_skb_is_eligible_for_gro` (drivers/net/veth.c) lets datagrams pass by NAPI.
    fn thread_devices(&self) -> io::Result<()> {
        for (namespace, device) in [(self.name('c'), "c0"), (self.name('s'), "s0")] {
            ip(&[
                "netns", "exec", &namespace, "ethtool", "-K", device, "tso", "off",
            ])?;
        }
        for device in ["toc", "tos"] {
            self.within_middle(&["ethtool", "-K", device, "gro", "on"])?;
            let thread = format!("echo 1 > /sys/class/net/{device}/threaded");
            self.within_middle(&["sh", "-c", &thread])?;
        }
        Ok(())
    }

    /// Threads are named after their device and a number; the newest are ours.
    fn find_threads(&self) -> io::Result<Vec<u32>> {
        let mut pids = Vec::new();
        for device in ["toc", "tos"] {
            let prefix = format!("napi/{device}-");
            let newest = std::fs::read_dir("/proc")?
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
                .filter(|pid| {
                    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                    name.is_ok_and(|name| name.starts_with(&prefix))
                })
                .max();
            pids.push(newest.ok_or_else(|| io::Error::other("no NAPI thread: kernel too old"))?);
        }
        Ok(pids)
    }

    fn within_middle(&self, command: &[&str]) -> io::Result<Output> {
        let name = self.name('m');
        ip(&[["netns", "exec", &name].as_slice(), command].concat())
    }

    fn name(&self, role: char) -> String {
        format!("bench-{}{role}", self.tag)
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        for role in ['c', 'm', 's'] {
            // One that was never made cannot be deleted, and need not be.
            let _ = ip(&["netns", "del", &self.name(role)]);
        }
    }
}

fn ip(arguments: &[&str]) -> io::Result<Output> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "ip {}: {} (root is needed)",
        arguments.join(" "),
        said.trim()
    )))
}

/// A socket belongs to the namespace of the thread that opened it, wherever it is used later.
fn bind_within(namespace: &str, addr: SocketAddr) -> io::Result<Port> {
    let file = File::open(format!("/run/netns/{namespace}"))?;
    let opened = std::thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET)?;
        Port::bind(addr)
    });
    opened
        .join()
        .map_err(|_| io::Error::other("opening a socket in a namespace panicked"))?
}
