//! Watching the verdicts on one client or one session while the relay runs.
//!
//! An operator asks the admin surface; each worker gets a copy of the request and sends a line for
//! every verdict that matches, until the lines or the asker are gone. Bounded at both ends: so many
//! lines a worker, and a queue that drops (and says so) rather than hold up a packet. Without a
//! trace, a worker pays one test of an option a datagram.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use syrinx_shared::route::{ClientSocket, SessionRef};
use syrinx_shared::wire::demux::{Protocol, classify};
use syrinx_shared::wire::encap::{Direction, RecordHeader};
use tokio::sync::mpsc::Sender;

use crate::forwarder::{ClientDatagram, ClientVerdict, RecordVerdict};

/// Whose verdicts are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFilter {
    /// All of one host's flows.
    Host(IpAddr),
    /// One client socket.
    Client(ClientSocket),
    /// One session, written as logs write it: `transceiver/shard/slot.generation`.
    Session(SessionRef),
}

/// The text is no address and no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither an address (192.0.2.1, 192.0.2.1:5000, [2001:db8::1]:5000) nor a session \
     (transceiver/shard/slot.generation)"
)]
pub struct TraceFilterError(String);

impl FromStr for TraceFilter {
    type Err = TraceFilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(addr) = text.parse::<SocketAddr>() {
            return Ok(Self::Client(ClientSocket::new(addr)));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Host(ip.to_canonical()));
        }
        text.parse()
            .map(Self::Session)
            .map_err(|_| TraceFilterError(text.to_owned()))
    }
}

impl TraceFilter {
    fn matches(&self, client: ClientSocket, session: Option<SessionRef>) -> bool {
        match self {
            Self::Host(ip) => client.addr().ip() == *ip,
            Self::Client(wanted) => client == *wanted,
            Self::Session(wanted) => session == Some(*wanted),
        }
    }
}

/// One worker's part of a trace.
#[derive(Debug, Clone)]
pub struct Trace {
    filter: TraceFilter,
    worker: usize,
    lines_left: u32,
    missed: u64,
    lines: Sender<String>,
}

impl Trace {
    /// A trace of at most `line_count` lines from each worker, sent to `lines`.
    pub fn new(filter: TraceFilter, line_count: u32, lines: Sender<String>) -> Self {
        Self {
            filter,
            worker: 0,
            lines_left: line_count,
            missed: 0,
            lines,
        }
    }

    /// The same trace for the worker of this index.
    pub fn for_worker(&self, worker: usize) -> Self {
        Self {
            worker,
            ..self.clone()
        }
    }

    /// Whether there is nobody left to send to, or nothing left to send.
    pub fn is_over(&self) -> bool {
        self.lines_left == 0 || self.lines.is_closed()
    }

    /// Notes the verdict on a client's datagram.
    pub fn note_client(&mut self, datagram: &ClientDatagram<'_>, verdict: &ClientVerdict) {
        let header = match verdict {
            ClientVerdict::Forward { header, .. } => RecordHeader::from_raw(header).ok(),
            ClientVerdict::Drop(_) => None,
        };
        if !self
            .filter
            .matches(datagram.client, header.map(|header| header.session))
        {
            return;
        }
        let kind = Kind(datagram.payload);
        match (verdict, header) {
            (ClientVerdict::Forward { to, .. }, Some(header)) => self.say(format_args!(
                "{} > {kind} > session {} at {}",
                datagram.client, header.session, to.addr
            )),
            (ClientVerdict::Drop(reason), _) => {
                self.say(format_args!(
                    "{} > {kind} x {}",
                    datagram.client,
                    reason.label()
                ));
            }
            (ClientVerdict::Forward { .. }, None) => {}
        }
    }

    /// Notes the verdict on a transceiver's record.
    pub fn note_record(&mut self, verdict: &RecordVerdict<'_>) {
        let Some(header) = verdict.header else { return };
        let RecordHeader {
            client,
            session,
            direction,
            ..
        } = header;
        if !self.filter.matches(client, Some(session)) {
            return;
        }
        match &verdict.outcome {
            Ok(Some(to)) => {
                self.say(format_args!(
                    "{client} < {} < session {session}",
                    Kind(to.payload)
                ));
            }
            Ok(None) => self.say(format_args!("{client} flow closed by session {session}")),
            Err(reason) => {
                let what = if direction == Direction::Control {
                    "control"
                } else {
                    "record"
                };
                let reason = reason.label();
                self.say(format_args!(
                    "{client} x {what} of session {session} {reason}"
                ));
            }
        }
    }

