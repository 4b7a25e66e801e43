//! What never arrives.

/// What of a client's datagrams is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loses {
    Nothing,
    Everything,
    AllButChecks,
    Checks,
    /// All of its DTLS but the first so many datagrams.
    DtlsAfter(usize),
}

impl Loses {
    /// Whether a datagram with this first byte is lost; with it the client has sent so many of
    /// DTLS.
    pub(super) fn loses(self, first: u8, dtls_count: usize) -> bool {
        let is_check = first < 4;
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::AllButChecks => !is_check,
            Self::Checks => is_check,
            Self::DtlsAfter(passed) => is_dtls(first) && dtls_count > passed,
        }
    }
}

/// Whether a datagram that begins like this is DTLS (RFC 7983, 7).
pub(super) fn is_dtls(first: u8) -> bool {
    (20..64).contains(&first)
}
