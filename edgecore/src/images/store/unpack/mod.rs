//! Unpacking a layer, in a process of its own.
//!
//! The edge core's own executable under another first argument, so that what an image can cost (memory, time, a
//! panic in a decoder) stays out of the edge core. It runs niced and in bounded memory, dies with the edge core, and says on
//! stdout, as one line of JSON, what became of it. It makes the mount it works through in a mount namespace of its
//! own: whenever it ends, nothing of it stays but the folder it wrote to, which counts for nothing yet.

pub(super) mod apply;
mod stream;
pub(super) mod tree;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};

use self::apply::{Applied, Fault, Limits, apply};
use self::stream::{Digesting, unpacked};
use self::tree::Tree;
use super::{copy, overlay};
use crate::images::tar::read::Reader;

/// The first argument of an unpacking process.
pub const WORD: &str = "unpack-layers";

/// A layer that is larger when unpacked is refused.
pub(super) const LAYER_BYTES_MAX: u64 = 32 * 1024 * 1024 * 1024;

/// What stays free on the disk, for everybody else.
pub(crate) const RESERVE_BYTES: u64 = 32 * 1024 * 1024;

/// What may stand between the end of an archive and the end of its layer.
const TAIL_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The address space of an unpacking process: two of the largest zstd windows, and what an archive may say.
const MEMORY_BYTES_MAX: u64 = 512 * 1024 * 1024;

const NICE: i32 = 10;

/// What to do: the layers are put on each other into one tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) base: Base,
    /// Where to work, made before, empty: the result is its folder `tree`.
    pub(super) staging: PathBuf,
    pub(super) layers: Vec<Packed>,
}

/// What the layers are put on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Base {
    Nothing,
    /// These folders below `layers`, topmost first, seen through an overlay: the tree holds only what differs.
    Seen {
        layers: PathBuf,
        names: Vec<String>,
    },
    /// The same, copied into the tree.
    Copied {
        layers: PathBuf,
        names: Vec<String>,
    },
}

/// A layer as it came, or as it stands in an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Packed {
    pub(super) file: PathBuf,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) digest: String,
    pub(super) diff_id: String,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    Done(Applied),
    /// Which layer it was, by its place in the job.
    Failed(usize, Fault),
}

/// Runs an unpacking process; `args` are those after [`WORD`].
pub fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let job = args.next().and_then(|text| serde_json::from_str(text.to_str()?).ok());
    let Some(job) = job else {
        return ExitCode::from(64);
    };
    let outcome = confine().map_or_else(
        |error| Outcome::Failed(0, machine("this process", &error)),
        |()| run(&job),
    );
    let said = serde_json::to_vec(&outcome).map_err(io::Error::from);
    match said.and_then(|said| io::stdout().write_all(&said)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Costs others little, and ends when nobody waits for it any more.
fn confine() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::nice(NICE)?;
    let limit = Rlimit {
        current: Some(MEMORY_BYTES_MAX),
        maximum: Some(MEMORY_BYTES_MAX),
    };
    rustix::process::setrlimit(Resource::As, limit)?;
    Ok(())
}

pub(super) fn run(job: &Job) -> Outcome {
    let tree = job.staging.join("tree");
    let prepared = || -> io::Result<Tree> {
        super::folder::make(&tree)?;
        let root = match &job.base {
            Base::Nothing => tree.clone(),
            Base::Seen { layers, names } => overlay::mount_for_writing(layers, names, &job.staging)?,
            Base::Copied { layers, names } => {
                copy::stack(layers, names, &tree)?;
                tree.clone()
            }
        };
        Tree::open(&root)
    };
    let root = match prepared() {
        Ok(root) => root,
        Err(error) => return Outcome::Failed(0, machine("what is below it", &error)),
    };
    let mut sum = Applied::default();
    for (at, layer) in job.layers.iter().enumerate() {
        match unpack(layer, &root, &job.staging) {
            Ok(applied) => {
                sum.members += applied.members;
                sum.bytes += applied.bytes;
                sum.left_out += applied.left_out;
            }
            Err(fault) => return Outcome::Failed(at, fault),
        }
    }
    drop(root);
    // Once, for everything, before anybody says that it is there.
    match File::open(&tree).and_then(|tree| Ok(rustix::fs::syncfs(tree)?)) {
        Ok(()) => Outcome::Done(sum),
        Err(error) => Outcome::Failed(0, machine("syncing it", &error)),
    }
}

fn unpack(layer: &Packed, root: &Tree, staging: &Path) -> Result<Applied, Fault> {
    let file = |error: io::Error| machine(&layer.file.display().to_string(), &error);
    let mut sent = File::open(&layer.file).map_err(file)?;
    sent.seek(SeekFrom::Start(layer.offset)).map_err(file)?;
    let (mut sent, sent_seal) = Digesting::new(sent.take(layer.size), u64::MAX);
    let limits = Limits { room_bytes: room(staging).map_err(file)? };
    let (applied, inner_seal) = archive(&mut sent, root, limits, LAYER_BYTES_MAX)?;
    io::copy(&mut sent, &mut io::sink()).map_err(file)?;
    let check = |what: &str, expected: &str, found: String| {
        if found == expected {
            Ok(())
        } else {
            Err(Fault::Digest { what: what.to_owned(), expected: expected.to_owned(), found })
        }
    };
    check("packed", &layer.digest, sent_seal.digest())?;
    check("unpacked", &layer.diff_id, inner_seal)?;
    Ok(applied)
}

/// Puts what is in `sent` into the tree, and reads to its end; says the digest of the archive in it.
fn archive(sent: impl Read, root: &Tree, limits: Limits, bytes_max: u64) -> Result<(Applied, String), Fault> {
    let reading = |error: io::Error| Fault::Bad { path: "its end".into(), reason: error.to_string() };
    let inner = unpacked(sent).map_err(reading)?;
    let (inner, seal) = Digesting::new(inner, bytes_max);
    let mut archive = Reader::new(inner);
    let applied = apply(&mut archive, root, limits)?;
    archive.finish(TAIL_BYTES_MAX).map_err(reading)?;
    Ok((applied, seal.digest()))
}

/// What may be written below a folder.
pub(super) fn room(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat
        .f_bavail
        .saturating_mul(stat.f_frsize)
        .saturating_sub(RESERVE_BYTES))
}

fn machine(path: &str, error: &io::Error) -> Fault {
    let full = error.kind() == io::ErrorKind::StorageFull || error.kind() == io::ErrorKind::QuotaExceeded;
    if full {
        Fault::Full
    } else {
        Fault::Machine { path: path.to_owned(), reason: error.to_string() }
    }
}

#[cfg(test)]
mod tests;
