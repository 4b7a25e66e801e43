//! Batched sends: one `sendmmsg` a socket and flush, trains by `UDP_SEGMENT`.
//!
//! Everything is taken at start: a lane of slots a socket, reused for ever. A payload is borrowed
//! from [`Sends::push`] until the flush, which is synchronous, so the buffers of the received batch
//! may be sent from and recycled right after.
//!
//! One destination's trouble never stops the others: an error is charged to the datagram at the
//! head of the rest, which is retried or given up, and the rest goes on. A full send buffer is
//! waited for, [`WOULD_BLOCK_BUDGET`] a flush, then the rest is dropped and counted. A kernel or
//! device that refuses `UDP_SEGMENT` has its trains cut up here from then on.

#![allow(unsafe_code)]

use super::address::Name;
use super::control_message::Control;
use super::counters::SendStats;
use super::syscall::{Interest, check, poll};
use super::{PathMtu, UdpSocket, WorkerSocket};
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{io, mem, ptr, slice};

/// Slots of a lane: a full lane is flushed. Far below `UIO_MAXIOV` (1,024), `sendmmsg`'s limit, and
/// enough to spread one system call over many datagrams.
const LANE_SLOTS: usize = 256;

/// Longest a flush waits for room in a socket's send buffer, all told.
const WOULD_BLOCK_BUDGET: Duration = Duration::from_millis(1);

/// Most datagrams in a train: `UDP_MAX_SEGMENTS` of `linux/udp.h` before Linux 6.9 doubled it.
const TRAIN_SEGMENTS_MAX: usize = 64;

/// Longest payload of an IPv4 datagram, hence of a train: 65,535 less IP and UDP headers.
const TRAIN_BYTES_MAX: usize = 65_507;

/// One datagram, or one train of equal datagrams, to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Send<'a> {
    /// Index of the socket, in the order in which the worker was given its sockets.
    pub socket: usize,
    /// Destination.
    pub to: SocketAddr,
    /// Local address to send from; `None` leaves it to the route (or the bound address).
    pub from_ip: Option<IpAddr>,
    /// TOS or traffic class byte; nought is the socket's default.
    pub traffic_class: u8,
    /// Cut the payload into datagrams of this many bytes, the last maybe shorter.
    pub segment_bytes: Option<u16>,
    /// How many things of the caller's are in it (records of a train; else 1): what is counted as
    /// lost when it cannot be sent.
    pub item_count: u32,
    /// The bytes.
    pub payload: &'a [u8],
}

/// Who cuts trains up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segmentation {
    /// The kernel or the device (`UDP_SEGMENT`).
    Kernel,
    /// This process, since the kernel refused to on one of the sockets.
    UserSpace,
}

/// The send side of a worker's sockets. Lives as long as the worker.
#[derive(Debug)]
pub struct SendQueue {
    lanes: Vec<Lane>,
}

impl SendQueue {
    /// A queue over a worker's sockets, in their order.
    pub fn new(sockets: &Rc<[WorkerSocket]>) -> SendQueue {
        let lanes = (0..sockets.len()).map(|index| Lane::new(Rc::clone(sockets), index));
        SendQueue {
            lanes: lanes.collect(),
        }
    }

    /// Starts a batch. What is pushed is sent when a lane is full, on [`Sends::flush`] and on drop.
    pub fn begin(&mut self) -> Sends<'_> {
        for lane in &mut self.lanes {
            // A batch that was leaked instead of dropped leaves slots whose payloads are gone.
            lane.slots.clear();
        }
        Sends {
            queue: self,
            payloads: PhantomData,
        }
    }

    /// What became of the datagrams of one socket so far.
    pub fn stats(&self, socket: usize) -> SendStats {
        self.lanes[socket].stats
    }

    /// Who cuts trains up: user space as soon as one socket's trains were refused.
    pub fn segmentation(&self) -> Segmentation {
        let refused = self
            .lanes
            .iter()
            .any(|lane| lane.segmentation == Segmentation::UserSpace);
        if refused {
            Segmentation::UserSpace
        } else {
            Segmentation::Kernel
        }
    }
}

/// A batch of sends that borrows its payloads.
#[derive(Debug)]
pub struct Sends<'a> {
    queue: &'a mut SendQueue,
    payloads: PhantomData<&'a [u8]>,
}

