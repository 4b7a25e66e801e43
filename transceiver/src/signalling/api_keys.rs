//! API keys: who may use the client-facing API, as the operator's key file says.
//!
//! ```toml
//! [[key]]
//! name = "web-app"              # for the log and the operator; no secret
//! sha256 = "9f86d081884c7d65…"  # SHA-256 of the key, in hex
//! calls_count_max = 50          # optional; instead of signalling.calls_per_key_count_max
//! ```
//!
//! The file holds digests, so whoever reads it, or a backup of it, can use none of the keys. A bare
//! digest is enough because keys are drawn at random (256 bits): there is nothing to guess that a
//! salt or a slow hash would protect. A key is looked up by comparing its digest with every one in
//! constant time, so the time taken tells nothing of how close a guess was.

use std::collections::HashSet;
use std::fmt;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Keys of one file: every look-up compares with all of them.
const KEYS_COUNT_MAX: usize = 1_024;
/// Longest name, in bytes: it stands in log lines.
const NAME_BYTES_MAX: usize = 64;
const DIGEST_BYTES: usize = 32;

/// Which key somebody holds: the first 64 bits of its digest. Not a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; 8]);

impl KeyId {
    /// Whoever holds none, where none is asked for.
    pub const ANONYMOUS: Self = Self([0; 8]);

    /// From the bytes of [`KeyId::to_bytes`].
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({:016x})", u64::from_be_bytes(self.0))
    }
}

/// One key, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// What the operator calls it.
    pub name: String,
    /// Calls it may have open at once, if it has a limit of its own.
    pub calls_count_max: Option<u32>,
    digest: [u8; DIGEST_BYTES],
}

impl ApiKey {
    /// Its id.
    pub fn id(&self) -> KeyId {
        let first = self.digest.first_chunk();
        KeyId(*first.expect("invariant: a digest has 32 bytes"))
    }
}

/// All keys of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<ApiKey>);

/// Why a file of API keys cannot be used. No variant carries a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeysError {
    /// Not TOML, an unknown member, or a value of the wrong type.
    #[error("not a file of API keys: {0}; make keys with `syrinx-transceiver api-key new`")]
    Format(String),
    /// A name that cannot stand in a log line.
    #[error(
        "the name of key {0} is not 1 to {NAME_BYTES_MAX} printable ASCII characters: change it"
    )]
    Name(usize),
    /// A digest that is not 64 hexadecimal digits.
    #[error("the sha256 of key {0:?} is not 64 hexadecimal digits: make the key anew")]
    Digest(String),
    /// A limit that lets nothing through.
    #[error("the calls_count_max of key {0:?} is 0: remove the key instead")]
    NoCalls(String),
    /// The same name or the same key twice.
    #[error("key {0:?} is listed twice, by its name or its sha256: keep one of them")]
    Twice(String),
    /// No key at all.
    #[error("the file lists no key: make one with `syrinx-transceiver api-key new`")]
    Empty,
    /// More than are looked through.
    #[error("the file lists more than {KEYS_COUNT_MAX} keys: remove some")]
    TooMany,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<FileEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    name: String,
    sha256: String,
    calls_count_max: Option<u32>,
}

impl ApiKeys {
    /// Reads the text of a key file.
    ///
    /// # Errors
    /// [`ApiKeysError`], which names the key and the remedy.
    pub fn parse(text: &str) -> Result<Self, ApiKeysError> {
        // The parser's own message quotes the offending line.
        let file: File = toml::from_str(text).map_err(|error: toml::de::Error| {
            ApiKeysError::Format(error.message().replace('\n', " "))
        })?;
        match file.key.len() {
            0 => return Err(ApiKeysError::Empty),
            count if count > KEYS_COUNT_MAX => return Err(ApiKeysError::TooMany),
            _ => {}
        }
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        let mut keys = Vec::with_capacity(file.key.len());
        for (index, entry) in file.key.into_iter().enumerate() {
            let key = entry.judge(index)?;
            if !names.insert(key.name.clone()) || !ids.insert(key.id()) {
                return Err(ApiKeysError::Twice(key.name));
            }
            keys.push(key);
        }
        Ok(Self(keys))
    }

    /// The key that `presented` is, if it is one. Takes as long whatever is presented.
    pub fn find(&self, presented: &str) -> Option<&ApiKey> {
        let digest = digest(presented);
        let mut found = None;
        for key in &self.0 {
            if bool::from(key.digest.ct_eq(&digest)) {
                found = Some(key);
            }
        }
        found
    }

