//! Where the files of a tar archive are. Reads headers only; what an OCI layout holds needs no more.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

/// An archive with more entries is refused.
pub(super) const ENTRIES_MAX: usize = 4096;

/// Extended headers (long names) larger than this are refused.
const EXTENDED_BYTES_MAX: u64 = 64 * 1024;

const BLOCK: u64 = 512;

/// A file's place in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// The regular files of an archive, by name without a leading `./`.
pub(super) fn index(mut archive: impl Read + Seek) -> io::Result<BTreeMap<String, Entry>> {
    let mut entries = BTreeMap::new();
    // What an extended header says of the entry after it.
    let (mut long_name, mut long_size) = (None, None);
    let mut at = 0;
    loop {
        archive.seek(SeekFrom::Start(at))?;
        let mut header = [0; 512];
        match archive.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && at > 0 => return Ok(entries),
            result => result?,
        }
        if header.iter().all(|byte| *byte == 0) {
            return Ok(entries);
        }
        if sum(&header) != number(&header[148..156])? {
            return Err(damaged(
                "a header's checksum is wrong, or this is not an uncompressed tar archive",
            ));
        }
        let kind = header[156];
        let size = number(&header[124..136])?;
        let offset = at + BLOCK;
        let mut extended = || {
            if size > EXTENDED_BYTES_MAX {
                return Err(damaged("an extended header is too large"));
            }
            let mut bytes = Vec::new();
            archive.by_ref().take(size).read_to_end(&mut bytes)?;
            String::from_utf8(bytes).map_err(|_| damaged("a name is not UTF-8"))
        };
        let mut taken = size;
        match kind {
            b'L' => long_name = Some(extended()?.trim_end_matches('\0').to_owned()),
            b'x' => {
                let text = extended()?;
                long_name = pax(&text, "path").or(long_name);
                long_size = pax(&text, "size").and_then(|size| size.parse().ok());
            }
            0 | b'0' => {
                taken = long_size.take().unwrap_or(size);
                let name = long_name.take().map_or_else(|| name(&header), Ok)?;
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

fn name(header: &[u8; 512]) -> io::Result<String> {
    let field = |range: std::ops::Range<usize>| {
        let field = &header[range];
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        std::str::from_utf8(&field[..end]).map_err(|_| damaged("a name is not UTF-8"))
    };
    let (name, prefix) = (field(0..100)?, field(345..500)?);
    // Only POSIX archives have the prefix; older GNU ones keep times there.
    let posix = &header[257..263] == b"ustar\0";
    Ok(if posix && !prefix.is_empty() {
        format!("{prefix}/{name}")
    } else {
        name.to_owned()
    })
}

/// An octal number, or GNU's binary one for what does not fit.
fn number(field: &[u8]) -> io::Result<u64> {
    if field[0] & 0x80 != 0 {
        let digits = std::iter::once(field[0] & 0x7f).chain(field[1..].iter().copied());
        let number = digits
            .map(u64::from)
            .try_fold(0_u64, |sum, digit| Some(sum.checked_mul(256)? + digit));
        return number.ok_or_else(|| damaged("a number is out of range"));
    }
    let text = std::str::from_utf8(field).unwrap_or("?").trim_matches(['\0', ' ']);
    u64::from_str_radix(if text.is_empty() { "0" } else { text }, 8).map_err(|_| damaged("a number is not octal"))
}

/// The sum of a header's bytes, its own checksum counted as spaces.
fn sum(header: &[u8; 512]) -> u64 {
    let byte = |(at, byte): (usize, &u8)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte });
    header.iter().enumerate().map(byte).sum()
}

/// The value of one key of a pax header: lines of `<length> <key>=<value>`.
fn pax(text: &str, key: &str) -> Option<String> {
    let mut value = None;
    for line in text.lines() {
        let (name, content) = line.split_once(' ').and_then(|(_, rest)| rest.split_once('='))?;
        if name == key {
            value = Some(content.to_owned());
        }
    }
    value
}

fn damaged(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// One entry, its content padded.
    fn entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = kind;
        header[257..263].copy_from_slice(b"ustar\0");
        let sum = sum(&header);
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

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
        archive.extend(entry("pax", b'x', b"16 path=pax/name\n9 size=1\n"));
        archive.extend(entry("short", b'0', b"x"));
        let expected = [("gnu/name".to_owned(), 1536, 1), ("pax/name".to_owned(), 3584, 1)];
        assert_eq!(names(archive).unwrap(), expected);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        assert!(names(Vec::new()).is_err());
        assert!(names(vec![b'x'; 2048]).is_err());
        let sound = [
            entry("name", b'x', b"9 path=a\n"),
            entry("name", b'0', b"x"),
            vec![0; 1024],
        ]
        .concat();
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
