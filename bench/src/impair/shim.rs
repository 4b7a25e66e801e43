//! The sockets of an impaired network: a UDP proxy between clients and a relay.
//!
//! ```text
//! client 127.16.0.1:40000 ──▶ ┌───────┐ ──▶ socket 127.16.0.1:51000 ──▶ ┌───────┐
//! client 127.16.0.2:40000 ──▶ │ front │ ──▶ socket 127.16.0.2:52000 ──▶ │ relay │
//!                             └───────┘                                 └───────┘
//! ```
//!
//! Each client address has a socket of its own towards the relay, which so tells clients apart as
//! it would without the shim; on loopback the socket has the client's own IP address. A client that
//! moves gets another socket, and has moved for the relay too. One thread does it all: it waits in
//! epoll, with a timer descriptor for the next due packet, since epoll's own clock is in
//! milliseconds.
//!
//! Marks of the IP header (DSCP, ECN) are not carried over, and nothing answers with ICMP.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use thiserror::Error;

use super::Way;
use super::conditions::Conditions;
use super::counts::Totals;
use super::fate::Fates;
use super::link::{Link, Verdict};

/// Clients at once, unless told otherwise; each takes a file descriptor.
pub const PATHS_MAX: usize = 8_192;
/// Descriptors left to the rest of the process.
const DESCRIPTORS_SPARE: u64 = 256;
/// A path that carried nothing for so long is closed (RFC 4787, REQ-5: two minutes at least).
const PATH_IDLE: Duration = Duration::from_secs(120);
/// Packets under way at once: 10 s of 260 calls of 50 packets a second both ways.
const WAITING_MAX: usize = 262_144;
/// Addresses whose paths are numbered; one beyond them starts at 0 each time.
const ADDRESSES_MAX: usize = 65_536;
/// How often the thread looks whether it is to end, in milliseconds.
const LOOK_MS: u8 = 100;
/// Datagrams taken from one socket before the others get their turn.
const BATCH: usize = 64;
/// Asked of the kernel for every socket's receive buffer.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// The longest UDP datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Headers of IP and UDP (RFC 791, RFC 8200, RFC 768).
const OVERHEAD_V4_BYTES: usize = 20 + 8;
const OVERHEAD_V6_BYTES: usize = 40 + 8;

const FRONT: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// Where a shim stands and what it does.
#[derive(Clone, Debug)]
pub struct ShimOptions {
    /// Where clients send to.
    pub listen: SocketAddr,
    /// The relay.
    pub to: SocketAddr,
    /// What happens to packets.
    pub conditions: Conditions,
    /// What fates are drawn from.
    pub seed: u64,
    /// Clients at once; datagrams of others are counted and dropped.
    pub paths_max: usize,
}

/// Why a shim does not stand.
#[derive(Debug, Error)]
pub enum ShimError {
    /// The address for clients is not to be had.
    #[error("cannot listen on {address}: {source} (is it this machine's, and free?)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Too few file descriptors.
    #[error(
        "{wanted} clients need {wanted} file descriptors and this process may have {limit}: raise \
         the hard limit (ulimit -Hn) or lower the number of clients"
    )]
    Descriptors {
        /// For so many clients.
        wanted: usize,
        /// The hard limit.
        limit: u64,
    },
    /// Something around it failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A running shim, gone when dropped.
