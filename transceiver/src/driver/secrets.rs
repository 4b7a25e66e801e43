//! What the process keeps secret, as files hold it: the cluster's keys, the API's, and that of its
//! certificate.
//!
//! Read at the start, by `--check`, and again on SIGHUP. Either all of it is good or none is taken.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use syrinx_shared::http::tls::Certificates;
use syrinx_shared::keys::KeyRing;
use syrinx_shared::wire::ufrag::MintError;

use crate::config::Config;
use crate::signalling::access::Access;
use crate::signalling::api_keys::ApiKeys;

/// Who may do more with a file of keys than read it beside its owner. Credentials of systemd are
/// readable by a group of their own.
const TOO_OPEN: u32 = 0o037;

/// See the module's description.
pub struct Secrets {
    /// The cluster's keys, one of which mints.
    pub ring: Arc<KeyRing>,
    /// The keys of the API; `None` where nobody needs one.
    pub api_keys: Option<ApiKeys>,
    /// What HTTPS is spoken with; `None` for plain HTTP.
    pub certificates: Option<Certificates>,
}

impl Secrets {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    ///
    /// One line: the file, what is wrong with it, and the remedy.
    pub fn read(config: &Config) -> anyhow::Result<Self> {
        let ring = config.keys.read()?;
        if ring.minting().is_none() {
            let named = format!("keys.file = {}", config.keys.file.display());
            return Err(MintError::NoMintingEpoch).context(named);
        }
        let api_keys = config.signalling.api_keys_file().map(read_api_keys);
        let files = config.signalling.tls_files();
        let certificates = files.map(|files| files.read());
        Ok(Self {
            ring: Arc::new(ring),
            api_keys: api_keys.transpose()?,
            certificates: certificates.transpose()?,
        })
    }

    /// The rules under these keys.
    pub fn access(&self) -> Access {
        Access::new(Arc::clone(&self.ring), self.api_keys.clone())
    }
}

fn read_api_keys(file: &Path) -> anyhow::Result<ApiKeys> {
    let named = || format!("signalling.api_keys_file = {}", file.display());
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "{}: cannot be read; make it with `syrinx-transceiver api-key new`, or let this user \
             read it",
            named()
        )
    })?;
    let mode = std::fs::metadata(file).map(|found| found.permissions().mode());
    if mode.is_ok_and(|mode| mode & TOO_OPEN != 0) {
        tracing::warn!(
            file = %file.display(),
            "the file of API keys is open to others than its owner: chmod 600 it"
        );
    }
    ApiKeys::parse(&text).with_context(named)
}