    fn say(&mut self, line: fmt::Arguments<'_>) {
        if self.lines_left == 0 {
            return;
        }
        let missed = match self.missed {
            0 => String::new(),
            missed => format!(" ({missed} lines missed before this one)"),
        };
        let line = format!("worker {} {line}{missed}\n", self.worker);
        if self.lines.try_send(line).is_ok() {
            self.lines_left -= 1;
            self.missed = 0;
        } else {
            self.missed += 1;
        }
    }
}

/// What a datagram looks like from outside.
struct Kind<'a>(&'a [u8]);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match classify(self.0) {
            Some(Protocol::Stun) => "STUN",
            Some(Protocol::Dtls) => "DTLS",
            // RFC 5761, section 4: payload types 64 to 95 are RTCP's.
            Some(Protocol::Rtp) if self.0.get(1).is_some_and(|b| (192..=223).contains(b)) => "RTCP",
            Some(Protocol::Rtp) => "RTP",
            Some(Protocol::InnerLeg) | None => "unknown",
        };
        write!(f, "{name} {} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarder::DropReason;
    use syrinx_shared::route::{LocalEndpoint, Transport};
    use syrinx_shared::wire::encap::Marks;
    use tokio::sync::mpsc::{Receiver, channel};

    fn datagram(client: &str) -> ClientDatagram<'static> {
        ClientDatagram {
            client: ClientSocket::new(client.parse().unwrap()),
            endpoint: LocalEndpoint(0),
            transport: Transport::Udp,
            marks: Marks::default(),
            payload: &[0x80, 111, 0, 1],
        }
    }

    fn lines(receiver: &mut Receiver<String>) -> Vec<String> {
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }

    #[test]
    fn a_filter_is_a_host_a_client_or_a_session() {
        let session = SessionRef::from_bytes([0, 1, 2, 0, 0, 3, 0, 4]);
        assert_eq!("1/2/3.4".parse(), Ok(TraceFilter::Session(session)));
        assert_eq!(session.to_string(), "1/2/3.4");
        let host: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!("::ffff:192.0.2.1".parse(), Ok(TraceFilter::Host(host)));
        let client = ClientSocket::new("[2001:db8::1]:7".parse().unwrap());
        assert_eq!("[2001:db8::1]:7".parse(), Ok(TraceFilter::Client(client)));
        assert!("1/2/3".parse::<TraceFilter>().is_err());
        assert!("everybody".parse::<TraceFilter>().is_err());
    }

    #[test]
    fn prints_each_matching_verdict_and_stops_at_its_bound() {
        let (sender, mut receiver) = channel(8);
        let filter = "192.0.2.1".parse().unwrap();
        let mut trace = Trace::new(filter, 2, sender).for_worker(3);
        let dropped = ClientVerdict::Drop(DropReason::NoFlow);
        trace.note_client(&datagram("192.0.2.2:1"), &dropped);
        for _ in 0..3 {
            trace.note_client(&datagram("192.0.2.1:1"), &dropped);
        }
        let line = "worker 3 192.0.2.1:1 > RTP 4 bytes x no_flow\n";
        assert_eq!(lines(&mut receiver), [line, line]);
        assert!(trace.is_over());
    }

    #[test]
    fn a_slow_reader_costs_lines_that_are_counted() {
        let (sender, mut receiver) = channel(1);
        let mut trace = Trace::new("192.0.2.1".parse().unwrap(), 9, sender);
        let dropped = ClientVerdict::Drop(DropReason::NoFlow);
        for _ in 0..3 {
            trace.note_client(&datagram("192.0.2.1:1"), &dropped);
        }
        assert_eq!(lines(&mut receiver).len(), 1);
        trace.note_client(&datagram("192.0.2.1:1"), &dropped);
        assert!(lines(&mut receiver)[0].contains("(2 lines missed"));
        drop(receiver);
        assert!(trace.is_over());
    }
}
