//! What is written down of a container: what it is, that it was started, how it ended. One small file each.
//!
//! A record is `[version][check sum, 4 bytes][postcard]`, replaced as a whole and synced before anybody acts on it or is
//! told. A record of a later version is left as it is and said; a damaged one is an error that names the file. Both mean
//! that nothing is done to the container: what it was is not guessed.
//!
//! Times are kept as the machine counts them ([`Moment`]), and become the node's own when they are read: a clock that
//! jumps, or that is only right once there was a session, spoils no start and no end.

use std::io;
use std::path::{Path, PathBuf};

use daemon::files::{self, FileError};
use proto::object::Uid;
use proto::time::{BootId, Wall};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::runtime::Labels;

/// The version that is written; every earlier one is read.
pub(super) const VERSION: u8 = 1;

/// No record is larger; a file that is, is damaged.
const BYTES_MAX: usize = 16 * 1024;

/// A clock that is less wrong than this is right: one that is set right slowly is no other one.
const CLOCK_RIGHT_MS: u64 = 10_000;

/// The exit code of what ended while nobody could see how.
pub(super) const CODE_UNKNOWN: i32 = 255;

/// The files of a container's folder.
pub(super) const MADE: &str = "made";
pub(super) const STARTED: &str = "started";
pub(super) const EXIT: &str = "exit";

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("reading the record {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("writing a record")]
    Write(#[from] FileError),
    #[error("the record {} is of version {version}, and this program knows {VERSION}: run the later edge core that wrote it", path.display())]
    Later { path: PathBuf, version: u8 },
    #[error("the record {} is damaged: remove its folder, and the container is made again", path.display())]
    Damaged { path: PathBuf },
}

/// What a container is; written last when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    pub(super) pod: [u8; 16],
    pub(super) namespace: String,
    pub(super) pod_name: String,
    pub(super) container: String,
    pub(super) attempt: u32,
    pub(super) hash: u64,
    /// As the manifest has it.
    pub(super) image: String,
    /// `sha256:…` of the image's configuration.
    pub(super) image_id: String,
    pub(super) cgroup: String,
    pub(super) tty: bool,
    /// Whom the outputs belong to.
    pub(super) owner: (u32, u32),
    /// Where they go, as [`crate::runtime::log_shim::Target`] writes it.
    pub(super) log: String,
}

/// A time by all the clocks of the machine that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moment {
    pub(super) boot: BootId,
    pub(super) mono_ms: u64,
    pub(super) wall_ms: i64,
}

/// Since when this machine runs, by the node's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeTime {
    pub(super) boot: BootId,
    start_ms: i64,
}

impl NodeTime {
    /// As it was known, unless the clock has jumped since: so that no time changes by itself.
    pub(super) fn update(known: Option<Self>, now: Moment, node: Wall) -> Self {
        let start_ms = node.ms.saturating_sub(i64::try_from(now.mono_ms).unwrap_or(i64::MAX));
        match known {
            Some(known) if known.start_ms.abs_diff(start_ms) <= CLOCK_RIGHT_MS => known,
            Some(_) | None => Self { boot: now.boot, start_ms },
        }
    }
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) oom_killed: bool,
    pub(super) at: Moment,
}

impl Made {
    pub(super) fn labels(&self) -> Labels {
        Labels {
            pod: Uid(self.pod),
            namespace: self.namespace.clone(),
            pod_name: self.pod_name.clone(),
            container: self.container.clone(),
            attempt: self.attempt,
            hash: self.hash,
        }
    }

    pub(super) fn of(labels: &Labels) -> Self {
        Self {
            pod: labels.pod.0,
            namespace: labels.namespace.clone(),
            pod_name: labels.pod_name.clone(),
            container: labels.container.clone(),
            attempt: labels.attempt,
            hash: labels.hash,
            image: String::new(),
            image_id: String::new(),
            cgroup: String::new(),
            tty: false,
            owner: (0, 0),
            log: String::new(),
        }
    }
}

impl Moment {
    pub(super) fn now() -> Self {
        Self {
            boot: daemon::clock::boot_id(),
            mono_ms: daemon::clock::mono().0,
            wall_ms: daemon::clock::wall().ms,
        }
    }

    /// In the node's own time: what was written where the clock was right then, else as far from the machine's start as
    /// the node's time of that says. Of an earlier boot only what was written is known.
    pub(super) fn wall_ms(self, node: &NodeTime) -> i64 {
        let counted = node
            .start_ms
            .saturating_add(i64::try_from(self.mono_ms).unwrap_or(i64::MAX));
        if self.boot != node.boot || counted.abs_diff(self.wall_ms) <= CLOCK_RIGHT_MS {
            return self.wall_ms;
        }
        counted
    }
}

/// `None` when there is none.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RecordError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RecordError::Read { path: path.to_owned(), source }),
    };
    decode(&bytes).map(Some).map_err(|fault| match fault {
        Fault::Later(version) => RecordError::Later { path: path.to_owned(), version },
        Fault::Damaged => RecordError::Damaged { path: path.to_owned() },
    })
}

