//! What strangers do to the signalling address does nothing to a call that is open: its media goes
//! by other sockets, on other threads.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use syrinx_bench::process::edge::{Edge, EdgeOptions};
use syrinx_bench::process::http_get;

use crate::softphone::Softphone;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// A second of speech.
const SECOND: usize = 50;
const HUGE_BYTES: usize = 50 << 20;

fn start() -> Edge {
    let options = EdgeOptions {
        address: HERE,
        workers: 1,
    };
    Edge::start(options).unwrap()
}

fn signalling(edge: &Edge) -> SocketAddr {
    SocketAddr::new(HERE, edge.ports.signalling)
}

fn call(edge: &Edge) -> Softphone {
    let free = UdpSocket::bind((HERE, 0)).unwrap();
    let local = free.local_addr().unwrap();
    drop(free);
    Softphone::call(local, signalling(edge))
}

/// Speaks until `count` more packets were heard, none of which was preceded by a lost one.
fn converse(phone: &mut Softphone, count: usize) {
    phone.hear_itself(count);
    let lost = phone.heard.windows(2).filter(|pair| pair[1] != pair[0] + 1);
    assert_eq!(lost.count(), 0, "{:?}", phone.heard);
}

fn connect(to: SocketAddr) -> Option<TcpStream> {
    // Beyond the backlog the kernel answers nobody.
    TcpStream::connect_timeout(&to, Duration::from_millis(50)).ok()
}

/// Waits until the signalling address serves whoever comes next.
fn wait_until_served(edge: &Edge) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match http_get(signalling(edge), "/app.js") {
            Ok((200, _)) => return,
            other => assert!(Instant::now() < deadline, "not served again: {other:?}"),
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Sends heads that never end, a byte at a time, for as long as the server listens.
fn drip(to: SocketAddr, count: usize) {
    let mut streams: Vec<_> = (0..count).filter_map(|_| connect(to)).collect();
    for byte in b"POST /v1/realtime/calls HTTP/1.1\r\nx-slow: y"
        .iter()
        .cycle()
    {
        streams.retain_mut(|stream| stream.write_all(&[*byte]).is_ok());
        if streams.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Sends 50 MB, and returns how many bytes of it were taken and what was answered.
fn send_huge(to: SocketAddr, head: &str) -> (usize, String) {
    let mut stream = TcpStream::connect(to).unwrap();
    let wait = Some(Duration::from_secs(30));
    stream.set_read_timeout(wait).unwrap();
    stream.set_write_timeout(wait).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", "a".repeat(0x1_0000));
    let mut sent = 0;
    while sent < HUGE_BYTES && stream.write_all(chunk.as_bytes()).is_ok() {
        sent += chunk.len();
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    (sent, String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn slow_and_greedy_strangers_do_nothing_to_a_call() {
    let edge = start();
    let mut phone = call(&edge);
    converse(&mut phone, SECOND);
    let to = signalling(&edge);

    let head = "POST /v1/realtime/calls HTTP/1.1\r\nhost: x\r\ncontent-type: application/sdp\r\n";
    let announced = format!("{head}content-length: {HUGE_BYTES}\r\n\r\n");
    let (sent, answer) = send_huge(to, &announced);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 413"),
        "{answer}"
    );
    assert!(sent < HUGE_BYTES / 4, "refused by its head alone: {sent}");
    let (sent, _) = send_huge(to, &format!("{head}transfer-encoding: chunked\r\n\r\n"));
    assert!(sent < HUGE_BYTES / 4, "refused at the limit: {sent}");

    thread::scope(|scope| {
        let slow = scope.spawn(|| drip(to, 200));
        while !slow.is_finished() {
            converse(&mut phone, SECOND / 2);
            converse(&mut call(&edge), SECOND / 5);
        }
    });
    converse(&mut phone, SECOND / 2);
}

#[test]
fn a_process_without_descriptors_keeps_its_calls_and_takes_others_when_it_has_some_again() {
    let edge = start();
    let mut phone = call(&edge);
    converse(&mut phone, SECOND);
    let pid = edge.transceiver.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let before = limit_files(pid, open + 4);
    let crowd: Vec<_> = (0..32).filter_map(|_| connect(signalling(&edge))).collect();
    assert_eq!(crowd.len(), 32, "the kernel takes them; the process cannot");
    converse(&mut phone, 2 * SECOND);
    let said = edge.transceiver.log();
    let complaint = |line: &String| line.contains("cannot accept a connection; pausing");
    assert!(said.iter().any(complaint), "{said:?}");

    drop(crowd);
    limit_files(pid, before);
    wait_until_served(&edge);
    converse(&mut call(&edge), SECOND / 2);
    converse(&mut phone, SECOND / 2);
}

/// Limits how many files a process may have open, and returns its former limit.
fn limit_files(pid: u32, count: usize) -> usize {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = line.unwrap().split_whitespace().nth(3).unwrap();
    let status = Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--nofile={count}:")])
        .status();
    assert!(status.unwrap().success(), "prlimit is of util-linux");
    soft.parse().unwrap()
}
