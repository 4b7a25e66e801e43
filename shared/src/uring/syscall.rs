//! The system calls that `std` does not wrap, each behind a safe function on borrowed descriptors.
//!
//! Nothing is decided here: sizes are checked, results become `io::Error`. The calls that carry
//! pointers into packet memory are beside that memory, in [`super::mmsg`], [`super::send`] and
//! [`super::buffer_ring`].

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Turns the C convention (-1 and errno) into a result.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A descriptor that the kernel just gave us.
fn own(result: libc::c_int) -> io::Result<OwnedFd> {
    let descriptor = check(result)?;
    // SAFETY: the kernel returned this descriptor to this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// `socket(2)` for UDP, close-on-exec.
pub(crate) fn udp_socket(is_v6: bool) -> io::Result<OwnedFd> {
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no pointers are passed.
    own(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

/// `bind(2)` to a name of `length` bytes.
pub(crate) fn bind(socket: BorrowedFd<'_>, name: &[u8], length: u32) -> io::Result<()> {
    assert!(
        length as usize <= name.len(),
        "invariant: the name is as long as it says"
    );
    // SAFETY: the kernel reads `length` bytes of `name`, which is at least that long.
    check(unsafe { libc::bind(socket.as_raw_fd(), name.as_ptr().cast(), length) }).map(drop)
}

/// `setsockopt(2)` of an int.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: the kernel reads `length` bytes from a live int of as many.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) }).map(drop)
}

/// Attaches a classic BPF program that chooses among the sockets of a reuseport group.
pub(crate) fn attach_reuseport_filter(
    socket: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let length = u16::try_from(program.len()).expect("invariant: a program of ours is short");
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the header and, through it, `len` instructions that both outlive the
    // call; it copies and verifies them, and keeps no pointer.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// `getsockopt(2)` of an int.
pub(crate) fn int_option(socket: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<i32> {
    let mut values = [0i32; 1];
    option_words(socket, level, option, &mut values).map(|_| values[0])
}

/// `getsockopt(2)` of an array of 32-bit words; returns how many the kernel wrote.
pub(crate) fn option_words(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    words: &mut [i32],
) -> io::Result<usize> {
    let mut length = size_of_val(words) as libc::socklen_t;
    let target = words.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes to `target`, which has room for them.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, target, &raw mut length) })?;
    Ok(length as usize / size_of::<i32>())
}

/// A close-on-exec eventfd with a count of nought.
///
/// Blocking on purpose: io_uring answers a read of a non-blocking one with `EAGAIN` instead of
/// keeping it until the count rises.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })
}

/// Adds one to an eventfd. It can only fail on a descriptor that is no eventfd.
pub(crate) fn eventfd_write(event: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: the kernel reads eight bytes from a live integer of eight bytes.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
}

/// Takes the count out of an eventfd; blocks while there is none.
pub(crate) fn eventfd_read(event: BorrowedFd<'_>) {
    let mut count = 0u64;
    // SAFETY: the kernel writes eight bytes to a live integer of eight bytes.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
}

/// One descriptor to poll.
#[repr(transparent)]
pub(crate) struct Interest<'a> {
    entry: libc::pollfd,
    descriptor: PhantomData<BorrowedFd<'a>>,
}

impl<'a> Interest<'a> {
    /// Wait for nothing: poll passes negative descriptors over.
    pub(crate) const NONE: Interest<'static> = Interest {
        entry: libc::pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        },
        descriptor: PhantomData,
    };

    /// Wait until it can be read.
    pub(crate) fn read(descriptor: BorrowedFd<'a>) -> Interest<'a> {
        Interest::new(descriptor.as_raw_fd(), libc::POLLIN)
    }

    /// Wait until it can be written.
    pub(crate) fn write(descriptor: BorrowedFd<'a>) -> Interest<'a> {
        Interest::new(descriptor.as_raw_fd(), libc::POLLOUT)
    }

    fn new(descriptor: RawFd, events: libc::c_short) -> Interest<'a> {
        let entry = libc::pollfd {
            fd: descriptor,
            events,
            revents: 0,
        };
        Interest {
            entry,
            descriptor: PhantomData,
        }
    }

    /// Whether the last poll found it ready, closed or in error: a call will tell which.
    pub(crate) fn is_ready(&self) -> bool {
        self.entry.revents != 0
    }
}

/// `ppoll(2)`: waits until one of the interests is ready, or for `timeout` (for ever without one).
///
/// A signal ends the wait as if nothing were ready.
pub(crate) fn poll(interests: &mut [Interest<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = interests.len() as libc::nfds_t;
    // SAFETY: `Interest` is transparent over pollfd; the kernel reads and writes `count` of them,
    // and reads the timeout, which lives until the call returns.
    let result =
        check(unsafe { libc::ppoll(interests.as_mut_ptr().cast(), count, timeout, ptr::null()) });
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => {
            for interest in interests {
                interest.entry.revents = 0;
            }
            Ok(())
        }
        other => other.map(drop),
    }
}

