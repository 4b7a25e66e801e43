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
    /// The part of our packets that was lost of late, 0 to 1: it rises with a report at once, and
    /// falls by degrees.
    pub recent_loss: f64,
    /// Whether a report has come at all.
    pub is_reported: bool,
    /// Packets that had been sent at the last report.
    sent_packets: u64,
}

/// What is left of a former loss after a report without any. They come every five seconds or more
/// often, so that what protects against loss stays for half a minute.
const LOSS_LEFT: f64 = 0.8;

impl Delivery {
    /// Takes note of a report about audio with this clock, of which `sent_packets` were sent.
    pub(super) fn note(&mut self, report: &DeliveryReport, clock_rate_hz: u32, sent_packets: u64) {
        self.is_reported = true;
        self.jitter_ms = Some(f64::from(report.jitter) * 1e3 / f64::from(clock_rate_hz.max(1)));
        if report.lost_packets < LOST_PACKETS_MAX {
            let sent = sent_packets.saturating_sub(self.sent_packets);
            let lost = report.lost_packets.saturating_sub(self.lost_packets);
            // A report that finds nothing sent since the last tells nothing new.
            if sent > 0 {
                // Counts of packets: exact in 53 bits.
                let loss = (lost as f64 / sent as f64).min(1.0);
                self.recent_loss = loss.max(self.recent_loss * LOSS_LEFT);
                self.sent_packets = sent_packets;
            }
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
            delivery.note(&report(ms, lost), 48_000, 100);
        }
        assert_eq!(delivery.round_trip, Some(Duration::from_millis(90)));
        assert_eq!(delivery.round_trip_min, Some(Duration::from_millis(30)));
        assert_eq!((delivery.jitter_ms, delivery.lost_packets), (Some(2.0), 3));
    }

    #[test]
    fn loss_of_late_rises_at_once_and_falls_by_degrees() {
        let mut delivery = Delivery::default();
        let mut note = |lost, sent| {
            delivery.note(&report(20, lost), 48_000, sent);
            (delivery.recent_loss * 1e3).round()
        };
        assert_eq!(note(0, 100), 0.0);
        assert_eq!(note(10, 200), 100.0, "of the hundred since then");
        assert_eq!(note(10, 300), 80.0);
        assert_eq!(note(10, 300), 80.0, "nothing was sent");
        assert_eq!(note(40, 400), 300.0);
        assert_eq!(note(30, 500), 240.0, "duplicates may take some back");
        assert_eq!(note(500, 510), 1_000.0);
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let mut delivery = Delivery::default();
        delivery.note(&report(20, 2), 48_000, 100);
        delivery.note(&report(40_000, 0xff_fffe), 48_000, 200);
        assert_eq!(delivery.round_trip, Some(Duration::from_millis(20)));
        assert_eq!(delivery.lost_packets, 2);
    }
}