impl<'a> Sends<'a> {
    /// Queues a datagram or a train.
    ///
    /// Panics if the worker has no socket of that index: a bug of the caller.
    #[inline]
    pub fn push(&mut self, send: Send<'a>) {
        self.queue.lanes[send.socket].push(&send);
    }

    /// Sends everything queued. Results are in [`SendQueue::stats`].
    pub fn flush(&mut self) {
        for lane in &mut self.queue.lanes {
            lane.flush();
        }
    }
}

impl Drop for Sends<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// One queued datagram or train, ready for the kernel but for the pointers.
#[derive(Debug, Clone, Copy)]
struct Slot {
    name: Name,
    name_bytes: u32,
    control: Control,
    payload: *const u8,
    payload_bytes: usize,
    /// Nought for a lone datagram.
    segment_bytes: u16,
    /// The caller's items in it.
    item_count: u32,
}

impl Slot {
    fn datagrams(&self) -> u64 {
        match usize::from(self.segment_bytes) {
            0 => 1,
            stride => self.payload_bytes.div_ceil(stride) as u64,
        }
    }
}

/// The send side of one socket.
#[derive(Debug)]
struct Lane {
    sockets: Rc<[WorkerSocket]>,
    index: usize,
    is_v6: bool,
    segmentation: Segmentation,
    is_fragmenting: bool,
    slots: Vec<Slot>,
    /// The datagrams of one refused train.
    pieces: Vec<Slot>,
    headers: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    stats: SendStats,
}

/// What to do about an error at the head of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The call was interrupted, or reported the fate of an earlier datagram.
    Retry,
    /// The send buffer is full.
    WouldBlock,
    /// The train is the trouble, whoever it is for.
    Train,
    /// A segment of this train is longer than its way carries.
    TrainTooWide,
    /// The datagram is longer than its way carries whole.
    TooLong,
    /// The destination is the trouble.
    Unreachable,
    /// The datagram is the trouble.
    Other,
}

impl Refusal {
    fn of(error: &io::Error, is_train: bool) -> Refusal {
        match error.raw_os_error() {
            Some(libc::EINTR) => Refusal::Retry,
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Refusal::WouldBlock,
            Some(libc::EMSGSIZE) if is_train => Refusal::TrainTooWide,
            Some(libc::EMSGSIZE) => Refusal::TooLong,
            Some(libc::EIO | libc::EINVAL | libc::ENOPROTOOPT) if is_train => Refusal::Train,
            Some(
                libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENETDOWN
                | libc::ECONNRESET,
            ) => Refusal::Unreachable,
            _ => Refusal::Other,
        }
    }
}

impl Lane {
    fn new(sockets: Rc<[WorkerSocket]>, index: usize) -> Lane {
        let is_v6 = sockets[index].socket.is_v6();
        // SAFETY: both are C structs of integers and pointers, for which all noughts are valid.
        let (header, vector) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Lane {
            sockets,
            index,
            is_v6,
            segmentation: Segmentation::Kernel,
            is_fragmenting: false,
            slots: Vec::with_capacity(LANE_SLOTS),
            pieces: Vec::with_capacity(TRAIN_SEGMENTS_MAX),
            headers: vec![header; LANE_SLOTS],
            vectors: vec![vector; LANE_SLOTS],
            stats: SendStats::default(),
        }
    }

    fn socket(&self) -> &UdpSocket {
        &self.sockets[self.index].socket
    }

    #[inline]
    fn push(&mut self, send: &Send<'_>) {
        let stride = usize::from(send.segment_bytes.unwrap_or(0));
        if stride == 0 || send.payload.len() <= stride {
            self.push_slot(send, send.payload, 0, send.item_count);
            return;
        }
        match self.segmentation {
            Segmentation::Kernel => {
                let segments = TRAIN_SEGMENTS_MAX.min(TRAIN_BYTES_MAX / stride).max(1);
                let trains = send.payload.chunks(stride * segments);
                let shares = even_shares(send.item_count, trains.len());
                for (train, share) in trains.zip(shares) {
                    let stride = if train.len() > stride { stride } else { 0 };
                    self.push_slot(send, train, stride as u16, share);
                }
            }
            Segmentation::UserSpace => {
                let datagrams = send.payload.chunks(stride);
                let shares = even_shares(send.item_count, datagrams.len());
                for (datagram, share) in datagrams.zip(shares) {
                    self.push_slot(send, datagram, 0, share);
                }
            }
        }
    }

