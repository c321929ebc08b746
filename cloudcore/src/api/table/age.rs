//! How long ago something was, in the few letters people know from `kubectl`.

use proto::time::{Wall, parse_rfc3339};
use proto::value::Value;

/// The age of a time field; `<unknown>` when there is none.
pub(super) fn since(time: Option<&Value>, now: Wall) -> String {
    match time.and_then(Value::as_text).and_then(seconds) {
        Some(then) => span(now.ms.div_euclid(1000) - then),
        None => "<unknown>".to_owned(),
    }
}

/// Seconds since 1970 of a time with or without a fraction.
fn seconds(text: &str) -> Option<i64> {
    match text.split_once('.') {
        None => parse_rfc3339(text),
        Some((whole, _)) => parse_rfc3339(&format!("{whole}Z")),
    }
}

/// A span of seconds: two units where the first is small, one where it says enough.
fn span(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    let two = |first: i64, unit: &str, second: i64, smaller: &str| match second {
        0 => format!("{first}{unit}"),
        second => format!("{first}{unit}{second}{smaller}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let check = |seconds: i64, text: &str| assert_eq!(span(seconds), text);
        check(-2, "<invalid>");
        check(-1, "0s");
        check(119, "119s");
        check(120, "2m");
        check(599, "9m59s");
        check(600, "10m");
        check(10_799, "179m");
        check(10_800, "3h");
        check(10_860, "3h1m");
        check(28_800, "8h");
        check(172_800, "2d");
        check(176_400, "2d1h");
        check(8 * 86_400, "8d");
        check(730 * 86_400, "2y");
        check(731 * 86_400, "2y1d");
        check(2920 * 86_400, "8y");
    }

    #[test]
    fn times() {
        let now = Wall { ms: 10_500, trusted: true };
        let check = |text: &str, age: &str| assert_eq!(since(Some(&Value::from(text)), now), age);
        check("1970-01-01T00:00:05Z", "5s");
        check("1970-01-01T00:00:05.999999Z", "5s");
        check("yesterday", "<unknown>");
        assert_eq!(since(None, now), "<unknown>");
    }
}
