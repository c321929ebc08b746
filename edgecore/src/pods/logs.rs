//! Reads containers' logs as `kubectl logs` wants them: the last lines, since a time, with times, as they come.
//!
//! A log is a folder per container with one file per attempt, `<attempt>.log`, of CRI records
//! (`<RFC 3339 time> stdout|stderr F|P <text>`). Whoever writes it turns a full file over by renaming it to
//! `<attempt>.log.1`, what had that name to `.2`, and so on; a reader keeps the file it has open and goes on in the new
//! one once it has read the old one to its end.
//!
//! What is not followed is read as it was when it was opened: a container that writes faster than the link carries would
//! otherwise never be read to its end, and the last three lines would be four.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::time::rfc3339;
use tokio::sync::mpsc;

/// What is read at once.
const READ_BYTES: usize = 32 * 1024;
/// A record longer than this is cut: writers split lines long before.
const RECORD_BYTES_MAX: usize = 256 * 1024;
/// `tail` beyond this is everything.
pub const TAIL_MAX: usize = 100_000;
/// How often a followed log is looked at.
pub const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);
/// More turned-over files than this are not looked for.
const TURNED_MAX: u32 = 64;

/// What to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Go on as lines come.
    pub follow: bool,
    /// Begin every line with its time.
    pub timestamps: bool,
    /// Only so many of the last lines.
    pub tail: Option<usize>,
    /// Only what was written at or after this second since 1970.
    pub since: Option<i64>,
    /// Stop after so many bytes.
    pub bytes_max: Option<u64>,
}

/// Why a log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("it has no log yet")]
    None,
    #[error("previous terminated container not found")]
    NoPrevious,
    #[error("reading {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Which attempt's log is meant: the newest's, or that of the one before.
pub async fn attempt(folder: &Path, previous: bool) -> Result<u32, LogError> {
    let folder = folder.to_owned();
    let look = move || {
        let attempts = attempts(&folder);
        if previous {
            attempts.iter().rev().nth(1).copied().ok_or(LogError::NoPrevious)
        } else {
            attempts.last().copied().ok_or(LogError::None)
        }
    };
    joined(tokio::task::spawn_blocking(look).await)
}

/// Sends the log of a container's attempt to `out` in pieces, to where it ended when it was opened; when following, until
/// `alive` says that the attempt ended and everything is sent, or nobody listens any more.
pub async fn stream(
    folder: &Path,
    attempt: u32,
    options: Options,
    alive: impl Fn() -> bool,
    out: mpsc::Sender<Vec<u8>>,
) -> Result<(), LogError> {
    let path = folder.join(format!("{attempt}.log"));
    let follow = options.follow;
    let open = move || Reader::open(path, &options);
    let mut reader = joined(tokio::task::spawn_blocking(open).await)?;
    loop {
        // Asked before reading: what is written before the end is read after it.
        let goes_on = follow && alive();
        let piece;
        (reader, piece) = joined(tokio::task::spawn_blocking(move || reader.piece()).await)?;
        if reader.spent() && piece.is_empty() {
            return Ok(());
        }
        if !piece.is_empty() {
            if out.send(piece).await.is_err() {
                return Ok(());
            }
        } else if goes_on {
            tokio::select! {
                () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
                () = out.closed() => return Ok(()),
            }
        } else {
            return Ok(());
        }
    }
}

fn joined<T>(done: Result<Result<T, LogError>, tokio::task::JoinError>) -> Result<T, LogError> {
    done.unwrap_or_else(|error| Err(LogError::Io { path: PathBuf::new(), source: io::Error::other(error) }))
}

/// Reads a log piece by piece, oldest file first.
#[derive(Debug)]
struct Reader {
    path: PathBuf,
    /// Files that are still to be read, opened at the beginning so that turning over loses none.
    waiting: VecDeque<Part>,
    part: Option<Part>,
    follow: bool,
    record: Vec<u8>,
    /// The next record begins a line.
    fresh: bool,
    timestamps: bool,
    since: Option<String>,
    left: Option<u64>,
}

/// What is to be read of one file.
#[derive(Debug)]
struct Part {
    file: File,
    /// How many bytes are still to be read.
    left: u64,
}