/// A duration in the kernel's form, held to what fits.
pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos().cast_signed()),
    }
}

/// Makes the calling thread's sleeps end within a microsecond of their time instead of fifty.
pub(crate) fn sharpen_timers() {
    const SLACK_NS: libc::c_ulong = 1_000;
    // SAFETY: this option takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

/// Opens an epoll descriptor.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// What epoll watches for, or has seen: `struct epoll_event` of sys/epoll.h.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct EpollEvent(libc::epoll_event);

impl Default for EpollEvent {
    fn default() -> EpollEvent {
        EpollEvent::new(0, 0)
    }
}

impl EpollEvent {
    fn new(events: libc::c_int, token: u64) -> EpollEvent {
        EpollEvent(libc::epoll_event {
            events: events as u32,
            u64: token,
        })
    }

    /// As long as there is something to read.
    pub(crate) fn level_read(token: u64) -> EpollEvent {
        EpollEvent::new(libc::EPOLLIN, token)
    }

    /// Each time that a stream becomes readable or writable, or ends.
    pub(crate) fn edges(token: u64) -> EpollEvent {
        let both = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;
        EpollEvent::new(both | libc::EPOLLET, token)
    }

    pub(crate) fn token(&self) -> u64 {
        self.0.u64
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.has(libc::EPOLLIN)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.has(libc::EPOLLOUT)
    }

    /// The other side ended its half, or the stream is broken.
    pub(crate) fn has_ended(&self) -> bool {
        self.has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR)
    }

    fn has(&self, events: libc::c_int) -> bool {
        self.0.events & events as u32 != 0
    }
}

/// Watches a descriptor.
pub(crate) fn epoll_add(epoll: BorrowedFd<'_>, member: RawFd, event: EpollEvent) -> io::Result<()> {
    let (epoll, mut event) = (epoll.as_raw_fd(), event.0);
    // SAFETY: the kernel reads one live event; a bad descriptor gives EBADF.
    check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, member, &raw mut event) })?;
    Ok(())
}

/// Watches a descriptor no longer. One that is not watched is left alone.
pub(crate) fn epoll_remove(epoll: BorrowedFd<'_>, member: BorrowedFd<'_>) {
    let (epoll, member) = (epoll.as_raw_fd(), member.as_raw_fd());
    // SAFETY: removing takes no event (epoll_ctl(2), since Linux 2.6.9).
    unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, member, ptr::null_mut()) };
}

/// Takes what has been seen, without waiting.
pub(crate) fn epoll_take<'a>(
    epoll: BorrowedFd<'_>,
    events: &'a mut [EpollEvent],
) -> io::Result<&'a [EpollEvent]> {
    let room = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: EpollEvent is transparent over the kernel's structure, and there is room for as many.
    let count = check(unsafe {
        let first = events.as_mut_ptr().cast::<libc::epoll_event>();
        libc::epoll_wait(epoll.as_raw_fd(), first, room, 0)
    })?;
    Ok(&events[..usize::try_from(count).unwrap_or(0)])
}

/// Adds to the calling thread's nice value, as far as that goes (setpriority(2), "C library/kernel
/// differences": on Linux it is a thread's).
pub(crate) fn lower_priority(steps: i32) -> io::Result<()> {
    // SAFETY: no pointers are passed. The caller always exists, and so its value does: -1 is one.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: no pointers are passed; a value beyond the lowest is taken for that.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice + steps) })?;
    Ok(())
}

/// Says to the other side of a connected stream that nothing more comes.
pub(crate) fn shutdown_write(stream: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::shutdown(stream.as_raw_fd(), libc::SHUT_WR) })?;
    Ok(())
}

/// Makes `io_uring_setup` fail with `errno` on the calling thread and the threads it starts, by a
/// seccomp filter such as systemd installs for SystemCallFilter.
#[cfg(test)]
pub(crate) fn deny_io_uring(errno: i32) -> io::Result<()> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let statement = |code, k| libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = [
        // Offset 0 of struct seccomp_data is the system call's number.
        statement(LOAD_WORD, 0),
        libc::sock_filter {
            code: JUMP_IF_EQUAL,
            jt: 0,
            jf: 1,
            k: u32::try_from(libc::SYS_io_uring_setup).expect("invariant: a small number"),
        },
        statement(RETURN, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: this option takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the kernel copies the program, which outlives the call.
    let installed = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_long::from(libc::SECCOMP_SET_MODE_FILTER),
            0 as libc::c_long,
            &raw const program,
        )
    };
    check(installed as libc::c_int).map(drop)
}
