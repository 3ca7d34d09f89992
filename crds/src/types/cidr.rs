//! Networks.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use super::format::{Format, FormatError, Spelling, without_outer_space};
use super::ip::IpAddress;

/// A network: address, `/`, prefix length; no bits set behind the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNet);

impl Cidr {
    /// The network.
    pub fn net(self) -> IpNet {
        self.0
    }

    /// Whether every address of `other` is in this network.
    pub fn contains(self, other: Self) -> bool {
        self.0.contains(&other.0)
    }

    /// Whether the two networks have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Whether the address is in this network.
    pub fn contains_addr(self, address: IpAddress) -> bool {
        self.0.contains(&address.addr())
    }
}

impl From<Cidr> for IpNet {
    fn from(cidr: Cidr) -> Self {
        cidr.0
    }
}

/// Bits behind the prefix are cleared.
impl From<IpNet> for Cidr {
    fn from(net: IpNet) -> Self {
        Self(net.trunc())
    }
}

/// The network of that one address.
impl From<IpAddress> for Cidr {
    fn from(address: IpAddress) -> Self {
        Self(IpNet::from(address.addr()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Format for Cidr {
    const NAME: &'static str = "CIDR";
    const MAX_LENGTH: u32 = 64;
}

impl FromStr for Cidr {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

fn unreadable() -> FormatError {
    FormatError::unreadable("is not a CIDR such as 192.0.2.0/24 or 2001:db8::/32")
}

fn read(text: &str) -> Result<Cidr, FormatError> {
    let Some((address_text, length_text)) = text.split_once('/') else {
        return Err(match text.parse::<IpAddress>() {
            Ok(address) => FormatError::unreadable(format!("has no prefix length: write \"{}\"", Cidr::from(address))),
            Err(_) => unreadable(),
        });
    };
    let (address, address_spelling) = match address_text.parse::<IpAddress>() {
        Ok(address) => (address.addr(), None),
        Err(FormatError::NotCanonical { spelling, canonical }) => {
            (canonical.parse::<IpAddr>().map_err(|_| unreadable())?, Some(spelling))
        }
        Err(FormatError::Unreadable(_)) => return Err(unreadable()),
    };
    if length_text.is_empty() || !length_text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(unreadable());
    }
    // However many zeros lead it: Go reads them all.
    let length: u8 = length_text.parse().map_err(|_| unreadable())?;
    let net = match (address, address_spelling) {
        // The address became IPv4; the length still counts from the IPv6 end.
        (IpAddr::V4(v4), Some(Spelling::MappedIpv4)) => {
            let length = length.checked_sub(96).ok_or_else(unreadable)?;
            IpNet::V4(Ipv4Net::new(v4, length).map_err(|_| unreadable())?)
        }
        (address, _) => IpNet::new(address, length).map_err(|_| unreadable())?,
    };
    let spelling = if let Some(spelling) = address_spelling {
        spelling
    } else if length_text != length.to_string() {
        Spelling::LeadingZeros
    } else if net.trunc() != net {
        Spelling::HostBits
    } else {
        return Ok(Cidr(net));
    };
    Err(FormatError::not_canonical(spelling, Cidr::from(net).to_string()))
}
