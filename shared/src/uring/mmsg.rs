//! The plain receive model: `ppoll`, then `recvmmsg` on every readable socket.
//!
//! For hosts on which io_uring is switched off or filtered, behind the same seam as
//! [`super::ring`]. Slots hold as much as the ring's, so both cut the same datagrams. The slots of
//! a kind are shared out between the readable sockets of a pass, from a rotating start, so that a
//! busy socket cannot keep the others from their turn.

#![allow(unsafe_code)]

use super::address::{self, Name};
use super::batch::{Batch, Entry};
use super::control_message::{self, RECEIVE_BYTES};
use super::counters::{IoStats, SocketStats};
use super::region::Region;
use super::syscall::{Interest, check, poll, sharpen_timers};
use super::{
    BATCH_DATAGRAMS_MAX, CLIENT_PAYLOAD_BYTES_MAX, COALESCE_BATCH_MAX, INNER_PAYLOAD_BYTES_MAX,
    Receiver, ReceiverOptions, SOCKETS_MAX, WakeEvent, WorkerSocket, is_permanent,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use std::{array, io, mem, thread};

/// Descriptors of a poll: the sockets, the wake-up, the tasks.
const INTERESTS_MAX: usize = SOCKETS_MAX + 2;

/// The receive model.
pub(crate) struct Mmsg {
    sockets: Rc<[WorkerSocket]>,
    wake: Arc<WakeEvent>,
    tasks: Option<Rc<OwnedFd>>,
    client: Slots,
    /// Present if a socket of the worker asks for large buffers.
    inner: Option<Slots>,
    stats: Vec<SocketStats>,
    first_socket: usize,
    batch: Batch,
    coalesce: Duration,
    spin: bool,
    coalesced: u64,
}

/// Which descriptors a poll found readable.
struct Ready {
    sockets: [bool; SOCKETS_MAX],
    wake: bool,
    tasks: bool,
}

impl Mmsg {
    /// Takes the memory. Sharpens the calling thread's timers, for coalescing sleeps.
    ///
    /// Errors: no memory, or no buffers asked for.
    pub(crate) fn new(options: &ReceiverOptions) -> io::Result<Mmsg> {
        assert!(
            options.sockets.len() <= SOCKETS_MAX,
            "invariant: checked by the worker"
        );
        let has_large = options.sockets.iter().any(|socket| socket.large);
        let slots = |buffers: u16| usize::from(buffers).min(BATCH_DATAGRAMS_MAX);
        let client = Slots::new(slots(options.client_buffers), CLIENT_PAYLOAD_BYTES_MAX)?;
        let inner = || Slots::new(slots(options.inner_buffers), INNER_PAYLOAD_BYTES_MAX);
        let inner = if has_large { Some(inner()?) } else { None };
        let capacity = client.count() + inner.as_ref().map_or(0, Slots::count);
        sharpen_timers();
        Ok(Mmsg {
            sockets: Rc::clone(&options.sockets),
            wake: Arc::clone(&options.wake),
            tasks: options.tasks.clone(),
            client,
            inner,
            stats: vec![SocketStats::default(); options.sockets.len()],
            first_socket: 0,
            batch: Batch::with_capacity(capacity),
            coalesce: options.coalesce,
            spin: options.spin,
            coalesced: 0,
        })
    }

    fn poll(&self, timeout: Duration) -> io::Result<Ready> {
        let socket_count = self.sockets.len();
        let mut interests: [Interest<'_>; INTERESTS_MAX] = array::from_fn(|index| {
            let descriptor: Option<BorrowedFd<'_>> = if index < socket_count {
                Some(self.sockets[index].socket.as_fd())
            } else if index == socket_count {
                Some(self.wake.as_fd())
            } else if index == socket_count + 1 {
                self.tasks.as_ref().map(|tasks| tasks.as_fd())
            } else {
                None
            };
            descriptor.map_or(Interest::NONE, Interest::read)
        });
        poll(&mut interests[..socket_count + 2], Some(timeout))?;
        Ok(Ready {
            sockets: array::from_fn(|index| index < socket_count && interests[index].is_ready()),
            wake: interests[socket_count].is_ready(),
            tasks: interests[socket_count + 1].is_ready(),
        })
    }

    /// Receives from the sockets that are ready, each up to its share of the slots.
    fn receive(&mut self, ready: &Ready) -> io::Result<()> {
        let socket_count = self.sockets.len();
        let readers = |large: bool| {
            let is_reader =
                |index: usize| ready.sockets[index] && self.sockets[index].large == large;
            (0..socket_count).filter(|&index| is_reader(index)).count()
        };
        let client_share = self.client.count() / readers(false).max(1);
        let inner_share = self.inner.as_ref().map_or(0, Slots::count) / readers(true).max(1);
        let (mut client_next, mut inner_next) = (0, 0);
        self.first_socket = (self.first_socket + 1) % socket_count.max(1);
        for offset in 0..socket_count {
            let index = (self.first_socket + offset) % socket_count;
            if !ready.sockets[index] {
                continue;
            }
            let (slots, next, share) = match (self.sockets[index].large, &mut self.inner) {
                (true, Some(inner)) => (inner, &mut inner_next, inner_share.max(1)),
                _ => (&mut self.client, &mut client_next, client_share.max(1)),
            };
            let share = share.min(slots.count() - *next);
            if share == 0 {
                continue;
            }
            match slots.receive(self.sockets[index].socket.as_fd(), *next, share) {
                Ok(count) => {
                    for slot in *next..*next + count {
                        let Some(entry) = slots.entry(slot, index) else {
                            self.stats[index].receive_errors += 1;
                            continue;
                        };
                        self.stats[index].received += 1;
                        self.stats[index].truncated += u64::from(entry.truncated);
                        // SAFETY: the slot is written to by `Slots::receive` only, which runs after
                        // the batch was cleared.
                        unsafe { self.batch.push(entry) };
                    }
                    *next += count;
                }
                Err(error) => note_error(&mut self.stats[index], error)?,
            }
        }
        Ok(())
    }
}

