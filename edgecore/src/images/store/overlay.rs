//! Overlay mounts: whether they work here, and making them.
//!
//! What works is found out by doing it, in a mount namespace that ends with its thread. Lower folders are named
//! relative to the folder they are in, because all options together must fit into one page.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::folder::make;
use super::unpack::tree::is_in_user_namespace;
use crate::sys;

/// All options of a mount, as the kernel takes them with the old call; one byte ends them.
pub(super) const OPTIONS_BYTES_MAX: usize = 4095;

/// What must not depend on how a kernel was built: a layer is used again below others, and copied where there are no
/// overlays. A kernel that does not know an option does not have what it switches off either.
const PLAIN: [&str; 3] = [
    "index=off,redirect_dir=off,metacopy=off",
    "index=off,redirect_dir=off",
    "",
];

/// The same for who is root in a user namespace only, where overlayfs keeps its notes in attributes that a user may set; it
/// then does by itself what the others switch off.
const USERS: [&str; 2] = ["index=off,userxattr", "userxattr"];

fn ways() -> &'static [&'static str] {
    if is_in_user_namespace() { &USERS } else { &PLAIN }
}

/// Whether a folder's file system can be written through an overlay.
pub(super) fn works(folder: &Path) -> bool {
    let tried = folder.join("overlay");
    let result = on_thread({
        let tried = tried.clone();
        move || try_it(&tried)
    });
    let gone = fs::remove_dir_all(&tried);
    result.is_ok() && gone.is_ok()
}

/// Everything that unpacking and running need of it: what is from below goes, is replaced, and is linked to.
fn try_it(folder: &Path) -> io::Result<()> {
    let _ = fs::remove_dir_all(folder);
    let below = folder.join("below");
    for name in ["gone", "replaced"] {
        fs::create_dir_all(below.join(name))?;
        fs::write(below.join(name).join("file"), name)?;
    }
    for name in ["tree", "work"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let merged = mount_for_writing(folder, &["below".to_owned()], folder)?;
    fs::remove_dir_all(merged.join("gone"))?;
    fs::hard_link(merged.join("replaced/file"), merged.join("link"))?;
    fs::remove_dir_all(merged.join("replaced"))?;
    fs::create_dir(merged.join("replaced"))?;
    let gone = fs::symlink_metadata(folder.join("tree/gone"))?;
    let marked = gone.file_type().is_char_device() && gone.rdev() == 0;
    let empty = fs::read_dir(merged.join("replaced"))?.next().is_none();
    if marked && empty && fs::read(merged.join("link"))? == b"replaced" {
        Ok(())
    } else {
        Err(io::Error::other("an overlay that does not do what it should"))
    }
}

/// Mounts folders below `layers`, topmost first, so that changes go to `<staging>/tree`; says where. For the calling
/// thread only, which must not have anything else to do.
pub(super) fn mount_for_writing(layers: &Path, names: &[String], staging: &Path) -> io::Result<PathBuf> {
    sys::unshare(libc::CLONE_NEWNS)?;
    // Nothing of it gets out.
    sys::mount(
        Path::new("none"),
        Path::new("/"),
        "",
        libc::MS_REC | libc::MS_PRIVATE,
        "",
    )?;
    let (work, merged) = (staging.join("work"), staging.join("merged"));
    make(&work)?;
    make(&merged)?;
    mount(layers, names, &staging.join("tree"), &work, &merged)?;
    Ok(merged)
}

/// Mounts folders below `layers`, topmost first, under `upper`, at `target`. The calling thread's working folder is
/// changed, and must be its own.
fn mount(layers: &Path, names: &[String], upper: &Path, work: &Path, target: &Path) -> io::Result<()> {
    rustix::process::chdir(layers)?;
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for plain in ways() {
        let options = options(names, upper, work, plain)?;
        match sys::mount(Path::new("overlay"), target, "overlay", 0, &options) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            mounted => return mounted,
        }
    }
    Err(refused)
}

/// [`mount`], on a thread of its own.
pub(super) fn mount_root(
    layers: PathBuf,
    names: Vec<String>,
    upper: PathBuf,
    work: PathBuf,
    target: PathBuf,
) -> io::Result<()> {
    on_thread(move || {
        // The folder a thread works in is everybody's, until now.
        sys::unshare(libc::CLONE_FS)?;
        mount(&layers, &names, &upper, &work, &target)
    })
}

/// Whether so many layers can be mounted under folders of such names.
pub(super) fn fits(names: &[String], upper: &Path, work: &Path) -> bool {
    options(names, upper, work, PLAIN[0]).is_ok()
}

fn options(names: &[String], upper: &Path, work: &Path, plain: &str) -> io::Result<String> {
    let comma = if plain.is_empty() { "" } else { "," };
    let lower = names.join(":");
    let options = format!(
        "{plain}{comma}lowerdir={lower},upperdir={},workdir={}",
        escaped(upper)?,
        escaped(work)?
    );
    if options.len() > OPTIONS_BYTES_MAX {
        let reason = format!(
            "{} layers and the path {} are too long together",
            names.len(),
            upper.display()
        );
        return Err(io::Error::new(io::ErrorKind::ArgumentListTooLong, reason));
    }
    Ok(options)
}

/// A path as an option: commas would end it.
fn escaped(path: &Path) -> io::Result<String> {
    let text = std::str::from_utf8(path.as_os_str().as_bytes());
    let text = text.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a path that is not UTF-8"))?;
    Ok(text.replace('\\', "\\\\").replace(',', "\\,"))
}

/// Runs something on a thread of its own, which ends with what it changed of itself.
fn on_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("overlay".into()).spawn(work)?;
    thread.join().map_err(|_| io::Error::other("the thread panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_at_one_page() {
        let names = |count: usize| -> Vec<String> { (0..count).map(|at| format!("{at:020}")).collect() };
        let (upper, work) = (
            Path::new("/data/containers/c/upper"),
            Path::new("/data/containers/c/work"),
        );
        assert!(fits(&names(crate::images::manifest::LAYERS_MAX), upper, work));
        let most = (1..1000)
            .take_while(|count| fits(&names(*count), upper, work))
            .last()
            .unwrap();
        let longest = options(&names(most), upper, work, PLAIN[0]).unwrap();
        assert!(longest.len() <= OPTIONS_BYTES_MAX && longest.len() + 21 > OPTIONS_BYTES_MAX);
        assert!(options(&names(most + 1), upper, work, PLAIN[0]).is_err());
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(escaped(Path::new(r"/a,b\c")).unwrap(), r"/a\,b\\c");
    }
}