#[derive(Debug)]
pub struct Shim {
    addr: SocketAddr,
    totals: Arc<Mutex<Totals>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Shim {
    /// Starts a shim on a thread of its own.
    ///
    /// # Errors
    /// Its address is not to be had, or there are too few file descriptors for its clients.
    pub fn start(options: ShimOptions) -> Result<Self, ShimError> {
        allow_descriptors(options.paths_max)?;
        let listen = |source| ShimError::Listen {
            address: options.listen,
            source,
        };
        let front = UdpSocket::bind(options.listen).map_err(listen)?;
        let addr = front.local_addr()?;
        let totals = Arc::new(Mutex::new(Totals::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let mut proxy = Proxy::new(front, options)?;
        let (shared, stopped) = (Arc::clone(&totals), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("impair".to_owned())
            .spawn(move || proxy.run(&stopped, &shared))?;
        Ok(Self {
            addr,
            totals,
            stop,
            thread: Some(thread),
        })
    }

    /// Where clients send to: what the relay's address is for them.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// What became of the packets so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it still carries packets; after that, [`Shim::end`] says why not.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Ends it.
    ///
    /// # Errors
    /// What ended it before.
    ///
    /// # Panics
    /// If its thread panicked.
    pub fn end(mut self) -> io::Result<Totals> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the shim's thread does not panic")?;
        }
        Ok(self.totals())
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Who wants to know what went wrong has called `end`.
            let _ = thread.join();
        }
    }
}

/// Raises the soft limit of descriptors to what `paths_max` clients take.
fn allow_descriptors(paths_max: usize) -> Result<(), ShimError> {
    let wanted = paths_max as u64 + DESCRIPTORS_SPARE;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(io::Error::from)?;
    if wanted > hard {
        return Err(ShimError::Descriptors {
            wanted: paths_max,
            limit: hard,
        });
    }
    if wanted > soft {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).map_err(io::Error::from)?;
    }
    Ok(())
}

/// One client's way to the relay.
#[derive(Debug)]
struct Path {
    client: SocketAddr,
    socket: UdpSocket,
    up: Link,
    down: Link,
    used: Instant,
    /// Tells it from a later path in the same place.
    serial: u64,
}

/// A packet under way. Compared by when it is due, then by when it came.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: Instant,
    number: u64,
    place: usize,
    serial: u64,
    is_up: bool,
    payload: Box<[u8]>,
}

struct Proxy {
    options: ShimOptions,
    front: UdpSocket,
    epoll: Epoll,
    timer: TimerFd,
    paths: Vec<Option<Path>>,
    free: Vec<usize>,
    by_client: HashMap<SocketAddr, usize>,
    /// Paths so far of each address.
    opened: HashMap<IpAddr, u64>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    number: u64,
    totals: Totals,
    swept: Instant,
}

