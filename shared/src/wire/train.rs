//! Packs the records of one pass into as few kernel sends as the inner leg allows.
//!
//! Records for one destination shard fill bundles; the bundles of a destination are padded to one
//! stride and laid end to end, so that a single `UDP_SEGMENT` send (`linux/udp.h`) carries them
//! all. Without the padding, GSO would need datagrams of equal size, which voice never has. A
//! train that holds one bundle is an ordinary datagram without padding.
//!
//! Records are copied into the train: 120 to 200 bytes that are in the cache anyway cost less than
//! the kernel's walk over one iovec a record, and a contiguous train needs no lifetime ties to the
//! receive buffers.
//!
//! All memory is taken at construction. When the trains of a pass are all in use,
//! [`Trains::push`] says so, and the driver sends what there is before it goes on.

use std::net::SocketAddr;

use super::encap::{
    PAYLOAD_BYTES_MAX, PREAMBLE_BYTES, Preamble, RECORD_HEADER_BYTES, RECORDS_MAX, RawHeader,
    push_record,
};
use crate::route::ShardIndex;

/// The most segments in one send: `UDP_MAX_SEGMENTS` was 64 before Linux 6.9 (`linux/udp.h`).
const SEGMENTS_MAX: usize = 64;
/// The most bytes in one send: the IPv4 length field, less both headers.
const TRAIN_BYTES_MAX: usize = 65_507;
/// A stride that no real path goes below: the IPv6 minimum MTU, less IPv6 and UDP headers.
const STRIDE_BYTES_MIN: usize = 1_280 - 48;
/// Where the count stands in the preamble.
const COUNT_OFFSET: usize = 6;

/// Where a train goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainDestination {
    /// The inner address of the receiving process.
    pub addr: SocketAddr,
    /// The worker within it.
    pub shard: ShardIndex,
}

/// One kernel send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Train<'a> {
    /// Where it goes.
    pub to: SocketAddr,
    /// One or more bundles, end to end.
    pub bytes: &'a [u8],
    /// The stride when there is more than one bundle: the value for `UDP_SEGMENT`.
    pub segment_bytes: Option<u16>,
    /// How many records the bundles hold together.
    pub record_count: u32,
}

/// Why a record was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Every train is in use: send them and push again.
    #[error("all trains are in use")]
    Full,
    /// No datagram can carry the payload: drop it, counted.
    #[error("the payload fits no datagram")]
    Oversize,
}

/// The packer of one worker: owns the trains' memory, and knows the sender's own identity.
#[derive(Debug)]
pub struct Trains {
    source: ShardIndex,
    sender: u16,
    stride_bytes: usize,
    /// The first `used` are in use; the others keep their memory for the next pass.
    trains: Vec<TrainBuffer>,
    used: usize,
}

#[derive(Debug)]
struct TrainBuffer {
    destination: TrainDestination,
    bytes: Vec<u8>,
    /// Where the last bundle starts.
    bundle_at: usize,
    bundle_count: usize,
    bundle_record_count: usize,
    record_count: u32,
    /// A train that takes no more, whatever its room: closed to keep records in order.
    sealed: bool,
}

impl Trains {
    /// A packer of at most `train_count` trains a pass, whose bundles are at most `bundle_bytes`
    /// long: the inner path's MTU less IP and UDP headers.
    ///
    /// # Panics
    /// When `bundle_bytes` is outside 1,232 to 65,507, or `train_count` is zero.
    pub fn new(source: ShardIndex, sender: u16, bundle_bytes: usize, train_count: usize) -> Self {
        assert!((STRIDE_BYTES_MIN..=TRAIN_BYTES_MAX).contains(&bundle_bytes));
        assert!(train_count > 0);
        let nowhere = TrainDestination {
            addr: SocketAddr::from(([0, 0, 0, 0], 0)),
            shard: ShardIndex(0),
        };
        let trains = (0..train_count)
            .map(|_| TrainBuffer::new(nowhere))
            .collect();
        Self {
            source,
            sender,
            stride_bytes: bundle_bytes,
            trains,
            used: 0,
        }
    }

