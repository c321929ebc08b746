//! The log file itself: appended to, turned over at a size, kept to a number of files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use super::Target;

/// A log that can always be written to: what the disk has no room for is counted, and said once there is room.
#[derive(Debug)]
pub(in crate::runtime) struct LogFile {
    target: Target,
    file: Option<File>,
    size: u64,
    /// Records that found no room.
    lost: u64,
}

impl LogFile {
    pub(in crate::runtime) fn new(target: Target) -> Self {
        Self { target, file: None, size: 0, lost: 0 }
    }

    /// Makes the file, so that a container which says nothing has an empty log and not none.
    pub(in crate::runtime) fn begin(&mut self) {
        if let Ok(file) = self.open() {
            self.file = Some(file);
        }
    }

    /// Appends whole records. Never fails and never waits: the container must not feel its log.
    pub(in crate::runtime) fn append(&mut self, records: &[u8], stamp: &str) {
        if records.is_empty() {
            return;
        }
        let result = if self.lost == 0 {
            self.write(records)
        } else {
            let said = format!(
                "{stamp} stderr F edgehold: {} log lines found no room on the disk\n",
                self.lost
            );
            self.write(said.as_bytes()).and_then(|()| {
                self.lost = 0;
                self.write(records)
            })
        };
        if result.is_err() {
            let count = records.iter().filter(|byte| **byte == b'\n').count();
            self.lost = self.lost.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    fn write(&mut self, records: &[u8]) -> io::Result<()> {
        if self.size >= self.target.bytes_max {
            self.turn()?;
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open()?,
        };
        let result = file.write_all(records);
        match &result {
            Ok(()) => self.size += u64::try_from(records.len()).unwrap_or(u64::MAX),
            // Half a record would spoil the next one.
            Err(_) => file.set_len(self.size)?,
        }
        self.file = Some(file);
        result
    }

    fn open(&mut self) -> io::Result<File> {
        if let Some(folder) = self.target.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(&self.target.path)?;
        self.size = file.metadata()?.len();
        Ok(file)
    }

    /// `0.log` becomes `0.log.1`, that becomes `0.log.2`, and so on; the oldest goes.
    fn turn(&mut self) -> io::Result<()> {
        self.file = None;
        for number in (0..self.target.files_max.saturating_sub(1)).rev() {
            match std::fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.target.files_max <= 1 {
            std::fs::remove_file(&self.target.path)?;
        }
        self.size = 0;
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        if number == 0 {
            return self.target.path.clone();
        }
        let mut name = self.target.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str, bytes_max: u64, files_max: u32) -> LogFile {
        let folder = std::env::temp_dir().join(format!("edgehold-log-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        LogFile::new(Target { bytes_max, files_max, path: folder.join("c/0.log") })
    }

    fn contents(log: &LogFile, number: u32) -> Option<String> {
        std::fs::read_to_string(log.numbered(number)).ok()
    }

    #[test]
    fn the_oldest_file_goes() {
        let mut log = log("turn", 4, 3);
        for record in ["aaaa\n", "bb\n", "cc\n", "dd\n", "ee\n", "ff\n"] {
            log.append(record.as_bytes(), "T");
        }
        assert_eq!(contents(&log, 0).unwrap(), "ff\n");
        assert_eq!(contents(&log, 1).unwrap(), "dd\nee\n");
        assert_eq!(contents(&log, 2).unwrap(), "bb\ncc\n");
        assert_eq!(contents(&log, 3), None);
    }

    #[test]
    fn what_says_nothing_has_an_empty_log() {
        let mut log = log("silent", 4, 3);
        log.begin();
        assert_eq!(contents(&log, 0).unwrap(), "");
        log.append(b"a\n", "T");
        assert_eq!(contents(&log, 0).unwrap(), "a\n");
    }

    #[test]
    fn one_file_is_started_anew() {
        let mut log = log("one", 4, 1);
        log.append(b"aaaa\n", "T");
        log.append(b"b\n", "T");
        assert_eq!(contents(&log, 0).unwrap(), "b\n");
        assert_eq!(contents(&log, 1), None);
    }

    #[test]
    fn another_process_goes_on_where_the_last_one_stopped() {
        let mut first = log("resume", 10, 2);
        first.append(b"aaaa\n", "T");
        let mut second = LogFile::new(first.target.clone());
        second.append(b"bbbb\n", "T");
        second.append(b"c\n", "T");
        assert_eq!(contents(&second, 1).unwrap(), "aaaa\nbbbb\n");
        assert_eq!(contents(&second, 0).unwrap(), "c\n");
    }

    #[test]
    fn what_found_no_room_is_counted_and_said() {
        let mut log = log("full", 1000, 2);
        // A folder where the file should be: opening fails, as it does on a full disk.
        std::fs::create_dir_all(&log.target.path).unwrap();
        log.append(b"a\nb\n", "T");
        log.append(b"c\n", "T");
        std::fs::remove_dir(&log.target.path).unwrap();
        log.append(b"d\n", "T");
        let said = "T stderr F edgehold: 3 log lines found no room on the disk\nd\n";
        assert_eq!(contents(&log, 0).unwrap(), said);
    }
}
