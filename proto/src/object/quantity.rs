//! Quantities (`100m`, `1.5Gi`, `1e3`): exact, as thousandths.

use std::fmt;
use std::str::FromStr;

/// An amount in thousandths of its unit, rounded up as Kubernetes does; ±1.7e35 thousandths at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Quantity {
    milli: i128,
}

/// Text that is no quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
pub struct QuantityError;

impl Quantity {
    pub const fn from_milli(milli: i128) -> Self {
        Self { milli }
    }

    /// In thousandths, as CPU is counted.
    pub const fn milli(self) -> i128 {
        self.milli
    }

    /// In whole units, rounded up, as memory and counts are; saturating.
    pub fn units(self) -> i64 {
        let units = self.milli.div_euclid(1000) + i128::from(self.milli.rem_euclid(1000) != 0);
        i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })
    }

    pub fn is_negative(self) -> bool {
        self.milli < 0
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned
            .find(|at: char| !at.is_ascii_digit() && at != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(QuantityError);
        }
        let (scale, decimals) = scale(suffix)?;
        // digits * scale * 10^(decimals + 3 - fraction digits), rounded away from zero.
        let digits = [whole, fraction].concat();
        let digits: i128 = digits.parse().map_err(|_| QuantityError)?;
        let mut milli = digits.checked_mul(scale).ok_or(QuantityError)?;
        let fraction = i32::try_from(fraction.len()).map_err(|_| QuantityError)?;
        let shift = decimals + 3 - fraction;
        let power = 10i128.checked_pow(shift.unsigned_abs());
        milli = match (shift >= 0, power) {
            (true, Some(power)) => milli.checked_mul(power).ok_or(QuantityError)?,
            (true, None) if milli == 0 => 0,
            (true, None) => return Err(QuantityError),
            (false, Some(power)) => milli / power + i128::from(milli % power != 0),
            (false, None) => i128::from(milli != 0),
        };
        Ok(Self { milli: if text.starts_with('-') { -milli } else { milli } })
    }
}

/// A suffix as (factor, power of ten).
fn scale(suffix: &str) -> Result<(i128, i32), QuantityError> {
    Ok(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E']).ok_or(QuantityError)?;
            (
                1,
                digits
                    .parse()
                    .ok()
                    .filter(|power: &i32| power.unsigned_abs() <= 30)
                    .ok_or(QuantityError)?,
            )
        }
    })
}

/// Whole units where it is one, thousandths (`250m`) otherwise.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli % 1000 == 0 {
            write!(f, "{}", self.milli / 1000)
        } else {
            write!(f, "{}m", self.milli)
        }
    }
}

impl std::ops::Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { milli: self.milli.saturating_add(other.milli) }
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { milli: self.milli.saturating_sub(other.milli) }
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(quantities: I) -> Self {
        quantities.fold(Self::default(), |sum, one| sum + one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_in_thousandths() {
        let check = |text: &str, milli: i128| assert_eq!(text.parse(), Ok(Quantity::from_milli(milli)), "{text}");
        check("0", 0);
        check("100m", 100);
        check("1", 1000);
        check("+1.5", 1500);
        check("-1.5", -1500);
        check(".5", 500);
        check("5.", 5000);
        check("1.5Gi", 1_610_612_736_000);
        check("64Mi", 67_108_864_000);
        check("1e3", 1_000_000);
        check("1E-2", 10);
        check("1k", 1_000_000);
        check("1n", 1);
        check("0.0001", 1);
        check("1E", 1_000_000_000_000_000_000_000);
        for text in [
            "", "m", "1x", "1.2.3", "1 Gi", "--1", "1e", "1e99", "1ki", "Gi", "\u{661}",
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError), "{text}");
        }
    }

    #[test]
    fn units_round_up() {
        let units = |text: &str| text.parse::<Quantity>().unwrap().units();
        assert_eq!(
            (units("1"), units("1m"), units("1500m"), units("-1500m")),
            (1, 1, 2, -1)
        );
        assert_eq!(units("9E"), 9_000_000_000_000_000_000);
        assert_eq!(units("10E"), i64::MAX);
        assert_eq!(Quantity::from_milli(250).to_string(), "250m");
        assert_eq!(Quantity::from_milli(-2000).to_string(), "-2");
    }
}
