//! TLS for an HTTP server, from certificate files that may change while it runs.
//!
//! TLS 1.2 and 1.3 by rustls, HTTP/1.1 only. Each connection keeps what it was accepted with; the
//! next one is accepted with what was read last.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Where certificates come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the server's certificate, then the intermediate ones.
    pub certificate: NamedFile,
    /// PEM: the private key of the first certificate.
    pub key: NamedFile,
}

/// A file, and the configuration key that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// The dotted key.
    pub name: &'static str,
    /// The file.
    pub path: PathBuf,
}

impl fmt::Display for NamedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.path.display())
    }
}

/// Why there is no TLS. Displays as one line that ends in the remedy and holds no secret.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{file}: {problem}; let this user read a PEM file there")]
    File {
        /// Which file.
        file: NamedFile,
        /// What is wrong with it.
        problem: String,
    },
    /// The two files do not make a server.
    #[error("{file}: {cause}; give the certificate chain and the key that belongs to it")]
    Chain {
        /// The file of the certificate.
        file: NamedFile,
        /// What rustls says.
        cause: rustls::Error,
    },
}

/// Certificates as they were read.
#[derive(Clone)]
pub struct Certificates(Arc<ServerConfig>);

/// The certificates in force. Clones share them.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Certificates>>);

impl TlsFiles {
    /// Reads both files and makes sure that they belong together.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn read(&self) -> Result<Certificates, TlsError> {
        let fault = |file: &NamedFile, error| TlsError::File {
            file: file.clone(),
            problem: explain(error),
        };
        let certificate = &self.certificate;
        let chain = read_chain(&certificate.path).map_err(|error| fault(certificate, error))?;
        let key = PrivateKeyDer::from_pem_file(&self.key.path);
        let key = key.map_err(|error| fault(&self.key, error))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(|cause| TlsError::Chain {
            file: certificate.clone(),
            cause,
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Certificates(Arc::new(config)))
    }
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)?.collect::<Result<_, _>>()?;
    match chain.is_empty() {
        true => Err(PemError::NoItemsFound),
        false => Ok(chain),
    }
}

/// The parser's own messages may quote what it read.
fn explain(error: PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        PemError::NoItemsFound => "nothing of the kind in it".to_owned(),
        _ => "not PEM".to_owned(),
    }
}

impl Tls {
    /// TLS with these certificates.
    pub fn new(certificates: Certificates) -> Self {
        Self(Arc::new(RwLock::new(certificates)))
    }

    /// Accepts further connections with these.
    pub fn replace(&self, certificates: Certificates) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificates;
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let certificates = self.0.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&certificates.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    fn files(certificate: &str, key: &str) -> (tempfile::TempDir, TlsFiles) {
        let folder = tempfile::tempdir().unwrap();
        let write = |name, file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::write(&path, text).unwrap();
            NamedFile { name, path }
        };
        let files = TlsFiles {
            certificate: write("a.certificate", "cert.pem", certificate),
            key: write("a.key", "key.pem", key),
        };
        (folder, files)
    }

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["edge.test".to_owned()]).unwrap();
        let pem = |label: &str, der: &[u8]| {
            let text = STANDARD.encode(der);
            format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
        };
        (
            pem("CERTIFICATE", made.cert.der()),
            pem("PRIVATE KEY", &made.signing_key.serialize_der()),
        )
    }

    fn complaint(files: &TlsFiles) -> String {
        let line = files.read().err().expect("the files are bad").to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn a_certificate_and_its_key_are_taken() {
        let (certificate, key) = pair();
        let (_folder, files) = files(&certificate, &key);
        files.read().unwrap();
    }

    #[test]
    fn files_that_are_absent_empty_or_strangers_to_each_other_are_named_with_the_remedy() {
        let (certificate, key) = pair();
        let (folder, mut absent) = files(&certificate, &key);
        absent.key.path = folder.path().join("nowhere");
        let line = complaint(&absent);
        assert!(
            line.starts_with("a.key = ") && line.contains("No such file"),
            "{line}"
        );

        let (_folder, swapped) = files(&key, &certificate);
        let line = complaint(&swapped);
        assert!(line.starts_with("a.certificate = "), "{line}");
        assert!(line.contains("nothing of the kind in it"), "{line}");

        let (_folder, broken) = files(&certificate, &key.replace("KEY-----\n", "KEY-----\n!"));
        let line = complaint(&broken);
        assert!(
            line.starts_with("a.key = ") && line.contains("not PEM"),
            "{line}"
        );

        let (_, other_key) = pair();
        let (_folder, strangers) = files(&certificate, &other_key);
        let line = complaint(&strangers);
        assert!(line.starts_with("a.certificate = "), "{line}");
        assert!(line.ends_with("the key that belongs to it"), "{line}");
    }
}
