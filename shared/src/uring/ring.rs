//! The io_uring receive model: one wait for everything.
//!
//! A multishot `recvmsg` a socket fills slots of two buffer rings (datagram-size for the clients'
//! side, train-size for the inner leg); a one-shot read of the wake-up eventfd and a one-shot poll
//! of the tasks' descriptor share the wait. A multishot receive ends when the buffers run out, on
//! an ICMP error and after an empty datagram: whatever is found ended is armed again before the
//! next wait, and counted, so no error can leave a socket silent.
//!
//! Buffers are given back at the start of a wait, after the batch that leased them was handled.
//! With `DEFER_TASKRUN` the kernel receives only inside our own wait, so the batch is never raced.
//!
//! Kernel: Linux 6.1 (`DEFER_TASKRUN`; multishot recvmsg is of 6.0, buffer rings of 5.19). Newer
//! features degrade: `NO_SQARRAY` (6.6) is left out, without minimum waits (6.12) nothing
//! coalesces.

#![allow(unsafe_code)]

use super::address::{self, NAME_BYTES};
use super::batch::{Batch, Entry};
use super::buffer_ring::BufferRing;
use super::control_message::{self, RECEIVE_BYTES};
use super::counters::{IoStats, SocketStats};
use super::{
    BATCH_DATAGRAMS_MAX, CLIENT_SLOT_BYTES, COALESCE_BATCH_MAX, INNER_PAYLOAD_BYTES_MAX, Receiver,
    ReceiverOptions, SLOT_HEADER_BYTES, SOCKETS_MAX, is_permanent,
};
use io_uring::types::{CancelBuilder, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, cqueue, opcode, squeue};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::slice;
use std::time::Duration;

/// Submission entries: one a socket, the wake-up, the tasks.
const SUBMISSIONS: u32 = 64;
const _: () = assert!(SOCKETS_MAX + 2 <= SUBMISSIONS as usize);

/// Slot of an inner buffer, in bytes: a whole train behind the header, in whole cache lines.
const INNER_SLOT_BYTES: usize = (SLOT_HEADER_BYTES + INNER_PAYLOAD_BYTES_MAX).next_multiple_of(64);

/// Completions that end a coalescing wait early: more than one poll and one wake-up can bring.
const COALESCE_COMPLETIONS: usize = 64;

/// Ids of the buffer groups.
const CLIENT_GROUP: u16 = 0;
const INNER_GROUP: u16 = 1;

/// User data of the two requests that are no receives; a receive's is its socket's index.
const WAKE: u64 = 1 << 32;
const TASKS: u64 = 2 << 32;

/// `struct io_uring_recvmsg_out` (`linux/io_uring.h`), at the head of a filled slot.
#[repr(C)]
#[derive(Clone, Copy)]
struct RecvMsgOut {
    name_bytes: u32,
    control_bytes: u32,
    payload_bytes: u32,
    flags: u32,
}

const _: () = assert!(size_of::<RecvMsgOut>() + NAME_BYTES + RECEIVE_BYTES == SLOT_HEADER_BYTES);

/// The receive model.
pub(crate) struct Ring {
    instance: Instance,
    client: BufferRing,
    /// Present if a socket of the worker asks for large buffers.
    inner: Option<BufferRing>,
    receives: Vec<Receive>,
    /// What the kernel copies the sizes of name and control area from.
    message: Box<libc::msghdr>,
    wake: Request,
    /// Where the kernel puts the eventfd's count.
    wake_count: Box<u64>,
    tasks: Option<Request>,
    leases: Vec<Lease>,
    batch: Batch,
    coalesce: Duration,
    spin: bool,
    coalesced: u64,
    no_buffers: u64,
}

/// A slot that the batch reads from.
#[derive(Clone, Copy)]
struct Lease {
    large: bool,
    id: u16,
}

/// A one-shot request on a registered file.
struct Request {
    file: Fixed,
    armed: bool,
}

/// The receive side of one socket.
struct Receive {
    file: Fixed,
    large: bool,
    armed: bool,
    stats: SocketStats,
}

