//! A tar archive from front to back, in constant memory: v7, POSIX, GNU and pax, sparse files of all four kinds.
//!
//! Everything an archive says is checked here for what it is (numbers, sizes, order of parts); what a name may mean is
//! the reader's caller to judge.

use std::io::{self, Read};
use std::mem;

use super::{BLOCK, BLOCK_BYTES, Header, damaged, number, records};

/// An archive with more members is refused.
pub(in crate::images) const MEMBERS_MAX: u64 = 500_000;

/// Extended headers (names, attributes) larger than this are refused.
pub(in crate::images) const EXTENDED_BYTES_MAX: u64 = 1024 * 1024;

/// A sparse file of more parts is refused.
pub(in crate::images) const PARTS_MAX: usize = 65_536;

/// What is skipped at once.
const SKIP_BYTES: usize = 16 * 1024;

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::images) enum Kind {
    File,
    Folder,
    /// Another name of what has the name `target`.
    Link,
    Symlink,
    Fifo,
    Device {
        block: bool,
        major: u32,
        minor: u32,
    },
}

/// One thing in an archive; its content is read from the [`Reader`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::images) struct Member {
    pub(in crate::images) path: Vec<u8>,
    pub(in crate::images) kind: Kind,
    /// Where a link leads.
    pub(in crate::images) target: Vec<u8>,
    /// The permission bits, setuid and the like among them.
    pub(in crate::images) mode: u32,
    pub(in crate::images) owner: u32,
    pub(in crate::images) group: u32,
    /// Seconds since 1970, and nanoseconds.
    pub(in crate::images) modified: (i64, u32),
    /// The length of the file.
    pub(in crate::images) size: u64,
    pub(in crate::images) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the content belongs, as (offset, length), in order; `None` is all of it from the start.
    pub(in crate::images) parts: Option<Vec<(u64, u64)>>,
}

/// What extended headers say of the member after them.
#[derive(Debug, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    owner: Option<u32>,
    group: Option<u32>,
    modified: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Sparse,
}

#[derive(Debug, Default)]
struct Sparse {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    /// The parts, as far as a header has them.
    parts: Vec<(u64, u64)>,
    has_parts: bool,
    /// The parts stand before the content.
    in_content: bool,
}

/// Reads the members of an archive in turn, and as [`Read`] the content of the last one.
#[derive(Debug)]
pub(in crate::images) struct Reader<R> {
    input: R,
    /// What is left of the member's content, and what comes after it to the next block.
    left: u64,
    padding: u64,
    members: u64,
}

