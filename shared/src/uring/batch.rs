//! One received batch: what both receive models hand to the service.
//!
//! Invariant: an entry points into a slot that the kernel has filled and that its model leases to
//! user space until the model is next waited on. The batch lives inside the model and is lent out
//! by shared reference, so the borrow checker keeps every payload from outliving its lease.

#![allow(unsafe_code)]

use super::control_message::Ancillary;
use std::net::{IpAddr, SocketAddr};
use std::slice;

/// The datagrams of one pass, in the order of their arrival per socket.
#[derive(Debug)]
pub struct Batch {
    entries: Vec<Entry>,
    capacity: usize,
}

/// One datagram, or one train that UDP_GRO put together.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// Index of the socket, in the order in which the worker was given its sockets.
    pub socket: usize,
    /// The sender, with a mapped IPv4 address folded.
    pub from: SocketAddr,
    /// The local address it was sent to; only from sockets opened with `packet_info`.
    pub local_ip: Option<IpAddr>,
    /// TOS or traffic class byte; nought from sockets opened without `traffic_class`.
    pub traffic_class: u8,
    /// The datagram was longer than its buffer, and its end is lost.
    pub truncated: bool,
    /// The bytes of the datagram.
    pub payload: &'a [u8],
    /// Stride of a train in bytes; only from sockets opened with `gro`. The last datagram of a
    /// train may be shorter.
    pub segment_bytes: Option<u16>,
}

impl<'a> Received<'a> {
    /// The datagrams as their sender sent them: one, or each of a train. A payload of no bytes is
    /// one datagram of no bytes.
    #[inline]
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let stride = match self.segment_bytes {
            Some(stride) => usize::from(stride).max(1),
            None => self.payload.len().max(1),
        };
        let count = self.payload.len().div_ceil(stride).max(1);
        let payload = self.payload;
        (0..count).map(move |index| {
            let start = index * stride;
            &payload[start..payload.len().min(start + stride)]
        })
    }
}

/// A decoded slot. The payload is kept as a pointer because the model that owns the slot's memory
/// owns this batch, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) payload: *const u8,
    pub(crate) payload_bytes: usize,
    pub(crate) socket: usize,
    pub(crate) from: SocketAddr,
    pub(crate) truncated: bool,
    pub(crate) ancillary: Ancillary,
}

impl Batch {
    /// Room for `capacity` datagrams, taken at once.
    pub(crate) fn with_capacity(capacity: usize) -> Batch {
        Batch {
            entries: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// Datagrams (trains count as one).
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was received.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The datagrams.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Received<'_>> {
        self.entries.iter().map(|entry| Received {
            socket: entry.socket,
            from: entry.from,
            local_ip: entry.ancillary.local_ip,
            traffic_class: entry.ancillary.traffic_class,
            truncated: entry.truncated,
            // SAFETY: `push` was promised bytes that are initialised, valid and not written to
            // until `clear`, which needs the batch exclusively and so ends every borrow from here.
            payload: unsafe { slice::from_raw_parts(entry.payload, entry.payload_bytes) },
            segment_bytes: entry.ancillary.segment_bytes,
        })
    }

    /// Whether another entry fits.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// Appends an entry.
    ///
    /// # Safety
    ///
    /// `entry.payload` must point to `entry.payload_bytes` initialised bytes that stay valid and
    /// unwritten until [`Batch::clear`].
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: Entry) {
        assert!(
            !self.is_full(),
            "invariant: a model reaps no more than its batch holds"
        );
        self.entries.push(entry);
    }

    /// Ends all leases: the slots may be given back.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(payload: &[u8], segment_bytes: Option<u16>) -> Received<'_> {
        Received {
            socket: 0,
            from: "127.0.0.1:9".parse().unwrap(),
            local_ip: None,
            traffic_class: 0,
            truncated: false,
            payload,
            segment_bytes,
        }
    }

    fn lengths(payload: &[u8], segment_bytes: Option<u16>) -> Vec<usize> {
        received(payload, segment_bytes)
            .datagrams()
            .map(<[u8]>::len)
            .collect()
    }

    #[test]
    fn a_train_comes_apart_at_its_stride_with_a_short_tail() {
        assert_eq!(lengths(&[1; 25], Some(10)), [10, 10, 5]);
        assert_eq!(lengths(&[1; 20], Some(10)), [10, 10]);
    }

    #[test]
    fn a_lone_datagram_is_itself_even_when_empty() {
        assert_eq!(lengths(&[1; 25], None), [25]);
        assert_eq!(lengths(&[], None), [0]);
        assert_eq!(lengths(&[], Some(10)), [0]);
    }

    #[test]
    fn a_stride_longer_than_the_payload_is_one_datagram() {
        assert_eq!(lengths(&[1; 5], Some(1200)), [5]);
    }
}
