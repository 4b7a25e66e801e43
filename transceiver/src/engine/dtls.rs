//! The DTLS provider that all sessions of a process share, those of a load generator too.
//!
//! str0m's own provider builds and validates a `dimpl` configuration for every session, which
//! costs 1.1 ms each; measured with the configuration built once, creating a session's engine
//! costs 19 to 31 µs. Owning the configuration also lets the handshake recover from a lost flight
//! after 250 ms instead of after a second.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use str0m::crypto::dtls::{
    DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, ProtocolVersion,
};
use str0m::crypto::{CryptoError, CryptoProvider};

use super::fingerprint::{Digester, Hash};

/// Wait before a handshake flight is sent again. RFC 6347 (4.2.4.1) recommends a second for hosts
/// that know nothing of the path; here an ICE check has just crossed it, and round trips of voice
/// clients are below 250 ms.
const FLIGHT_RTO: Duration = Duration::from_millis(250);

/// How often a flight is sent again: without end. A flight that the client repeats counts, too, so
/// any limit is used up by a client that goes on asking, and DTLS would then give up by itself.
/// Each wait of our own doubles; what a client repeats is answered at once.
const FLIGHT_RETRIES: usize = usize::MAX;

/// Time a handshake may take: more than set-up may by any configuration (`media.setup_timeout_ms`,
/// at most an hour), because the session's deadline alone decides, and says so.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);

/// Why the process cannot do DTLS at all.
#[derive(Debug, thiserror::Error)]
pub enum DtlsSetupError {
    /// The crypto back end made no certificate.
    #[error("the crypto library cannot make a DTLS certificate")]
    Certificate,
    /// The crypto back end refused the configuration.
    #[error("the crypto library refuses the DTLS configuration: {0}")]
    Configuration(DtlsImplError),
}

/// Makes DTLS instances from one validated configuration.
#[derive(Debug)]
struct SharedDtls {
    certificates: &'static dyn DtlsProvider,
    config: Arc<dimpl::Config>,
}

/// The crypto of a process: str0m's default with the DTLS part replaced, and one certificate.
/// `mtu_bytes` is the largest DTLS datagram to write.
///
/// The provider is leaked, because str0m wants it `'static`: call this once a process.
///
/// # Errors
///
/// When the crypto library lacks something DTLS needs.
pub fn process_crypto(mtu_bytes: usize) -> Result<(Arc<CryptoProvider>, DtlsCert), DtlsSetupError> {
    let mut provider = str0m::crypto::from_feature_flags();
    let certificate = provider
        .dtls_provider
        .generate_certificate()
        .ok_or(DtlsSetupError::Certificate)?;
    // ICE has proven the return path before DTLS starts, so a cookie exchange would only add a
    // round trip.
    let config = dimpl::Config::builder()
        .use_server_cookie(false)
        .mtu(mtu_bytes)
        .flight_start_rto(FLIGHT_RTO)
        .flight_retries(FLIGHT_RETRIES)
        .handshake_timeout(HANDSHAKE_TIMEOUT)
        .build()
        .map_err(DtlsSetupError::Configuration)?;
    let shared = SharedDtls {
        certificates: provider.dtls_provider,
        config: Arc::new(config),
    };
    provider.dtls_provider = Box::leak(Box::new(shared));
    Ok((Arc::new(provider), certificate))
}

/// The crypto for clients of each hash function, in the order of [`Hash::index`].
pub(super) type Cryptos = [Arc<CryptoProvider>; Hash::ALL.len()];

/// [`process_crypto`] for each hash function that clients may fingerprint their certificates by.
pub(super) fn process_cryptos(mtu_bytes: usize) -> Result<(Cryptos, DtlsCert), DtlsSetupError> {
    let (crypto, certificate) = process_crypto(mtu_bytes)?;
    let cryptos = Hash::ALL.map(|hash| {
        let mut provider = CryptoProvider::clone(&crypto);
        provider.sha256_provider = Box::leak(Box::new(Digester {
            hash,
            own_certificate: certificate.certificate.clone(),
        }));
        Arc::new(provider)
    });
    Ok((cryptos, certificate))
}

impl DtlsProvider for SharedDtls {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        self.certificates.generate_certificate()
    }

    fn new_dtls(
        &self,
        certificate: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        _mtu_bytes: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        let config = Arc::clone(&self.config);
        let certificate = certificate.clone();
        let dtls = match version {
            DtlsVersion::Dtls12 => dimpl::Dtls::new_12(config, certificate, now),
            DtlsVersion::Dtls13 => dimpl::Dtls::new_13(config, certificate, now),
            _ => dimpl::Dtls::new_auto(config, certificate, now),
        };
        Ok(Box::new(Instance(dtls)))
    }
}

/// `dimpl`'s endpoint behind str0m's trait: every method is the one of the same name.
struct Instance(dimpl::Dtls);

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

impl DtlsInstance for Instance {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        self.0.poll_output(buffer)
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}
