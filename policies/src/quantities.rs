//! Kubernetes quantities: `100m`, `64Mi`, `1e3`.

/// A Kubernetes quantity in thousandths, rounded up; None when it is none.
pub(crate) fn thousandths(text: &str) -> Option<u128> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 18 || fraction.len() > 9 {
        return None;
    }
    let scale = |power: u32| 10u128.checked_pow(power);
    let (numerator, denominator): (u128, u128) = match suffix {
        "n" => (1, scale(9)?),
        "u" => (1, scale(6)?),
        "m" => (1, scale(3)?),
        "" => (1, 1),
        "k" => (scale(3)?, 1),
        "M" => (scale(6)?, 1),
        "G" => (scale(9)?, 1),
        "T" => (scale(12)?, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        _ => {
            let exponent: u32 = suffix
                .strip_prefix(['e', 'E'])?
                .parse()
                .ok()
                .filter(|exponent| *exponent <= 15)?;
            (scale(exponent)?, 1)
        }
    };
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction_scale = scale(u32::try_from(fraction.len()).ok()?)?;
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let digits = whole.checked_mul(fraction_scale)?.checked_add(fraction)?;
    Some(
        digits
            .checked_mul(1000)?
            .checked_mul(numerator)?
            .div_ceil(fraction_scale.checked_mul(denominator)?),
    )
}

#[cfg(test)]
mod tests {
    use super::thousandths;

    #[test]
    fn quantities() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("1.5", Some(1500)),
            (".5", Some(500)),
            ("64Mi", Some(64 * 1024 * 1024 * 1000)),
            ("1e3", Some(1_000_000)),
            ("1n", Some(1)),
            ("", None),
            ("1.2.3", None),
            ("-1", None),
            ("1 Gi", None),
            ("1e99", None),
        ] {
            assert_eq!(thousandths(text), expected, "{text:?}");
        }
    }
}
