//! The executor in a loop that has tasks only: wake-ups, timers, panics, limits and the end.

use super::*;
use crate::uring::test_loop::Loop;
use futures_lite::{AsyncReadExt, AsyncWriteExt, future::yield_now};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::thread;

#[test]
fn a_task_serves_a_stream_and_sleeps_in_between() {
    let mut worker = Loop::new(4);
    let path = tempfile::tempdir().unwrap();
    let address = path.path().join("socket");
    let listener = glommio_listener(&mut worker, &address);
    let echo = worker.handle().spawn("echo", async move {
        let mut stream = listener.accept().await.unwrap();
        let mut buffer = [0; 64];
        loop {
            let length = stream.read(&mut buffer).await.unwrap();
            if length == 0 {
                break;
            }
            stream.write_all(&buffer[..length]).await.unwrap();
        }
    });
    let echo = echo.unwrap();
    let client = thread::spawn(move || {
        let mut stream = StdStream::connect(address).unwrap();
        for round in 0..50u8 {
            stream.write_all(&[round; 8]).unwrap();
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [round; 8]);
            thread::sleep(Duration::from_millis(1));
        }
    });
    worker.until(|| echo.is_finished());
    client.join().unwrap();
    assert_eq!(worker.handle().task_count(), 0);
    let slices = worker.slices.counters().slices;
    assert!(
        slices < 1_000,
        "{slices} slices for 50 messages is a busy loop"
    );
}

/// glommio sockets are made inside its executor.
fn glommio_listener(worker: &mut Loop, path: &std::path::Path) -> glommio::net::UnixListener {
    let made = Rc::new(RefCell::new(None));
    let (slot, path) = (Rc::clone(&made), path.to_owned());
    let make = async move {
        *slot.borrow_mut() = Some(glommio::net::UnixListener::bind(path).unwrap());
    };
    worker.handle().spawn("bind", make).unwrap();
    worker.until(|| made.borrow().is_some());
    made.borrow_mut().take().unwrap()
}

#[test]
fn sleeps_end_in_order_and_never_early() {
    let mut worker = Loop::new(8);
    let order = Rc::new(RefCell::new(Vec::new()));
    let start = Instant::now();
    for wait_ms in [30u64, 10, 20] {
        let (handle, order) = (worker.handle(), Rc::clone(&order));
        let deadline = start + Duration::from_millis(wait_ms);
        let sleeper = async move {
            handle.sleep_until(deadline).await;
            assert!(Instant::now() >= deadline);
            order.borrow_mut().push(wait_ms);
        };
        worker.handle().spawn("sleeper", sleeper).unwrap();
    }
    worker.until(|| order.borrow().len() == 3);
    assert_eq!(*order.borrow(), [10, 20, 30]);
    assert!(start.elapsed() < Duration::from_millis(500));
    assert_eq!(worker.slices.counters().panics, 0);
    assert_eq!(
        worker.slices.next_deadline(),
        None,
        "no timer is left behind"
    );
}

#[test]
fn a_timeout_gives_up_on_what_never_comes_and_not_on_what_comes() {
    let mut worker = Loop::new(4);
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let (handle, kept) = (worker.handle(), Rc::clone(&outcomes));
    let task = async move {
        let soon = Instant::now() + Duration::from_millis(10);
        let never = handle.timeout_at(soon, std::future::pending::<u8>()).await;
        let later = Instant::now() + Duration::from_secs(60);
        let at_once = handle.timeout_at(later, async { 7u8 }).await;
        kept.borrow_mut().extend([never, at_once]);
    };
    let task = worker.handle().spawn("timeouts", task).unwrap();
    worker.until(|| task.is_finished());
    assert_eq!(*outcomes.borrow(), [None, Some(7)]);
    assert_eq!(worker.slices.next_deadline(), None);
}

