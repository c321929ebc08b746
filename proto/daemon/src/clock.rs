//! The clocks of this machine: the one place that reads them.

use std::sync::OnceLock;
use std::time::Duration;

use proto::object::Uid;
use proto::time::{BootId, Mono, Wall};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::random;

/// The longest single sleep of [`sleep_until`]. The runtime's timers stand still while the machine is suspended, and
/// CLOCK_BOOTTIME does not.
const NAP_MAX: Duration = Duration::from_secs(30);

/// Now, on the clock that decisions use.
pub fn mono() -> Mono {
    let now = clock_gettime(ClockId::Boottime);
    Mono(u64::try_from(millis(now)).unwrap_or(0))
}

/// Now, on the clock that people read.
pub fn wall() -> Wall {
    let (seconds, nanos) = realtime();
    let ms = seconds
        .saturating_mul(1000)
        .saturating_add(i64::from(nanos / 1_000_000));
    Wall { ms, trusted: synchronised() }
}

/// Now in whole seconds since 1970, and the nanoseconds beyond them, on the clock that people read.
///
/// On 32-bit machines the standard library's time ends in 2038, and reading it then is a panic, as it is where a clock is
/// only wrong; so nothing but this reads that clock.
#[cfg(target_pointer_width = "32")]
pub fn realtime() -> (i64, u32) {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Now in whole seconds since 1970, and the nanoseconds beyond them, on the clock that people read.
#[cfg(not(target_pointer_width = "32"))]
pub fn realtime() -> (i64, u32) {
    use std::time::SystemTime;

    // Through the C library, unlike the other clock: a test puts another time under the whole process there.
    #[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
    let now = SystemTime::now();
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    match now.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (seconds(since), since.subsec_nanos()),
        Err(before) => (-seconds(before.duration()), 0),
    }
}

/// Which boot of this machine this is.
///
/// Where the kernel's answer cannot be read, every start of the process counts as a boot of its own: then nothing that
/// was measured before is compared with anything measured now.
pub fn boot_id() -> BootId {
    static BOOT: OnceLock<BootId> = OnceLock::new();
    *BOOT.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|text| text.trim().parse::<Uid>().ok())
            .map_or_else(|| BootId(random::bytes()), |id| BootId(id.0))
    })
}

/// Sleeps until `at`, also when the machine is suspended meanwhile; for ever when there is nothing to wait for.
pub async fn sleep_until(at: Option<Mono>) {
    let Some(at) = at else {
        return std::future::pending().await;
    };
    loop {
        let left = at.since(mono());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(NAP_MAX)).await;
    }
}

fn millis(time: Timespec) -> i64 {
    time.tv_sec
        .saturating_mul(1000)
        .saturating_add(time.tv_nsec / 1_000_000)
}

/// Whether something keeps the wall clock right, as the kernel was told by whichever time daemon runs here.
fn synchronised() -> bool {
    #[expect(
        unsafe_code,
        reason = "no safe binding of adjtimex; it only reads when no mode is set"
    )]
    // SAFETY: `timex` is a plain C struct of integers, for which all zeroes is a value, and it outlives the call.
    let (clock, status) = unsafe {
        let mut state: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut state), state.status)
    };
    clock >= 0 && status & libc::STA_UNSYNC == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run() {
        let before = mono();
        assert!(before > Mono(0));
        assert!(mono() >= before);
        // 2024 in milliseconds: no machine that builds this is older, and seconds would be far below.
        assert!(wall().ms > 1_700_000_000_000);
        assert_eq!(boot_id(), boot_id());
        assert_ne!(boot_id(), BootId::default());
    }

    /// On 32-bit machines as well.
    #[test]
    fn time_does_not_end_in_2038() {
        assert_eq!(size_of::<libc::time_t>(), 8);
        assert_eq!(size_of_val(&clock_gettime(ClockId::Realtime).tv_sec), 8);
    }

    #[tokio::test]
    async fn sleeping_until_the_past_is_no_sleep() {
        sleep_until(Some(Mono(0))).await;
        let at = mono() + Duration::from_millis(5);
        sleep_until(Some(at)).await;
        assert!(mono() >= at);
    }
}