impl Proxy {
    fn new(front: UdpSocket, options: ShimOptions) -> io::Result<Self> {
        front.set_nonblocking(true)?;
        setsockopt(&front, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        epoll.add(&front, EpollEvent::new(EpollFlags::EPOLLIN, FRONT))?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        Ok(Self {
            options,
            front,
            epoll,
            timer,
            paths: Vec::new(),
            free: Vec::new(),
            by_client: HashMap::new(),
            opened: HashMap::new(),
            waiting: BinaryHeap::new(),
            number: 0,
            totals: Totals::default(),
            swept: Instant::now(),
        })
    }

    fn run(&mut self, stop: &AtomicBool, totals: &Mutex<Totals>) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 256];
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        while !stop.load(Ordering::Relaxed) {
            self.arm()?;
            let count = match self.epoll.wait(&mut events, LOOK_MS) {
                Err(Errno::EINTR) => 0,
                other => other?,
            };
            for event in &events[..count] {
                match event.data() {
                    FRONT => self.take_from_clients(&mut buffer)?,
                    // The packets that are due are looked for below, whatever woke us.
                    TIMER => {}
                    place => self.take_from_relay(place as usize, &mut buffer),
                }
            }
            self.deliver(Instant::now());
            self.sweep(Instant::now());
            self.totals.path_count = self.by_client.len();
            *totals.lock().unwrap_or_else(PoisonError::into_inner) = self.totals;
        }
        Ok(())
    }

    /// Sets the timer to the next due packet; setting it also clears what it had to report.
    fn arm(&self) -> io::Result<()> {
        let Some(Reverse(next)) = self.waiting.peek() else {
            return Ok(self.timer.unset()?);
        };
        // Nothing would unset the timer.
        let wait = next.due.saturating_duration_since(Instant::now());
        let wait = wait.max(Duration::from_nanos(1));
        let expiration = Expiration::OneShot(TimeSpec::from_duration(wait));
        Ok(self.timer.set(expiration, TimerSetTimeFlags::empty())?)
    }

    fn take_from_clients(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..BATCH {
            let (length, client) = match self.front.recv_from(buffer) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // An ICMP error that an earlier answer caused; its client is gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            let now = Instant::now();
            match self.place_of(client, now) {
                Some(place) => self.offer(place, Way::Up, &buffer[..length], now),
                None => self.totals.refused += 1,
            }
        }
        Ok(())
    }

    fn take_from_relay(&mut self, place: usize, buffer: &mut [u8]) {
        for _ in 0..BATCH {
            let Some(path) = self.paths.get(place).and_then(Option::as_ref) else {
                return;
            };
            match path.socket.recv(buffer) {
                Ok(length) => self.offer(place, Way::Down, &buffer[..length], Instant::now()),
                // Nothing there, or nobody behind the relay's address for the moment.
                Err(_) => return,
            }
        }
    }

    fn offer(&mut self, place: usize, way: Way, payload: &[u8], now: Instant) {
        let Some(path) = self.paths.get_mut(place).and_then(Option::as_mut) else {
            return;
        };
        let (link, counts) = match way {
            Way::Up => (&mut path.up, &mut self.totals.up),
            Way::Down => (&mut path.down, &mut self.totals.down),
        };
        path.used = now;
        counts.offered += 1;
        let overhead = if path.client.is_ipv4() {
            OVERHEAD_V4_BYTES
        } else {
            OVERHEAD_V6_BYTES
        };
        let (at, duplicated, reordered) = match link.offer(now, payload.len() + overhead) {
            Verdict::Lost(loss) => {
                counts.lose(loss);
                return;
            }
            Verdict::Due {
                at,
                duplicated,
                reordered,
            } => (at, duplicated, reordered),
        };
        counts.duplicated += u64::from(duplicated);
        counts.reordered += u64::from(reordered);
        for _ in 0..1 + usize::from(duplicated) {
            if self.waiting.len() >= WAITING_MAX {
                counts.overflowed += 1;
                continue;
            }
            self.number += 1;
            self.waiting.push(Reverse(Waiting {
                due: at,
                number: self.number,
                place,
                serial: path.serial,
                is_up: way == Way::Up,
                payload: payload.into(),
            }));
        }
    }

    fn deliver(&mut self, now: Instant) {
        while let Some(Reverse(next)) = self.waiting.peek() {
            if next.due > now {
                return;
            }
            let Some(Reverse(packet)) = self.waiting.pop() else {
                return;
            };
            let counts = if packet.is_up {
                &mut self.totals.up
            } else {
                &mut self.totals.down
            };
            let path = self.paths.get(packet.place).and_then(Option::as_ref);
            let sent = match path.filter(|path| path.serial == packet.serial) {
                Some(path) if packet.is_up => path.socket.send(&packet.payload).is_ok(),
                Some(path) => self.front.send_to(&packet.payload, path.client).is_ok(),
                None => false,
            };
            if sent {
                counts.delivered += 1;
            } else {
                counts.unsent += 1;
            }
        }
    }

    /// The client's path, a fresh one if it has none; `None` when there are too many.
    fn place_of(&mut self, client: SocketAddr, now: Instant) -> Option<usize> {
        if let Some(place) = self.by_client.get(&client) {
            return Some(*place);
        }
        if self.by_client.len() >= self.options.paths_max {
            return None;
        }
        let socket = socket_for(client, self.options.to).ok()?;
        let place = self.free.pop().unwrap_or_else(|| {
            self.paths.push(None);
            self.paths.len() - 1
        });
        let event = EpollEvent::new(EpollFlags::EPOLLIN, place as u64);
        if self.epoll.add(&socket, event).is_err() {
            self.free.push(place);
            return None;
        }
        let nth = self.number_path(client.ip());
        let fates = |way| Fates::new(self.options.seed, client, nth, way);
        let Conditions { up, down, .. } = self.options.conditions;
        self.number += 1;
        self.paths[place] = Some(Path {
            client,
            socket,
            up: Link::new(up, fates(Way::Up)),
            down: Link::new(down, fates(Way::Down)),
            used: now,
            serial: self.number,
        });
        self.by_client.insert(client, place);
        Some(place)
    }

    fn number_path(&mut self, address: IpAddr) -> u64 {
        if self.opened.len() >= ADDRESSES_MAX && !self.opened.contains_key(&address) {
            return 0;
        }
        let opened = self.opened.entry(address).or_default();
        *opened += 1;
        *opened - 1
    }

    /// Closes paths that nobody uses, once in a while.
    fn sweep(&mut self, now: Instant) {
        if now - self.swept < PATH_IDLE / 10 {
            return;
        }
        self.swept = now;
        for (place, slot) in self.paths.iter_mut().enumerate() {
            if let Some(path) = slot.take_if(|path| now - path.used > PATH_IDLE) {
                // Closing the socket takes it out of epoll.
                self.by_client.remove(&path.client);
                self.free.push(place);
            }
        }
    }
}