#[test]
fn tasks_that_wait_leave_the_loop_asleep() {
    let mut worker = Loop::new(8);
    let path = tempfile::tempdir().unwrap();
    let listener = glommio_listener(&mut worker, &path.path().join("socket"));
    let accept = async move { drop(listener.accept().await) };
    worker.handle().spawn("accept", accept).unwrap();
    let handle = worker.handle();
    let hour = Instant::now() + Duration::from_secs(3600);
    let sleep = async move { handle.sleep_until(hour).await };
    worker.handle().spawn("sleep", sleep).unwrap();
    for _ in 0..20 {
        worker.pass(Duration::from_millis(1));
    }
    let (start, slices) = (Instant::now(), worker.slices.counters().slices);
    worker.pass(Duration::from_millis(300));
    assert!(
        start.elapsed() >= Duration::from_millis(300),
        "nothing woke it"
    );
    assert_eq!(
        worker.slices.counters().slices,
        slices,
        "and nothing was due"
    );
}

/// A listener that answers no further connection: its queue is full.
fn deaf_listener() -> (std::net::TcpListener, Vec<std::net::TcpStream>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    let patience = Duration::from_millis(200);
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, patience) {
        queue.push(stream);
        assert!(queue.len() < 10_000, "the queue of a listener is bounded");
    }
    (listener, queue)
}

#[test]
fn a_connection_that_never_comes_is_given_up_in_time_and_leaves_no_trace() {
    let (listener, _queue) = deaf_listener();
    let address = listener.local_addr().unwrap();
    let mut worker = Loop::new(4);
    let outcome = Rc::new(RefCell::new(None));
    let (handle, kept) = (worker.handle(), Rc::clone(&outcome));
    let start = Instant::now();
    let task = async move {
        let deadline = Instant::now() + Duration::from_millis(50);
        let connecting = glommio::net::TcpStream::connect(address);
        let connected = handle.timeout_at(deadline, connecting).await;
        *kept.borrow_mut() = Some(connected.is_some());
    };
    let task = worker.handle().spawn("connect", task).unwrap();
    worker.until(|| task.is_finished());
    let elapsed = start.elapsed();
    assert_eq!(*outcome.borrow(), Some(false));
    assert!(elapsed >= Duration::from_millis(50), "{elapsed:?}");
    assert!(elapsed < Duration::from_millis(500), "{elapsed:?}");
    drop(worker);
}

#[test]
fn a_panic_ends_its_task_alone_and_is_counted() {
    let mut worker = Loop::new(4);
    let handle = worker.handle();
    let victim = handle.spawn("victim", async {
        yield_now().await;
        panic!("on purpose");
    });
    let done = Rc::new(Cell::new(false));
    let mark = Rc::clone(&done);
    let bystander = handle.clone();
    let bystander = async move {
        bystander
            .sleep_until(Instant::now() + Duration::from_millis(20))
            .await;
        mark.set(true);
    };
    handle.spawn("bystander", bystander).unwrap();
    worker.until(|| done.get());
    assert!(victim.unwrap().is_finished());
    assert_eq!(worker.slices.counters().panics, 1);
    assert_eq!(handle.task_count(), 0);
}

#[test]
fn a_panicking_destructor_is_contained_too() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, while dropped");
        }
    }
    let mut worker = Loop::new(4);
    let bomb = Bomb;
    let task = worker.handle().spawn("bomb", async move {
        let _bomb = bomb;
        std::future::pending::<()>().await;
    });
    let task = task.unwrap();
    worker.pass(Duration::ZERO);
    task.cancel();
    worker.until(|| task.is_finished());
    assert_eq!(worker.slices.counters().panics, 1);
}

#[test]
fn a_cancelled_task_drops_what_it_holds() {
    let mut worker = Loop::new(4);
    let held = Rc::new(());
    let hold = Rc::clone(&held);
    let task = worker.handle().spawn("holder", async move {
        let _hold = hold;
        std::future::pending::<()>().await;
    });
    let task = task.unwrap();
    worker.pass(Duration::ZERO);
    assert_eq!(Rc::strong_count(&held), 2);
    assert!(!task.is_finished());
    task.cancel();
    worker.until(|| task.is_finished());
    assert_eq!(Rc::strong_count(&held), 1);
    assert_eq!(worker.handle().task_count(), 0);
}

