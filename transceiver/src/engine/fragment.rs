//! SDP fragments of WHIP (RFC 8840, 9; RFC 9725, 4.3): a client trickles candidates, which an
//! ICE-lite server does not need, or restarts ICE with new credentials, which it answers.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::offer::OfferError;
use super::{ClientCredentials, Credentials, Template};

/// Largest fragment that is read: a few hundred candidates.
pub const FRAGMENT_BYTES_MAX: usize = 32 * 1024;
/// Longest m-line and longest mid that are repeated in an answer, in bytes.
const MEDIA_LINE_BYTES_MAX: usize = 200;
const MID_BYTES_MAX: usize = 16;

/// What a fragment says that matters here.
#[derive(Clone, PartialEq, Eq)]
pub struct Fragment {
    credentials: Option<ClientCredentials>,
    media_line: Option<String>,
    mid: Option<String>,
}

impl Fragment {
    /// Reads the body of a PATCH.
    ///
    /// # Errors
    /// [`OfferError`]: malformed or too large.
    pub fn parse(body: &[u8]) -> Result<Self, OfferError> {
        if body.len() > FRAGMENT_BYTES_MAX {
            return Err(OfferError::TooLarge {
                limit: FRAGMENT_BYTES_MAX,
                unit: "bytes",
            });
        }
        let malformed = |line, what| OfferError::Malformed { line, what };
        let text = std::str::from_utf8(body).map_err(|_| malformed(0, "not UTF-8 text"))?;
        let (mut ufrag, mut password) = (None, None);
        let (mut media_line, mut mid) = (None, None);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let Some((field, value)) = line.split_once('=').filter(|(field, _)| field.len() == 1)
            else {
                return Err(malformed(number, "not of the form <letter>=<value>"));
            };
            match (field, value.split_once(':').unwrap_or((value, ""))) {
                ("m", _) if media_line.is_none() => media_line = Some((number, line)),
                ("a", ("mid", value)) if mid.is_none() => mid = Some((number, value.trim())),
                ("a", ("ice-ufrag", value)) => ufrag = Some((number, value.trim())),
                ("a", ("ice-pwd", value)) => password = Some((number, value.trim())),
                _ => {}
            }
        }
        let credentials = match (ufrag, password) {
            (Some((line, ufrag)), Some((_, password))) => {
                Some(ClientCredentials::parse(line, ufrag, password)?)
            }
            (None, None) => None,
            (Some((line, _)), None) | (None, Some((line, _))) => {
                return Err(malformed(line, "a=ice-ufrag and a=ice-pwd come together"));
            }
        };
        let visible = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let short = |found: Option<(usize, &str)>, bytes_max| match found {
            Some((_, text)) if text.len() <= bytes_max && visible(text) => {
                Ok(Some(text.to_owned()))
            }
            Some((line, _)) => Err(malformed(line, "too long, or not visible ASCII")),
            None => Ok(None),
        };
        Ok(Self {
            credentials,
            media_line: short(media_line, MEDIA_LINE_BYTES_MAX)?,
            mid: short(mid, MID_BYTES_MAX)?,
        })
    }

    /// The client's credentials: those it has, or new ones, which start a restart.
    pub fn credentials(&self) -> Option<&ClientCredentials> {
        self.credentials.as_ref()
    }
}

impl Template {
    /// The answer to a fragment that restarts ICE: our new credentials, and the candidates, which
    /// are the same as ever.
    pub fn answer_fragment(&self, fragment: &Fragment, ours: &Credentials) -> String {
        let default_line = "m=audio 9 UDP/TLS/RTP/SAVPF 0";
        let media_line = fragment.media_line.as_deref().unwrap_or(default_line);
        let mid = fragment.mid.as_deref().unwrap_or("0");
        let mut text = format!(
            "a=ice-lite\r\n{media_line}\r\na=mid:{mid}\r\na=ice-ufrag:{}\r\na=ice-pwd:{}\r\n",
            ours.ufrag, ours.password
        );
        for (rank, address) in (0u32..).zip(self.advertised.all.iter()) {
            write_candidate(&mut text, rank, *address);
        }
        text.push_str("a=end-of-candidates\r\n");
        text
    }
}

/// A host candidate over UDP of component 1 (RFC 8839, 5.1); earlier ones are preferred
/// (RFC 8445, 5.1.2.1).
fn write_candidate(text: &mut String, rank: u32, address: SocketAddr) {
    let priority = (126 << 24) + ((65_535 - rank) << 8) + 255;
    let (ip, port) = (address.ip(), address.port());
    write!(
        text,
        "a=candidate:{} 1 udp {priority} {ip} {port} typ host\r\n",
        rank + 1
    )
    .expect("invariant: writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_restart_is_answered_with_our_credentials_and_candidates_in_its_own_m_line() {
        let body = b"a=ice-options:ice2\r\na=group:BUNDLE 7\r\nm=audio 9 RTP/AVP 0\r\na=mid:7\r\n\
            a=ice-ufrag:EsAw\r\na=ice-pwd:P2uYro0UCOQ4zxjKXaWCBui1\r\na=candidate:x\r\n";
        let fragment = Fragment::parse(body).unwrap();
        assert!(fragment.credentials().is_some());
        let advertised = ["192.0.2.1:3478", "[2001:db8::1]:3478"].map(|at| at.parse().unwrap());
        let ours = Credentials {
            ufrag: "OURS".into(),
            password: "SECRET".into(),
        };
        let answer = Template::new(&advertised)
            .unwrap()
            .answer_fragment(&fragment, &ours);
        assert_eq!(
            answer,
            "a=ice-lite\r\nm=audio 9 RTP/AVP 0\r\na=mid:7\r\na=ice-ufrag:OURS\r\n\
             a=ice-pwd:SECRET\r\na=candidate:1 1 udp 2130706431 192.0.2.1 3478 typ host\r\n\
             a=candidate:2 1 udp 2130706175 2001:db8::1 3478 typ host\r\na=end-of-candidates\r\n"
        );
    }

    #[test]
    fn a_trickle_restarts_nothing_and_half_of_the_credentials_are_refused() {
        let trickle = b"a=candidate:1 1 udp 1 192.0.2.9 5 typ host\na=end-of-candidates\n";
        assert!(Fragment::parse(trickle).unwrap().credentials().is_none());
        let refused = |body: &[u8]| match Fragment::parse(body) {
            Err(OfferError::Malformed { line, .. }) => line,
            other => panic!("{:?}", other.map(|_| ())),
        };
        assert_eq!(refused(b"\na=ice-ufrag:abcd\n"), 2);
        assert_eq!(refused(b"a=ice-ufrag:abcd\na=ice-pwd:short\n"), 1);
        assert_eq!(refused(b"hello"), 1);
        assert_eq!(refused(b"a=mid:01234567890123456\n"), 1);
        let large = vec![b'\n'; FRAGMENT_BYTES_MAX + 1];
        assert!(matches!(
            Fragment::parse(&large),
            Err(OfferError::TooLarge { .. })
        ));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Fragment::parse(&body);
        }
    }
}
