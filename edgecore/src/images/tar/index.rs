//! Where the files of an archive are. Reads headers only; what an OCI layout holds needs no more.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use super::{BLOCK_BYTES as BLOCK, Header, NO_TAR, damaged, records};

/// An archive with more entries is refused.
pub(in crate::images) const ENTRIES_MAX: usize = 4096;

/// Extended headers (long names) larger than this are refused.
const EXTENDED_BYTES_MAX: u64 = 64 * 1024;

/// A file's place in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::images) struct Entry {
    pub(in crate::images) offset: u64,
    pub(in crate::images) size: u64,
}

/// The regular files of an archive, by name without a leading `./`.
pub(in crate::images) fn index(mut archive: impl Read + Seek) -> io::Result<BTreeMap<String, Entry>> {
    let mut entries = BTreeMap::new();
    // What an extended header says of the entry after it.
    let (mut long_name, mut long_size) = (None, None);
    let mut at = 0;
    let length = archive.seek(SeekFrom::End(0))?;
    loop {
        if at > length {
            return Err(damaged(format!(
                "it was cut short, at {length} bytes of more than {at}: copy it again, and compare it with its checksum"
            )));
        }
        archive.seek(SeekFrom::Start(at))?;
        let mut header = [0; 512];
        match archive.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && at > 0 => return Ok(entries),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(damaged(NO_TAR)),
            result => result?,
        }
        let Some(header) = Header::parse(header)? else {
            return Ok(entries);
        };
        let kind = header.kind();
        let size = header.size()?;
        let offset = at + BLOCK;
        let mut extended = || {
            if size > EXTENDED_BYTES_MAX {
                return Err(damaged("an extended header is too large"));
            }
            let mut bytes = Vec::new();
            archive.by_ref().take(size).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let mut taken = size;
        match kind {
            b'L' => long_name = Some(text(extended()?)?.trim_end_matches('\0').to_owned()),
            b'x' => {
                for (key, value) in records(&extended()?)? {
                    match key {
                        b"path" => long_name = Some(text(value.to_vec())?),
                        b"size" => long_size = text(value.to_vec())?.parse().ok(),
                        _ => {}
                    }
                }
            }
            0 | b'0' => {
                taken = long_size.take().unwrap_or(size);
                let name = long_name.take().map_or_else(|| text(header.name()), Ok)?;
                entries.insert(name.trim_start_matches("./").to_owned(), Entry { offset, size: taken });
                if entries.len() > ENTRIES_MAX {
                    return Err(damaged("it has too many entries"));
                }
            }
            _ => (long_name, long_size) = (None, None),
        }
        at = taken
            .checked_next_multiple_of(BLOCK)
            .and_then(|padded| offset.checked_add(padded))
            .ok_or_else(|| damaged("a size is out of range"))?;
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| damaged("a name is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::testing::{entry, pax};
    use super::*;

    fn names(archive: Vec<u8>) -> io::Result<Vec<(String, u64, u64)>> {
        let entries = index(Cursor::new(archive))?;
        Ok(entries
            .into_iter()
            .map(|(name, entry)| (name, entry.offset, entry.size))
            .collect())
    }

    #[test]
    fn files_are_found() {
        let mut archive = entry("./blobs/", b'5', b"");
        archive.extend(entry("./index.json", b'0', b"{}"));
        archive.extend(entry("a", 0, &[1; 513]));
        archive.extend(entry("link", b'2', b""));
        archive.extend(entry("b", b'0', b""));
        archive.extend([0; 1024]);
        let expected = [
            ("a".to_owned(), 2048, 513),
            ("b".to_owned(), 4096, 0),
            ("index.json".to_owned(), 1024, 2),
        ];
        assert_eq!(names(archive).unwrap(), expected);
    }

    #[test]
    fn long_names_are_read_in_both_forms() {
        let mut archive = entry("././@LongLink", b'L', b"gnu/name\0");
        archive.extend(entry("short", b'0', b"x"));
        archive.extend(pax(&[("path", b"pax/name"), ("size", b"1")]));
        archive.extend(entry("short", b'0', b"x"));
        let expected = [("gnu/name".to_owned(), 1536, 1), ("pax/name".to_owned(), 3584, 1)];
        assert_eq!(names(archive).unwrap(), expected);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        assert!(names(Vec::new()).is_err());
        assert!(names(vec![b'x'; 2048]).is_err());
        let sound = [pax(&[("path", b"a")]), entry("name", b'0', b"x"), vec![0; 1024]].concat();
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut archive = sound.clone();
            for _ in 0..3 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let at = usize::try_from(seed >> 33).unwrap() % archive.len();
                archive[at] = seed.to_le_bytes()[3];
            }
            let _ = names(archive);
        }
    }

    #[test]
    fn too_many_entries_are_refused() {
        let many = |count: usize| {
            (0..count)
                .flat_map(|at| entry(&at.to_string(), b'0', b""))
                .collect::<Vec<u8>>()
        };
        assert!(names(many(ENTRIES_MAX)).is_ok());
        assert!(names(many(ENTRIES_MAX + 1)).is_err());
    }
}
