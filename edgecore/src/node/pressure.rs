//! Whether the machine runs short of something. Pure: decided from what was measured, with a margin, so that what moves
//! about a threshold does not flap.
//!
//! The thresholds are those at which Kubernetes' own node agent begins to worry; that of process ids is ours, for it has
//! none. Only conditions follow from them: nothing is evicted.

use std::collections::BTreeSet;

/// Less memory than this is pressure.
const MEMORY_BYTES_MIN: u64 = 100 << 20;
/// So much of a file system must be free, in per cent: of the node's own files and of the pods' logs, …
const DISK_PERCENT_MIN: u64 = 10;
/// … and of the images and of what containers write.
const IMAGES_PERCENT_MIN: u64 = 15;
/// So many of a file system's inodes must be free, in per cent.
const INODES_PERCENT_MIN: u64 = 5;
/// So many process ids must be free, in per cent.
const PIDS_PERCENT_MIN: u64 = 10;
/// Pressure is over when this much more is available than where it began, in per cent of that.
const MARGIN_PERCENT: u64 = 20;

/// Something that can run out, as it was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Supply {
    /// In words that stay the same from one look to the next.
    what: String,
    unit: Unit,
    available: u64,
    total: u64,
    /// Less is pressure.
    low: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Bytes,
    Each,
}

/// A file system as it was measured, and what is on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Disk {
    pub path: String,
    pub images: bool,
    pub bytes_free: u64,
    pub bytes: u64,
    pub inodes_free: u64,
    /// 0 where the file system makes inodes as it needs them.
    pub inodes: u64,
}

impl Supply {
    pub(super) fn memory(available: u64, total: u64) -> Self {
        Self {
            what: "memory".to_owned(),
            unit: Unit::Bytes,
            available,
            total,
            low: MEMORY_BYTES_MIN,
        }
    }

    pub(super) fn pids(used: u64, total: u64) -> Self {
        Self {
            what: "process ids".to_owned(),
            unit: Unit::Each,
            available: total.saturating_sub(used),
            total,
            low: share(total, PIDS_PERCENT_MIN),
        }
    }

    /// The room of a file system and its inodes.
    pub(super) fn disk(disk: &Disk) -> [Self; 2] {
        let percent = if disk.images {
            IMAGES_PERCENT_MIN
        } else {
            DISK_PERCENT_MIN
        };
        let room = Self {
            what: format!("the file system of {}", disk.path),
            unit: Unit::Bytes,
            available: disk.bytes_free,
            total: disk.bytes,
            low: share(disk.bytes, percent),
        };
        let inodes = Self {
            what: format!("the inodes of {}", disk.path),
            unit: Unit::Each,
            available: disk.inodes_free,
            total: disk.inodes,
            low: share(disk.inodes, INODES_PERCENT_MIN),
        };
        [room, inodes]
    }

    fn is_short(&self, was: bool) -> bool {
        let margin = if was { share(self.low, MARGIN_PERCENT) } else { 0 };
        // What there is none of cannot run out: it was not measured, or is made as it is needed.
        self.total > 0 && self.available < self.low.saturating_add(margin)
    }

    fn text(&self) -> String {
        let figure = |count: u64| match self.unit {
            Unit::Bytes => bytes(count),
            Unit::Each => count.to_string(),
        };
        let (available, total, low) = (figure(self.available), figure(self.total), figure(self.low));
        format!(
            "{}: {available} of {total} are available, and {low} should be",
            self.what
        )
    }
}

/// What a node is short of, remembered from look to look.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    short: BTreeSet<String>,
}

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortage {
    /// Which supplies are short; the figures are not part of it, for they move all the time.
    pub subject: String,
    pub message: String,
}

impl Pressure {
    /// What is short of these now; `None` where nothing is.
    pub(super) fn judge(&mut self, supplies: &[Supply]) -> Option<Shortage> {
        let short: Vec<_> = (supplies.iter())
            .filter(|supply| supply.is_short(self.short.contains(&supply.what)))
            .collect();
        self.short = short.iter().map(|supply| supply.what.clone()).collect();
        let join = |texts: Vec<String>| texts.join("; ");
        (!short.is_empty()).then(|| Shortage {
            subject: join(short.iter().map(|supply| supply.what.clone()).collect()),
            message: join(short.iter().map(|supply| supply.text()).collect()),
        })
    }
}

