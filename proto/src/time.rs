//! The only notion of time below the rim.
//!
//! Decisions use [`Mono`]; [`Wall`] is a label for people and certificates. A wait that is stored is stored as what
//! remains of it, because a [`Mono`] means nothing after a reboot.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds of CLOCK_BOOTTIME: it counts through suspend and starts anew at every boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(pub u64);

impl Mono {
    /// The time from `earlier` to `self`, zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Mono {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(millis(wait)))
    }
}

impl Sub<Duration> for Mono {
    type Output = Self;

    fn sub(self, wait: Duration) -> Self {
        Self(self.0.saturating_sub(millis(wait)))
    }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 as the machine's clock has them, and whether anything vouches for that clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wall {
    pub ms: i64,
    /// Synchronised, or set from a session with the cloud. An untrusted clock decides nothing.
    pub trusted: bool,
}

impl Wall {
    /// The RFC 3339 text, whole seconds, UTC, as `metav1.Time` has it.
    pub fn rfc3339(self) -> String {
        rfc3339(self.ms.div_euclid(1000))
    }
}

/// One boot of one machine: the kernel's boot id. A [`Mono`] is only comparable within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct BootId(pub [u8; 16]);

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Seconds since 1970 as RFC 3339 text (`2026-11-30T02:52:50Z`), years 0000 to 9999.
pub fn rfc3339(seconds: i64) -> String {
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// Seconds since 1970 of an RFC 3339 text in UTC with whole seconds, the one form that both cores write.
///
/// Returns `None` for every other text, also for one that [`rfc3339`] would write differently.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 20 || !bytes.is_ascii() {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        bytes[from..to]
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| text[from..to].parse().ok())
            .flatten()
    };
    let days = days(number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let seconds = days * 86_400 + number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?;
    (rfc3339(seconds) == text).then_some(seconds)
}

/// Days since 1970 to (year, month, day) in the proleptic Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years start in March here, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// (year, month, day) to days since 1970; the inverse of [`civil`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_text() {
        let check = |seconds: i64, text: &str| {
            assert_eq!(rfc3339(seconds), text);
            assert_eq!(parse_rfc3339(text), Some(seconds));
        };
        check(0, "1970-01-01T00:00:00Z");
        check(-1, "1969-12-31T23:59:59Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_796_007_170, "2026-11-30T02:52:50Z");
        check(253_402_300_799, "9999-12-31T23:59:59Z");
    }

    #[test]
    fn other_forms_of_time_are_refused() {
        for text in [
            "",
            "2026-11-30T02:52:50+00:00",
            "2026-11-30T02:52:50.000Z",
            "2026-02-30T00:00:00Z",
            "2026-11-30T24:00:00Z",
            "2026-11-30 02:52:50Z",
            "+026-11-30T02:52:50Z",
            "2026-11-3\u{e9}T02:52:5Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn mono_saturates() {
        assert_eq!(Mono(5) - Duration::from_secs(1), Mono(0));
        assert_eq!(Mono(u64::MAX) + Duration::MAX, Mono(u64::MAX));
        assert_eq!(Mono(1).since(Mono(2)), Duration::ZERO);
    }
}
