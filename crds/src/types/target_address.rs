//! Where an egress target is.

use std::fmt;
use std::str::FromStr;

use super::dns::DnsName;
use super::format::{Format, FormatError, without_outer_space};
use super::ip::{IpAddress, ends_in_number};

/// An IP address or a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetAddress {
    /// An IP address.
    Ip(IpAddress),
    /// A DNS name, resolved by the agent.
    Name(DnsName),
}

impl TargetAddress {
    /// The address, unless it is a name.
    pub fn ip(&self) -> Option<IpAddress> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Name(_) => None,
        }
    }

    /// The name, unless it is an address.
    pub fn name(&self) -> Option<&DnsName> {
        match self {
            Self::Ip(_) => None,
            Self::Name(name) => Some(name),
        }
    }
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl Format for TargetAddress {
    const NAME: &'static str = "IP address or DNS name";
    const MAX_LENGTH: u32 = 254;
}

impl FromStr for TargetAddress {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

fn read(text: &str) -> Result<TargetAddress, FormatError> {
    let read = if text.contains(':') || ends_in_number(text) {
        text.parse().map(TargetAddress::Ip)
    } else {
        text.parse().map(TargetAddress::Name)
    };
    read.map_err(|error| match error {
        FormatError::Unreadable(_) => FormatError::unreadable("is not an IPv4 or IPv6 address or a DNS name"),
        not_canonical @ FormatError::NotCanonical { .. } => not_canonical,
    })
}