impl<R: Read> Reader<R> {
    pub(in crate::images) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, members: 0 }
    }

    /// The next member; what was not read of the last one is skipped.
    pub(in crate::images) fn next(&mut self) -> io::Result<Option<Member>> {
        let mut extended = Extended::default();
        let mut has_extended = false;
        loop {
            self.skip()?;
            let header = match self.block()? {
                Some(block) => Header::parse(block)?,
                None => None,
            };
            let Some(header) = header else {
                return if has_extended {
                    Err(damaged("it ends after an extended header"))
                } else {
                    Ok(None)
                };
            };
            self.members += 1;
            if self.members > MEMBERS_MAX {
                return Err(damaged(format!("it has more than {MEMBERS_MAX} members")));
            }
            self.expect(header.size()?)?;
            match header.kind() {
                b'L' => extended.path = Some(c_text(self.extended()?)),
                b'K' => extended.target = Some(c_text(self.extended()?)),
                b'x' => extended.read(&self.extended()?)?,
                // About all members to come; nobody puts there what matters here, and other readers skip it, too.
                b'g' => continue,
                kind => return self.member(kind, &header, extended).map(Some),
            }
            has_extended = true;
        }
    }

    /// Reads to the end of the input, past the archive's own; `bytes_max` bounds what may be there.
    pub(in crate::images) fn finish(mut self, bytes_max: u64) -> io::Result<()> {
        self.skip()?;
        let mut rest = self.input.take(bytes_max.saturating_add(1));
        if io::copy(&mut rest, &mut io::sink())? > bytes_max {
            return Err(damaged("there is too much after its end"));
        }
        Ok(())
    }

    fn member(&mut self, kind: u8, header: &Header, extended: Extended) -> io::Result<Member> {
        let path = extended.path.unwrap_or_else(|| header.name());
        let device = |block| -> io::Result<Kind> {
            let (major, minor) = (header.number(329..337)?, header.number(337..345)?);
            let part = |number| u32::try_from(number).map_err(|_| damaged("a device number is out of range"));
            Ok(Kind::Device { block, major: part(major)?, minor: part(minor)? })
        };
        let kind = match kind {
            // Before POSIX a folder was a file whose name says so.
            0 | b'0' if path.ends_with(b"/") => Kind::Folder,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::Link,
            b'2' => Kind::Symlink,
            b'3' => device(false)?,
            b'4' => device(true)?,
            b'5' => Kind::Folder,
            b'6' => Kind::Fifo,
            other => {
                return Err(damaged(format!(
                    "{} is of the unknown kind {:?}",
                    String::from_utf8_lossy(&path),
                    char::from(other)
                )));
            }
        };
        let small = |number: u64| u32::try_from(number).map_err(|_| damaged("an owner is out of range"));
        let mode = u32::try_from(header.number(100..108)? & 0o7777).expect("twelve bits");
        let modified = match extended.modified {
            Some(time) => time,
            None => (signed(header.raw(136..148))?, 0),
        };
        // A link may name the size of what it leads to.
        let size = extended.size.unwrap_or(self.left);
        self.expect(if has_content(header.kind()) { size } else { 0 })?;
        let mut member = Member {
            path,
            kind,
            target: extended.target.unwrap_or_else(|| header.text(157..257).to_vec()),
            mode,
            owner: extended.owner.map_or_else(|| small(header.number(108..116)?), Ok)?,
            group: extended.group.map_or_else(|| small(header.number(116..124)?), Ok)?,
            modified,
            size: self.left,
            attributes: extended.attributes,
            parts: None,
        };
        self.sparse(&mut member, header, extended.sparse)?;
        Ok(member)
    }

    /// Learns where the parts of a sparse file belong.
    fn sparse(&mut self, member: &mut Member, header: &Header, sparse: Sparse) -> io::Result<()> {
        let parts = if header.kind() == b'S' {
            member.size = number(header.raw(483..495))?;
            self.gnu_parts(header)?
        } else if sparse.in_content {
            self.content_parts()?
        } else if sparse.has_parts {
            sparse.parts
        } else {
            return Ok(());
        };
        if let Some(name) = sparse.name {
            member.path = name;
        }
        member.size = sparse.size.unwrap_or(member.size);
        let mut at = 0;
        let mut stored = 0_u64;
        for (offset, length) in &parts {
            let end = offset.checked_add(*length).filter(|end| *end <= member.size);
            let end = end.filter(|_| *offset >= at);
            at = end.ok_or_else(|| damaged("the parts of a sparse file overlap or leave it"))?;
            stored = stored.saturating_add(*length);
        }
        if stored != self.left {
            return Err(damaged("the parts of a sparse file do not add up to its content"));
        }
        member.parts = Some(parts);
        Ok(())
    }

    /// GNU's own form: four parts in the header, more in blocks after it.
    fn gnu_parts(&mut self, header: &Header) -> io::Result<Vec<(u64, u64)>> {
        let mut parts = Vec::new();
        let mut take = |field: &[u8]| -> io::Result<()> {
            for part in field.chunks_exact(24).filter(|part| part[0] != 0) {
                let (offset, length) = (number(&part[..12])?, number(&part[12..])?);
                push(&mut parts, (offset, length))?;
            }
            Ok(())
        };
        take(header.raw(386..482))?;
        let mut more = header.raw(482..483)[0] != 0;
        while more {
            // These blocks are not counted in the member's size.
            let block = self.block()?.ok_or_else(cut)?;
            take(&block[..504])?;
            more = block[504] != 0;
        }
        Ok(parts)
    }

    /// Of pax, version 1.0: decimal lines at the start of the content, padded to a block.
    fn content_parts(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let mut taken = 0_u64;
        let mut line = |reader: &mut Self| -> io::Result<u64> {
            let mut text = String::new();
            loop {
                let mut byte = [0];
                reader.read_exact(&mut byte)?;
                taken += 1;
                match byte[0] {
                    b'\n' => {
                        return text
                            .parse()
                            .map_err(|_| damaged("a part of a sparse file is no number"));
                    }
                    byte if byte.is_ascii_digit() && text.len() < 20 => text.push(char::from(byte)),
                    _ => return Err(damaged("a part of a sparse file is no number")),
                }
            }
        };
        let count = line(self)?;
        let mut parts = Vec::new();
        for _ in 0..count {
            let part = (line(self)?, line(self)?);
            push(&mut parts, part)?;
        }
        let mut padding = [0; BLOCK];
        let length = taken.next_multiple_of(BLOCK_BYTES) - taken;
        self.read_exact(&mut padding[..usize::try_from(length).expect("less than a block")])?;
        Ok(parts)
    }

    fn extended(&mut self) -> io::Result<Vec<u8>> {
        if self.left > EXTENDED_BYTES_MAX {
            return Err(damaged("an extended header is too large"));
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// From here on comes content of this size.
    fn expect(&mut self, size: u64) -> io::Result<()> {
        let padded = size.checked_next_multiple_of(BLOCK_BYTES);
        self.padding = padded.ok_or_else(|| damaged("a size is out of range"))? - size;
        self.left = size;
        Ok(())
    }

    fn skip(&mut self) -> io::Result<()> {
        let mut rest = mem::take(&mut self.left).saturating_add(mem::take(&mut self.padding));
        let mut buffer = [0; SKIP_BYTES];
        while rest > 0 {
            let part = usize::try_from(rest).unwrap_or(SKIP_BYTES).min(SKIP_BYTES);
            self.input.read_exact(&mut buffer[..part]).map_err(or_cut)?;
            rest -= u64::try_from(part).expect("a buffer");
        }
        Ok(())
    }

    /// The next block; `None` at the end of the input.
    fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(cut()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(block))
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if room == 0 {
            return Ok(0);
        }
        let count = self.input.read(&mut buffer[..room])?;
        if count == 0 {
            return Err(cut());
        }
        self.left -= u64::try_from(count).expect("a buffer");
        Ok(count)
    }
}

