//! Headers whose values lie in files, such as tokens: read at start, and anew every now and then,
//! so that they can be rotated while the process runs.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::backends::SecretFile;

/// Longest secret, in bytes: a header must still fit what servers take.
const SECRET_BYTES_MAX: u64 = 4_096;

/// Why a secret cannot be had. Displays as one line that ends in the remedy and holds no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// No credentials were given to the process.
    #[error(
        "{name}: is no path, and $CREDENTIALS_DIRECTORY is not set: write a path with / at its \
         beginning, or run under a unit with LoadCredential={name}:FILE"
    )]
    NoCredentials {
        /// The credential.
        name: String,
    },
    /// The file.
    #[error("{}: cannot be read: {cause}; check the path and that this user may read it",
        path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// What is in it.
    #[error(
        "{}: holds no single line of 1 to {SECRET_BYTES_MAX} visible characters: write the secret \
         alone into it", path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
    },
}

/// The secret headers of one backend.
#[derive(Debug)]
pub(super) struct Secrets {
    files: Vec<(String, &'static str, PathBuf)>,
    current: Mutex<Arc<[(String, String)]>>,
}

impl Secrets {
    /// Finds and reads the files: name of the header, what stands before the secret, the file.
    pub(super) fn read<'a>(
        headers: impl Iterator<Item = (&'a str, &'static str, SecretFile)>,
    ) -> Result<Self, SecretError> {
        let mut files = Vec::new();
        for (name, prefix, file) in headers {
            files.push((name.to_owned(), prefix, path_of(file)?));
        }
        let current = Mutex::new(read_all(&files)?);
        Ok(Self { files, current })
    }

    /// Name and value of each header, as last read.
    pub(super) fn current(&self) -> Arc<[(String, String)]> {
        Arc::clone(&self.lock())
    }

    /// Reads the files again. What was read before stays if one cannot be had.
    pub(super) fn refresh(&self) -> Result<(), SecretError> {
        *self.lock() = read_all(&self.files)?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<[(String, String)]>> {
        // Replaced as a whole, so a panic leaves nothing half done.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn path_of(file: SecretFile) -> Result<PathBuf, SecretError> {
    match file {
        SecretFile::Path(path) => Ok(path),
        SecretFile::Credential(name) => match std::env::var_os("CREDENTIALS_DIRECTORY") {
            Some(folder) => Ok(PathBuf::from(folder).join(name)),
            None => Err(SecretError::NoCredentials { name }),
        },
    }
}

fn read_all(
    files: &[(String, &'static str, PathBuf)],
) -> Result<Arc<[(String, String)]>, SecretError> {
    let header = |(name, prefix, path): &(String, &'static str, PathBuf)| {
        let secret = read_one(path)?;
        Ok((name.clone(), format!("{prefix}{secret}")))
    };
    files.iter().map(header).collect()
}

fn read_one(path: &PathBuf) -> Result<String, SecretError> {
    let file = std::fs::File::open(path);
    let mut text = String::new();
    let read = file.and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text));
    let path = path.clone();
    read.map_err(|cause| SecretError::Read {
        path: path.clone(),
        cause,
    })?;
    let secret = text.trim();
    let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if text.len() as u64 > SECRET_BYTES_MAX || secret.is_empty() || !secret.bytes().all(is_visible)
    {
        return Err(SecretError::Content { path });
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(path: &std::path::Path) -> Result<Secrets, SecretError> {
        let file = SecretFile::Path(path.to_owned());
        Secrets::read([("Authorization", "Bearer ", file)].into_iter())
    }

    #[test]
    fn a_secret_is_read_without_the_line_end_and_can_be_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "sk-1\n").unwrap();
        let secrets = secrets(&path).unwrap();
        let header = |value: &str| [("Authorization".to_owned(), format!("Bearer {value}"))];
        assert_eq!(secrets.current()[..], header("sk-1"));
        std::fs::write(&path, "sk-2").unwrap();
        secrets.refresh().unwrap();
        assert_eq!(secrets.current()[..], header("sk-2"));
        std::fs::write(&path, "").unwrap();
        assert!(matches!(
            secrets.refresh(),
            Err(SecretError::Content { .. })
        ));
        assert_eq!(
            secrets.current()[..],
            header("sk-2"),
            "the last good one stays"
        );
    }

    #[test]
    fn what_cannot_be_a_header_is_refused_without_being_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(matches!(secrets(&path), Err(SecretError::Read { .. })));
        let long = "x".repeat(SECRET_BYTES_MAX as usize + 1);
        for text in ["sk\r\nX-Evil: 1", "sk-\u{e4}", " \n", long.as_str()] {
            std::fs::write(&path, text).unwrap();
            let error = secrets(&path).unwrap_err();
            assert!(matches!(error, SecretError::Content { .. }), "{text:?}");
            assert!(!error.to_string().contains("sk"), "{error}");
        }
    }
}
