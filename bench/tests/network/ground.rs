//! A relay process with its keys and configuration, and the transceivers that it routes to.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syrinx_bench::process::{Daemon, Exposition, binary, free_port};
use syrinx_shared::keys::{KeyRing, MasterSecret, cluster_key_file};
use syrinx_shared::route::{
    ClusterId, Epoch, Generation, SessionRef, ShardIndex, Slot, TransceiverId, UnixMinutes,
};
use syrinx_shared::wire::ufrag::{Minted, mint};

use crate::caller::Caller;
use crate::transceiver::Transceiver;

const CLUSTER: ClusterId = ClusterId(1);

/// What a scenario wants otherwise than [`Options::default`].
pub(crate) struct Options {
    /// Addresses that clients send to, all at one port.
    pub(crate) listen: Vec<IpAddr>,
    pub(crate) workers: u8,
    pub(crate) io_model: &'static str,
    /// Of each socket of the relay; the system may grant less.
    pub(crate) receive_buffer_bytes: usize,
    /// Lines of `[flows]`.
    pub(crate) flows: &'static str,
    pub(crate) transceivers: u16,
}

/// A running relay and its transceivers.
pub(crate) struct Ground {
    pub(crate) relay: Daemon,
    /// The port that clients send to.
    pub(crate) port: u16,
    pub(crate) transceivers: Vec<Transceiver>,
    pub(crate) keys_file: PathBuf,
    // Last, so that the relay is gone before its folder is.
    _folder: tempfile::TempDir,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: vec![Ipv4Addr::LOCALHOST.into()],
            workers: 1,
            io_model: "auto",
            receive_buffer_bytes: 8 << 20,
            // A loaded machine may need longer between two steps than clients between two checks.
            flows: "idle_timeout_ms = 600_000",
            transceivers: 1,
        }
    }
}

pub(crate) fn this_minute() -> UnixMinutes {
    let seconds = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    UnixMinutes(u32::try_from(seconds / 60).unwrap())
}

impl Ground {
    pub(crate) fn start(options: &Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys_file = folder.path().join("cluster.keys");
        let first = cluster_key_file(Epoch::new(0).unwrap(), &MasterSecret::new([7; 32]));
        std::fs::write(&keys_file, first).unwrap();
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let [port, inner, admin] = [(); 3].map(|()| free_port());
        let transceivers: Vec<Transceiver> = (0..options.transceivers)
            .map(|_| Transceiver::bind(loopback(0)))
            .collect();
        let listen: Vec<String> = options
            .listen
            .iter()
            .map(|ip| SocketAddr::new(*ip, port).to_string())
            .collect();
        let routes: String = (1..)
            .zip(&transceivers)
            .map(|(number, transceiver): (u16, _)| {
                let address = transceiver.address();
                format!("[[routes]]\ntransceiver = {number}\naddress = \"{address}\"\n")
            })
            .collect();
        let text = format!(
            "[public]\nlisten = {listen:?}\nreceive_buffer_bytes = {buffer_bytes}\n\
             [inner]\nlisten = \"{inner}\"\nreceive_buffer_bytes = {buffer_bytes}\n\
             [admin]\nlisten = \"{admin}\"\n[keys]\nfile = {keys_file:?}\n\
             [workers]\ncount = {workers}\nio_model = \"{io_model}\"\n\
             [flows]\n{flows}\n{routes}",
            buffer_bytes = options.receive_buffer_bytes,
            inner = loopback(inner),
            admin = loopback(admin),
            workers = options.workers,
            io_model = options.io_model,
            flows = options.flows,
        );
        let config = folder.path().join("relay.toml");
        std::fs::write(&config, text).unwrap();
        let program = binary("syrinx-relay").unwrap();
        let relay = Daemon::start(&program, &config, loopback(admin)).unwrap();
        Self {
            relay,
            port,
            transceivers,
            keys_file,
            _folder: folder,
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.relay.pid()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Where clients on loopback send to.
    pub(crate) fn public(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// A session of a transceiver, counted from 1, with its ufrag as the key file now mints it.
    pub(crate) fn session(&self, transceiver: u16, slot: u32) -> (SessionRef, Minted) {
        let session = SessionRef {
            transceiver: TransceiverId(transceiver),
            shard: ShardIndex(0),
            slot: Slot::new(slot).unwrap(),
            generation: Generation(1),
        };
        let keys = KeyRing::parse(&std::fs::read_to_string(&self.keys_file).unwrap()).unwrap();
        let minted = mint(&keys, CLUSTER, session, this_minute(), 1).unwrap();
        (session, minted)
    }

    /// A caller of the first transceiver, on loopback.
    pub(crate) fn caller(&self, slot: u32) -> Caller {
        self.caller_of(1, slot)
    }

    /// A caller of this transceiver, on loopback.
    pub(crate) fn caller_of(&self, transceiver: u16, slot: u32) -> Caller {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Caller::new(anywhere, self.public(), self.session(transceiver, slot))
    }

    /// Waits until the relay publishes counters that `test` likes, and gives them.
    pub(crate) fn settle(&mut self, what: &str, test: impl Fn(&Exposition) -> bool) -> Exposition {
        let outcome = self
            .relay
            .wait(what, |relay| relay.metrics().is_ok_and(|seen| test(&seen)));
        // Read again: the first look may have caught a worker in the middle of publishing.
        let exposition = self.relay.metrics().unwrap();
        outcome.unwrap_or_else(|error| panic!("{error}: {}", told(&exposition)));
        exposition
    }

    /// Waits until `count` client datagrams were judged.
    pub(crate) fn settle_clients(&mut self, count: u32) -> Exposition {
        self.settle("every client datagram", |exposition| {
            total(exposition, "client_datagrams") == f64::from(count)
        })
    }

    /// The memory that the relay occupies, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        resident_bytes(self.relay.pid())
    }
}

/// The memory that a process occupies, in bytes (VmRSS of proc(5)).
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// `syrinx_relay_{name}_total` of all workers.
pub(crate) fn total(exposition: &Exposition, name: &str) -> f64 {
    exposition.sum(&format!("syrinx_relay_{name}_total"), &[])
}

/// Datagrams and records that were dropped for this reason.
pub(crate) fn drops(exposition: &Exposition, reason: &str) -> f64 {
    exposition.sum("syrinx_relay_drops_total", &[("reason", reason)])
}

/// The flows that there are.
pub(crate) fn flows(exposition: &Exposition) -> f64 {
    exposition.sum("syrinx_relay_flows", &[])
}

/// What a failed wait says.
fn told(exposition: &Exposition) -> String {
    let names = ["client_datagrams", "inner_datagrams", "flows_created"];
    let totals = names.map(|name| format!("{name} {}", total(exposition, name)));
    let drops = exposition.by("syrinx_relay_drops_total", "reason");
    format!("{totals:?}, {drops:?}")
}
