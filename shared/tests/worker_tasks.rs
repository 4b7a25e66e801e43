//! Tasks of a worker beside its packets: a link over a Unix stream served by a task, under UDP
//! load, on both receive models; and what is left of a worker once it is gone.

#![cfg(feature = "driver")]

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::UnixStream;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as Peer};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};
use syrinx_shared::route::Now;
use syrinx_shared::uring::{
    Batch, IoModel, IoStats, Send, SendQueue, Slices, UdpOptions, WorkerSocket, open_udp,
};
use syrinx_shared::worker::{Service, WorkerContext, WorkerHandle, WorkerOptions, spawn};

const MODELS: [IoModel; 2] = [IoModel::Ring, IoModel::Mmsg];
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages that the link echoes before the task reports itself done.
const ROUNDS: u32 = 200;

/// What the service tells the test.
#[derive(Debug)]
enum Report {
    /// The slowest round trip over the link.
    LinkDone(Duration),
    Last(Box<IoStats>),
}

/// What the test tells the service.
#[derive(Debug)]
enum Order {
    /// Connect to this path and play ping-pong.
    Link(PathBuf),
    /// Start a task that panics.
    PanickingTask,
}

/// Echoes datagrams, and keeps links in tasks.
struct Linked {
    slices: Slices,
    done: Rc<RefCell<Vec<Duration>>>,
    reports: Sender<Report>,
}

impl Service for Linked {
    type Message = Order;

    fn handle_datagrams(&mut self, _now: Now, batch: &Batch, queue: &mut SendQueue) {
        let mut sends = queue.begin();
        for received in batch.iter() {
            sends.push(Send {
                socket: received.socket,
                to: received.from,
                from_ip: None,
                traffic_class: 0,
                segment_bytes: None,
                item_count: 1,
                payload: received.payload,
            });
        }
    }

    fn handle_message(&mut self, _now: Now, order: Order, _queue: &mut SendQueue) {
        let spawned = match order {
            Order::Link(path) => {
                let done = Rc::clone(&self.done);
                let slices = self.slices.clone();
                self.slices.spawn("link", async move {
                    let slowest = play(&slices, &path).await.unwrap();
                    done.borrow_mut().push(slowest);
                })
            }
            Order::PanickingTask => self.slices.spawn("doomed", async { panic!("in a task") }),
        };
        spawned.unwrap();
    }

    fn handle_timeout(&mut self, _now: Now, _queue: &mut SendQueue) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_tasks(&mut self, _now: Now, _queue: &mut SendQueue) {
        for slowest in self.done.borrow_mut().drain(..) {
            let _ = self.reports.send(Report::LinkDone(slowest));
        }
    }

    fn handle_second(&mut self, _now: Now, io: &IoStats) {
        let _ = self.reports.send(Report::Last(Box::new(io.clone())));
    }

    fn handle_stop(&mut self, _now: Now, _queue: &mut SendQueue) {}
}

/// Connects and plays [`ROUNDS`] rounds of ping-pong, with a pause after each.
async fn play(slices: &Slices, path: &Path) -> Result<Duration, io::Error> {
    let mut stream = UnixStream::connect(path).await.map_err(io::Error::other)?;
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(&round.to_be_bytes()).await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        assert_eq!(answer, round.to_be_bytes());
        slowest = slowest.max(start.elapsed());
        slices
            .sleep_until(Instant::now() + Duration::from_millis(1))
            .await;
    }
    Ok(slowest)
}

fn start(model: IoModel, reports: Sender<Report>) -> (WorkerHandle<Order>, SocketAddr) {
    let mut options = UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into());
    options.receive_buffer_bytes = 16 << 20;
    let socket = open_udp(&options).unwrap();
    let address = socket.local_addr();
    let socket = WorkerSocket {
        socket,
        large: false,
    };
    let mut options = WorkerOptions::new("linked", vec![socket]);
    options.io_model = model;
    options.tasks_max = 16;
    let build = move |context: &WorkerContext| Linked {
        slices: context.slices().expect("tasks were asked for").clone(),
        done: Rc::default(),
        reports,
    };
    (spawn(options, build).unwrap(), address)
}

/// Answers every message on the first connection, until it closes.
fn echo_backend(listener: UnixListener) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut message = [0; 4];
        while stream.read_exact(&mut message).is_ok() {
            if stream.write_all(&message).is_err() {
                break;
            }
        }
    })
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Links of a worker at a time.
const LINKS: usize = 4;

/// Runs one worker with [`LINKS`] links and a panicking task while a client keeps it busy.
fn exercise(model: IoModel, folder: &Path) {
    let (reports, receiver) = channel();
    let (handle, address) = start(model, reports);
    let mut backends = Vec::new();
    for index in 0..LINKS {
        let path = folder.join(index.to_string());
        backends.push(echo_backend(UnixListener::bind(&path).unwrap()));
        handle.send(Order::Link(path)).unwrap();
    }
    handle.send(Order::PanickingTask).unwrap();
    let client = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let (mut echoed, mut links_done) = (0u32, 0);
    while links_done < LINKS {
        for _ in 0..16 {
            client.send_to(&echoed.to_be_bytes(), address).unwrap();
            let mut buffer = [0; 8];
            let length = client.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], echoed.to_be_bytes());
            echoed += 1;
        }
        if let Ok(Report::LinkDone(slowest)) = receiver.try_recv() {
            // A loop that forgot its tasks would move them only with the second's counters.
            assert!(slowest < Duration::from_millis(500), "{model}: {slowest:?}");
            links_done += 1;
        }
        assert!(
            Instant::now() < deadline,
            "{model}: the links never finished"
        );
    }
    handle.stop();
    handle.join().unwrap();
    backends
        .into_iter()
        .for_each(|backend| backend.join().unwrap());
    let last = receiver.try_iter().filter_map(|report| match report {
        Report::Last(stats) => Some(stats),
        Report::LinkDone(_) => None,
    });
    let last = last.last().unwrap();
    assert_eq!(last.task_panics, 1, "{model}");
    assert_eq!(last.received(), u64::from(echoed), "{model}");
    let messages = u64::from(ROUNDS) * LINKS as u64;
    assert!(
        last.slices > 0 && last.slices < 10 * messages,
        "{model}: {last:?}"
    );
}

// One test, because it counts the descriptors of the whole process.
#[test]
fn links_and_packets_share_each_of_several_workers_and_nothing_of_them_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let before = open_descriptors();
    for model in MODELS {
        thread::scope(|scope| {
            for worker in 0..3 {
                let folder = folder.path().join(format!("{model}-{worker}"));
                fs::create_dir(&folder).unwrap();
                scope.spawn(move || exercise(model, &folder));
            }
        });
    }
    // The executor's helper thread closes its descriptors when it notices, a moment later.
    let deadline = Instant::now() + PATIENCE;
    while open_descriptors() > before {
        let open = open_descriptors();
        assert!(
            Instant::now() < deadline,
            "{open} descriptors, {before} before"
        );
        thread::sleep(Duration::from_millis(10));
    }
}