/// It is on the disk when this returns.
pub(super) fn write<T: Serialize>(path: &Path, record: &T) -> Result<(), RecordError> {
    Ok(files::replace(path, &encode(record), 0o600)?)
}

#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Later(u8),
    Damaged,
}

fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let body = postcard::to_allocvec(record).unwrap_or_default();
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&sum(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let (version, rest) = bytes.split_first().ok_or(Fault::Damaged)?;
    if *version > VERSION {
        return Err(Fault::Later(*version));
    }
    let (expected, body) = rest.split_first_chunk::<4>().ok_or(Fault::Damaged)?;
    if *version == 0 || bytes.len() > BYTES_MAX || u32::from_le_bytes(*expected) != sum(body) {
        return Err(Fault::Damaged);
    }
    match postcard::take_from_bytes(body) {
        Ok((record, [])) => Ok(record),
        _ => Err(Fault::Damaged),
    }
}

/// FNV-1a: for a card that forgets, not for people who forge.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Made {
        let labels = Labels {
            pod: Uid::random([7; 16]),
            namespace: "default".into(),
            pod_name: "web-0".into(),
            container: "c".into(),
            attempt: 3,
            hash: 0x1122_3344_5566_7788,
        };
        Made {
            image: "web:1".into(),
            image_id: "sha256:00".into(),
            cgroup: "/edgehold/pod1/c-3".into(),
            tty: true,
            owner: (1000, 7),
            log: "10:3:/l".into(),
            ..Made::of(&labels)
        }
    }

    fn exit() -> Exit {
        let at = Moment { boot: BootId([9; 16]), mono_ms: 300, wall_ms: -1 };
        Exit { code: -1, oom_killed: true, at }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// These bytes lie on nodes: a change here is a new version.
    #[test]
    fn golden() {
        assert_eq!(hex(&encode(&exit())), include_str!("golden/exit.1.hex").trim());
        assert_eq!(hex(&encode(&exit().at)), include_str!("golden/moment.1.hex").trim());
        assert_eq!(hex(&encode(&made())), include_str!("golden/made.1.hex").trim());
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(MADE);
        assert!(read::<Made>(&path).unwrap().is_none());
        write(&path, &made()).unwrap();
        assert_eq!(read::<Made>(&path).unwrap(), Some(made()));
        let labels = made().labels();
        assert_eq!((labels.attempt, labels.container.as_str()), (3, "c"));
    }

    #[test]
    fn no_damage_goes_unseen_and_no_later_record_is_touched() {
        let good = encode(&exit());
        assert_eq!(decode::<Exit>(&good), Ok(exit()));
        for length in 0..good.len() {
            assert!(decode::<Exit>(&good[..length]).is_err(), "{length}");
        }
        for at in 1..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(decode::<Exit>(&bad), Err(Fault::Damaged), "{at}");
        }
        let mut long = good.clone();
        long.push(0);
        assert_eq!(decode::<Exit>(&long), Err(Fault::Damaged));
        let mut later = good;
        later[0] = VERSION + 1;
        assert_eq!(decode::<Exit>(&later), Err(Fault::Later(VERSION + 1)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EXIT);
        std::fs::write(&path, &later).unwrap();
        let said = read::<Exit>(&path).unwrap_err().to_string();
        assert!(
            said.contains(path.to_str().unwrap()) && said.contains("version 2"),
            "{said}"
        );
        std::fs::write(&path, "").unwrap();
        assert!(read::<Exit>(&path).unwrap_err().to_string().contains("damaged"));
        assert!(path.exists());
    }

    #[test]
    fn a_clock_that_jumps_moves_no_moment() {
        let boot = BootId([1; 16]);
        let started = Moment { boot, mono_ms: 1000, wall_ms: 5 };
        let at = |mono_ms| Moment { boot, mono_ms, wall_ms: 8 };
        let wall = |ms| Wall { ms, trusted: true };
        // It said 5 then; it is right now, and three seconds have passed.
        let node = NodeTime::update(None, at(4000), wall(1_800_000_000_000));
        assert_eq!(started.wall_ms(&node), 1_799_999_997_000);
        // Nothing moves when the clock is set right a little, or is read a moment later.
        let later = NodeTime::update(Some(node), at(5000), wall(1_800_000_001_003));
        assert_eq!(later, node);
        let jumped = NodeTime::update(Some(node), at(5000), wall(1_900_000_001_000));
        assert_eq!(started.wall_ms(&jumped), 1_899_999_997_000);
        // It was right then.
        let right = Moment { wall_ms: 1_799_999_990_000, ..started };
        assert_eq!(right.wall_ms(&node), 1_799_999_990_000);
        let after = NodeTime::update(
            None,
            Moment { boot: BootId([2; 16]), ..at(4000) },
            wall(1_800_000_000_000),
        );
        assert_eq!(started.wall_ms(&after), 5);
    }
}
