//! The text form of keys: the file that `syrinx-relay keys` writes and the daemons read.
//!
//! ```toml
//! mint = 1                    # the epoch that new ufrags are made with
//!
//! [[epoch]]
//! id = 0
//! master = "..."              # 32 bytes of unpadded base64; `edge` in the edge form
//! mints_until_minutes = 29743210   # Unix minutes; on an epoch that no longer mints
//!
//! [[epoch]]
//! id = 1
//! master = "..."
//! ```
//!
//! Rotation is three edits, each a small step that every process can take at its own time: add an
//! epoch, let it mint, retire the one before. [`KeyFile::retire`] refuses to strand a session: an
//! epoch must have stopped minting longer ago than a ufrag lives.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;
use std::fmt::Write as _;
use zeroize::Zeroize;

use super::{EpochKeys, KeyRing, MasterSecret};
use crate::route::{Epoch, UnixMinutes};

/// Why a key file cannot be used. No variant carries key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("not a Syrinx key file: {0}")]
    Format(String),
    /// An epoch number outside 0 to 6.
    #[error("epoch id {0} is out of range: use 0 to 6")]
    EpochOutOfRange(u8),
    /// The same epoch twice.
    #[error("epoch {0} is listed twice: keep one of them")]
    EpochTwice(u8),
    /// A secret that is not 32 bytes of base64.
    #[error("the {field} of epoch {epoch} is not 32 bytes of unpadded base64: make keys anew")]
    Secret {
        /// Which epoch's.
        epoch: u8,
        /// `master` or `edge`.
        field: &'static str,
    },
    /// An epoch with both secrets, or with neither.
    #[error("epoch {0} needs exactly one of master (cluster form) and edge (edge form)")]
    SecretForm(u8),
    /// No epoch at all.
    #[error("the file lists no epoch: make keys with `syrinx-relay keys new`")]
    NoEpoch,
    /// `mint` names an epoch that is not in the file or cannot mint.
    #[error("mint = {0} names no epoch of this file that has a master secret")]
    Mint(u8),
}

/// Why an edit of a key file was refused; the file is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyEditError {
    /// Seven epochs are live.
    #[error("all seven epochs are in use: retire one first")]
    NoFreeEpoch,
    /// The epoch is not in the file, or has only an edge key.
    #[error("epoch {0} is not in this file with a master secret")]
    NoSuchEpoch(u8),
    /// The epoch mints.
    #[error("epoch {0} mints: let another epoch mint first, and wait")]
    Mints(u8),
    /// Ufrags of the epoch may still be in use.
    #[error(
        "epoch {epoch} may still name sessions for {minutes} minutes: retire it then, or with \
         --force lose those sessions' flows when they move"
    )]
    InUse {
        /// Which epoch.
        epoch: u8,
        /// How long it is still in use, at most.
        minutes: u32,
    },
}

/// A key file, read but not yet judged.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    mint: Option<u8>,
    #[serde(default)]
    epoch: Vec<KeyFileEpoch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFileEpoch {
    id: u8,
    master: Option<String>,
    edge: Option<String>,
    /// When another epoch began to mint in its place.
    mints_until_minutes: Option<u32>,
}

impl Drop for KeyFileEpoch {
    fn drop(&mut self) {
        self.master.zeroize();
        self.edge.zeroize();
    }
}