    #[inline]
    fn push_slot(&mut self, send: &Send<'_>, payload: &[u8], segment_bytes: u16, item_count: u32) {
        if self.slots.len() == LANE_SLOTS {
            self.flush();
        }
        let mut slot = Slot {
            name: Name::EMPTY,
            name_bytes: 0,
            control: Control::EMPTY,
            payload: payload.as_ptr(),
            payload_bytes: payload.len(),
            segment_bytes,
            item_count,
        };
        slot.name_bytes = slot.name.set(send.to, self.is_v6);
        if let Some(ip) = send.from_ip {
            slot.control.push_source(ip, self.is_v6);
        }
        if send.traffic_class != 0 {
            let is_v6_path = self.is_v6 && send.to.is_ipv6();
            slot.control
                .push_traffic_class(send.traffic_class, is_v6_path);
        }
        if segment_bytes != 0 {
            slot.control.push_segment(segment_bytes);
        }
        self.slots.push(slot);
    }

    fn flush(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        let mut slots = mem::take(&mut self.slots);
        self.transmit(&mut slots, &mut Patience::new());
        slots.clear();
        self.slots = slots;
    }

    /// Sends `slots` in order. Each is sent or counted as dropped when this returns.
    fn transmit(&mut self, slots: &mut [Slot], patience: &mut Patience) {
        let mut done = 0;
        let mut retried = false;
        while done < slots.len() {
            let rest = &mut slots[done..];
            match self.send_some(rest) {
                Ok(sent) => {
                    self.stats.sent_calls += 1;
                    self.stats.sent_datagrams +=
                        rest[..sent].iter().map(Slot::datagrams).sum::<u64>();
                    done += sent;
                    retried = false;
                }
                Err(error) => {
                    let refusal = Refusal::of(&error, rest[0].segment_bytes != 0);
                    let first_time = !mem::replace(&mut retried, true);
                    if self.is_worth_retrying(refusal, first_time, patience) {
                        continue;
                    }
                    done += self.give_up(refusal, rest, &error, patience);
                    retried = false;
                }
            }
        }
    }

    fn is_worth_retrying(
        &self,
        refusal: Refusal,
        first_time: bool,
        patience: &mut Patience,
    ) -> bool {
        match refusal {
            Refusal::Retry => true,
            // The kernel reports an ICMP error to whichever send comes next, which was not sent
            // for it. Only a second refusal is about this destination.
            Refusal::Unreachable => first_time,
            Refusal::WouldBlock => patience.wait_for_room(self.socket()),
            Refusal::Train | Refusal::TrainTooWide | Refusal::TooLong | Refusal::Other => false,
        }
    }

    /// Deals with the head of `rest`, which will not be sent as it is. Returns how many slots that
    /// settles.
    fn give_up(
        &mut self,
        refusal: Refusal,
        rest: &mut [Slot],
        error: &io::Error,
        patience: &mut Patience,
    ) -> usize {
        let datagrams = rest[0].datagrams();
        let items = u64::from(rest[0].item_count);
        match refusal {
            Refusal::WouldBlock => {
                let all = rest.iter().map(Slot::datagrams).sum::<u64>();
                self.stats.dropped_would_block += all;
                self.stats.items_blocked += rest
                    .iter()
                    .map(|slot| u64::from(slot.item_count))
                    .sum::<u64>();
                return rest.len();
            }
            Refusal::Unreachable => {
                self.stats.dropped_refused += datagrams;
                self.stats.items_failed += items;
            }
            Refusal::Train => {
                self.refuse_segmentation(error);
                self.transmit_pieces(&rest[0], patience);
            }
            Refusal::TrainTooWide => {
                self.stats.segmentation_refused += 1;
                self.transmit_pieces(&rest[0], patience);
            }
            Refusal::TooLong if self.can_fragment() => {
                self.transmit_fragmented(rest[0], patience);
            }
            Refusal::Retry | Refusal::TooLong | Refusal::Other => {
                self.stats.dropped_other += datagrams;
                self.stats.items_failed += items;
            }
        }
        1
    }

    fn refuse_segmentation(&mut self, error: &io::Error) {
        self.stats.segmentation_refused += 1;
        if self.segmentation == Segmentation::Kernel {
            self.segmentation = Segmentation::UserSpace;
            tracing::warn!(
                address = %self.socket().local_addr(), %error,
                "UDP_SEGMENT was refused: trains are cut up in this process from here on, at a \
                 higher cost a datagram; check the device's checksum offload (`ethtool -k`)"
            );
        }
    }

