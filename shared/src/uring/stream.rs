//! Connected stream sockets whose readiness the worker's own loop watches.
//!
//! The executor's own sockets ask for each wait by an operation of its rings, and a run of the
//! executor enters the kernel three times whatever it does. For a stream with a small message every
//! 20 ms that costs more than the message. These sockets are watched by the loop's one epoll
//! descriptor instead, so that they can be read and written outside a run, by
//! [`super::Slices::reside`].

use super::readiness::Ready;
use super::slices::Slices;
use super::syscall::shutdown_write;
use futures_lite::{AsyncRead, AsyncWrite};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A connected, non-blocking stream socket of a worker's thread.
#[derive(Debug)]
pub struct Stream<S: AsFd> {
    socket: S,
    token: u64,
    ready: Rc<Ready>,
    slices: Slices,
}

impl<S: AsFd> Stream<S> {
    /// Takes over a connected socket that is set to non-blocking.
    ///
    /// # Errors
    /// The kernel cannot watch it: no memory, or too many watches (`fs.epoll.max_user_watches`).
    pub fn new(slices: &Slices, socket: S) -> io::Result<Self> {
        let (token, ready) = slices.readiness().watch(socket.as_fd())?;
        Ok(Self {
            socket,
            token,
            ready,
            slices: slices.clone(),
        })
    }
}

impl<S: AsFd> Drop for Stream<S> {
    fn drop(&mut self) {
        self.slices
            .readiness()
            .forget(self.token, self.socket.as_fd());
    }
}