    /// The key with this id.
    pub fn by_id(&self, id: KeyId) -> Option<&ApiKey> {
        self.0.iter().find(|key| key.id() == id)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl FileEntry {
    fn judge(self, index: usize) -> Result<ApiKey, ApiKeysError> {
        if !is_name(&self.name) {
            return Err(ApiKeysError::Name(index + 1));
        }
        let Some(digest) = parse_hex(&self.sha256) else {
            return Err(ApiKeysError::Digest(self.name));
        };
        if self.calls_count_max == Some(0) {
            return Err(ApiKeysError::NoCalls(self.name));
        }
        Ok(ApiKey {
            name: self.name,
            calls_count_max: self.calls_count_max,
            digest,
        })
    }
}

/// Whether a key may be called `name`: 1 to 64 printable ASCII characters that need no quoting.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

/// The key that 32 bytes of a secure source make, and its entry in a key file.
pub fn make(random: [u8; 32], name: &str) -> (String, String) {
    let key = format!("sk-{}", URL_SAFE_NO_PAD.encode(random));
    let mut hex = String::with_capacity(2 * DIGEST_BYTES);
    for byte in digest(&key) {
        write!(hex, "{byte:02x}").expect("invariant: a String takes any text");
    }
    let entry = format!("[[key]]\nname = \"{name}\"\nsha256 = \"{hex}\"\n");
    (key, entry)
}

fn digest(key: &str) -> [u8; DIGEST_BYTES] {
    Sha256::digest(key.as_bytes()).into()
}

fn parse_hex(text: &str) -> Option<[u8; DIGEST_BYTES]> {
    if text.len() != 2 * DIGEST_BYTES || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; DIGEST_BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..text.len()).step_by(2)) {
        // A sign is a digit to the parser, and to nobody else.
        let pair = text.get(at..at + 2).filter(|pair| !pair.starts_with('+'))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two keys, `sk-one` and `sk-two`; the second may have two calls.
    pub(in crate::signalling) fn two_keys() -> ApiKeys {
        let entry = |key: &str, name: &str| {
            let hex: String = digest(key).iter().map(|b| format!("{b:02x}")).collect();
            format!("[[key]]\nname = \"{name}\"\nsha256 = \"{hex}\"\n")
        };
        let text = format!(
            "{}{}calls_count_max = 2\n",
            entry("sk-one", "one"),
            entry("sk-two", "two")
        );
        ApiKeys::parse(&text).unwrap()
    }

    #[test]
    fn a_key_is_known_by_its_digest_and_no_other_text_is() {
        let keys = two_keys();
        let one = keys.find("sk-one").unwrap();
        assert_eq!((one.name.as_str(), one.calls_count_max), ("one", None));
        let two = keys.find("sk-two").unwrap();
        assert_eq!((two.name.as_str(), two.calls_count_max), ("two", Some(2)));
        assert_eq!(keys.by_id(two.id()), Some(two));
        assert_eq!(keys.by_id(KeyId::ANONYMOUS), None);
        for other in ["", "sk-one ", "sk-on", "SK-ONE"] {
            assert_eq!(keys.find(other), None, "{other}");
        }
    }

    #[test]
    fn the_digest_is_what_sha256sum_prints() {
        // printf %s sk-one | sha256sum
        let hex = "456f1612bd25c6c8455039437bf441f43aa3b7d1c0b0047c712d5036dfebef0d";
        let (key, entry) = make([7; 32], "app");
        assert!(key.starts_with("sk-") && key.len() == 46, "{key}");
        let keys = ApiKeys::parse(&entry).unwrap();
        assert_eq!(keys.find(&key).unwrap().name, "app");
        assert!(!entry.contains(&key), "the file holds no key");
        assert_eq!(
            two_keys().find("sk-one").unwrap().digest,
            parse_hex(hex).unwrap()
        );
    }

    #[test]
    fn a_file_that_cannot_be_used_is_refused_with_the_remedy_and_shows_no_digest() {
        let hex = "ab".repeat(32);
        let entry = |name: &str, hex: &str| format!("[[key]]\nname = {name:?}\nsha256 = {hex:?}\n");
        let mut crowd = String::new();
        for index in 0..=KEYS_COUNT_MAX {
            crowd += &entry(&format!("k{index}"), &format!("{index:064x}"));
        }
        for (text, expected) in [
            (String::new(), ApiKeysError::Empty),
            (entry("", &hex), ApiKeysError::Name(1)),
            (entry("a b", &hex), ApiKeysError::Name(1)),
            (entry("a", &hex[1..]), ApiKeysError::Digest("a".to_owned())),
            (
                entry("a", &hex.replace('a', "+")),
                ApiKeysError::Digest("a".to_owned()),
            ),
            (
                entry("a", &hex.replace("ab", "é")),
                ApiKeysError::Digest("a".to_owned()),
            ),
            (
                entry("a", &hex) + &entry("b", &hex),
                ApiKeysError::Twice("b".to_owned()),
            ),
            (
                entry("a", &hex) + &entry("a", &"cd".repeat(32)),
                ApiKeysError::Twice("a".to_owned()),
            ),
            (
                entry("a", &hex) + "calls_count_max = 0\n",
                ApiKeysError::NoCalls("a".to_owned()),
            ),
            (crowd, ApiKeysError::TooMany),
        ] {
            assert_eq!(ApiKeys::parse(&text), Err(expected), "{text}");
        }
        for text in [entry("a", &hex) + "sha265 = 'x'\n", format!("key = {hex}")] {
            let line = ApiKeys::parse(&text).unwrap_err().to_string();
            assert!(line.starts_with("not a file of API keys: "), "{line}");
            assert!(!line.contains(&hex) && !line.contains('\n'), "{line}");
        }
    }
}