impl Reader {
    fn open(path: PathBuf, options: &Options) -> Result<Self, LogError> {
        let error = |source| LogError::Io { path: path.clone(), source };
        // Newest first. A file that is turned over in between is opened twice at worst, hence the check by inode.
        let mut files: Vec<(fs::Metadata, File)> = Vec::new();
        for number in 0..=TURNED_MAX {
            match File::open(numbered(&path, number)) {
                Ok(file) => {
                    let meta = file.metadata().map_err(error)?;
                    if files.iter().all(|(known, _)| known.ino() != meta.ino()) {
                        files.push((meta, file));
                    }
                }
                Err(_) if number == 0 => {}
                Err(_) => break,
            }
        }
        let mut waiting = VecDeque::new();
        let mut wanted = options.tail.filter(|tail| *tail <= TAIL_MAX);
        for (meta, mut file) in files {
            let mut start = 0;
            if let Some(lines) = &mut wanted {
                let found;
                (start, found) = last_lines_from(&mut file, meta.len(), *lines).map_err(error)?;
                file.seek(SeekFrom::Start(start)).map_err(error)?;
                *lines -= found;
            }
            // A file that was turned over only while it was opened may still be written.
            let left = if options.follow { u64::MAX } else { meta.len() - start };
            waiting.push_front(Part { file, left });
            if wanted == Some(0) {
                break;
            }
        }
        Ok(Self {
            part: waiting.pop_front(),
            path,
            waiting,
            follow: options.follow,
            record: Vec::new(),
            fresh: true,
            timestamps: options.timestamps,
            since: options.since.map(|since| rfc3339(since).chars().take(19).collect()),
            left: options.bytes_max,
        })
    }

    /// Whether the limit of bytes is reached.
    fn spent(&self) -> bool {
        self.left == Some(0)
    }

    /// The next piece; empty at the end for now.
    fn piece(mut self) -> Result<(Self, Vec<u8>), LogError> {
        let mut out = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        while out.is_empty() && !self.spent() {
            let Some(part) = &mut self.part else { break };
            let read = (&mut part.file)
                .take(part.left)
                .read(&mut buffer)
                .map_err(|source| LogError::Io { path: self.path.clone(), source })?;
            if !self.follow {
                part.left = part.left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
            }
            if read == 0 {
                if !self.next_file() {
                    break;
                }
                continue;
            }
            for part in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
                if self.record.len() < RECORD_BYTES_MAX {
                    self.record.extend_from_slice(part);
                }
                if part.ends_with(b"\n") {
                    let record = std::mem::take(&mut self.record);
                    self.render(&record, &mut out);
                }
            }
        }
        if let Some(left) = &mut self.left {
            let fits = usize::try_from(*left).unwrap_or(usize::MAX).min(out.len());
            out.truncate(fits);
            *left -= u64::try_from(fits).unwrap_or(*left);
        }
        Ok((self, out))
    }

    /// Goes on to the next file at the end of one; false when there is none yet.
    fn next_file(&mut self) -> bool {
        if let Some(next) = self.waiting.pop_front() {
            self.part = Some(next);
            return true;
        }
        if !self.follow {
            return false;
        }
        // Turned over: what has the name now is another file.
        let inode = |meta: io::Result<fs::Metadata>| meta.ok().map(|meta| meta.ino());
        let current = self.part.as_ref().and_then(|part| inode(part.file.metadata()));
        match File::open(&self.path) {
            Ok(file) if inode(file.metadata()) != current => {
                self.part = Some(Part { file, left: u64::MAX });
                true
            }
            _ => false,
        }
    }

    fn render(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let Some((time, full, text)) = split(record) else {
            return;
        };
        let fresh = std::mem::replace(&mut self.fresh, full);
        if self
            .since
            .as_ref()
            .is_some_and(|since| time.get(..19).is_some_and(|time| time < since.as_bytes()))
        {
            return;
        }
        if self.timestamps && fresh {
            out.extend_from_slice(time);
            out.push(b' ');
        }
        out.extend_from_slice(text);
        if full {
            out.push(b'\n');
        }
    }
}

/// A record's time, whether it ends its line, and its text.
fn split(record: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let record = record.strip_suffix(b"\n").unwrap_or(record);
    let mut parts = record.splitn(4, |byte| *byte == b' ');
    let (time, _stream, tag) = (parts.next()?, parts.next()?, parts.next()?);
    let text = parts.next().unwrap_or_default();
    Some((time, tag != b"P", text))
}