impl KeyFile {
    /// Reads the text of a key file of either form.
    ///
    /// # Errors
    /// [`KeyFileError::Format`]; the rest is judged by [`KeyFile::ring`].
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        // The parser's own message quotes the offending line, which may hold a secret.
        toml::from_str(text)
            .map_err(|error: toml::de::Error| KeyFileError::Format(error.message().to_owned()))
    }

    /// The keys in the file.
    ///
    /// # Errors
    /// [`KeyFileError`], which names the epoch and the remedy, never the secret.
    pub fn ring(&self) -> Result<KeyRing, KeyFileError> {
        let mut epochs = [const { None }; Epoch::COUNT];
        for entry in &self.epoch {
            let epoch = Epoch::new(entry.id).ok_or(KeyFileError::EpochOutOfRange(entry.id))?;
            let place: &mut Option<EpochKeys> = &mut epochs[epoch.index()];
            if place.replace(entry.keys()?).is_some() {
                return Err(KeyFileError::EpochTwice(entry.id));
            }
        }
        if epochs.iter().all(Option::is_none) {
            return Err(KeyFileError::NoEpoch);
        }
        let mut ring = KeyRing { epochs, mint: None };
        if let Some(id) = self.mint {
            let can_mint = |epoch: &Epoch| {
                ring.epoch(*epoch)
                    .is_some_and(|keys| keys.cluster().is_some())
            };
            let mints = Epoch::new(id).filter(can_mint);
            ring.mint = Some(mints.ok_or(KeyFileError::Mint(id))?);
        }
        Ok(ring)
    }

    /// Adds an epoch that verifies and does not mint yet: the next id after the highest, around
    /// the circle of seven. Relays must learn it before it mints.
    ///
    /// # Errors
    /// [`KeyEditError::NoFreeEpoch`].
    pub fn add(&mut self, master: &MasterSecret) -> Result<Epoch, KeyEditError> {
        let newest = self
            .mint
            .or_else(|| self.epoch.iter().map(|entry| entry.id).max());
        let first = newest.map_or(0, |id| usize::from(id) + 1);
        let free = (first..first + Epoch::COUNT)
            .filter_map(|id| Epoch::new((id % Epoch::COUNT) as u8))
            .find(|epoch| self.epoch.iter().all(|entry| entry.id != epoch.value()))
            .ok_or(KeyEditError::NoFreeEpoch)?;
        self.epoch.push(KeyFileEpoch::cluster(free, master));
        Ok(free)
    }

    /// Lets `epoch` mint from `now` on, and dates the end of the one before.
    ///
    /// # Errors
    /// [`KeyEditError::NoSuchEpoch`].
    pub fn let_mint(&mut self, epoch: Epoch, now: UnixMinutes) -> Result<(), KeyEditError> {
        let id = epoch.value();
        let holds = self
            .epoch
            .iter()
            .any(|entry| entry.id == id && entry.master.is_some());
        if !holds {
            return Err(KeyEditError::NoSuchEpoch(id));
        }
        for entry in &mut self.epoch {
            if entry.id == id {
                entry.mints_until_minutes = None;
            } else if self.mint == Some(entry.id) {
                entry.mints_until_minutes = Some(now.0);
            }
        }
        self.mint = Some(id);
        Ok(())
    }

    /// Takes `epoch` out of the file once no ufrag of it can be alive: it stopped minting more than
    /// `lifetime_minutes` before `now`. `force` takes it out all the same.
    ///
    /// # Errors
    /// [`KeyEditError`]; the file is as it was.
    pub fn retire(
        &mut self,
        epoch: Epoch,
        now: UnixMinutes,
        lifetime_minutes: u16,
        force: bool,
    ) -> Result<(), KeyEditError> {
        let id = epoch.value();
        if self.mint == Some(id) {
            return Err(KeyEditError::Mints(id));
        }
        let at = self.epoch.iter().position(|entry| entry.id == id);
        let at = at.ok_or(KeyEditError::NoSuchEpoch(id))?;
        // An epoch without a date has never minted.
        if let Some(until) = self.epoch[at].mints_until_minutes {
            let free_from = until.saturating_add(u32::from(lifetime_minutes));
            let minutes = free_from.saturating_sub(now.0);
            if minutes > 0 && !force {
                return Err(KeyEditError::InUse { epoch: id, minutes });
            }
        }
        self.epoch.remove(at);
        Ok(())
    }

    /// The file's text in its own form.
    pub fn to_text(&self) -> String {
        let mut text = String::from(
            "# Syrinx cluster keys. Secret: readable by the relay and the transceiver only.\n\
             # mint: the epoch that new ufrags are made with; relays learn it before it mints.\n",
        );
        if let Some(mint) = self.mint {
            let _ = writeln!(text, "mint = {mint}");
        }
        for entry in &self.epoch {
            let _ = write!(text, "\n[[epoch]]\nid = {}\n", entry.id);
            for (field, secret) in [("master", &entry.master), ("edge", &entry.edge)] {
                if let Some(secret) = secret {
                    let _ = writeln!(text, "{field} = \"{secret}\"");
                }
            }
            if let Some(until) = entry.mints_until_minutes {
                let _ = writeln!(text, "mints_until_minutes = {until}");
            }
        }
        text
    }

    /// The text of the edge form: it verifies and routes, and can neither mint a ufrag nor read
    /// the session in one.
    ///
    /// # Errors
    /// [`KeyFileError`] when the file itself is not good.
    pub fn to_edge_text(&self) -> Result<String, KeyFileError> {
        let mut text = String::from(
            "# Syrinx edge keys: for relays that forward to this cluster from outside it.\n",
        );
        for entry in &self.epoch {
            let keys = entry.keys()?;
            let secret = STANDARD_NO_PAD.encode(keys.edge);
            let _ = write!(
                text,
                "\n[[epoch]]\nid = {}\nedge = \"{secret}\"\n",
                entry.id
            );
        }
        Ok(text)
    }
}

