//! The `[signalling]` section.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use syrinx_shared::config::Invalid;
use syrinx_shared::config::workers::within;
use syrinx_shared::http::tls::{NamedFile, TlsFiles};

use crate::signalling::owners::KeyLimits;

const TLS_CERTIFICATE_KEY: &str = "signalling.tls_certificate_file";
const TLS_KEY_KEY: &str = "signalling.tls_key_file";

/// What time-outs of an HTTP request can be, in ms.
const REQUEST_TIMEOUT_MS: std::ops::RangeInclusive<u64> = 100..=60_000;

/// The `[signalling]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct SignallingConfig {
    /// Address of the HTTP API and the page. Default 127.0.0.1:8080: without TLS a browser grants
    /// the microphone to pages of this machine only, and calls need no key there.
    pub listen: SocketAddr,
    /// File with the server's certificate and the intermediate ones (PEM), for HTTPS on `listen`;
    /// read again on SIGHUP. Default empty: plain HTTP, for this machine or behind a proxy.
    pub tls_certificate_file: PathBuf,
    /// File with the private key of that certificate (PEM). Default empty.
    pub tls_key_file: PathBuf,
    /// File with the digests of API keys, as `syrinx-transceiver api-key new` makes it; read again
    /// on SIGHUP. With it every call needs a key. Default empty: no keys, and calls from this
    /// machine only.
    pub api_keys_file: PathBuf,
    /// Lets anyone who reaches `listen` open calls when it is not a loopback address and there are
    /// no keys. Default false: this must be a decision.
    pub allow_anonymous: bool,
    /// Origins (`https://app.example`) whose pages may use the API, or `*` for all. Default none:
    /// only the page served here can, being of the same origin.
    pub allowed_origins: Vec<String>,
    /// Open HTTP connections. A newcomer beyond takes the place of the one that has waited longest
    /// for its client, and gets 503 where requests in progress take all. Default 1,024.
    pub connections_count_max: usize,
    /// Open HTTP connections of one client, which is an IPv4 address or an IPv6 /64; more get 429.
    /// Default 256: an office behind one address, and no more than a quarter of all
    /// for one stranger. This machine has no such limit; a proxy elsewhere needs it raised.
    pub connections_per_client_count_max: usize,
    /// Time for a request's head to arrive, in ms; an idle connection is closed by the same clock.
    /// Default 5,000.
    pub header_timeout_ms: u64,
    /// Calls one key may have open at once, where the key file gives it no limit of its own; more
    /// get 429. Where no key is needed, everybody together is one key. Default 100,000: no limit
    /// but the process's own.
    pub calls_per_key_count_max: u32,
    /// Calls of one key whose clients have not come through yet; more get 429. Default 1,000: a
    /// client needs some round trips, so only those that never come through add up to it.
    pub half_open_calls_per_key_count_max: u32,
    /// Time for a request's body to arrive, in ms. Default 10,000: 100 KB of SDP over a bad mobile
    /// network, and not much more.
    pub body_timeout_ms: u64,
}

impl Default for SignallingConfig {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 8080).into(),
            tls_certificate_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            api_keys_file: PathBuf::new(),
            allow_anonymous: false,
            allowed_origins: Vec::new(),
            connections_count_max: 1_024,
            connections_per_client_count_max: 256,
            header_timeout_ms: 5_000,
            calls_per_key_count_max: 100_000,
            half_open_calls_per_key_count_max: 1_000,
            body_timeout_ms: 10_000,
        }
    }
}

impl SignallingConfig {
    /// [`SignallingConfig::header_timeout_ms`].
    pub fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.header_timeout_ms)
    }

    /// [`SignallingConfig::body_timeout_ms`].
    pub fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }

    /// [`SignallingConfig::api_keys_file`], if one is configured.
    pub fn api_keys_file(&self) -> Option<&Path> {
        configured(&self.api_keys_file)
    }

    /// [`SignallingConfig::tls_certificate_file`] and [`SignallingConfig::tls_key_file`], if they
    /// are configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        let named = |name, path: &Path| {
            let path = configured(path)?.to_owned();
            Some(NamedFile { name, path })
        };
        Some(TlsFiles {
            certificate: named(TLS_CERTIFICATE_KEY, &self.tls_certificate_file)?,
            key: named(TLS_KEY_KEY, &self.tls_key_file)?,
        })
    }

    /// [`SignallingConfig::calls_per_key_count_max`] and
    /// [`SignallingConfig::half_open_calls_per_key_count_max`].
    pub fn key_limits(&self) -> KeyLimits {
        KeyLimits {
            calls_count_max: self.calls_per_key_count_max,
            half_open_count_max: self.half_open_calls_per_key_count_max,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        self.validate_access()?;
        self.validate_tls()?;
        self.validate_origins()?;
        self.validate_limits()
    }

    fn validate_access(&self) -> Result<(), Invalid> {
        let has_keys = self.api_keys_file().is_some();
        if has_keys && self.allow_anonymous {
            return Err(Invalid::new(
                "signalling.allow_anonymous",
                true,
                "calls cannot be open to anyone and need a key of signalling.api_keys_file",
                "remove one of the two",
            ));
        }
        if !self.listen.ip().is_loopback() && !has_keys && !self.allow_anonymous {
            return Err(Invalid::new(
                "signalling.listen",
                self.listen,
                "anyone who reaches this address could open calls, as there are no API keys",
                "set signalling.api_keys_file (`syrinx-transceiver api-key new` makes one), listen \
                 on a loopback address behind a proxy that authenticates, or set \
                 signalling.allow_anonymous = true",
            ));
        }
        Ok(())
    }

    fn validate_tls(&self) -> Result<(), Invalid> {
        let files = [
            (TLS_CERTIFICATE_KEY, &self.tls_certificate_file),
            (TLS_KEY_KEY, &self.tls_key_file),
        ];
        let is_missing = |(_, path): &&(&str, &PathBuf)| configured(path).is_none();
        match files.iter().filter(is_missing).count() {
            1 => {
                let (key, _) = files.iter().find(is_missing).expect("there is one");
                Err(Invalid::new(
                    key,
                    "\"\"",
                    "TLS needs a certificate and its key",
                    "name both files, or neither",
                ))
            }
            _ => Ok(()),
        }
    }

    fn validate_origins(&self) -> Result<(), Invalid> {
        for (index, origin) in self.allowed_origins.iter().enumerate() {
            if origin != "*" && !is_origin(origin) {
                return Err(Invalid::new(
                    &format!("signalling.allowed_origins[{index}]"),
                    format!("{origin:?}"),
                    "not an origin as browsers send it",
                    "write scheme://host or scheme://host:port in lower case, or *",
                ));
            }
        }
        Ok(())
    }

    fn validate_limits(&self) -> Result<(), Invalid> {
        within(
            "signalling.calls_per_key_count_max",
            self.calls_per_key_count_max,
            1..=u32::MAX,
        )?;
        within(
            "signalling.half_open_calls_per_key_count_max",
            self.half_open_calls_per_key_count_max,
            1..=u32::MAX,
        )?;
        within(
            "signalling.connections_count_max",
            self.connections_count_max,
            1..=65_536,
        )?;
        within(
            "signalling.connections_per_client_count_max",
            self.connections_per_client_count_max,
            1..=65_536,
        )?;
        within(
            "signalling.header_timeout_ms",
            self.header_timeout_ms,
            REQUEST_TIMEOUT_MS,
        )?;
        within(
            "signalling.body_timeout_ms",
            self.body_timeout_ms,
            REQUEST_TIMEOUT_MS,
        )
    }
}

