//! Gives back the pages of the program that are not in use.
//!
//! Whatever an edge core does once (reading its configuration, joining, opening its store, the handshake) leaves that
//! code mapped for good, and the kernel maps sixteen pages around each that is touched. On a small board these count as
//! this process's memory, and among pages that were just used the kernel does not see which may go. Told so now and then,
//! it maps again what is really used, from its cache: nothing is read from the disk unless memory was short and the page
//! was dropped, which is what it is for.

use std::io;
use std::ops::Range;

use crate::sys;

/// Unmaps this program's code and constants; each page that is used comes back by itself.
pub(crate) fn give_back() -> io::Result<()> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let here = give_back as *const () as usize;
    for range in clean(&smaps, here) {
        sys::forget_clean_pages(range)?;
    }
    Ok(())
}

/// The mappings of the file of which `here` is code, where nothing may be or was ever written: what is unmapped there is
/// in the file as well.
fn clean(smaps: &str, here: usize) -> Vec<Range<usize>> {
    let mappings = mappings(smaps);
    let is_own = |mapping: &&Mapping<'_>| mapping.at.contains(&here) && mapping.file.1 != "0";
    let Some(own) = mappings.iter().find(is_own) else {
        return Vec::new();
    };
    let same =
        |mapping: &&Mapping<'_>| mapping.file == own.file && !mapping.writable && mapping.anonymous_kb == Some(0);
    mappings.iter().filter(same).map(|mapping| mapping.at.clone()).collect()
}

struct Mapping<'a> {
    at: Range<usize>,
    writable: bool,
    /// Device and inode.
    file: (&'a str, &'a str),
    /// Written to, and so in no file.
    anonymous_kb: Option<u64>,
}

fn mappings(smaps: &str) -> Vec<Mapping<'_>> {
    let mut found: Vec<Mapping<'_>> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "Anonymous:" {
            if let Some(last) = found.last_mut() {
                last.anonymous_kb = words.next().and_then(|word| word.parse().ok());
            }
        } else if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            && let (Some(access), Some(_), Some(device), Some(inode)) =
                (words.next(), words.next(), words.next(), words.next())
        {
            found.push(Mapping {
                at: start..end,
                writable: access.contains('w'),
                file: (device, inode),
                anonymous_kb: None,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
01000000-011ca000 r--p 00000000 fe:00 42       /usr/bin/edgecore
Rss:                 704 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
011ca000-016e9000 r-xp 001c9000 fe:00 42       /usr/bin/edgecore
Anonymous:             0 kB
016e9000-01728000 r--p 006e7000 fe:00 42       /usr/bin/edgecore
Anonymous:             4 kB
01728000-01730000 rw-p 00725000 fe:00 42       /usr/bin/edgecore
Anonymous:             0 kB
01730000-01732000 r--p 00000000 fe:00 43       /usr/share/other
Anonymous:             0 kB
01732000-01733000 r--p 00000000 fe:00 42       /usr/bin/edgecore
7ef53000-7ef54000 r-xp 00000000 00:00 0
Anonymous:             0 kB
";

    #[test]
    fn only_what_the_file_has_as_well_is_given_back() {
        let both = [0x0100_0000..0x011c_a000, 0x011c_a000..0x016e_9000];
        assert_eq!(clean(SMAPS, 0x011c_a123), both);
        // What is not known to be clean is kept, and everything where this code is in no file or in no mapping.
        assert!(clean(SMAPS, 0x7ef5_3000).is_empty());
        assert!(clean(SMAPS, 1).is_empty());
        assert!(clean("", 1).is_empty());
        assert!(clean("nonsense\nAnonymous: much kB\nzz-1 r--p 0 0 0\n", 1).is_empty());
    }

    #[test]
    fn the_program_runs_on_without_its_pages() {
        let resident = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let here = give_back as *const () as usize;
            let own = mappings(&smaps)
                .into_iter()
                .find(|mapping| mapping.at.contains(&here))
                .unwrap()
                .at;
            let mut words = smaps
                .lines()
                .skip_while(|line| !line.starts_with(&format!("{:08x}-", own.start)));
            let rss = words.find(|line| line.starts_with("Rss:")).unwrap();
            rss.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        // Uses much of it.
        let text = format!("{:?}", std::env::vars().collect::<Vec<_>>());
        let before = resident();
        give_back().unwrap();
        let after = resident();
        assert!(after < before, "{before} KiB before, {after} KiB after");
        assert_eq!(text, format!("{:?}", std::env::vars().collect::<Vec<_>>()));
    }
}
