//! Codec threads before workers that only listen.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use syrinx_shared::route::{Generation, Now, SessionRef, ShardIndex, Slot, TransceiverId};
use syrinx_shared::uring::{Batch, IoStats, SendQueue};
use syrinx_shared::worker::{Service, WorkerHandle, WorkerOptions, spawn};

use super::{CHANNEL_CAPACITY, Codecs, Desk, Outputs, lane_of, thread_count};
use crate::backend::codec::{CodecCommand, CodecEpoch, CodecOutput, CodecSetup};
use crate::driver::service::ShardMessage;
use crate::engine::AudioCodec;

const PATIENCE: Duration = Duration::from_secs(20);

struct Listener {
    heard: Sender<Outputs>,
}

impl Service for Listener {
    type Message = ShardMessage;

    fn handle_datagrams(&mut self, _: Now, _: &Batch, _: &mut SendQueue) {}

    fn handle_message(&mut self, _: Now, message: ShardMessage, _: &mut SendQueue) {
        if let ShardMessage::Codec(outputs) = message {
            let _ = self.heard.send(outputs);
        }
    }

    fn handle_timeout(&mut self, _: Now, _: &mut SendQueue) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_second(&mut self, _: Now, _: &IoStats) {}

    fn handle_stop(&mut self, _: Now, _: &mut SendQueue) {}
}

fn listener() -> (WorkerHandle<ShardMessage>, Receiver<Outputs>) {
    let (heard, hears) = channel();
    let options = WorkerOptions::new("listener", Vec::new());
    (spawn(options, move |_| Listener { heard }).unwrap(), hears)
}

fn session(slot: u32) -> SessionRef {
    SessionRef {
        transceiver: TransceiverId(1),
        shard: ShardIndex(0),
        slot: Slot::new(slot).unwrap(),
        generation: Generation(0),
    }
}

fn open(desk: &mut Desk, slot: u32) {
    let setup = CodecSetup {
        client: AudioCodec::Pcmu,
        decode_rate_hz: 8_000,
        encode_rate_hz: 8_000,
    };
    assert_eq!(desk.handle(session(slot), CodecCommand::Open(setup)), None);
}

fn decode(at: u64) -> CodecCommand {
    CodecCommand::Decode {
        at,
        codec: AudioCodec::Pcmu,
        payload: Arc::from([0xff; 160]),
    }
}

fn encode(count: usize) -> CodecCommand {
    CodecCommand::Encode {
        epoch: CodecEpoch(0),
        pcm: vec![0; count],
    }
}

#[test]
fn each_worker_hears_of_its_own_sessions_in_order() {
    let (workers, hears): (Vec<_>, Vec<_>) = (0..2).map(|_| listener()).unzip();
    let mut codecs = Codecs::new(2);
    let mut desks = [0, 1].map(|worker| codecs.desk(worker).make());
    let mailboxes: Vec<_> = workers.iter().map(WorkerHandle::mailbox).collect();
    codecs.start(&mailboxes).unwrap();
    for (worker, desk) in desks.iter_mut().enumerate() {
        for slot in 0..4 {
            let slot = slot + 10 * worker as u32;
            open(desk, slot);
            for at in 0..50 {
                assert_eq!(desk.handle(session(slot), decode(at)), None);
            }
        }
    }
    for (worker, hears) in hears.iter().enumerate() {
        let mut next = [0; 4];
        while next != [50; 4] {
            for (session, output) in hears.recv_timeout(PATIENCE).unwrap() {
                let slot = session.slot.index() - 10 * worker;
                let CodecOutput::Pcm { at, pcm, .. } = output else {
                    panic!("{output:?}");
                };
                assert_eq!((at, pcm.len()), (next[slot], 160));
                next[slot] += 1;
            }
        }
    }
    drop(desks);
    codecs.stop();
    syrinx_shared::worker::stop_all(workers).unwrap();
}

#[test]
fn a_long_answer_does_not_hold_up_another_session() {
    let (worker, hears) = listener();
    let mut codecs = Codecs::new(1);
    let mut desk = codecs.desk(0).make();
    open(&mut desk, 1);
    open(&mut desk, 2);
    // A minute at once; then somebody else says something.
    desk.handle(session(1), encode(60 * 8_000));
    desk.handle(session(2), decode(7));
    codecs.start(&[worker.mailbox()]).unwrap();
    let first = hears.recv_timeout(PATIENCE).unwrap();
    assert!(
        first.iter().any(|(name, _)| *name == session(2)),
        "it is in the first batch of {}",
        first.len()
    );
    drop(desk);
    codecs.stop();
    syrinx_shared::worker::stop_all(vec![worker]).unwrap();
}

#[test]
fn too_much_to_decode_is_refused_and_nothing_else_is_lost() {
    let (worker, hears) = listener();
    let mut codecs = Codecs::new(1);
    let mut desk = codecs.desk(0).make();
    open(&mut desk, 1);
    let refused = (0..CHANNEL_CAPACITY as u64 + 9)
        .filter_map(|at| desk.handle(session(1), decode(at)))
        .collect::<Vec<_>>();
    assert_eq!(refused, vec![CodecOutput::Overloaded; 10]);
    let end = CodecCommand::EndEncode {
        epoch: CodecEpoch(0),
    };
    for command in [encode(160), encode(80), end] {
        assert_eq!(desk.handle(session(1), command), None, "it is kept");
    }
    codecs.start(&[worker.mailbox()]).unwrap();
    let (mut decoded, mut contents) = (0, Vec::new());
    loop {
        desk.hand_on();
        let Ok(outputs) = hears.recv_timeout(Duration::from_millis(10)) else {
            continue;
        };
        for (_, output) in outputs {
            match output {
                CodecOutput::Pcm { .. } => decoded += 1,
                CodecOutput::Frame { content, .. } => contents.push(content),
                CodecOutput::Ended { .. } | CodecOutput::Overloaded => {}
            }
        }
        if contents.len() == 2 && decoded == CHANNEL_CAPACITY - 1 {
            break;
        }
    }
    assert_eq!(contents, [960, 480]);
    drop(desk);
    codecs.stop();
    syrinx_shared::worker::stop_all(vec![worker]).unwrap();
}

#[test]
fn a_thread_with_work_all_the_time_says_so_and_an_idle_one_as_well() {
    let (worker, _hears) = listener();
    let mut codecs = Codecs::new(2);
    let mut desk = codecs.desk(0).make();
    open(&mut desk, 1);
    desk.handle(session(1), encode(60 * 60 * 8_000));
    codecs.start(&[worker.mailbox()]).unwrap();
    let loads = codecs.loads();
    let [busy, idle] = [
        &loads[lane_of(session(1), 2)],
        &loads[lane_of(session(0), 2)],
    ];
    let start = Instant::now();
    while busy.percent() < 60 {
        assert!(start.elapsed() < PATIENCE, "{} percent", busy.percent());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(idle.percent(), 0);
    desk.handle(session(1), CodecCommand::Close);
    while busy.percent() > 0 {
        assert!(start.elapsed() < 2 * PATIENCE, "{} percent", busy.percent());
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(desk);
    codecs.stop();
    syrinx_shared::worker::stop_all(vec![worker]).unwrap();
}

#[test]
fn threads_are_as_many_as_cores_or_as_configured() {
    assert_eq!(thread_count(0, 8), 8);
    assert_eq!(thread_count(3, 2), 3);
}