/// Where the last lines of a file's first bytes begin, and how many there are of those asked for.
fn last_lines_from(file: &mut File, bytes: u64, lines: usize) -> io::Result<(u64, usize)> {
    // The beginnings of the last lines, the oldest first.
    let mut starts: VecDeque<u64> = VecDeque::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut head = Vec::new();
    let (mut at, mut line_start) = (0_u64, 0_u64);
    file.seek(SeekFrom::Start(0))?;
    let mut file = file.take(bytes);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        for part in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            // Only the head of a record says whether it ends its line.
            if head.len() < 64 {
                head.extend_from_slice(&part[..part.len().min(64)]);
            }
            at += u64::try_from(part.len()).unwrap_or_default();
            if part.ends_with(b"\n") {
                if split(&head).is_some_and(|(_, full, _)| full) {
                    starts.push_back(line_start);
                    if starts.len() > lines {
                        starts.pop_front();
                    }
                    line_start = at;
                }
                head.clear();
            }
        }
    }
    let start = if lines == 0 {
        at
    } else {
        starts.front().copied().unwrap_or(0)
    };
    Ok((start, starts.len().min(lines)))
}

/// The attempts that have a log, in their order.
fn attempts(folder: &Path) -> Vec<u32> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut attempts: Vec<u32> = names
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".log")?.parse().ok())
        .collect();
    attempts.sort_unstable();
    attempts
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".{number}"));
    name.into()
}

/// Takes away the logs of all attempts but the newest before `attempt`, which is about to begin.
pub(super) fn sweep(folder: &Path, attempt: u32) {
    let older: Vec<u32> = attempts(folder).into_iter().filter(|old| *old < attempt).collect();
    for old in older.iter().rev().skip(1) {
        let path = folder.join(format!("{old}.log"));
        for number in 0..=TURNED_MAX {
            // What is gone is gone; what cannot be removed is tried again with the next attempt.
            if fs::remove_file(numbered(&path, number)).is_err() && number > 0 {
                break;
            }
        }
    }
}

