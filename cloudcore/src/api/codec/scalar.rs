//! Scalars that are more than their JSON: quantities, times, base64. Each is brought to the one form in which the API
//! shows it, with the words of Go's own readers when it cannot be.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use proto::time::{parse_rfc3339, rfc3339};

use crate::api::quote::Quoted;

/// What is said of text that is no quantity.
pub(super) const QUANTITY_WORDS: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Most digits of a quantity; the amounts that anything can hold have fewer.
const QUANTITY_DIGITS_MAX: usize = 30;

/// The binary suffixes, from 1024 on.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The decimal suffixes, from 10^-9 on, in steps of a thousand.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// Which family of suffixes a quantity was written with; it is shown with the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Decimal,
    Exponent,
    Binary,
}

/// A quantity as the API shows it: `1000m` is `1`, `1.5Gi` is `1536Mi`. `None` when it is no quantity.
pub fn quantity(text: &str) -> Option<String> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned
        .find(|at: char| !at.is_ascii_digit() && at != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.trim_start_matches('0');
    let some_digit = number.bytes().any(|byte| byte.is_ascii_digit());
    if !some_digit || fraction.contains('.') || whole.len() + fraction.len() > QUANTITY_DIGITS_MAX {
        return None;
    }
    let (form, factor, power) = suffix_of(suffix)?;
    let digits = [whole, fraction].concat();
    let digits: u128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let power = power - i32::try_from(fraction.len()).ok()?;
    // The amount is mantissa * 10^power; nothing below 10^-9 is kept, and it is rounded away from zero.
    let mantissa = digits.checked_mul(factor)?;
    let (mantissa, power) = match u32::try_from(-9 - power) {
        Ok(short @ 1..) => {
            let divisor = 10u128.checked_pow(short);
            (
                divisor.map_or_else(|| u128::from(mantissa > 0), |divisor| mantissa.div_ceil(divisor)),
                -9,
            )
        }
        _ => (mantissa, power),
    };
    if mantissa == 0 {
        return Some("0".to_owned());
    }
    let shown = match form {
        Form::Binary => binary(mantissa, power).or_else(|| decimal(mantissa, power, Form::Decimal))?,
        form => decimal(mantissa, power, form)?,
    };
    Some([sign, &shown].concat())
}

/// Form, factor and power of ten of a suffix.
fn suffix_of(suffix: &str) -> Option<(Form, u128, i32)> {
    if let Some(step) = DECIMAL.iter().position(|one| *one == suffix) {
        return Some((Form::Decimal, 1, i32::try_from(step).ok()? * 3 - 9));
    }
    if let Some(step) = BINARY.iter().position(|one| *one == suffix) {
        return Some((Form::Binary, 1 << (10 * (step + 1)), 0));
    }
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (power.unsigned_abs() <= 30).then_some((Form::Exponent, 1, power))
}

/// `None` below 1024, where the decimal form is shown.
fn binary(mantissa: u128, power: i32) -> Option<String> {
    let whole = match u32::try_from(power) {
        Ok(power) => mantissa.checked_mul(10u128.checked_pow(power)?)?,
        Err(_) => mantissa.div_ceil(10u128.checked_pow(power.unsigned_abs())?),
    };
    if whole < 1024 {
        return None;
    }
    let (mut whole, mut suffix) = (whole, "");
    for step in BINARY {
        if !whole.is_multiple_of(1024) {
            break;
        }
        whole /= 1024;
        suffix = step;
    }
    Some(format!("{whole}{suffix}"))
}