/// A socket towards the relay. On loopback any address of 127.0.0.0/8 is this machine's, so the
/// client keeps its own; elsewhere the kernel chooses.
fn socket_for(client: SocketAddr, to: SocketAddr) -> io::Result<UdpSocket> {
    let is_local = client.ip().is_loopback() && to.ip().is_loopback();
    let own = if is_local && client.is_ipv4() == to.is_ipv4() {
        client.ip()
    } else if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((own, 0))?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Impairment;
    use super::*;

    /// Nothing on loopback takes so long.
    const PATIENCE: Duration = Duration::from_secs(10);
    const PACKETS: u16 = 400;

    fn socket(address: &str) -> UdpSocket {
        let socket = UdpSocket::bind(address).expect("a free port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    }

    fn shim(relay: &UdpSocket, conditions: &str, paths_max: usize) -> Shim {
        let to = relay.local_addr().expect("bound");
        let options = ShimOptions {
            listen: SocketAddr::new(to.ip(), 0),
            to,
            conditions: conditions.parse().expect("a specification"),
            seed: 9,
            paths_max,
        };
        Shim::start(options).expect("the shim stands")
    }

    fn wait_until(shim: &Shim, holds: impl Fn(&Totals) -> bool) {
        let begun = Instant::now();
        while !holds(&shim.totals()) {
            assert!(begun.elapsed() < PATIENCE, "{:?}", shim.totals());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The numbers that the model says arrive, copies included.
    fn predicted(client: SocketAddr, way: Way, conditions: &Impairment) -> Vec<u16> {
        let mut fates = Fates::new(9, client, 0, way);
        let mut arrivals = Vec::new();
        for number in 0..PACKETS {
            let fate = fates.draw(conditions);
            let copies = if fate.lost.is_some() {
                0
            } else {
                1 + usize::from(fate.duplicated)
            };
            arrivals.extend(std::iter::repeat_n(number, copies));
        }
        arrivals
    }

    /// Sends the numbers and receives `count` of them meanwhile, as sockets hold few datagrams.
    fn carried(from: &UdpSocket, to: SocketAddr, at: &UdpSocket, count: usize) -> Arrivals {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..PACKETS {
                    from.send_to(&number.to_be_bytes(), to).expect("sent");
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            received(at, count)
        })
    }

    /// The numbers in their order, and who sent the last.
    type Arrivals = (Vec<u16>, SocketAddr);

    fn received(at: &UdpSocket, count: usize) -> Arrivals {
        let mut buffer = [0; 16];
        let mut numbers = Vec::new();
        loop {
            let (length, from) = at.recv_from(&mut buffer).expect("one more arrives");
            let number = buffer[..length].try_into().expect("two bytes");
            numbers.push(u16::from_be_bytes(number));
            if numbers.len() == count {
                return (numbers, from);
            }
        }
    }

    #[test]
    fn real_sockets_deliver_what_the_model_says_both_ways() {
        let text = "none,loss=20%,duplicate=10%,up.burst=10%x3";
        let conditions: Conditions = text.parse().expect("a specification");
        let relay = socket("127.0.0.1:0");
        let shim = shim(&relay, text, 4);
        let client = socket("127.16.0.7:0");
        let at = client.local_addr().expect("bound");

        let expected = predicted(at, Way::Up, &conditions.up);
        let (numbers, path) = carried(&client, shim.local_addr(), &relay, expected.len());
        assert_eq!(numbers, expected);

        let expected = predicted(at, Way::Down, &conditions.down);
        let (numbers, from) = carried(&relay, path, &client, expected.len());
        assert_eq!((numbers, from), (expected, shim.local_addr()));

        let totals = shim.end().expect("it ran");
        for counts in [totals.up, totals.down] {
            assert_eq!(counts.offered, u64::from(PACKETS));
            let lost = counts.lost_random + counts.lost_burst;
            assert_eq!(counts.offered + counts.duplicated, counts.delivered + lost);
        }
        assert!(totals.up.lost_burst > 0 && totals.down.lost_burst == 0);
    }

    #[test]
    fn the_relay_sees_every_client_at_an_address_of_its_own() {
        for (relay, clients) in [
            (
                "127.0.0.1:0",
                ["127.16.0.1:0", "127.16.0.2:0", "127.16.0.2:0"],
            ),
            ("[::1]:0", ["[::1]:0", "[::1]:0", "[::1]:0"]),
        ] {
            let relay = socket(relay);
            let shim = shim(&relay, "none", 4);
            let clients = clients.map(socket);
            let mut seen = std::collections::BTreeSet::new();
            for client in &clients {
                client.send_to(&[0, 1], shim.local_addr()).expect("sent");
                let (_, from) = received(&relay, 1);
                assert_eq!(from.ip(), client.local_addr().expect("bound").ip());
                seen.insert(from);
                relay.send_to(&[0, 2], from).expect("answered");
                assert_eq!(received(client, 1).0, [2]);
            }
            assert_eq!(seen.len(), clients.len());
        }
    }

    #[test]
    fn a_client_beyond_the_bound_is_counted_and_dropped() {
        let relay = socket("127.0.0.1:0");
        let shim = shim(&relay, "none", 1);
        let clients = [socket("127.16.0.1:0"), socket("127.16.0.2:0")];
        for client in &clients {
            client.send_to(&[0, 1], shim.local_addr()).expect("sent");
        }
        wait_until(&shim, |totals| totals.refused == 1);
        let totals = shim.end().expect("it ran");
        assert_eq!((totals.path_count, totals.up.offered), (1, 1));
    }

    #[test]
    fn nothing_arrives_before_its_delay() {
        let relay = socket("127.0.0.1:0");
        let shim = shim(&relay, "none,up.delay=80ms,down.delay=20ms", 1);
        let client = socket("127.16.0.1:0");
        let begun = Instant::now();
        client.send_to(&[0, 1], shim.local_addr()).expect("sent");
        let (_, from) = received(&relay, 1);
        assert!(begun.elapsed() >= Duration::from_millis(80));
        relay.send_to(&[0, 2], from).expect("answered");
        received(&client, 1);
        assert!(begun.elapsed() >= Duration::from_millis(100));
    }

    #[test]
    fn a_relay_that_comes_back_is_reached_again() {
        let relay = socket("127.0.0.1:0");
        let address = relay.local_addr().expect("bound");
        let shim = shim(&relay, "none", 1);
        drop(relay);
        let client = socket("127.16.0.1:0");
        for count in 1..=3 {
            // Each meets a closed port, whose ICMP errors meet the shim's socket.
            client.send_to(&[0, 1], shim.local_addr()).expect("sent");
            wait_until(&shim, |totals| totals.up.offered == count);
        }
        let relay = socket(&address.to_string());
        let begun = Instant::now();
        relay
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("a timeout");
        let mut buffer = [0; 16];
        while relay.recv_from(&mut buffer).is_err() {
            assert!(begun.elapsed() < PATIENCE && shim.runs());
            client.send_to(&[0, 1], shim.local_addr()).expect("sent");
        }
    }

    #[test]
    fn an_address_that_is_taken_is_named() {
        let relay = socket("127.0.0.1:0");
        let taken = relay.local_addr().expect("bound");
        let error = Shim::start(ShimOptions {
            listen: taken,
            to: taken,
            conditions: "none".parse().expect("a specification"),
            seed: 1,
            paths_max: 1,
        });
        let error = error.expect_err("taken").to_string();
        assert!(error.contains(&taken.to_string()), "{error}");
    }

    #[test]
    fn more_clients_than_descriptors_are_refused_with_the_remedy() {
        let error = allow_descriptors(usize::MAX / 2).expect_err("too many");
        assert!(error.to_string().contains("ulimit -Hn"), "{error}");
    }
}
