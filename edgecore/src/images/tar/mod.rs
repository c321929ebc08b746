//! Tar archives: what the fields of a header mean, for the two ways of reading one.
//!
//! [`index`] finds the files of an archive that can be sought in; [`read`] takes a stream as it comes, whatever is in
//! it. Why not the `tar` crate: it splits extended headers at line ends, which tears binary attribute values
//! (`security.capability`) apart, and takes in names and extended headers of any size.

pub(super) mod index;
pub(super) mod read;

use std::io;
use std::ops::Range;

pub(super) const BLOCK: usize = 512;

/// The unit everything in an archive is padded to, as a length.
pub(super) const BLOCK_BYTES: u64 = 512;

/// Said of what is something else.
pub(super) const NO_TAR: &str = "it is no tar archive, or a damaged one: save it with docker save, skopeo copy … \
                                 oci-archive:FILE or images/build, and compare it with its checksum where it was copied";

/// One header as it stands in the archive.
#[derive(Debug)]
pub(super) struct Header([u8; BLOCK]);

impl Header {
    /// Checks the sum; `None` for the block of zeros that ends an archive.
    pub(super) fn parse(block: [u8; BLOCK]) -> io::Result<Option<Self>> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Self(block);
        let said = header.number(148..156).ok();
        // Some writers of the last century took bytes for signed ones.
        if said == Some(header.sum(u64::from)) || said == Some(header.sum(signed_byte)) {
            Ok(Some(header))
        } else {
            Err(damaged(NO_TAR))
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    pub(super) fn size(&self) -> io::Result<u64> {
        self.number(124..136)
    }

    /// The name, with the prefix that only POSIX archives have; older GNU ones keep times there.
    pub(super) fn name(&self) -> Vec<u8> {
        let (name, prefix) = (self.text(0..100), self.text(345..500));
        if &self.0[257..263] == b"ustar\0" && !prefix.is_empty() {
            [prefix, b"/", name].concat()
        } else {
            name.to_vec()
        }
    }

    /// A field up to its first zero.
    pub(super) fn text(&self, range: Range<usize>) -> &[u8] {
        let field = &self.0[range];
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        &field[..end]
    }

    pub(super) fn raw(&self, range: Range<usize>) -> &[u8] {
        &self.0[range]
    }

    /// An octal number, or GNU's binary one for what does not fit.
    pub(super) fn number(&self, range: Range<usize>) -> io::Result<u64> {
        number(&self.0[range])
    }

    /// The sum of a header's bytes, its own checksum counted as spaces.
    fn sum(&self, value: impl Fn(u8) -> u64) -> u64 {
        let byte = |(at, byte): (usize, &u8)| value(if (148..156).contains(&at) { b' ' } else { *byte });
        self.0.iter().enumerate().map(byte).fold(0, u64::wrapping_add)
    }
}

fn signed_byte(byte: u8) -> u64 {
    i64::from(byte.cast_signed()).cast_unsigned()
}

/// As [`Header::number`], for the structures that follow a header.
pub(super) fn number(field: &[u8]) -> io::Result<u64> {
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

/// The records of a pax header: `<length> <key>=<value>\n`, the length counting all of it. Values may hold anything.
pub(super) fn records(mut bytes: &[u8]) -> io::Result<Vec<(&[u8], &[u8])>> {
    let wrong = || damaged("an extended header is no list of records");
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = std::str::from_utf8(&bytes[..space])
            .ok()
            .and_then(|text| text.parse::<usize>().ok());
        let length = length
            .filter(|length| *length > space + 1 && *length <= bytes.len())
            .ok_or_else(wrong)?;
        let (record, rest) = bytes.split_at(length);
        let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        records.push((&record[..equals], &record[equals + 1..]));
        bytes = rest;
    }
    Ok(records)
}

pub(super) fn damaged(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

#[cfg(test)]
pub(super) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_anything() {
        let bytes = b"12 path=a/b\n20 user.x=a\nb=c\0\xff\nd\n9 empty=\n";
        let expected: [(&[u8], &[u8]); 3] = [(b"path", b"a/b"), (b"user.x", b"a\nb=c\0\xff\nd"), (b"empty", b"")];
        assert_eq!(records(bytes).unwrap(), expected);
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        for bytes in [
            &b"x"[..],
            b"5 a=b",
            b"99 a=b\n",
            b"0 a=b\n",
            b"2 a=b\n",
            b"4 a\n",
            b"-6 a=b\n",
            b"6 a=bc",
        ] {
            assert!(records(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"    644 ", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"\x80\0\0\0\0\0\0\0\x01\0\0\0", Some(1 << 24)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"9999", None),
            (b"7\xe9", None),
        ] {
            assert_eq!(number(field).ok(), expected, "{field:?}");
        }
    }
}