impl Ring {
    /// Sets up the ring on the calling thread, which alone may use it.
    ///
    /// Errors: io_uring is not permitted or too old (see [`super::probe`]), no memory, a number of
    /// buffers that is no power of two.
    pub(crate) fn new(options: &ReceiverOptions) -> io::Result<Ring> {
        assert!(
            options.sockets.len() <= SOCKETS_MAX,
            "invariant: checked by the worker"
        );
        let has_large = options.sockets.iter().any(|socket| socket.large);
        let mut client = BufferRing::new(CLIENT_GROUP, options.client_buffers, CLIENT_SLOT_BYTES)?;
        let inner = || BufferRing::new(INNER_GROUP, options.inner_buffers, INNER_SLOT_BYTES);
        let mut inner = if has_large { Some(inner()?) } else { None };

        let buffers = usize::from(options.client_buffers) + usize::from(options.inner_buffers);
        let completions = (buffers + 2 * SUBMISSIONS as usize).next_power_of_two();
        let instance = Instance::new(completions as u32, options.spin)?;
        let mut files: Vec<RawFd> = options
            .sockets
            .iter()
            .map(|socket| socket.socket.as_raw_fd())
            .collect();
        files.push(options.wake.as_raw_fd());
        files.extend(options.tasks.as_ref().map(|tasks| tasks.as_raw_fd()));
        instance.submitter.register_files(&files)?;
        // SAFETY: both rings are fields of the same struct as the instance, which is declared, and
        // so dropped, first.
        unsafe {
            client.register(&instance.submitter)?;
            if let Some(inner) = &mut inner {
                inner.register(&instance.submitter)?;
            }
        }

        let request = |index: usize| Request {
            file: Fixed(index as u32),
            armed: false,
        };
        let receives = options
            .sockets
            .iter()
            .enumerate()
            .map(|(index, socket)| Receive {
                file: Fixed(index as u32),
                large: socket.large,
                armed: false,
                stats: SocketStats::default(),
            });
        let coalesce = if instance.has_minimum_wait() {
            options.coalesce
        } else {
            Duration::ZERO
        };
        Ok(Ring {
            client,
            inner,
            receives: receives.collect(),
            message: Box::new(receive_message()),
            wake: request(options.sockets.len()),
            wake_count: Box::new(0),
            tasks: options
                .tasks
                .as_ref()
                .map(|_| request(options.sockets.len() + 1)),
            leases: Vec::with_capacity(BATCH_DATAGRAMS_MAX),
            batch: Batch::with_capacity(BATCH_DATAGRAMS_MAX),
            coalesce,
            spin: options.spin,
            coalesced: 0,
            no_buffers: 0,
            instance,
        })
    }

    /// Gives the slots of the last batch back.
    fn recycle(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        self.batch.clear();
        for lease in self.leases.drain(..) {
            match (lease.large, &mut self.inner) {
                (true, Some(inner)) => inner.give(lease.id),
                _ => self.client.give(lease.id),
            }
        }
        self.client.publish();
        if let Some(inner) = &self.inner {
            inner.publish();
        }
    }

    /// Submits whatever is not waiting in the kernel.
    fn arm(&mut self) {
        for (index, receive) in self.receives.iter_mut().enumerate() {
            if receive.armed {
                continue;
            }
            receive.armed = true;
            let group = match (receive.large, &self.inner) {
                (true, Some(inner)) => inner.group(),
                _ => self.client.group(),
            };
            let entry = opcode::RecvMsgMulti::new(receive.file, &raw const *self.message, group)
                .build()
                .user_data(index as u64);
            // SAFETY: the message header lives as long as the ring, and holds no pointers; the
            // buffer group is registered.
            unsafe { self.instance.push(&entry) };
        }
        if !mem::replace(&mut self.wake.armed, true) {
            let target = (&raw mut *self.wake_count).cast();
            let entry = opcode::Read::new(self.wake.file, target, size_of::<u64>() as u32)
                .build()
                .user_data(WAKE);
            // SAFETY: the eight bytes are boxed and dropped only after every request is cancelled.
            unsafe { self.instance.push(&entry) };
        }
        if let Some(tasks) = &mut self.tasks
            && !mem::replace(&mut tasks.armed, true)
        {
            let entry = opcode::PollAdd::new(tasks.file, libc::POLLIN as u32)
                .build()
                .user_data(TASKS);
            // SAFETY: a poll carries no pointers.
            unsafe { self.instance.push(&entry) };
        }
    }

    /// Enters the kernel: submits, and waits unless completions are at hand.
    fn enter(&mut self, timeout: Duration, last_batch: usize) -> io::Result<()> {
        if self.instance.has_completions() {
            return Ok(());
        }
        if self.spin {
            return self.instance.spin();
        }
        let light = last_batch < COALESCE_BATCH_MAX;
        let coalesce = light && !self.coalesce.is_zero() && timeout > self.coalesce;
        self.coalesced += u64::from(coalesce);
        self.instance
            .wait(timeout, if coalesce { Some(self.coalesce) } else { None })
    }

