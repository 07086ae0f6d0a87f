// SPDX-License-Identifier: Apache-2.0
//! Kubernetes quantities (`10M`, `1.5Gi`, `1e6`) and kubelet's limits for a bandwidth.

use anyhow::{Result, bail};

/// kubelet rejects less than one kilobit and more than one petabit per second.
const SMALLEST: u64 = 1_000;
const LARGEST: u64 = 1_000_000_000_000_000;

/// Parses the value of a bandwidth annotation, in bits per second.
pub(crate) fn bandwidth(text: &str) -> Result<u64> {
    let Some(bits) = parse(text) else {
        bail!(
            "{text:?} is not a quantity: expected a number with k, M, G, T, P, Ki, Mi, Gi or no suffix"
        );
    };
    if bits < SMALLEST {
        bail!("{text:?} is unreasonably small: less than 1k bits per second");
    }
    if bits > LARGEST {
        bail!("{text:?} is unreasonably large: more than 1P bits per second");
    }
    Ok(bits)
}

/// Parses a quantity and rounds it up to a whole number, as Kubernetes does. Returns `None` for
/// malformed and negative quantities, and `u64::MAX` for larger ones: the limits reject them anyway.
fn parse(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let scale = scale(suffix)?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let tens = scale.tens - i32::try_from(fraction.len()).ok()?;
    Some(value(digits, tens, scale.factor).unwrap_or(u64::MAX))
}

/// Value of a suffix: a power of ten, or a factor for binary suffixes.
struct Scale {
    tens: i32,
    factor: u128,
}

fn scale(suffix: &str) -> Option<Scale> {
    let binary = |shift: u32| Some(Scale { tens: 0, factor: 1 << shift });
    let tens = match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        "Ki" => return binary(10),
        "Mi" => return binary(20),
        "Gi" => return binary(30),
        "Ti" => return binary(40),
        "Pi" => return binary(50),
        "Ei" => return binary(60),
        exponent => exponent.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    // Larger exponents are out of bounds anyway; clamping avoids overflow.
    Some(Scale { tens: i32::clamp(tens, -400, 400), factor: 1 })
}

/// `digits * factor * 10^tens`, rounded up; `None` on overflow.
fn value(digits: &str, tens: i32, factor: u128) -> Option<u64> {
    let number: u128 = digits.parse().ok()?;
    let number = number.checked_mul(factor)?;
    let power = 10_u128.checked_pow(tens.unsigned_abs());
    let value = match power {
        Some(power) if tens < 0 => number.div_ceil(power),
        // Between zero and one.
        None if tens < 0 => 1,
        Some(power) => number.checked_mul(power)?,
        None => return None,
    };
    value.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantity_is_parsed_as_in_kubernetes() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(parse(text), expected, "{text}");
        check("10M", Some(10_000_000));
        check("1Mi", Some(1 << 20));
        check("1000k", Some(1_000_000));
        check("1G", Some(1_000_000_000));
        check("+1.5Ki", Some(1536));
        check(".5k", Some(500));
        check("5.", Some(5));
        check("1e3", Some(1_000));
        check("1E3", Some(1_000));
        check("1E", Some(1_000_000_000_000_000_000));
        check("1500m", Some(2));
        check("1n", Some(1));
        check("1e-300", Some(1));
        check("0", Some(0));
        check("0.000e9", Some(0));
        check("1e99", Some(u64::MAX));
        check("99999999999999999999999999999999999999999", Some(u64::MAX));
        for invalid in ["", ".", "M", "1K", "1mb", "1 M", "-1", "1.2.3", "1e", "1e1.5", "1i", "é"]
        {
            check(invalid, None);
        }
    }

    #[test]
    fn bandwidth_outside_the_limits_is_rejected() {
        assert_eq!(bandwidth("1k").unwrap(), 1_000);
        assert_eq!(bandwidth("1P").unwrap(), LARGEST);
        let error = |text| bandwidth(text).unwrap_err().to_string();
        assert!(error("999").contains("unreasonably small"));
        assert!(error("1.1P").contains("unreasonably large"));
        assert!(error("fast").contains("not a quantity"));
    }
}
