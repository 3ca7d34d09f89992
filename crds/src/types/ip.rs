//! IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::format::{Format, FormatError, Spelling, without_outer_space};

/// An IPv4 address in dotted decimal or an IPv6 address in the form of RFC 5952, without zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpAddress(IpAddr);

/// What an address may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressScope {
    /// `0.0.0.0/8` or `::`.
    Unspecified,
    /// `127.0.0.0/8` or `::1`.
    Loopback,
    /// `169.254.0.0/16` (metadata services) or `fe80::/10`.
    LinkLocal,
    /// `224.0.0.0/4` or `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// One host somewhere.
    Unicast,
}

impl IpAddress {
    /// The address.
    pub fn addr(self) -> IpAddr {
        self.0
    }

    /// The IPv4 address that a translator makes of an IPv6 one: NAT64 (`64:ff9b::/96`) and 6to4 (`2002::/16`).
    fn embedded(self) -> Option<Ipv4Addr> {
        let IpAddr::V6(v6) = self.0 else { return None };
        let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
        match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
            [0x2002, high, low, ..] => Some(of(high, low)),
            _ => None,
        }
    }

    /// What the address may stand for; of an IPv6 address that stands for an IPv4 one, what that may.
    pub fn scope(self) -> AddressScope {
        match self.embedded().map_or(self.0, IpAddr::V4) {
            IpAddr::V4(v4) if v4.octets()[0] == 0 => AddressScope::Unspecified,
            IpAddr::V4(v4) if v4.is_loopback() => AddressScope::Loopback,
            IpAddr::V4(v4) if v4.is_link_local() => AddressScope::LinkLocal,
            IpAddr::V4(v4) if v4.is_multicast() => AddressScope::Multicast,
            IpAddr::V4(v4) if v4.is_broadcast() => AddressScope::Broadcast,
            IpAddr::V6(v6) if v6.is_unspecified() => AddressScope::Unspecified,
            IpAddr::V6(v6) if v6.is_loopback() => AddressScope::Loopback,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => AddressScope::LinkLocal,
            IpAddr::V6(v6) if v6.is_multicast() => AddressScope::Multicast,
            IpAddr::V4(_) | IpAddr::V6(_) => AddressScope::Unicast,
        }
    }
}

impl From<IpAddress> for IpAddr {
    fn from(address: IpAddress) -> Self {
        address.0
    }
}

/// IPv4 inside IPv6 becomes IPv4, so that one address has one spelling.
impl From<IpAddr> for IpAddress {
    fn from(address: IpAddr) -> Self {
        Self(address.to_canonical())
    }
}

impl fmt::Display for IpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Format for IpAddress {
    const NAME: &'static str = "IP address";
    const MAX_LENGTH: u32 = 64;
}

impl FromStr for IpAddress {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, |text| {
            if text.contains(':') {
                read_v6(text)
            } else {
                read_v4(text)
            }
        })
    }
}

/// Whether a text without `:` can only be meant as an IPv4 address: its last part is a number, as in the URL standard.
pub(crate) fn ends_in_number(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let last = text.rsplit('.').next().unwrap_or(text);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()),
    }
}

fn unreadable() -> FormatError {
    FormatError::unreadable("is not an IPv4 or IPv6 address")
}

fn read_v6(text: &str) -> Result<IpAddress, FormatError> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) if !zone.is_empty() => (address, true),
        Some(_) => return Err(unreadable()),
        None => (text, false),
    };
    let parsed: Ipv6Addr = address.parse().map_err(|_| unreadable())?;
    let canonical = IpAddress::from(IpAddr::V6(parsed));
    let spelling = if zone {
        Spelling::ZoneId
    } else if canonical.0.is_ipv4() {
        Spelling::MappedIpv4
    } else if canonical.to_string() == text {
        return Ok(canonical);
    } else if canonical.to_string() == text.to_ascii_lowercase() {
        Spelling::UpperCase
    } else {
        Spelling::Ipv6Form
    };
    Err(FormatError::not_canonical(spelling, canonical.to_string()))
}

fn read_v4(text: &str) -> Result<IpAddress, FormatError> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Ok(IpAddress(IpAddr::V4(address)));
    }
    let (body, trailing_dot) = match text.strip_suffix('.') {
        Some(body) => (body, true),
        None => (text, false),
    };
    // Whoever reads hexadecimal or fewer than four parts at all reads leading zeros as octal; in four plain parts some do.
    let hexadecimal = |part: &str| part.starts_with("0x") || part.starts_with("0X");
    let only_c = body.split('.').count() < 4 || body.split('.').any(hexadecimal);
    let parts: Vec<(u64, Option<Spelling>)> = body
        .split('.')
        .map(|part| read_v4_part(part, only_c))
        .collect::<Option<_>>()
        .ok_or_else(unreadable)?;
    // The old C reading: all parts but the last are bytes, the last fills what is left.
    let (last, bytes) = parts.split_last().ok_or_else(unreadable)?;
    if bytes.len() > 3 || bytes.iter().any(|(value, _)| *value > 255) {
        return Err(unreadable());
    }
    let free_bits = 8 * (4 - bytes.len());
    if last.0 >= 1u64 << free_bits {
        return Err(unreadable());
    }
    let high = bytes
        .iter()
        .enumerate()
        .fold(0u64, |sum, (i, (value, _))| sum | value << (24 - 8 * i));
    let address = u32::try_from(high | last.0).map_err(|_| unreadable())?;
    let spelling = if trailing_dot {
        Spelling::TrailingDot
    } else if let Some(spelling) = parts.iter().find_map(|(_, spelling)| *spelling) {
        spelling
    } else {
        Spelling::ShortIpv4
    };
    Err(FormatError::not_canonical(
        spelling,
        Ipv4Addr::from(address).to_string(),
    ))
}

/// The value of one part, and what is unusual about it; `octal` tells how leading zeros are meant. `None` if it is no number.
fn read_v4_part(part: &str, octal: bool) -> Option<(u64, Option<Spelling>)> {
    if let Some(digits) = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X")) {
        // `0x` alone is zero in the URL standard; nobody means that.
        let value = bounded_number(digits, 16)?;
        return Some((value, Some(Spelling::HexOrOctal)));
    }
    let decimal = bounded_number(part, 10)?;
    if part.len() == 1 || !part.starts_with('0') {
        return Some((decimal, None));
    }
    if octal {
        return Some((bounded_number(part, 8)?, Some(Spelling::HexOrOctal)));
    }
    if decimal <= 255 {
        return Some((decimal, Some(Spelling::LeadingZeros)));
    }
    // Too large for a byte as decimal: then only the octal reading makes sense.
    Some((bounded_number(part, 8)?, Some(Spelling::HexOrOctal)))
}

fn bounded_number(digits: &str, radix: u32) -> Option<u64> {
    let plain = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    // Any number of leading zeros is read by somebody.
    let significant = digits.trim_start_matches('0');
    match significant {
        "" if plain => Some(0),
        _ if plain && significant.len() <= 16 => u64::from_str_radix(significant, radix).ok(),
        _ => None,
    }
}
