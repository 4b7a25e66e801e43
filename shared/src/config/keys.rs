//! The `[keys]` section, the same in every daemon that belongs to a cluster.

use std::io;
use std::path::PathBuf;

use serde::Deserialize;

use crate::keys::{KeyFileError, KeyRing};

/// The `[keys]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct KeysConfig {
    /// File with the cluster's keys, as `syrinx-relay keys new` makes it. Default
    /// /etc/syrinx/cluster.keys.
    pub file: PathBuf,
}

/// Why there are no keys. Displays as one line that ends in the remedy and holds no secret.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error(
        "keys.file = {}: cannot be read: {cause}; make it with `syrinx-relay keys new --dir DIR`, \
         or let this user read it",
        path.display()
    )]
    Read {
        /// The configured file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The file is not a key file.
    #[error("keys.file = {}: {cause}", path.display())]
    Format {
        /// The configured file.
        path: PathBuf,
        /// What is wrong with it, and the remedy.
        cause: KeyFileError,
    },
}

impl Default for KeysConfig {
    fn default() -> Self {
        Self {
            file: PathBuf::from("/etc/syrinx/cluster.keys"),
        }
    }
}

impl KeysConfig {
    /// Reads the key file.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn read(&self) -> Result<KeyRing, KeysError> {
        let path = || self.file.clone();
        let text = std::fs::read_to_string(&self.file).map_err(|cause| KeysError::Read {
            path: path(),
            cause,
        })?;
        KeyRing::parse(&text).map_err(|cause| KeysError::Format {
            path: path(),
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{MasterSecret, cluster_key_file};
    use crate::route::Epoch;

    #[test]
    fn an_absent_or_bad_file_is_named_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let config = KeysConfig {
            file: folder.path().join("cluster.keys"),
        };
        let line = config.read().unwrap_err().to_string();
        assert!(
            line.contains("cluster.keys: cannot be read: No such file"),
            "{line}"
        );
        assert!(line.contains("syrinx-relay keys new"), "{line}");
        std::fs::write(&config.file, "mint = 'x'\n").unwrap();
        let line = config.read().unwrap_err().to_string();
        assert!(
            line.contains("cluster.keys: not a Syrinx key file"),
            "{line}"
        );
        assert!(!line.contains('\n'), "{line}");
    }

    #[test]
    fn a_fresh_key_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let config = KeysConfig {
            file: folder.path().join("cluster.keys"),
        };
        let epoch = Epoch::new(1).unwrap();
        let text = cluster_key_file(epoch, &MasterSecret::new([1; 32]));
        std::fs::write(&config.file, text).unwrap();
        assert_eq!(config.read().unwrap().minting(), Some(epoch));
    }
}
