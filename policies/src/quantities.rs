//! Kubernetes quantities: `100m`, `64Mi`, `1e3`. One reader for the rules and the operator.

/// An amount of memory, processors or anything else, compared by value: `500m` is `0.5`, `1Gi` is `1024Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    /// Billionths of the unit, which is the least that Kubernetes keeps.
    billionths: u128,
}

const BILLION: u128 = 1_000_000_000;

impl Quantity {
    /// So many whole units.
    pub const fn units(units: u64) -> Self {
        Self {
            billionths: units as u128 * BILLION,
        }
    }

    /// So many thousandths.
    pub const fn thousandths(thousandths: u64) -> Self {
        Self {
            billionths: thousandths as u128 * (BILLION / 1000),
        }
    }

    /// Reads a quantity as Kubernetes does: rounded up to billionths. None for a negative one, for one with more digits than
    /// anybody writes, and for what is none.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('+').unwrap_or(text);
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || whole.len() > 18 || fraction.len() > 9 {
            return None;
        }
        let (numerator, denominator) = unit(suffix)?;
        // A second dot is in the fraction and no digit.
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = power_of_ten(fraction.len().try_into().ok()?)?;
        let billionths = digits
            .checked_mul(BILLION)?
            .checked_mul(numerator)?
            .div_ceil(scale.checked_mul(denominator)?);
        Some(Self { billionths })
    }

    /// The whole units in it; None for more than a number has room for.
    pub fn whole_units(self) -> Option<u64> {
        u64::try_from(self.billionths / BILLION).ok()
    }
}

fn power_of_ten(exponent: u32) -> Option<u128> {
    10_u128.checked_pow(exponent)
}

/// What a suffix stands for, as numerator and denominator.
fn unit(suffix: &str) -> Option<(u128, u128)> {
    let decimal = |power: u32| Some((power_of_ten(power)?, 1));
    let binary = |power: u32| Some((1 << power, 1));
    match suffix {
        "n" => Some((1, power_of_ten(9)?)),
        "u" => Some((1, power_of_ten(6)?)),
        "m" => Some((1, power_of_ten(3)?)),
        "" => Some((1, 1)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = power_of_ten(exponent.unsigned_abs()).filter(|_| (-18..=18).contains(&exponent))?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (text, thousandths) in [
            ("1", 1000),
            ("+1", 1000),
            ("100m", 100),
            ("1.5", 1500),
            (".5", 500),
            ("1.", 1000),
            ("64Mi", 64 * 1024 * 1024 * 1000),
            ("1M", 1_000_000_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("5e-1", 500),
            ("0", 0),
        ] {
            let wanted = Quantity::thousandths(thousandths);
            assert_eq!(Quantity::parse(text), Some(wanted), "{text:?}");
        }
        for wrong in [
            "", ".", "-", "-1", "Mi", "1x", "1 Gi", "1.2.3", "1e", "1e99", "1e-99", "64mb", "١",
        ] {
            assert_eq!(Quantity::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn quantities_are_compared_by_value() {
        let same = |a: &str, b: &str| {
            let (a, b) = (Quantity::parse(a), Quantity::parse(b));
            assert!(a.is_some() && a == b, "{a:?} and {b:?}");
        };
        same("500m", "0.5");
        same("1Gi", "1024Mi");
        same("1024Ti", "1Pi");
        same("1.5k", "1500");
        same("0.0005", "500u");
        same("1E", "1e18");
        assert!(Quantity::parse("500u") < Quantity::parse("1m"));
        assert!(Quantity::parse("1n") < Quantity::parse("2n"));
        assert_eq!(
            Quantity::parse("0.1n"),
            Quantity::parse("1n"),
            "rounded up to what Kubernetes keeps"
        );
    }

    #[test]
    fn whole_units_are_rounded_down() {
        let units = |text: &str| Quantity::parse(text).unwrap().whole_units();
        assert_eq!(units("1M"), Some(1_000_000));
        assert_eq!(units("1500m"), Some(1));
        assert_eq!(units("100Ei"), None);
        assert_eq!(Quantity::units(2), Quantity::thousandths(2000));
    }
}