impl<S: AsFd + Unpin> AsyncRead for Stream<S>
where
    for<'a> &'a S: Read,
{
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        while self.ready.check_readable(context.waker()) {
            match (&self.socket).read(buffer) {
                Ok(length) => {
                    // Less than was asked for is all there was (epoll(7), questions and answers).
                    if length < buffer.len() {
                        self.ready.note_drained();
                    }
                    return Poll::Ready(Ok(length));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.ready.note_empty(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Pending
    }
}

impl<S: AsFd + Unpin> AsyncWrite for Stream<S>
where
    for<'a> &'a S: Write,
{
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        while self.ready.check_writable(context.waker()) {
            match (&self.socket).write(bytes) {
                Ok(length) => return Poll::Ready(Ok(length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.ready.note_full(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown_write(self.socket.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::test_loop::Loop;
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    use std::cell::RefCell;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    fn tcp_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn unix_pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    /// Everything until the other side ends is sent back, then our end.
    fn echo<S>(worker: &mut Loop, ours: S, theirs: impl FnOnce() -> Vec<u8> + Send + 'static)
    where
        S: AsFd + Unpin + 'static,
        for<'a> &'a S: Read + Write,
    {
        let mut stream = Stream::new(&worker.handle(), ours).unwrap();
        let count = Rc::new(RefCell::new(None));
        let kept = Rc::clone(&count);
        let _resident = worker.handle().reside("echo", async move {
            let (mut buffer, mut total) = (vec![0; 10_000], 0);
            loop {
                let length = stream.read(&mut buffer).await.unwrap();
                total += length;
                if length == 0 {
                    break;
                }
                stream.write_all(&buffer[..length]).await.unwrap();
            }
            stream.close().await.unwrap();
            *kept.borrow_mut() = Some(total);
        });
        let client = thread::spawn(theirs);
        let runs = worker.slices.counters().runs;
        worker.until(|| count.borrow().is_some());
        assert_eq!(
            worker.slices.counters().runs,
            runs,
            "no run of the executor"
        );
        let said = client.join().unwrap();
        assert_eq!(*count.borrow(), Some(said.len()));
    }

    /// Says more than the sockets hold, slowly and in pieces of all sizes, and compares the echo.
    fn converse<S>(stream: S, end: impl FnOnce(&S)) -> Vec<u8>
    where
        S: Send + Sync,
        for<'a> &'a S: Read + Write,
    {
        let said: Vec<u8> = (0..3_000_000_u32)
            .map(|n| (n.wrapping_mul(n) >> 7) as u8)
            .collect();
        let heard = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut heard = Vec::new();
                thread::sleep(Duration::from_millis(50));
                (&stream).read_to_end(&mut heard).unwrap();
                heard
            });
            for (index, piece) in said.chunks(40_001).enumerate() {
                (&stream).write_all(piece).unwrap();
                thread::sleep(Duration::from_millis((index % 3) as u64));
            }
            end(&stream);
            reader.join().unwrap()
        });
        assert!(heard == said, "{} of {}", heard.len(), said.len());
        said
    }

    #[test]
    fn what_comes_over_tcp_goes_back_whole_whoever_is_slow() {
        let mut worker = Loop::new(4);
        let (ours, theirs) = tcp_pair();
        let end = |stream: &TcpStream| stream.shutdown(Shutdown::Write).unwrap();
        echo(&mut worker, ours, move || converse(theirs, end));
    }

    #[test]
    fn what_comes_over_a_unix_socket_goes_back_whole_whoever_is_slow() {
        let mut worker = Loop::new(4);
        let (ours, theirs) = unix_pair();
        let end = |stream: &UnixStream| stream.shutdown(Shutdown::Write).unwrap();
        echo(&mut worker, ours, move || converse(theirs, end));
    }

    #[test]
    fn an_end_that_came_with_the_last_bytes_is_read_behind_them() {
        let mut worker = Loop::new(4);
        let (ours, theirs) = tcp_pair();
        let mut stream = Stream::new(&worker.handle(), ours).unwrap();
        (&theirs).write_all(b"bye").unwrap();
        drop(theirs);
        let heard = Rc::new(RefCell::new(None));
        let kept = Rc::clone(&heard);
        let _resident = worker.handle().reside("listens", async move {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            *kept.borrow_mut() = Some(bytes);
        });
        worker.until(|| heard.borrow().is_some());
        assert_eq!(heard.borrow().as_deref(), Some(&b"bye"[..]));
    }

    #[test]
    fn a_stream_at_rest_leaves_the_loop_asleep_and_a_dropped_one_is_not_watched() {
        let mut worker = Loop::new(4);
        let (ours, mut theirs) = tcp_pair();
        // As long as this is open, closing the other does not end the kernel's watch.
        let _duplicate = ours.try_clone().unwrap();
        let mut stream = Stream::new(&worker.handle(), ours).unwrap();
        let resident = worker.handle().reside("waits", async move {
            let mut byte = [0];
            stream.read(&mut byte).await.unwrap();
            stream
        });
        for _ in 0..5 {
            worker.pass(Duration::from_millis(1));
        }
        let slices = worker.slices.counters().slices;
        worker.pass(Duration::from_millis(50));
        assert_eq!(worker.slices.counters().slices, slices, "nothing was due");
        drop(resident);
        theirs.write_all(b"!").unwrap();
        worker.pass(Duration::from_millis(50));
        assert_eq!(worker.slices.counters().slices, slices, "nobody listens");
    }

    #[test]
    fn a_broken_stream_says_so() {
        let mut worker = Loop::new(4);
        let (ours, theirs) = tcp_pair();
        let mut stream = Stream::new(&worker.handle(), ours).unwrap();
        let error = Rc::new(RefCell::new(None));
        let kept = Rc::clone(&error);
        let _resident = worker.handle().reside("writes", async move {
            let bytes = vec![0; 1 << 20];
            let error = loop {
                if let Err(error) = stream.write_all(&bytes).await {
                    break error;
                }
            };
            *kept.borrow_mut() = Some(error.kind());
        });
        for _ in 0..5 {
            worker.pass(Duration::from_millis(1));
        }
        // What was not read makes a reset of the close.
        drop(theirs);
        worker.until(|| error.borrow().is_some());
        let kind = error.borrow().unwrap();
        let expected = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(expected.contains(&kind), "{kind:?}");
    }
}