fn decimal(mut mantissa: u128, mut power: i32, form: Form) -> Option<String> {
    while mantissa.is_multiple_of(10) {
        mantissa /= 10;
        power += 1;
    }
    let surplus = power.rem_euclid(3);
    mantissa = mantissa.checked_mul(10u128.pow(surplus.unsigned_abs()))?;
    power -= surplus;
    if form == Form::Exponent {
        return Some(if power == 0 {
            mantissa.to_string()
        } else {
            format!("{mantissa}e{power}")
        });
    }
    // Past the last suffix the amount is written out in it.
    let last = 18;
    if power > last {
        mantissa = mantissa.checked_mul(10u128.checked_pow((power - last).unsigned_abs())?)?;
        power = last;
    }
    let step = usize::try_from((power + 9) / 3).ok()?;
    Some(format!("{mantissa}{}", DECIMAL.get(step)?))
}

/// How a time is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeForm {
    Seconds,
    Micros,
}

impl TimeForm {
    fn layout(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }

    /// A moment as the API shows it.
    pub fn write(self, seconds: i64, nanos: u32) -> String {
        let text = rfc3339(seconds);
        match self {
            Self::Seconds => text,
            Self::Micros => format!("{}.{:06}Z", text.trim_end_matches('Z'), nanos / 1000),
        }
    }
}

/// A time in the form the API shows; the error is what Go says of the text.
pub fn time(text: &str, form: TimeForm) -> Result<String, String> {
    let (seconds, nanos) = moment(text, form)?;
    Ok(form.write(seconds, nanos))
}

/// Seconds since 1970 and nanoseconds.
fn moment(text: &str, form: TimeForm) -> Result<(i64, u32), String> {
    let layout = form.layout();
    let mut rest = text;
    let refused = |rest: &str, element: &str| {
        Err(format!(
            "parsing time {} as {layout:?}: cannot parse {} as {element:?}",
            Quoted(text),
            Quoted(rest)
        ))
    };
    let mut parts = [0i64; 6];
    let elements = [
        ("", "2006", 4),
        ("-", "01", 2),
        ("-", "02", 2),
        ("T", "15", 2),
        (":", "04", 2),
        (":", "05", 2),
    ];
    for (part, (separator, element, width)) in parts.iter_mut().zip(elements) {
        match rest.strip_prefix(separator) {
            Some(after) => rest = after,
            None => return refused(rest, separator),
        }
        match rest.split_at_checked(width) {
            Some((digits, after)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                *part = digits.parse().unwrap_or_default();
                rest = after;
            }
            _ => return refused(rest, element),
        }
    }
    let mut nanos = 0;
    if let Some(after) = rest.strip_prefix(['.', ',']) {
        let width = after.bytes().take_while(u8::is_ascii_digit).count();
        if width > 0 {
            let digits: String = after[..width].chars().chain("000000000".chars()).take(9).collect();
            nanos = digits.parse().unwrap_or_default();
            rest = &after[width..];
        }
    } else if form == TimeForm::Micros {
        return refused(rest, ".000000");
    }
    let Some(offset) = offset(rest) else {
        return refused(rest, "Z07:00");
    };
    let Some(seconds) = text.get(..19).and_then(|plain| parse_rfc3339(&format!("{plain}Z"))) else {
        let [_, month, _, hour, minute, second] = parts;
        let what = match () {
            () if !(1..=12).contains(&month) => "month",
            () if hour > 23 => "hour",
            () if minute > 59 => "minute",
            () if second > 59 => "second",
            () => "day",
        };
        return Err(format!("parsing time {}: {what} out of range", Quoted(text)));
    };
    Ok((seconds - offset, nanos))
}

/// Seconds east of UTC; `None` when the text is no offset.
fn offset(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let sign = match text.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text[1..].split_once(':')?;
    let two = |digits: &str| -> Option<i64> {
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
    };
    Some(sign * (two(hours)? * 3600 + two(minutes)? * 60))
}

/// Standard base64 with padding, as Go reads it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

