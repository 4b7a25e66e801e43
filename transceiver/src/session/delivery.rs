//! What the client reports of the audio it is sent: RTCP receiver reports (RFC 3550, 6.4.1).

use std::time::Duration;

use crate::engine::DeliveryReport;

/// A longer round trip is a report that makes no sense: clients may write anything.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(30);
/// Reports of loss are 24 bits with a sign: what is above is negative, which duplicates lead to.
const LOST_PACKETS_MAX: u64 = 1 << 23;

/// How the client's side of the audio fares, as far as it says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Delivery {
    /// The last round trip that a report allowed to measure.
    pub round_trip: Option<Duration>,
    /// The shortest of the session: the path without queues.
    pub round_trip_min: Option<Duration>,
    /// Interarrival jitter of our packets at the client, in milliseconds.
    pub jitter_ms: Option<f64>,
    /// Our packets that never reached the client.
    pub lost_packets: u64,
    /// Whether a report has come at all.
    pub is_reported: bool,
}

impl Delivery {
    /// Takes note of a report about audio with this clock.
    pub(super) fn note(&mut self, report: &DeliveryReport, clock_rate_hz: u32) {
        self.is_reported = true;
        self.jitter_ms = Some(f64::from(report.jitter) * 1e3 / f64::from(clock_rate_hz.max(1)));
        if report.lost_packets < LOST_PACKETS_MAX {
            self.lost_packets = report.lost_packets;
        }
        if let Some(round_trip) = report.round_trip.filter(|&took| took < ROUND_TRIP_MAX) {
            self.round_trip = Some(round_trip);
            let min = self.round_trip_min.unwrap_or(round_trip);
            self.round_trip_min = Some(min.min(round_trip));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ms: u64, lost_packets: u64) -> DeliveryReport {
        DeliveryReport {
            round_trip: Some(Duration::from_millis(ms)),
            jitter: 96,
            lost_packets,
        }
    }

    #[test]
    fn the_last_report_counts_and_the_shortest_round_trip_stays() {
        let mut delivery = Delivery::default();
        for (ms, lost) in [(40, 1), (30, 1), (90, 3)] {
            delivery.note(&report(ms, lost), 48_000);
        }
        assert_eq!(delivery.round_trip, Some(Duration::from_millis(90)));
        assert_eq!(delivery.round_trip_min, Some(Duration::from_millis(30)));
        assert_eq!((delivery.jitter_ms, delivery.lost_packets), (Some(2.0), 3));
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let mut delivery = Delivery::default();
        delivery.note(&report(20, 2), 48_000);
        delivery.note(&report(40_000, 0xff_fffe), 48_000);
        assert_eq!(delivery.round_trip, Some(Duration::from_millis(20)));
        assert_eq!(delivery.lost_packets, 2);
    }
}