/// Counts what the next datagram is not harmed by; returns an error that would come for ever.
fn note_error(stats: &mut SocketStats, error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(()),
        Some(errno) if is_permanent(errno) => Err(error),
        _ => {
            stats.receive_errors += 1;
            Ok(())
        }
    }
}

impl Receiver for Mmsg {
    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let last_batch = self.batch.len();
        self.batch.clear();
        let ready = self.poll(if self.spin { Duration::ZERO } else { timeout })?;
        if ready.wake {
            self.wake.drain();
        }
        let is_any_socket = ready.sockets.iter().any(|ready| *ready);
        let light = last_batch < COALESCE_BATCH_MAX && !self.spin;
        if is_any_socket && light && !self.coalesce.is_zero() && timeout > self.coalesce {
            self.coalesced += 1;
            thread::sleep(self.coalesce);
        }
        self.receive(&ready)?;
        Ok(ready.tasks)
    }

    fn batch(&self) -> &Batch {
        &self.batch
    }

    fn publish(&self, stats: &mut IoStats) {
        stats.coalesced = self.coalesced;
        for (own, socket) in self.stats.iter().zip(&mut stats.sockets) {
            socket.received = own.received;
            socket.truncated = own.truncated;
            socket.receive_errors = own.receive_errors;
        }
    }
}

/// Equal slots with everything that `recvmmsg` wants beside a payload.
struct Slots {
    payloads: Region,
    payload_bytes: usize,
    names: Vec<Name>,
    controls: Vec<ControlArea>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

/// A control area, aligned as `cmsghdr` wants it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlArea([u8; RECEIVE_BYTES]);

impl Slots {
    fn new(count: usize, payload_bytes: usize) -> io::Result<Slots> {
        // SAFETY: both are C structs of integers and pointers, for which all noughts are valid.
        let (vector, header) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Ok(Slots {
            payloads: Region::new(count * payload_bytes)?,
            payload_bytes,
            names: vec![Name::EMPTY; count],
            controls: vec![ControlArea([0; RECEIVE_BYTES]); count],
            vectors: vec![vector; count],
            headers: vec![header; count],
        })
    }

    fn count(&self) -> usize {
        self.headers.len()
    }

    /// Receives up to `count` datagrams into the slots from `first` on; returns how many.
    fn receive(&mut self, socket: BorrowedFd<'_>, first: usize, count: usize) -> io::Result<usize> {
        let range = first..first + count;
        assert!(range.end <= self.count(), "invariant: within the slots");
        let names = self.names.as_mut_ptr();
        let controls = self.controls.as_mut_ptr();
        let vectors = self.vectors.as_mut_ptr();
        for index in range.clone() {
            let payload = self.payloads.at(index * self.payload_bytes);
            // SAFETY: the assertion keeps `index` inside all three vectors, which are of one
            // length.
            let (name, control, vector) =
                unsafe { (names.add(index), controls.add(index), vectors.add(index)) };
            // SAFETY: in bounds, as shown, and written through no reference.
            unsafe {
                vector.write(libc::iovec {
                    iov_base: payload.as_ptr().cast(),
                    iov_len: self.payload_bytes,
                });
            }
            let header = &mut self.headers[index].msg_hdr;
            header.msg_name = name.cast();
            header.msg_namelen = size_of::<Name>() as libc::socklen_t;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = control.cast();
            header.msg_controllen = RECEIVE_BYTES as _;
            header.msg_flags = 0;
        }
        let headers = &mut self.headers[range];
        // SAFETY: the `count` headers were just filled with pointers to names, control areas,
        // vectors and payload slots of `self`, each with its true length, which live past the call.
        let received = check(unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        })?;
        Ok(usize::try_from(received).expect("invariant: checked above"))
    }

    /// What was received into a slot. `None` if the sender has no IP address.
    fn entry(&self, index: usize, socket: usize) -> Option<Entry> {
        let header = &self.headers[index];
        let control_bytes = RECEIVE_BYTES.min(header.msg_hdr.msg_controllen);
        let payload = self.payloads.at(index * self.payload_bytes);
        Some(Entry {
            payload: payload.as_ptr(),
            payload_bytes: (header.msg_len as usize).min(self.payload_bytes),
            socket,
            from: address::decode(self.names[index].bytes())?,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            ancillary: control_message::decode(&self.controls[index].0[..control_bytes]),
        })
    }
}