    /// Adds one record for `to`.
    ///
    /// # Errors
    /// [`PushError`]; nothing was added.
    pub fn push(
        &mut self,
        to: TrainDestination,
        raw_header: &RawHeader,
        payload: &[u8],
    ) -> Result<(), PushError> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(PushError::Oversize);
        }
        let record_bytes = RECORD_HEADER_BYTES + payload.len();
        let stride_bytes = self.stride_bytes;
        let open = self.trains[..self.used]
            .iter_mut()
            .rev()
            .find(|train| train.destination == to)
            .filter(|train| train.has_room(record_bytes, stride_bytes));
        let (source, sender) = (self.source, self.sender);
        let preamble = Preamble {
            destination: to.shard,
            source,
            sender,
            count: 0,
        };
        let train = match open {
            Some(train) => train,
            None => {
                let train = self.trains.get_mut(self.used).ok_or(PushError::Full)?;
                self.used += 1;
                train.restart(to);
                train.open_bundle(preamble);
                train
            }
        };
        if !train.fits_bundle(record_bytes, stride_bytes) && train.bundle_record_count > 0 {
            train.bytes.resize(train.bundle_at + stride_bytes, 0);
            train.open_bundle(preamble);
        }
        train.push(raw_header, payload);
        train.sealed = PREAMBLE_BYTES + record_bytes > stride_bytes;
        Ok(())
    }

    /// The sends of this pass; those for one destination are in the order of their records.
    pub fn iter(&self) -> impl Iterator<Item = Train<'_>> {
        self.trains[..self.used].iter().map(|train| Train {
            to: train.destination.addr,
            bytes: &train.bytes,
            segment_bytes: (train.bundle_count > 1).then(|| {
                u16::try_from(self.stride_bytes).expect("invariant: a stride fits UDP's length")
            }),
            record_count: train.record_count,
        })
    }

    /// Whether nothing was pushed since [`Trains::clear`].
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Forgets the pass, keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}

impl TrainBuffer {
    fn new(destination: TrainDestination) -> Self {
        Self {
            destination,
            bytes: Vec::with_capacity(TRAIN_BYTES_MAX),
            bundle_at: 0,
            bundle_count: 0,
            bundle_record_count: 0,
            record_count: 0,
            sealed: false,
        }
    }

    fn restart(&mut self, destination: TrainDestination) {
        self.bytes.clear();
        self.destination = destination;
        self.bundle_count = 0;
        self.record_count = 0;
        self.sealed = false;
    }

    fn open_bundle(&mut self, preamble: Preamble) {
        self.bundle_at = self.bytes.len();
        self.bundle_count += 1;
        self.bundle_record_count = 0;
        self.bytes.extend_from_slice(&preamble.to_bytes());
    }

    fn fits_bundle(&self, record_bytes: usize, stride_bytes: usize) -> bool {
        self.bundle_record_count < RECORDS_MAX
            && self.bytes.len() - self.bundle_at + record_bytes <= stride_bytes
    }

    fn has_room(&self, record_bytes: usize, stride_bytes: usize) -> bool {
        if self.sealed {
            return false;
        }
        let next_bundle_ends = self.bundle_at + 2 * stride_bytes;
        self.fits_bundle(record_bytes, stride_bytes)
            || (self.bundle_count < SEGMENTS_MAX
                && PREAMBLE_BYTES + record_bytes <= stride_bytes
                && next_bundle_ends <= TRAIN_BYTES_MAX)
    }

    fn push(&mut self, raw_header: &RawHeader, payload: &[u8]) {
        push_record(&mut self.bytes, raw_header, payload);
        self.bundle_record_count += 1;
        self.record_count += 1;
        let count = u8::try_from(self.bundle_record_count).expect("invariant: at most 255");
        self.bytes[self.bundle_at + COUNT_OFFSET] = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::encap::{BundleView, RecordHeader};
    use proptest::prelude::*;

    const STRIDE: usize = 1_400;
    const HEADER: RawHeader = [0; RECORD_HEADER_BYTES];

    fn to(port: u16, shard: u8) -> TrainDestination {
        TrainDestination {
            addr: SocketAddr::from(([127, 0, 0, 1], port)),
            shard: ShardIndex(shard),
        }
    }

    fn trains(count: usize) -> Trains {
        Trains::new(ShardIndex(1), 7, STRIDE, count)
    }

    /// Splits trains as the kernel would, and reads the payloads back in order.
    fn delivered(trains: &Trains, destination: TrainDestination) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        for train in trains.iter().filter(|train| train.to == destination.addr) {
            let segment_bytes = train.segment_bytes.map_or(train.bytes.len(), usize::from);
            assert!(train.bytes.len() <= TRAIN_BYTES_MAX);
            assert!(train.bytes.chunks(segment_bytes).count() <= SEGMENTS_MAX);
            for bundle in train.bytes.chunks(segment_bytes) {
                let view = BundleView::parse(bundle).unwrap();
                assert_eq!(view.preamble().source, ShardIndex(1));
                assert_eq!(view.preamble().sender, 7);
                if view.preamble().destination == destination.shard {
                    payloads.extend(
                        view.records()
                            .map(|record| record.unwrap().payload.to_vec()),
                    );
                }
            }
        }
        payloads
    }

    #[test]
    fn one_bundle_is_a_plain_datagram_without_padding() {
        let mut trains = trains(1);
        trains.push(to(1, 0), &HEADER, b"hello").unwrap();
        let sends: Vec<_> = trains.iter().collect();
        assert_eq!(sends.len(), 1);
        assert_eq!(sends[0].segment_bytes, None);
        assert_eq!(
            sends[0].bytes.len(),
            PREAMBLE_BYTES + RECORD_HEADER_BYTES + 5
        );
    }