impl KeyFileEpoch {
    fn cluster(epoch: Epoch, master: &MasterSecret) -> Self {
        Self {
            id: epoch.value(),
            master: Some(STANDARD_NO_PAD.encode(master.0)),
            edge: None,
            mints_until_minutes: None,
        }
    }

    fn keys(&self) -> Result<EpochKeys, KeyFileError> {
        match (&self.master, &self.edge) {
            (Some(master), None) => {
                let secret = MasterSecret::new(self.secret("master", master)?);
                Ok(EpochKeys::from_master(&secret))
            }
            (None, Some(edge)) => Ok(EpochKeys {
                edge: self.secret("edge", edge)?,
                cluster: None,
            }),
            _ => Err(KeyFileError::SecretForm(self.id)),
        }
    }

    fn secret(&self, field: &'static str, text: &str) -> Result<[u8; 32], KeyFileError> {
        STANDARD_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
            .ok_or(KeyFileError::Secret {
                epoch: self.id,
                field,
            })
    }
}

/// The text of a cluster key file with one epoch that mints.
pub fn cluster_key_file(epoch: Epoch, master: &MasterSecret) -> String {
    let entry = KeyFileEpoch::cluster(epoch, master);
    KeyFile {
        mint: Some(epoch.value()),
        epoch: vec![entry],
    }
    .to_text()
}