    /// Turns completions into the batch. Answers whether the tasks are due.
    fn reap(&mut self) -> io::Result<bool> {
        let mut tasks_due = false;
        while !self.batch.is_full() {
            let Some(completion) = self.instance.next_completion() else {
                break;
            };
            match completion.user_data() {
                WAKE => self.wake.armed = false,
                TASKS => {
                    tasks_due = true;
                    if let Some(tasks) = &mut self.tasks {
                        tasks.armed = false;
                    }
                }
                index => self.receive(index as usize, &completion)?,
            }
        }
        Ok(tasks_due)
    }

    #[inline]
    fn receive(&mut self, index: usize, completion: &cqueue::Entry) -> io::Result<()> {
        let receive = &mut self.receives[index];
        if !cqueue::more(completion.flags()) {
            receive.armed = false;
            receive.stats.rearms += 1;
        }
        let slot = cqueue::buffer_select(completion.flags()).map(|id| {
            self.leases.push(Lease {
                large: receive.large,
                id,
            });
            match (receive.large, &mut self.inner) {
                (true, Some(inner)) => (inner.lease(id), inner.slot_bytes()),
                _ => (self.client.lease(id), self.client.slot_bytes()),
            }
        });
        let Ok(filled) = usize::try_from(completion.result()) else {
            return self.receive_failed(index, -completion.result());
        };
        let entry = slot
            .filter(|_| filled >= SLOT_HEADER_BYTES)
            .and_then(|(slot, slot_bytes)| {
                // SAFETY: the kernel completed the receive into this slot of `slot_bytes`, of which
                // it wrote the header and the payload, and writes no more until it is given back.
                unsafe { decode(index, slot, slot_bytes) }
            });
        match entry {
            Some(entry) => {
                receive.stats.received += 1;
                receive.stats.truncated += u64::from(entry.truncated);
                // SAFETY: the slot is leased above, and given back only after `batch.clear()`.
                unsafe { self.batch.push(entry) };
            }
            None => receive.stats.receive_errors += 1,
        }
        Ok(())
    }

    /// Counts an error that the next datagram is not harmed by; returns one that would come for
    /// ever.
    fn receive_failed(&mut self, index: usize, errno: i32) -> io::Result<()> {
        match errno {
            libc::ENOBUFS => self.no_buffers += 1,
            _ if is_permanent(errno) => return Err(io::Error::from_raw_os_error(errno)),
            _ => self.receives[index].stats.receive_errors += 1,
        }
        Ok(())
    }
}

impl Receiver for Ring {
    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let last_batch = self.batch.len();
        self.recycle();
        self.arm();
        self.enter(timeout, last_batch)?;
        self.reap()
    }

    fn batch(&self) -> &Batch {
        &self.batch
    }

    fn publish(&self, stats: &mut IoStats) {
        stats.coalesced = self.coalesced;
        stats.no_buffers = self.no_buffers;
        for (receive, socket) in self.receives.iter().zip(&mut stats.sockets) {
            socket.received = receive.stats.received;
            socket.truncated = receive.stats.truncated;
            socket.receive_errors = receive.stats.receive_errors;
            socket.rearms = receive.stats.rearms;
        }
    }
}

/// A header without pointers: multishot `recvmsg` takes only the two lengths from it.
fn receive_message() -> libc::msghdr {
    // SAFETY: a C struct of integers and pointers, for which all noughts are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_namelen = NAME_BYTES as libc::socklen_t;
    message.msg_controllen = RECEIVE_BYTES as _;
    message
}

/// Reads what the kernel wrote around a payload. `None` if the sender has no IP address.
///
/// # Safety
///
/// `slot` must point to `slot_bytes` readable bytes, aligned to eight, that the kernel filled and
/// does not write to.
#[inline]
unsafe fn decode(socket: usize, slot: NonNull<u8>, slot_bytes: usize) -> Option<Entry> {
    const NAME: usize = size_of::<RecvMsgOut>();
    const CONTROL: usize = NAME + NAME_BYTES;
    // SAFETY: the caller vouches for the slot, which is longer than the header.
    let out = unsafe { slot.cast::<RecvMsgOut>().read() };
    // SAFETY: the same; a byte array has no alignment.
    let name = unsafe { slot.add(NAME).cast::<[u8; NAME_BYTES]>().as_ref() };
    if out.name_bytes == 0 {
        return None;
    }
    let control_bytes = (out.control_bytes as usize).min(RECEIVE_BYTES);
    // SAFETY: the control area is RECEIVE_BYTES long and precedes the payload.
    let control = unsafe { slice::from_raw_parts(slot.add(CONTROL).as_ptr(), control_bytes) };
    Some(Entry {
        // SAFETY: a slot is longer than its header.
        payload: unsafe { slot.add(SLOT_HEADER_BYTES).as_ptr() },
        payload_bytes: (out.payload_bytes as usize).min(slot_bytes - SLOT_HEADER_BYTES),
        socket,
        from: address::decode(name)?,
        truncated: out.flags & libc::MSG_TRUNC as u32 != 0,
        ancillary: control_message::decode(control),
    })
}

