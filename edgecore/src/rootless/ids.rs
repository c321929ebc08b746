//! Which numbers of users and groups there are in a user namespace, and which ones an ordinary user may bring into one.

use std::ops::Range;

/// Numbers that exist in a user namespace, as the kernel lists them (`/proc/self/uid_map`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ids(Vec<Range<u64>>);

impl Ids {
    /// Every number there is.
    #[cfg(test)]
    pub(crate) fn all() -> Self {
        Self::parse("0 0 4294967295")
    }

    /// The first ones.
    #[cfg(test)]
    pub(crate) fn of(count: u64) -> Self {
        Self::parse(&format!("0 1000 {count}"))
    }

    /// The users of this process' namespace.
    pub fn users() -> Self {
        Self::read("/proc/self/uid_map")
    }

    /// The groups of this process' namespace.
    pub fn groups() -> Self {
        Self::read("/proc/self/gid_map")
    }

    fn read(file: &str) -> Self {
        // A kernel without user namespaces has all numbers.
        std::fs::read_to_string(file).map_or_else(|_| Self::parse("0 0 4294967295"), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let ranges = text.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next())
            else {
                return None;
            };
            Some(first..first.saturating_add(count))
        });
        Self(ranges.collect())
    }

    pub fn contains(&self, id: u32) -> bool {
        self.0.iter().any(|range| range.contains(&u64::from(id)))
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }
}

/// More ranges of one user than this are left out: the kernel takes 340 in all, and nobody has that many.
const RANGES_MAX: usize = 64;

/// The ranges that a file such as `/etc/subuid` gives to a user, by name or number: first number and count.
pub(super) fn ranges(text: &str, user: &str, uid: u32) -> Vec<(u32, u32)> {
    let number = uid.to_string();
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let usable = count > 0 && first.checked_add(count).is_some() && !(first..first + count).contains(&uid);
        ((owner == user || owner == number) && usable).then_some((first, count))
    });
    lines.take(RANGES_MAX).collect()
}

/// The first range of the usual size that no line of files such as `/etc/subuid` has a part of: what to give to a user. The
/// usual one where there is no room behind the last.
pub(super) fn free(texts: &[String]) -> Range<u32> {
    const FIRST: u32 = 100_000;
    const COUNT: u32 = 65_536;
    let lines = texts.iter().flat_map(|text| text.lines());
    let ends = lines.filter_map(|line| {
        let mut fields = line.trim().split(':').skip(1);
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        first.checked_add(count)
    });
    let first = ends.max().unwrap_or(FIRST).max(FIRST);
    let first = if first < u32::MAX - COUNT { first } else { FIRST };
    first..first + COUNT
}

/// What is to be mapped: this user as 0, then its ranges, each as inside, outside, count.
pub(super) fn map(own: u32, ranges: &[(u32, u32)]) -> Vec<[u32; 3]> {
    let mut all = vec![[0, own, 1]];
    let mut next: u32 = 1;
    for (first, count) in ranges {
        let count = (*count).min(u32::MAX - next);
        if count > 0 {
            all.push([next, *first, count]);
            next += count;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_numbers_that_are_mapped() {
        let ids = Ids::parse("         0       1000          1\n         1     100000      65536\n");
        assert!(ids.contains(0) && ids.contains(65536) && !ids.contains(65537));
        assert_eq!(ids.count(), 65537);
        assert_eq!(Ids::parse("garbage\n0 1").count(), 0);
        assert!(Ids::all().contains(u32::MAX - 1) && !Ids::all().contains(u32::MAX));
    }

    #[test]
    fn ranges_are_found_by_name_and_by_number() {
        let text = "# none\nother:5:5\nweb:100000:65536\n1000:300000:10\nweb:x:1\nweb:7\nweb:4294967290:10\nweb:0:0\nweb:999:5\n";
        assert_eq!(ranges(text, "web", 1000), [(100_000, 65536), (300_000, 10)]);
        assert_eq!(ranges(text, "nobody", 7), []);
        let many = "web:100000:1\n".repeat(RANGES_MAX + 1);
        assert_eq!(ranges(&many, "web", 1).len(), RANGES_MAX);
    }

    #[test]
    fn ranges_follow_each_other_inside() {
        assert_eq!(map(1000, &[]), [[0, 1000, 1]]);
        assert_eq!(
            map(1000, &[(100_000, 65536), (300_000, 10)]),
            [[0, 1000, 1], [1, 100_000, 65536], [65537, 300_000, 10]]
        );
        // There are no more numbers than these.
        let most = map(1000, &[(100_000, u32::MAX - 200_000), (5, u32::MAX - 10)]);
        assert_eq!(most[2], [u32::MAX - 199_999, 5, 199_999]);
    }

    #[test]
    fn a_range_that_is_advised_is_nobodys() {
        let check = |texts: &[&str], first: u32| {
            let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(free(&texts), first..first + 65_536, "{texts:?}");
        };
        check(&[], 100_000);
        check(&["a:1000:10\n", "nonsense\nb:x:1\n"], 100_000);
        check(&["a:100000:65536\n", ""], 165_536);
        check(&["a:100000:65536\nb:300000:5\n", "a:100000:65536\n"], 300_005);
        check(&["a:100000:65536\n", "c:231072:65536\n"], 296_608);
    }
}
