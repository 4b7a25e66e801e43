//! TLS towards backends: rustls with aws-lc-rs, the provider that DTLS uses too.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_rustls::rustls::crypto::aws_lc_rs;
use futures_rustls::rustls::pki_types::CertificateDer;
use futures_rustls::rustls::pki_types::pem::{self, PemObject as _};
use futures_rustls::rustls::{ClientConfig, Error as RustlsError, RootCertStore};

/// Why TLS cannot be spoken. Displays as one line that ends in the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("tls_ca_file = {}: {cause}; name a file with certificates in PEM", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: pem::Error,
    },
    /// Nothing in it can be trusted.
    #[error(
        "tls_ca_file = {}: holds no certificate that can be trusted; name a file with the \
         authority's certificates in PEM", path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A host that no certificate can be for.
    #[error("urls: {0}: no certificate can name this host; use a DNS name or an IP address")]
    ServerName(String),
    /// The provider.
    #[error("TLS cannot be set up: {0}; report this")]
    Provider(#[source] RustlsError),
}

/// What connections are made with: trusted is what `ca_file` names, or Mozilla's roots if it is
/// empty.
pub(super) fn client(ca_file: &str) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    if ca_file.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    } else {
        add_file(&mut roots, PathBuf::from(ca_file))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Provider)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn add_file(roots: &mut RootCertStore, path: PathBuf) -> Result<(), TlsError> {
    let failed = |cause| TlsError::Read {
        path: path.clone(),
        cause,
    };
    let certificates = CertificateDer::pem_file_iter(&path).map_err(failed)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(failed)?;
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(TlsError::Empty { path });
    }
    Ok(())
}

/// The text of an error of the transport, and whether it is TLS that failed.
pub(in crate::driver) fn as_tls_error(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?;
    let tls = inner.downcast_ref::<RustlsError>()?;
    Some(tls.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_come_from_a_file_or_are_built_in() {
        assert!(client("").is_ok());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let name = path.to_str().unwrap();
        assert!(matches!(client(name), Err(TlsError::Read { .. })));
        std::fs::write(&path, "not PEM\n").unwrap();
        assert!(matches!(client(name), Err(TlsError::Empty { .. })));
        let no_certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        std::fs::write(&path, no_certificate).unwrap();
        assert!(matches!(client(name), Err(TlsError::Empty { .. })));
    }
}