    /// Whether a datagram that was refused whole has another chance.
    fn can_fragment(&self) -> bool {
        self.socket().path_mtu() == PathMtu::Discover && !self.is_fragmenting
    }

    /// Sends one datagram with fragments allowed. The socket is this thread's alone to send on, so
    /// the option concerns no other datagram.
    fn transmit_fragmented(&mut self, mut slot: Slot, patience: &mut Patience) {
        self.is_fragmenting = true;
        let sent_before = self.stats.sent_datagrams;
        let allowed = self.socket().allow_fragments(true);
        self.transmit(slice::from_mut(&mut slot), patience);
        let forbidden = self.socket().allow_fragments(false);
        self.is_fragmenting = false;
        self.stats.fragmented += self.stats.sent_datagrams - sent_before;
        if let Err(error) = allowed.and(forbidden) {
            tracing::warn!(address = %self.socket().local_addr(), %error, "IP_MTU_DISCOVER");
        }
    }

    /// Sends the datagrams of a refused train by themselves.
    fn transmit_pieces(&mut self, train: &Slot, patience: &mut Patience) {
        let stride = usize::from(train.segment_bytes);
        let mut pieces = mem::take(&mut self.pieces);
        let mut offset = 0;
        let pieces_count = train.payload_bytes.div_ceil(stride);
        for share in even_shares(train.item_count, pieces_count) {
            let mut piece = *train;
            piece.segment_bytes = 0;
            piece.item_count = share;
            piece.control.pop_segment();
            // SAFETY: `offset` is less than the train's length, so this stays inside its payload.
            piece.payload = unsafe { train.payload.add(offset) };
            piece.payload_bytes = stride.min(train.payload_bytes - offset);
            offset += piece.payload_bytes;
            pieces.push(piece);
        }
        self.transmit(&mut pieces, patience);
        pieces.clear();
        self.pieces = pieces;
    }

    /// One `sendmmsg` over `slots`; returns how many of them, from the first, were sent.
    fn send_some(&mut self, slots: &[Slot]) -> io::Result<usize> {
        let count = slots.len().min(LANE_SLOTS);
        let vectors = self.vectors.as_mut_ptr();
        for (index, slot) in slots[..count].iter().enumerate() {
            let control = slot.control.area();
            // SAFETY: `index` is less than LANE_SLOTS, the length of `vectors`.
            let vector = unsafe { vectors.add(index) };
            // SAFETY: `vector` was shown to be in bounds, and is written through no reference.
            unsafe {
                vector.write(libc::iovec {
                    iov_base: slot.payload.cast_mut().cast(),
                    iov_len: slot.payload_bytes,
                });
            }
            let header = &mut self.headers[index].msg_hdr;
            header.msg_name = slot.name.bytes().as_ptr().cast_mut().cast();
            header.msg_namelen = slot.name_bytes;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = if control.is_empty() {
                ptr::null_mut()
            } else {
                control.as_ptr().cast_mut().cast()
            };
            header.msg_controllen = control.len() as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let descriptor = self.socket().as_fd().as_raw_fd();
        // SAFETY: the first `count` headers were just filled with pointers to names, control areas
        // and vectors that live in `slots` and `self` past the call, and to payloads that `Sends`
        // borrows until its flush ends. For a send the kernel only reads through them.
        let sent = check(unsafe {
            libc::sendmmsg(descriptor, self.headers.as_mut_ptr(), count as u32, flags)
        })?;
        // A call for one or more datagrams that sends none reports an error instead.
        Ok(usize::try_from(sent).expect("invariant: checked above"))
    }
}

/// How the items of a train are taken to lie in its pieces: this layer does not know, and only a
/// piece that is lost ever asks.
fn even_shares(item_count: u32, pieces_count: usize) -> impl Iterator<Item = u32> {
    let share_up_to = move |piece: usize| {
        (u64::from(item_count) * piece as u64 / pieces_count.max(1) as u64) as u32
    };
    (0..pieces_count).map(move |piece| share_up_to(piece + 1) - share_up_to(piece))
}

/// How much longer a flush may wait for a full send buffer.
struct Patience {
    started: Option<Instant>,
}

impl Patience {
    fn new() -> Patience {
        Patience { started: None }
    }