/// An io_uring instance, with a submitter that remembers the registered ring descriptor.
///
/// The crate keeps that registration in the `Submitter`, which borrows the instance; so the
/// instance is boxed, leaked for that borrow, and taken back on drop.
struct Instance {
    submitter: Submitter<'static>,
    ring: NonNull<IoUring>,
}

impl Instance {
    fn new(completions: u32, spin: bool) -> io::Result<Instance> {
        let ring = NonNull::from(Box::leak(Box::new(build(completions, spin)?)));
        // SAFETY: the box was just leaked, so the reference is valid until `drop` takes it back,
        // and only shared references to it are made until then.
        let mut submitter = unsafe { ring.as_ref() }.submitter();
        // Saves a reference count on each entry; kernels before 5.18 go without.
        let _ = submitter.register_ring_fd();
        Ok(Instance { submitter, ring })
    }

    fn ring(&self) -> &IoUring {
        // SAFETY: valid until `drop`, and never borrowed exclusively before.
        unsafe { self.ring.as_ref() }
    }

    fn has_minimum_wait(&self) -> bool {
        self.ring().params().is_feature_min_timeout()
    }

    /// # Safety
    ///
    /// What `entry` points to must stay valid until its completion.
    unsafe fn push(&self, entry: &squeue::Entry) {
        // SAFETY: this is the only submission queue handle, for it is dropped within the statement,
        // and the caller vouches for the entry.
        let pushed = unsafe { self.ring().submission_shared().push(entry) };
        assert!(
            pushed.is_ok(),
            "invariant: the queue holds one entry a socket and two more"
        );
    }

    fn has_completions(&self) -> bool {
        // SAFETY: the only completion queue handle; it is dropped within the statement.
        unsafe { !self.ring().completion_shared().is_empty() }
    }

    #[inline]
    fn next_completion(&self) -> Option<cqueue::Entry> {
        // SAFETY: the only completion queue handle; it is dropped within the statement.
        unsafe { self.ring().completion_shared().next() }
    }

    /// Submits, then sleeps until a completion or `timeout`; with `minimum`, collects completions
    /// for that long first.
    fn wait(&self, timeout: Duration, minimum: Option<Duration>) -> io::Result<()> {
        let timeout = Timespec::from(timeout);
        let args = SubmitArgs::new().timespec(&timeout);
        let entered = match minimum {
            Some(minimum) => {
                let args = args.min_wait_usec(minimum.as_micros() as u32);
                self.submitter.submit_with_args(COALESCE_COMPLETIONS, &args)
            }
            None => self.submitter.submit_with_args(1, &args),
        };
        expected(entered)
    }

    /// Submits, and runs the work that the kernel says it has; never sleeps.
    fn spin(&self) -> io::Result<()> {
        // SAFETY: the only submission queue handle; it is dropped within the block.
        let idle = unsafe {
            let queue = self.ring().submission_shared();
            queue.is_empty() && !queue.taskrun() && !queue.cq_overflow()
        };
        if idle {
            std::hint::spin_loop();
            return Ok(());
        }
        expected(self.submitter.submit_and_wait(0))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Cancelled requests let go of sockets and buffers at once; those of a ring that is merely
        // closed linger until the kernel's clean-up thread comes by. Failures leave it to that.
        let _ = self
            .submitter
            .register_sync_cancel(None, CancelBuilder::any());
        let _ = self.wait(Duration::ZERO, None);
        while self.next_completion().is_some() {}
        let _ = self.submitter.unregister_files();
        let _ = self.submitter.unregister_ring_fd();
        let _closing = super::slices::ring_lifecycle();
        // SAFETY: leaked in `new`, taken back once, here. The submitter, which borrows it, has no
        // drop code and is not used again.
        drop(unsafe { Box::from_raw(self.ring.as_ptr()) });
    }
}

/// A wait that ended by its timeout or a signal is no failure; nor is a full completion queue,
/// which is reaped next, or a kernel short of memory, which is asked again.
fn expected(entered: io::Result<usize>) -> io::Result<()> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

/// Sets up an instance with every flag that the kernel has.
pub(super) fn build(completions: u32, spin: bool) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder
        .setup_cqsize(completions)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun();
    if spin {
        builder.setup_taskrun_flag();
    }
    let _creation = super::slices::ring_lifecycle();
    let newest = builder.clone().setup_no_sqarray().build(SUBMISSIONS);
    match newest {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(SUBMISSIONS),
        other => other,
    }
}
