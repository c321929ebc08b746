//! The clocks of this machine: the one place that reads them.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

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
    // Through the C library, unlike the other clock: a test puts another time under the whole process there.
    #[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
    let now = SystemTime::now();
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let ms = match now.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => ms(since),
        Err(before) => -ms(before.duration()),
    };
    Wall { ms, trusted: synchronised() }
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

    #[tokio::test]
    async fn sleeping_until_the_past_is_no_sleep() {
        sleep_until(Some(Mono(0))).await;
        let at = mono() + Duration::from_millis(5);
        sleep_until(Some(at)).await;
        assert!(mono() >= at);
    }
}