impl Extended {
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Of sparse files of version 0.0: an offset waits for its length.
        let mut offset = None;
        for (key, value) in records(bytes)? {
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => self.size = Some(decimal(value)?),
                b"uid" => self.owner = Some(decimal(value)?),
                b"gid" => self.group = Some(decimal(value)?),
                b"mtime" => self.modified = Some(time(value)?),
                b"GNU.sparse.major" => self.sparse.in_content = value == b"1",
                b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
                b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.size = Some(decimal(value)?),
                b"GNU.sparse.numblocks" => self.sparse.has_parts = true,
                b"GNU.sparse.offset" => offset = Some(decimal(value)?),
                b"GNU.sparse.numbytes" => {
                    let offset = offset
                        .take()
                        .ok_or_else(|| damaged("a part of a sparse file has no offset"))?;
                    push(&mut self.sparse.parts, (offset, decimal(value)?))?;
                }
                b"GNU.sparse.map" => {
                    self.sparse.has_parts = true;
                    self.sparse.parts = map(value)?;
                }
                _ => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        self.attributes.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether content follows a header of this kind.
fn has_content(kind: u8) -> bool {
    !matches!(kind, b'1'..=b'6')
}

fn push(parts: &mut Vec<(u64, u64)>, part: (u64, u64)) -> io::Result<()> {
    if parts.len() >= PARTS_MAX {
        return Err(damaged(format!("a sparse file has more than {PARTS_MAX} parts")));
    }
    // Nothing at the end says how long the file is.
    if part.1 > 0 {
        parts.push(part);
    }
    Ok(())
}

/// `offset,length,offset,length,…`
fn map(value: &[u8]) -> io::Result<Vec<(u64, u64)>> {
    let mut parts = Vec::new();
    let mut numbers = value.split(|byte| *byte == b',').filter(|text| !text.is_empty());
    while let Some(offset) = numbers.next() {
        let length = numbers
            .next()
            .ok_or_else(|| damaged("a part of a sparse file has no length"))?;
        push(&mut parts, (decimal(offset)?, decimal(length)?))?;
    }
    Ok(parts)
}

fn decimal<T: std::str::FromStr>(value: &[u8]) -> io::Result<T> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| damaged(format!("{:?} is not a number in range", String::from_utf8_lossy(value))))
}

/// Seconds since 1970 with a fraction, maybe negative.
fn time(value: &[u8]) -> io::Result<(i64, u32)> {
    let text = std::str::from_utf8(value).map_err(|_| damaged("a time is no number"))?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = decimal(whole.as_bytes())?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = decimal(digits.as_bytes())?;
    // -1.25 is a quarter before -1.
    Ok(if whole.starts_with('-') && nanos > 0 {
        (seconds.saturating_sub(1), 1_000_000_000 - nanos)
    } else {
        (seconds, nanos)
    })
}

/// A time in a header: octal, or GNU's binary number with a sign.
fn signed(field: &[u8]) -> io::Result<i64> {
    if field[0] == 0xff {
        let number = field.iter().fold(-1_i64, |sum, byte| (sum << 8) | i64::from(*byte));
        return Ok(number);
    }
    i64::try_from(number(field)?).map_err(|_| damaged("a time is out of range"))
}

/// GNU ends the names in its extended headers with a zero.
fn c_text(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

fn cut() -> io::Error {
    damaged("it is cut off")
}

fn or_cut(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        cut()
    } else {
        error
    }
}

#[cfg(test)]
mod tests;