#[test]
fn a_wake_from_another_thread_reaches_a_sleeping_loop() {
    let mut worker = Loop::new(4);
    let shared = Arc::new(Mutex::new((0u32, None::<Waker>)));
    let seen = Rc::new(Cell::new(0));
    let (inner, mark) = (Arc::clone(&shared), Rc::clone(&seen));
    let task = async move {
        while mark.get() < 20 {
            let value = poll_fn(|context| {
                let mut shared = inner.lock().unwrap();
                if shared.0 > mark.get() {
                    return Poll::Ready(shared.0);
                }
                shared.1 = Some(context.waker().clone());
                Poll::Pending
            });
            mark.set(value.await);
        }
    };
    worker.handle().spawn("waiter", task).unwrap();
    let other = thread::spawn(move || {
        for value in 1..=20 {
            thread::sleep(Duration::from_millis(2));
            let waker = {
                let mut shared = shared.lock().unwrap();
                shared.0 = value;
                shared.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }
    });
    let start = Instant::now();
    worker.until(|| seen.get() == 20);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "woken, not timed out"
    );
    other.join().unwrap();
}

#[test]
fn a_wake_from_the_service_on_the_same_thread_makes_a_slice_due() {
    let mut worker = Loop::new(4);
    let slot = Rc::new(RefCell::new(None::<Waker>));
    let rounds = Rc::new(Cell::new(0));
    let (inner, mark) = (Rc::clone(&slot), Rc::clone(&rounds));
    let task = poll_fn(move |context| {
        mark.set(mark.get() + 1);
        *inner.borrow_mut() = Some(context.waker().clone());
        Poll::<()>::Pending
    });
    worker.handle().spawn("counter", task).unwrap();
    worker.until(|| rounds.get() == 1);
    assert!(!worker.slices.is_due(Instant::now()));
    let waker = slot.borrow().clone().unwrap();
    waker.wake_by_ref();
    waker.wake();
    assert!(worker.slices.is_due(Instant::now()));
    worker.until(|| rounds.get() == 2);
    assert!(!worker.slices.is_due(Instant::now()));
}

#[test]
fn a_task_that_yields_for_ever_does_not_own_the_thread() {
    let mut worker = Loop::new(4);
    let task = worker.handle().spawn("greedy", async {
        loop {
            yield_now().await;
        }
    });
    let task = task.unwrap();
    for _ in 0..20 {
        worker.pass(Duration::ZERO);
    }
    assert!(worker.slices.counters().unsettled > 0);
    task.cancel();
    worker.until(|| task.is_finished());
    worker.pass(Duration::ZERO);
    assert!(!worker.slices.is_due(Instant::now()), "at rest again");
}

#[test]
fn tasks_are_limited_and_a_finished_one_makes_room() {
    let mut worker = Loop::new(2);
    let handle = worker.handle();
    let first = handle.spawn("short", async {}).unwrap();
    handle.spawn("long", std::future::pending()).unwrap();
    assert_eq!(
        handle.spawn("third", async {}).unwrap_err(),
        SpawnError::Full(2)
    );
    worker.until(|| first.is_finished());
    assert!(handle.spawn("third", async {}).is_ok());
}

#[test]
fn shutting_down_drops_every_task_and_refuses_new_ones() {
    let mut worker = Loop::new(4);
    let handle = worker.handle();
    let held = Rc::new(());
    for _ in 0..3 {
        let (hold, sleeper) = (Rc::clone(&held), worker.handle());
        let task = async move {
            let _hold = hold;
            sleeper
                .sleep_until(Instant::now() + Duration::from_secs(60))
                .await;
        };
        handle.spawn("sleeper", task).unwrap();
    }
    worker.pass(Duration::ZERO);
    assert_eq!(Rc::strong_count(&held), 4);
    drop(worker);
    assert_eq!(Rc::strong_count(&held), 1);
    assert_eq!(
        handle.spawn("late", async {}).unwrap_err(),
        SpawnError::Stopped
    );
}