    /// Waits until the socket takes more; `false` once the flush's budget is spent.
    fn wait_for_room(&mut self, socket: &UdpSocket) -> bool {
        let started = *self.started.get_or_insert_with(Instant::now);
        let left = WOULD_BLOCK_BUDGET.saturating_sub(started.elapsed());
        if left.is_zero() {
            return false;
        }
        let mut interests = [Interest::write(socket.as_fd())];
        poll(&mut interests, Some(left)).is_ok() && interests[0].is_ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::syscall::set_option;
    use crate::uring::{UdpOptions, open_udp};
    use std::net::{Ipv4Addr, UdpSocket as Peer};

    fn queue(bind: &str) -> (Rc<[WorkerSocket]>, SendQueue) {
        let socket = open_udp(&UdpOptions::new(bind.parse().unwrap())).unwrap();
        let sockets: Rc<[WorkerSocket]> = vec![WorkerSocket {
            socket,
            large: false,
        }]
        .into();
        let queue = SendQueue::new(&sockets);
        (sockets, queue)
    }

    fn peer() -> (Peer, SocketAddr) {
        let peer = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let address = peer.local_addr().unwrap();
        (peer, address)
    }

    fn plain(to: SocketAddr, payload: &[u8]) -> Send<'_> {
        Send {
            socket: 0,
            to,
            from_ip: None,
            traffic_class: 0,
            segment_bytes: None,
            item_count: 1,
            payload,
        }
    }

    fn receive(peer: &Peer) -> Vec<u8> {
        let mut buffer = [0; 2048];
        let length = peer.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    }

    #[test]
    fn a_lane_flushes_itself_when_full_and_the_rest_on_drop() {
        let (_sockets, mut queue) = queue("127.0.0.1:0");
        let (peer, to) = peer();
        set_option(
            peer.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            8 << 20,
        )
        .unwrap();
        let payloads: Vec<[u8; 4]> = (0..600u32).map(u32::to_be_bytes).collect();
        let mut sends = queue.begin();
        for payload in &payloads[..=LANE_SLOTS] {
            sends.push(plain(to, payload));
        }
        assert_eq!(
            receive(&peer),
            payloads[0],
            "sent before any flush was asked for"
        );
        for payload in &payloads[LANE_SLOTS + 1..] {
            sends.push(plain(to, payload));
        }
        drop(sends);
        for payload in &payloads[1..] {
            assert_eq!(receive(&peer), payload);
        }
        assert_eq!(queue.stats(0).sent_datagrams, 600);
        assert_eq!(queue.stats(0).sent_calls, 3);
        assert_eq!(queue.stats(0).dropped(), 0);
    }

    #[test]
    fn an_error_left_by_one_destination_costs_no_other_its_datagram() {
        let (sockets, mut queue) = queue("127.0.0.1:0");
        let own = sockets[0].socket.as_fd();
        set_option(own, libc::IPPROTO_IP, libc::IP_RECVERR, 1).unwrap();
        let (peer, to) = peer();
        let closed = Peer::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap();
        for round in 0..20u8 {
            let payload = [round];
            let mut sends = queue.begin();
            sends.push(plain(closed, b"nobody"));
            sends.push(plain(to, &payload));
            sends.flush();
            drop(sends);
            assert_eq!(receive(&peer), payload);
        }
        assert_eq!(queue.stats(0).sent_datagrams, 40);
        assert_eq!(queue.stats(0).dropped(), 0);
    }

    #[test]
    fn an_unreachable_destination_is_dropped_and_counted_and_the_rest_goes_on() {
        let (_sockets, mut queue) = queue("127.0.0.1:0");
        let (peer, to) = peer();
        let mut sends = queue.begin();
        // A socket bound to loopback has no way to the outside.
        sends.push(plain("203.0.113.1:9".parse().unwrap(), b"far"));
        sends.push(plain("127.0.0.1:0".parse().unwrap(), b"port nought"));
        sends.push(plain(to, b"near"));
        drop(sends);
        assert_eq!(receive(&peer), b"near");
        let stats = queue.stats(0);
        assert_eq!(stats.sent_datagrams, 1);
        assert_eq!(stats.dropped(), 2, "{stats:?}");
        assert_eq!(stats.items_failed, 2);
    }

    #[test]
    fn a_datagram_longer_than_udp_carries_is_dropped_alone() {
        let (_sockets, mut queue) = queue("127.0.0.1:0");
        let (peer, to) = peer();
        let long = vec![0; 70_000];
        let mut sends = queue.begin();
        sends.push(plain(to, &long));
        sends.push(plain(to, b"short"));
        drop(sends);
        assert_eq!(receive(&peer), b"short");
        assert_eq!(queue.stats(0).dropped_other, 1);
    }