/// Whether `text` is a serialised origin (RFC 6454, 6.2): scheme, host, optional port, and no more.
fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else {
        return false;
    };
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
    matches!(scheme, "http" | "https") && !authority.is_empty() && authority.chars().all(is_plain)
}

/// A file that is configured: its key is not empty.
fn configured(file: &Path) -> Option<&Path> {
    (!file.as_os_str().is_empty()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use syrinx_shared::config::Validate as _;

    fn problem_of(change: impl FnOnce(&mut Config)) -> Invalid {
        let mut config = Config::default();
        change(&mut config);
        config.validate().unwrap_err()
    }

    #[test]
    fn anonymous_calls_from_afar_must_be_allowed_in_so_many_words() {
        let afar: SocketAddr = "0.0.0.0:8080".parse().unwrap();
        let invalid = problem_of(|config| config.signalling.listen = afar);
        assert_eq!(
            invalid,
            Invalid::new(
                "signalling.listen",
                "0.0.0.0:8080",
                "anyone who reaches this address could open calls, as there are no API keys",
                "set signalling.api_keys_file (`syrinx-transceiver api-key new` makes one), listen \
                 on a loopback address behind a proxy that authenticates, or set \
                 signalling.allow_anonymous = true",
            )
        );
        let mut config = Config::default();
        config.signalling.listen = afar;
        config.signalling.allow_anonymous = true;
        config.validate().unwrap();
        config.signalling.api_keys_file = "/etc/syrinx/api.keys".into();
        let invalid = config.validate().unwrap_err();
        assert_eq!(
            invalid,
            Invalid::new(
                "signalling.allow_anonymous",
                true,
                "calls cannot be open to anyone and need a key of signalling.api_keys_file",
                "remove one of the two",
            )
        );
        config.signalling.allow_anonymous = false;
        config.validate().unwrap();
    }

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for good in [
            "*",
            "https://app.example",
            "http://localhost:3000",
            "http://[::1]:8080",
        ] {
            let mut config = Config::default();
            config.signalling.allowed_origins = vec![good.to_owned()];
            config.validate().unwrap();
        }
        for bad in [
            "app.example",
            "https://app.example/",
            "https://App.example",
            "null",
            "",
        ] {
            let invalid =
                problem_of(|config| config.signalling.allowed_origins = vec![bad.to_owned()]);
            assert_eq!(
                invalid,
                Invalid::new(
                    "signalling.allowed_origins[0]",
                    format!("{bad:?}"),
                    "not an origin as browsers send it",
                    "write scheme://host or scheme://host:port in lower case, or *",
                )
            );
        }
    }

    #[test]
    fn tls_needs_both_files_or_neither() {
        let missing_key = problem_of(|config| {
            config.signalling.tls_certificate_file = "/etc/syrinx/edge.pem".into();
        });
        let expected = Invalid::new(
            "signalling.tls_key_file",
            "\"\"",
            "TLS needs a certificate and its key",
            "name both files, or neither",
        );
        assert_eq!(missing_key, expected);
        problem_of(|config| config.signalling.tls_key_file = "/etc/syrinx/edge.key".into());
        let mut config = Config::default();
        assert_eq!(config.signalling.tls_files(), None);
        config.signalling.tls_certificate_file = "a".into();
        config.signalling.tls_key_file = "b".into();
        config.validate().unwrap();
        assert!(config.signalling.tls_files().is_some());
    }

    #[test]
    fn numbers_have_their_ranges() {
        problem_of(|config| config.signalling.connections_count_max = 0);
        problem_of(|config| config.signalling.connections_per_client_count_max = 0);
        problem_of(|config| config.signalling.header_timeout_ms = 0);
        problem_of(|config| config.signalling.body_timeout_ms = 100_000);
        problem_of(|config| config.signalling.calls_per_key_count_max = 0);
        problem_of(|config| config.signalling.half_open_calls_per_key_count_max = 0);
    }
}
