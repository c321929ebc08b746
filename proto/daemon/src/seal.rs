//! Sealed records: bytes that only the holder of a key file can read or change.
//!
//! A record is `version, key id (4), nonce (12), ChaCha20-Poly1305 ciphertext and tag`. It is bound to a context (what
//! it is and whose), so a record moved to another place does not open there. The key lives in a file of its own, never
//! in the database or its back-up. Nonces are random: one key is good for 2^32 records.
//!
//! Sealing protects a copied database, a stolen back-up, a discarded card. It does not protect against who can read the
//! key file as well, or the memory of the process; and sizes, names and times of records stay visible.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};

use crate::{files, random};

/// The first byte of every record and of every key file.
const VERSION: u8 = 1;
const KEY_LEN: usize = 32;
const ID_LEN: usize = 4;
const TAG_LEN: usize = 16;
const HEAD_LEN: usize = 1 + ID_LEN + NONCE_LEN;

/// How many bytes a record is longer than what it seals.
pub const OVERHEAD: usize = HEAD_LEN + TAG_LEN;

/// A record that does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("the sealed record is cut short")]
    Truncated,
    #[error("version {0} of sealed records is not known")]
    Version(u8),
    #[error("the record was sealed with key {record}, and this is key {ours}")]
    OtherKey { record: KeyId, ours: KeyId },
    #[error("the record was changed, or sealed for another place")]
    Forged,
}

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("reading the sealing key {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the sealing key {} is open to others (mode {mode:03o}): it must be 0600 or stricter", path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("{} is no sealing key", path.display())]
    Form { path: PathBuf },
    #[error("keeping a new sealing key")]
    Write(#[source] files::FileError),
}

/// Which key: says nothing about the key itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyId(pub [u8; ID_LEN]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A key for records.
pub struct SealingKey {
    id: KeyId,
    key: LessSafeKey,
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealingKey({})", self.id)
    }
}

impl SealingKey {
    /// Makes a key and keeps it at `path`, 0600. A key that stands there is replaced, and what it sealed is lost.
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let secret = random::bytes::<KEY_LEN>();
        let file = [&[VERSION], secret.as_slice()].concat();
        files::replace(path, &file, 0o600).map_err(KeyError::Write)?;
        Ok(Self::new(&secret))
    }

    /// Reads the key at `path`: a file of the data folder or a systemd credential.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Mode { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        // One byte more than a key has shows a longer file without reading all of it.
        file.take(2 + KEY_LEN as u64).read_to_end(&mut bytes).map_err(failed)?;
        match bytes.split_first() {
            Some((&VERSION, secret)) if secret.len() == KEY_LEN => Ok(Self::new(secret)),
            _ => Err(KeyError::Form { path: path.to_owned() }),
        }
    }

    fn new(secret: &[u8]) -> Self {
        let hash = digest(&SHA256, &[b"edgehold sealing key id", secret].concat());
        let mut id = [0; ID_LEN];
        id.copy_from_slice(&hash.as_ref()[..ID_LEN]);
        let key = UnboundKey::new(&CHACHA20_POLY1305, secret).expect("callers pass as many bytes as a key has");
        Self { id: KeyId(id), key: LessSafeKey::new(key) }
    }

    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Seals `plain` for the place that `context` names.
    pub fn seal(&self, context: &[u8], plain: &[u8]) -> Vec<u8> {
        let nonce = random::bytes::<NONCE_LEN>();
        let mut record = Vec::with_capacity(plain.len() + OVERHEAD);
        record.push(VERSION);
        record.extend_from_slice(&self.id.0);
        record.extend_from_slice(&nonce);
        let mut body = plain.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(bound(&self.id, context)),
                &mut body,
            )
            .expect("no record comes near the 256 GiB at which the cipher ends");
        record.append(&mut body);
        record
    }

    /// What was sealed for the place that `context` names.
    pub fn open(&self, context: &[u8], record: &[u8]) -> Result<Vec<u8>, SealError> {
        let (&version, rest) = record.split_first().ok_or(SealError::Truncated)?;
        if version != VERSION {
            return Err(SealError::Version(version));
        }
        let (id, rest) = rest.split_first_chunk().ok_or(SealError::Truncated)?;
        if *id != self.id.0 {
            return Err(SealError::OtherKey { record: KeyId(*id), ours: self.id });
        }
        let (nonce, body) = rest.split_first_chunk().ok_or(SealError::Truncated)?;
        if body.len() < TAG_LEN {
            return Err(SealError::Truncated);
        }
        let mut body = body.to_vec();
        let plain = self
            .key
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(bound(&self.id, context)),
                &mut body,
            )
            .map_err(|_| SealError::Forged)?
            .len();
        body.truncate(plain);
        Ok(body)
    }
}

/// What the tag covers beside the text: the head of the record and its place.
fn bound(id: &KeyId, context: &[u8]) -> Vec<u8> {
    [&[VERSION], id.0.as_slice(), context].concat()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn key() -> SealingKey {
        SealingKey::new(&random::bytes::<KEY_LEN>())
    }

    #[test]
    fn what_is_sealed_opens_in_its_place_only() {
        let key = key();
        for plain in [b"".as_slice(), b"password", &[7; 100_000]] {
            let record = key.seal(b"secret/a", plain);
            assert_eq!(record.len(), plain.len() + OVERHEAD);
            assert_eq!(key.open(b"secret/a", &record).as_deref(), Ok(plain));
            assert_eq!(key.open(b"secret/b", &record), Err(SealError::Forged));
            assert_ne!(key.seal(b"secret/a", plain), record);
        }
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let key = key();
        let record = key.seal(b"c", b"password");
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            assert!(key.open(b"c", &changed).is_err(), "byte {at}");
            assert!(key.open(b"c", &record[..at]).is_err(), "length {at}");
        }
        assert_eq!(key.open(b"c", &record[..HEAD_LEN]), Err(SealError::Truncated));
        assert_eq!(key.open(b"c", &[9]), Err(SealError::Version(9)));
    }

    #[test]
    fn another_key_is_named() {
        let (key, other) = (key(), key());
        let record = key.seal(b"c", b"x");
        let error = SealError::OtherKey { record: key.id(), ours: other.id() };
        assert_eq!(other.open(b"c", &record), Err(error));
        assert!(!format!("{key:?}").contains("LessSafe"));
    }

    #[test]
    fn key_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seal.key");
        assert!(matches!(SealingKey::load(&path), Err(KeyError::Read { .. })));
        let created = SealingKey::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let loaded = SealingKey::load(&path).unwrap();
        assert_eq!(
            loaded.open(b"c", &created.seal(b"c", b"x")).as_deref(),
            Ok(b"x".as_slice())
        );

        let check = |bytes: &[u8], mode: u32| {
            files::replace(&path, bytes, mode).unwrap();
            SealingKey::load(&path).unwrap_err()
        };
        let good = fs::read(&path).unwrap();
        assert!(matches!(check(&good, 0o640), KeyError::Mode { mode: 0o640, .. }));
        assert!(matches!(check(&good[1..], 0o600), KeyError::Form { .. }));
        assert!(matches!(
            check(&[good.as_slice(), &[0]].concat(), 0o600),
            KeyError::Form { .. }
        ));
        assert!(matches!(check(b"", 0o600), KeyError::Form { .. }));
        files::replace(&path, &good, 0o400).unwrap();
        SealingKey::load(&path).unwrap();
    }
}