/// Base64 in its one form (Go skips line ends); the error is what Go says of the text.
pub(super) fn base64_text(text: &str) -> Result<String, String> {
    let plain: String = text.chars().filter(|one| !matches!(one, '\r' | '\n')).collect();
    match BASE64.decode(&plain) {
        Ok(bytes) => Ok(BASE64.encode(bytes)),
        Err(error) => {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                _ => plain.trim_end_matches('=').len() / 4 * 4 + 4,
            };
            Err(format!("illegal base64 data at input byte {}", at.min(plain.len())))
        }
    }
}

/// Bytes as base64.
pub(super) fn base64_of(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_one_form() {
        let check = |text: &str, shown: &str| assert_eq!(quantity(text).as_deref(), Some(shown), "{text}");
        check("1", "1");
        check("1000m", "1");
        check("1500m", "1500m");
        check("0.5", "500m");
        check("1.5Gi", "1536Mi");
        check("64Mi", "64Mi");
        check("1024Mi", "1Gi");
        check("0.5Ki", "512");
        check("1000", "1k");
        check("1234567", "1234567");
        check("1e3", "1e3");
        check("12E6", "12e6");
        check("100n", "100n");
        check("0.1n", "1n");
        check("-0.25", "-250m");
        check("+5", "5");
        check("00", "0");
        check("0Gi", "0");
        check("1E", "1E");
        check("5000E", "5000E");
        check("8Gi", "8Gi");
        check("1000Mi", "1000Mi");
        for bad in ["", "12xyz", "1.2.3", ".", "m", "1 Gi", "--1", "1e99", "\u{661}"] {
            assert_eq!(quantity(bad), None, "{bad}");
        }
        assert!(quantity(&"9".repeat(QUANTITY_DIGITS_MAX)).is_some());
        assert_eq!(quantity(&"9".repeat(QUANTITY_DIGITS_MAX + 1)), None);
    }

    #[test]
    fn times_have_one_form() {
        let check =
            |text: &str, form: TimeForm, shown: &str| assert_eq!(time(text, form).as_deref(), Ok(shown), "{text}");
        check("2026-01-02T03:04:05Z", TimeForm::Seconds, "2026-01-02T03:04:05Z");
        check(
            "2026-01-02T03:04:05.678+01:30",
            TimeForm::Seconds,
            "2026-01-02T01:34:05Z",
        );
        check(
            "2026-01-02T03:04:05.678Z",
            TimeForm::Micros,
            "2026-01-02T03:04:05.678000Z",
        );
        check("1969-12-31T23:59:59Z", TimeForm::Seconds, "1969-12-31T23:59:59Z");
        check("2024-02-29T00:00:00-00:30", TimeForm::Seconds, "2024-02-29T00:30:00Z");
        let refused = |text: &str, form: TimeForm, words: &str| {
            assert_eq!(time(text, form).unwrap_err(), words, "{text}");
        };
        let micros = r#""2006-01-02T15:04:05.000000Z07:00""#;
        refused(
            "2026-01-01",
            TimeForm::Micros,
            &format!(r#"parsing time "2026-01-01" as {micros}: cannot parse "" as "T""#),
        );
        refused(
            "x",
            TimeForm::Seconds,
            r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#,
        );
        refused(
            "2026-13-01T00:00:00Z",
            TimeForm::Seconds,
            r#"parsing time "2026-13-01T00:00:00Z": month out of range"#,
        );
        assert!(time("2025-02-29T00:00:00Z", TimeForm::Seconds).is_err());
        assert!(time("2025-02-20T00:00:00+1é", TimeForm::Seconds).is_err());
        assert!(time("2025-02-20T00:00:00", TimeForm::Seconds).is_err());
    }

    #[test]
    fn base64_as_go_reads_it() {
        assert_eq!(base64_text("aHVudGVyMg==").as_deref(), Ok("aHVudGVyMg=="));
        assert_eq!(base64_text("cQ\n==").as_deref(), Ok("cQ=="));
        assert_eq!(base64_text("***").unwrap_err(), "illegal base64 data at input byte 0");
        assert!(base64_text("cQ").is_err());
    }
}