    #[test]
    fn destinations_and_shards_do_not_share_a_train() {
        let mut trains = trains(4);
        trains.push(to(1, 0), &HEADER, b"a").unwrap();
        trains.push(to(1, 1), &HEADER, b"b").unwrap();
        trains.push(to(2, 0), &HEADER, b"c").unwrap();
        trains.push(to(1, 0), &HEADER, b"d").unwrap();
        assert_eq!(trains.iter().count(), 3);
        assert_eq!(delivered(&trains, to(1, 0)), [b"a".to_vec(), b"d".to_vec()]);
        assert_eq!(delivered(&trains, to(1, 1)), [b"b".to_vec()]);
        assert_eq!(delivered(&trains, to(2, 0)), [b"c".to_vec()]);
    }

    #[test]
    fn an_oversize_record_travels_alone_and_in_order() {
        let mut trains = trains(4);
        let big = vec![9; 3_000];
        trains.push(to(1, 0), &HEADER, b"before").unwrap();
        trains.push(to(1, 0), &HEADER, &big).unwrap();
        trains.push(to(1, 0), &HEADER, b"after").unwrap();
        assert_eq!(
            delivered(&trains, to(1, 0)),
            [b"before".to_vec(), big, b"after".to_vec()]
        );
        assert_eq!(trains.iter().count(), 3);
        assert!(trains.iter().all(|train| train.segment_bytes.is_none()));
    }

    #[test]
    fn a_payload_that_fits_no_datagram_is_refused() {
        let mut trains = trains(1);
        let most = vec![0; PAYLOAD_BYTES_MAX];
        assert_eq!(trains.push(to(1, 0), &HEADER, &most), Ok(()));
        trains.clear();
        let over = vec![0; PAYLOAD_BYTES_MAX + 1];
        assert_eq!(
            trains.push(to(1, 0), &HEADER, &over),
            Err(PushError::Oversize)
        );
        assert!(trains.is_empty());
    }

    #[test]
    fn says_full_and_starts_over_after_clear_without_new_memory() {
        let mut trains = trains(1);
        let mut pushed = 0;
        while trains.push(to(1, 0), &HEADER, &[1; 150]).is_ok() {
            pushed += 1;
        }
        assert_eq!(
            trains.push(to(1, 0), &HEADER, &[1; 150]),
            Err(PushError::Full)
        );
        assert_eq!(delivered(&trains, to(1, 0)).len(), pushed);
        // 46 strides of 1,400 bytes fit 65,507, with seven records of 190 bytes each.
        assert_eq!(pushed, 46 * 7);
        let capacity = trains.trains[0].bytes.capacity();
        trains.clear();
        assert!(trains.is_empty());
        trains.push(to(2, 0), &HEADER, b"next").unwrap();
        assert_eq!(delivered(&trains, to(2, 0)), [b"next".to_vec()]);
        assert_eq!(trains.trains[0].bytes.capacity(), capacity);
    }

    proptest! {
        #[test]
        fn every_record_is_delivered_once_in_order_and_without_growth(
            records in prop::collection::vec((0u8..3, 0usize..1_600), 1..400),
        ) {
            let mut trains = trains(64);
            let mut want: [Vec<Vec<u8>>; 3] = Default::default();
            for (index, (shard, length)) in records.into_iter().enumerate() {
                let payload = vec![index as u8; length];
                match trains.push(to(9, shard), &HEADER, &payload) {
                    Ok(()) => want[usize::from(shard)].push(payload),
                    Err(error) => prop_assert_eq!(error, PushError::Full),
                }
            }
            for (shard, want) in (0u8..).zip(&want) {
                prop_assert_eq!(&delivered(&trains, to(9, shard)), want);
            }
            let total: usize = want.iter().map(Vec::len).sum();
            let counted: u32 = trains.iter().map(|train| train.record_count).sum();
            prop_assert_eq!(counted as usize, total);
            for train in &trains.trains {
                prop_assert_eq!(train.bytes.capacity(), TRAIN_BYTES_MAX);
            }
        }

        #[test]
        fn packed_headers_read_back(session: [u8; 8], port: u16) {
            let header = RecordHeader {
                direction: crate::wire::encap::Direction::ToClient,
                marks: Default::default(),
                transport: crate::route::Transport::Udp,
                endpoint: crate::route::LocalEndpoint(0),
                client: crate::route::ClientSocket::from_octets([1; 16], port),
                session: crate::route::SessionRef::from_bytes(session),
                cookie: crate::keys::Cookie(session),
            };
            let mut trains = trains(1);
            trains.push(to(1, 2), &header.to_raw(), b"x").unwrap();
            let train = trains.iter().next().unwrap();
            let view = BundleView::parse(train.bytes).unwrap();
            let record = view.records().next().unwrap().unwrap();
            prop_assert_eq!(record.header, header);
        }
    }
}