fn share(total: u64, percent: u64) -> u64 {
    // Divided first: no disk is large enough to be wrong by more than a hundred bytes.
    (total / 100).saturating_mul(percent) + total % 100 * percent / 100
}

/// For people, in the largest unit that leaves three digits or so.
fn bytes(count: u64) -> String {
    match count {
        0..10_240 => format!("{count} bytes"),
        10_240..10_485_760 => format!("{} KiB", count >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", count >> 20),
        _ => format!("{} GiB", count >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk(bytes_free: u64, inodes_free: u64) -> Disk {
        Disk {
            path: "/data".to_owned(),
            images: false,
            bytes_free,
            bytes: 1000 * MIB,
            inodes_free,
            inodes: 1000,
        }
    }

    /// Looks in turn, and what each should find.
    fn check(looks: &[(Supply, bool)]) {
        let mut pressure = Pressure::default();
        for (at, (supply, short)) in looks.iter().enumerate() {
            let found = pressure.judge(std::slice::from_ref(supply));
            assert_eq!(found.is_some(), *short, "look {at}: {supply:?}");
        }
    }

    #[test]
    fn each_begins_below_its_threshold_and_ends_a_fifth_above() {
        let memory = |mib: u64| Supply::memory(mib * MIB, 512 * MIB);
        check(&[
            (memory(100), false),
            (Supply::memory(100 * MIB - 1, 512 * MIB), true),
            (memory(101), true),
            (memory(119), true),
            (memory(120), false),
            (memory(101), false),
        ]);
        let room = |mib: u64| Supply::disk(&disk(mib * MIB, 1000))[0].clone();
        check(&[
            (room(100), false),
            (room(99), true),
            (room(119), true),
            (room(120), false),
        ]);
        let images = |mib: u64| Supply::disk(&Disk { images: true, ..disk(mib * MIB, 1000) })[0].clone();
        check(&[(images(150), false), (images(149), true), (images(180), false)]);
        let inodes = |free: u64| Supply::disk(&disk(MIB, free))[1].clone();
        check(&[
            (inodes(50), false),
            (inodes(49), true),
            (inodes(59), true),
            (inodes(60), false),
        ]);
        let pids = |used: u64| Supply::pids(used, 32_768);
        check(&[
            (pids(29_492), false),
            (pids(29_493), true),
            (pids(40_000), true),
            (pids(0), false),
        ]);
    }

    #[test]
    fn what_moves_about_a_threshold_does_not_flap() {
        let mut pressure = Pressure::default();
        let mut changes = 0;
        let mut was = false;
        for look in 0..100_u64 {
            // A tenth below and a tenth above, in turn.
            let available = MEMORY_BYTES_MIN / 10 * if look % 2 == 0 { 9 } else { 11 };
            let is = pressure.judge(&[Supply::memory(available, 512 * MIB)]).is_some();
            changes += u32::from(is != was);
            was = is;
        }
        assert_eq!(changes, 1);
    }

    #[test]
    fn the_message_has_the_figures_and_the_subject_has_none() {
        let mut pressure = Pressure::default();
        let mut look = |free: u64| {
            let [room, inodes] = Supply::disk(&disk(free, 3));
            pressure.judge(&[room, inodes]).unwrap()
        };
        let first = look(5000);
        assert_eq!(
            first.message,
            "the file system of /data: 5000 bytes of 1000 MiB are available, and 100 MiB should be; the inodes of /data: \
             3 of 1000 are available, and 50 should be"
        );
        assert_eq!(look(MIB).subject, first.subject);
        assert_eq!(look(120 * MIB).subject, "the inodes of /data");
    }

    #[test]
    fn what_was_not_measured_is_not_short() {
        let none = Disk { bytes: 0, inodes: 0, ..disk(0, 0) };
        let [room, inodes] = Supply::disk(&none);
        let supplies = [room, inodes, Supply::memory(0, 0), Supply::pids(0, 0)];
        assert_eq!(Pressure::default().judge(&supplies), None);
    }

    #[test]
    fn shares_do_not_overflow() {
        assert_eq!(share(u64::MAX, 10), u64::MAX / 10);
        assert_eq!(share(1, 10), 0);
        assert_eq!(share(199, 50), 99);
    }
}
