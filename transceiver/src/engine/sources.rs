//! Whose audio is listened to: sources by their SSRC (RFC 3550, 5.2).
//!
//! A client may begin with any source and go over to another. str0m takes a source that the offer
//! names or that says by MID which section it is of, and drops any other without a word. At most
//! one section of audio is served, so that a source belongs there needs no saying (RFC 8843, 9.2):
//! each is announced to str0m when its first packet comes.
//!
//! That packet is not authenticated yet, so whoever can forge the client's address can make us
//! listen to sources that nobody has. They only ever displace each other: a source that has been
//! heard goes last.

use str0m::rtp::Ssrc;

/// Sources listened to at once: the present one, the one before it whose stragglers may come, and
/// as many again.
const SOURCES_MAX: usize = 4;

/// The bytes of RTP's fixed header (RFC 3550, 5.1).
const HEADER_BYTES: usize = 12;

/// Sources that were announced: those never heard first, the one heard last at the end.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<Ssrc>);

/// What to do before a packet of an unknown source is taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) expect: Ssrc,
    pub(super) forget: Option<Ssrc>,
}

impl Sources {
    /// Takes note of the source of `datagram`, if that is RTP of an unknown one.
    pub(super) fn note(&mut self, datagram: &[u8]) -> Option<Change> {
        let header = datagram.first_chunk::<HEADER_BYTES>()?;
        // RTP, and not RTCP (RFC 7983, 7; RFC 5761, 4).
        if !(128..192).contains(&header[0]) || (192..224).contains(&header[1]) {
            return None;
        }
        let [.., a, b, c, d] = *header;
        let source = Ssrc::from(u32::from_be_bytes([a, b, c, d]));
        if self.0.contains(&source) {
            return None;
        }
        let forget = (self.0.len() == SOURCES_MAX).then(|| self.0.remove(0));
        self.0.insert(0, source);
        Some(Change {
            expect: source,
            forget,
        })
    }

    /// A packet of this source was authentic.
    pub(super) fn heard(&mut self, source: Ssrc) {
        if self.0.last() != Some(&source)
            && let Some(at) = self.0.iter().position(|known| *known == source)
        {
            self.0[at..].rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtp(source: u32) -> Vec<u8> {
        let mut packet = vec![0x80, 0xef, 0, 1, 0, 0, 0, 2];
        packet.extend(source.to_be_bytes());
        packet.extend([7; 20]);
        packet
    }

    #[test]
    fn what_was_heard_outlives_any_number_of_sources_that_were_not() {
        let mut sources = Sources::default();
        for source in [1, 2] {
            let change = sources.note(&rtp(source)).unwrap();
            assert_eq!((change.expect, change.forget), (source.into(), None));
            sources.heard(source.into());
        }
        assert_eq!(sources.note(&rtp(1)), None);
        for forged in 100..1_000u32 {
            let change = sources.note(&rtp(forged)).unwrap();
            let forgotten = (forged >= 102).then(|| Ssrc::from(forged - 1));
            assert!(
                change.forget.is_none() || change.forget == forgotten,
                "{change:?}"
            );
            assert!(sources.0.len() <= SOURCES_MAX);
        }
        assert!(sources.0.ends_with(&[1.into(), 2.into()]));
        sources.heard(1.into());
        assert!(sources.0.ends_with(&[2.into(), 1.into()]));
    }

    #[test]
    fn only_rtp_has_a_source() {
        let mut sources = Sources::default();
        let mut rtcp = rtp(1);
        rtcp[1] = 201;
        let mut dtls = rtp(1);
        dtls[0] = 22;
        for other in [&rtcp[..], &dtls, &rtp(1)[..11], &[]] {
            assert_eq!(sources.note(other), None);
        }
    }
}