/// The text of the edge-only key file of the same epoch.
pub fn edge_key_file(epoch: Epoch, master: &MasterSecret) -> String {
    let entry = KeyFileEpoch::cluster(epoch, master);
    KeyFile {
        mint: None,
        epoch: vec![entry],
    }
    .to_edge_text()
    .expect("invariant: a new epoch has one good secret")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: u16 = 60;

    fn epoch(id: u8) -> Epoch {
        Epoch::new(id).unwrap()
    }

    fn master() -> MasterSecret {
        MasterSecret::new(std::array::from_fn(|at| at as u8))
    }

    fn file() -> KeyFile {
        KeyFile::parse(&cluster_key_file(epoch(0), &master())).unwrap()
    }

    fn at(minutes: u32) -> UnixMinutes {
        UnixMinutes(29_000_000 + minutes)
    }

    #[test]
    fn both_forms_of_a_new_key_file_parse_and_agree_on_the_tag() {
        let cluster = KeyRing::parse(&cluster_key_file(epoch(3), &master())).unwrap();
        let edge = KeyRing::parse(&edge_key_file(epoch(3), &master())).unwrap();
        assert_eq!(cluster.minting(), Some(epoch(3)));
        assert_eq!(edge.minting(), None);
        assert!(cluster.reads_sessions() && !edge.reads_sessions());
        let tag = |ring: &KeyRing| ring.epoch(epoch(3)).unwrap().tag(b"abc", b"sealed");
        assert_eq!(tag(&cluster), tag(&edge));
        assert!(edge.epoch(epoch(0)).is_none());
    }

    #[test]
    fn names_the_epoch_and_the_remedy_but_never_the_secret() {
        let good = STANDARD_NO_PAD.encode([1; 32]);
        let cases = [
            (String::new(), KeyFileError::NoEpoch),
            (
                "[[epoch]]\nid = 7\n".into(),
                KeyFileError::EpochOutOfRange(7),
            ),
            ("[[epoch]]\nid = 1\n".into(), KeyFileError::SecretForm(1)),
            (
                format!("[[epoch]]\nid = 1\nmaster = \"{good}\"\nedge = \"{good}\"\n"),
                KeyFileError::SecretForm(1),
            ),
            (
                "[[epoch]]\nid = 1\nmaster = \"c2hvcnQ\"\n".into(),
                KeyFileError::Secret {
                    epoch: 1,
                    field: "master",
                },
            ),
            (
                format!("[[epoch]]\nid = 1\nedge = \"{good}\"\n").repeat(2),
                KeyFileError::EpochTwice(1),
            ),
            (
                format!("mint = 2\n[[epoch]]\nid = 1\nmaster = \"{good}\"\n"),
                KeyFileError::Mint(2),
            ),
            (
                format!("mint = 1\n[[epoch]]\nid = 1\nedge = \"{good}\"\n"),
                KeyFileError::Mint(1),
            ),
        ];
        for (text, want) in cases {
            assert_eq!(KeyRing::parse(&text).unwrap_err(), want, "{text}");
        }
        let leaky = format!("[[epoch]]\nid = 1\nmaster = \"{good}\" oops\n");
        let message = KeyRing::parse(&leaky).unwrap_err().to_string();
        assert!(message.starts_with("not a Syrinx key file"), "{message}");
        assert!(!message.contains(&good), "{message}");
    }

    #[test]
    fn an_epoch_is_added_then_mints_then_the_one_before_is_retired() {
        let mut file = file();
        let second = file.add(&MasterSecret::new([9; 32])).unwrap();
        assert_eq!(second, epoch(1));
        let ring = KeyFile::parse(&file.to_text()).unwrap().ring().unwrap();
        assert_eq!(ring.minting(), Some(epoch(0)));
        assert_eq!(ring.live().count(), 2);

        file.let_mint(second, at(0)).unwrap();
        let mut file = KeyFile::parse(&file.to_text()).unwrap();
        assert_eq!(file.ring().unwrap().minting(), Some(second));

        let early = file.retire(epoch(0), at(59), LIFETIME, false);
        assert_eq!(
            early,
            Err(KeyEditError::InUse {
                epoch: 0,
                minutes: 1
            })
        );
        assert_eq!(file.ring().unwrap().live().count(), 2);
        file.retire(epoch(0), at(60), LIFETIME, false).unwrap();
        let live: Vec<_> = file.ring().unwrap().live().collect();
        assert_eq!(live, [second]);
    }

    #[test]
    fn edits_that_would_strand_a_session_or_mean_nothing_are_refused() {
        let mut file = file();
        let retired = file.retire(epoch(0), at(0), LIFETIME, true);
        assert_eq!(retired, Err(KeyEditError::Mints(0)));
        assert_eq!(
            file.let_mint(epoch(3), at(0)),
            Err(KeyEditError::NoSuchEpoch(3))
        );
        let unknown = file.retire(epoch(3), at(0), LIFETIME, false);
        assert_eq!(unknown, Err(KeyEditError::NoSuchEpoch(3)));
        for _ in 1..Epoch::COUNT {
            file.add(&master()).unwrap();
        }
        assert_eq!(file.add(&master()), Err(KeyEditError::NoFreeEpoch));
        file.let_mint(epoch(1), at(0)).unwrap();
        file.retire(epoch(0), at(0), LIFETIME, true).unwrap();
        // An epoch that never minted may go at once.
        file.retire(epoch(2), at(0), LIFETIME, false).unwrap();
        assert_eq!(file.add(&master()), Ok(epoch(2)));
    }

    #[test]
    fn the_edge_form_holds_every_epoch_and_no_master() {
        let mut file = file();
        file.add(&MasterSecret::new([9; 32])).unwrap();
        let text = file.to_edge_text().unwrap();
        assert!(!text.contains("master"));
        let edge = KeyRing::parse(&text).unwrap();
        assert_eq!(edge.live().count(), 2);
        assert!(!edge.reads_sessions());
    }
}