    #[test]
    fn refused_segmentation_is_done_here_from_then_on() {
        let (sockets, mut queue) = queue("127.0.0.1:0");
        // Linux refuses UDP_SEGMENT with EINVAL on a socket that sends without checksums.
        set_option(
            sockets[0].socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            1,
        )
        .unwrap();
        let (peer, to) = peer();
        let payload: Vec<u8> = (0..10).flat_map(|index| [index; 100]).collect();
        for round in 1..=2 {
            let mut send = plain(to, &payload[..950]);
            send.segment_bytes = Some(100);
            send.item_count = 20;
            queue.begin().push(send);
            for expected in payload[..950].chunks(100) {
                assert_eq!(receive(&peer), expected);
            }
            assert_eq!(queue.segmentation(), Segmentation::UserSpace);
            assert_eq!(
                queue.stats(0).segmentation_refused,
                1,
                "refused once, never asked again"
            );
            assert_eq!(queue.stats(0).sent_datagrams, 10 * round);
        }
        assert_eq!(queue.stats(0).dropped(), 0);
    }

    #[test]
    fn a_train_with_more_datagrams_than_the_kernel_takes_goes_in_several() {
        let (_sockets, mut queue) = queue("127.0.0.1:0");
        let (peer, to) = peer();
        let payload: Vec<u8> = (0..150u8).flat_map(|index| [index; 10]).collect();
        let mut send = plain(to, &payload);
        send.segment_bytes = Some(10);
        queue.begin().push(send);
        for expected in payload.chunks(10) {
            assert_eq!(receive(&peer), expected);
        }
        assert_eq!(queue.segmentation(), Segmentation::Kernel);
        assert_eq!(queue.stats(0).sent_datagrams, 150);
    }

    #[test]
    fn a_train_too_wide_for_its_way_is_cut_here_without_giving_up_on_segmentation() {
        let (sockets, mut queue) = queue("[::1]:0");
        set_option(
            sockets[0].socket.as_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU,
            1280,
        )
        .unwrap();
        let peer = Peer::bind("[::1]:0").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let payload: Vec<u8> = (0..4u8).flat_map(|index| [index; 1_400]).collect();
        let mut send = plain(peer.local_addr().unwrap(), &payload);
        send.segment_bytes = Some(1_400);
        send.item_count = 8;
        queue.begin().push(send);
        for expected in payload.chunks(1_400) {
            assert_eq!(receive(&peer), expected);
        }
        assert_eq!(queue.segmentation(), Segmentation::Kernel);
        let stats = queue.stats(0);
        assert_eq!((stats.sent_datagrams, stats.segmentation_refused), (4, 1));
        assert_eq!((stats.dropped(), stats.items_failed), (0, 0));
    }

    #[test]
    fn a_leaked_batch_is_forgotten_rather_than_sent_from_freed_memory() {
        let (_sockets, mut queue) = queue("127.0.0.1:0");
        let (peer, to) = peer();
        {
            let payload = vec![1; 10];
            let mut sends = queue.begin();
            sends.push(plain(to, &payload));
            mem::forget(sends);
        }
        queue.begin().push(plain(to, b"kept"));
        assert_eq!(receive(&peer), b"kept");
    }

    #[test]
    fn errors_are_charged_to_whom_they_belong() {
        let of = |errno, is_train| Refusal::of(&io::Error::from_raw_os_error(errno), is_train);
        assert_eq!(of(libc::EAGAIN, false), Refusal::WouldBlock);
        assert_eq!(of(libc::ECONNREFUSED, true), Refusal::Unreachable);
        assert_eq!(of(libc::EIO, true), Refusal::Train);
        assert_eq!(of(libc::EIO, false), Refusal::Other);
        assert_eq!(of(libc::EMSGSIZE, true), Refusal::TrainTooWide);
        assert_eq!(of(libc::EMSGSIZE, false), Refusal::TooLong);
        assert_eq!(of(libc::EPERM, false), Refusal::Other);
        assert_eq!(of(libc::EINTR, true), Refusal::Retry);
    }

    #[test]
    fn shares_are_even_and_add_up() {
        assert_eq!(even_shares(10, 4).collect::<Vec<_>>(), [2, 3, 2, 3]);
        assert_eq!(even_shares(1, 3).sum::<u32>(), 1);
        assert_eq!(even_shares(5, 0).count(), 0);
    }
}