/// The last lines of a log file, at most so many and so many bytes; `None` when there are none.
pub(super) fn last_lines(path: &Path, lines: usize, bytes: usize) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let end = file.metadata().ok()?.len();
    let (start, _) = last_lines_from(&mut file, end, lines).ok()?;
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut records = Vec::new();
    file.take(end - start).read_to_end(&mut records).ok()?;
    let mut text = Vec::new();
    for record in records.split_inclusive(|byte| *byte == b'\n') {
        if let Some((_, full, part)) = split(record) {
            text.extend_from_slice(part);
            if full {
                text.push(b'\n');
            }
        }
    }
    let from = text.len().saturating_sub(bytes);
    let text = String::from_utf8_lossy(&text[from..]).into_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::testing::Folder;
    use super::*;

    fn line(second: u32, text: &str) -> String {
        format!("2026-01-01T00:00:{second:02}.000000001Z stdout F {text}\n")
    }

    async fn read(folder: &Path, previous: bool, options: Options) -> Result<String, LogError> {
        let (sender, mut receiver) = mpsc::channel(64);
        let attempt = attempt(folder, previous).await?;
        stream(folder, attempt, options, || false, sender).await?;
        let mut all = Vec::new();
        while let Some(piece) = receiver.recv().await {
            all.extend(piece);
        }
        Ok(String::from_utf8(all).unwrap())
    }

    fn sample() -> Folder {
        let folder = Folder::new();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("3.log", &line(1, "old"));
        write("4.log.2", &line(2, "a"));
        write("4.log.1", &(line(3, "b") + &line(4, "c")));
        let partial = "2026-01-01T00:00:05.5Z stderr P half \n2026-01-01T00:00:05.6Z stderr F whole\n";
        write("4.log", &(partial.to_owned() + &line(6, "")));
        folder
    }

    #[tokio::test]
    async fn all_of_it_and_parts_of_it() {
        let folder = sample();
        let get = |options| read(folder.path(), false, options);
        assert_eq!(get(Options::default()).await.unwrap(), "a\nb\nc\nhalf whole\n\n");
        for (tail, expected) in [
            (0, ""),
            (1, "\n"),
            (2, "half whole\n\n"),
            (3, "c\nhalf whole\n\n"),
            (5, "a\nb\nc\nhalf whole\n\n"),
            (9, "a\nb\nc\nhalf whole\n\n"),
        ] {
            let options = Options { tail: Some(tail), ..Options::default() };
            assert_eq!(get(options).await.unwrap(), expected, "tail {tail}");
        }
        let options = Options {
            since: proto::time::parse_rfc3339("2026-01-01T00:00:04Z"),
            timestamps: true,
            ..Options::default()
        };
        let expected = "2026-01-01T00:00:04.000000001Z c\n2026-01-01T00:00:05.5Z half whole\n\
                        2026-01-01T00:00:06.000000001Z \n";
        assert_eq!(get(options).await.unwrap(), expected);
        assert_eq!(read(folder.path(), true, Options::default()).await.unwrap(), "old\n");
        let options = Options { bytes_max: Some(3), ..Options::default() };
        assert_eq!(get(options).await.unwrap(), "a\nb");
    }

    #[tokio::test]
    async fn what_is_not_there_is_said() {
        let folder = Folder::new();
        assert!(matches!(
            read(folder.path(), false, Options::default()).await,
            Err(LogError::None)
        ));
        fs::write(folder.path().join("0.log"), "").unwrap();
        let previous = read(folder.path(), true, Options::default()).await;
        assert!(matches!(previous, Err(LogError::NoPrevious)));
    }

    #[tokio::test]
    async fn following_goes_over_into_the_next_file() {
        let folder = Folder::new();
        let path = folder.path().join("0.log");
        fs::write(&path, line(1, "a")).unwrap();
        let alive = Arc::new(AtomicBool::new(true));
        let (sender, mut receiver) = mpsc::channel(64);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn({
            let (root, alive) = (folder.path().to_owned(), Arc::clone(&alive));
            let options = Options { follow: true, ..Options::default() };
            async move { stream(&root, 0, options, move || alive.load(Ordering::SeqCst), sender).await }
        });
        assert_eq!(receiver.recv().await.unwrap(), b"a\n");
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(line(2, "b").as_bytes()).unwrap();
        fs::rename(&path, folder.path().join("0.log.1")).unwrap();
        fs::write(&path, line(3, "c")).unwrap();
        assert_eq!(receiver.recv().await.unwrap(), b"b\n");
        assert_eq!(receiver.recv().await.unwrap(), b"c\n");
        alive.store(false, Ordering::SeqCst);
        assert_eq!(receiver.recv().await, None);
        tasks.join_next().await.unwrap().unwrap().unwrap();
    }

    /// Neither what comes while it is read, nor what comes in a next file, is waited for or given.
    #[test]
    fn what_is_not_followed_is_read_as_it_was() {
        for (tail, expected) in [(None, "a\nb\nc\n"), (Some(2), "b\nc\n"), (Some(0), "")] {
            let folder = Folder::new();
            let path = folder.path().join("0.log");
            fs::write(&path, line(1, "a") + &line(2, "b") + &line(3, "c")).unwrap();
            let options = Options { tail, ..Options::default() };
            let mut reader = Reader::open(path.clone(), &options).unwrap();
            let mut all = Vec::new();
            for round in 0..3 {
                let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
                file.write_all(line(4, "later").as_bytes()).unwrap();
                if round == 1 {
                    fs::rename(&path, folder.path().join("0.log.1")).unwrap();
                    fs::write(&path, line(5, "later still")).unwrap();
                }
                let piece;
                (reader, piece) = reader.piece().unwrap();
                all.extend(piece);
            }
            assert_eq!(String::from_utf8(all).unwrap(), expected, "tail {tail:?}");
        }
    }

    #[test]
    fn old_attempts_are_swept() {
        let folder = sample();
        sweep(folder.path(), 5);
        assert_eq!(attempts(folder.path()), [4]);
        fs::write(folder.path().join("5.log"), "").unwrap();
        sweep(folder.path(), 6);
        assert_eq!(attempts(folder.path()), [5]);
        assert!(!folder.path().join("4.log.2").exists());
    }

    #[test]
    fn last_lines_of_a_file() {
        let folder = sample();
        let path = folder.path().join("4.log.1");
        assert_eq!(last_lines(&path, 80, 2048).as_deref(), Some("b\nc\n"));
        assert_eq!(last_lines(&path, 1, 2048).as_deref(), Some("c\n"));
        assert_eq!(last_lines(&path, 80, 2).as_deref(), Some("c\n"));
        assert_eq!(last_lines(&folder.path().join("none"), 80, 2), None);
    }
}
