//! URLs of Headscale servers.

use std::fmt;
use std::str::FromStr;

use url::{Host, Url};

use super::dns::DnsName;
use super::format::{Format, FormatError, Spelling, without_outer_space};
use super::ip::IpAddress;

/// Scheme, host and port: an absolute http(s) URL without user info, query, fragment and path; a lone `/` is fine.
/// Prints without it, and without the port that the scheme has anyway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerUrl(Url);

/// How well a URL's traffic is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// https.
    Tls,
    /// http to a loopback, private or in-cluster host.
    PlainNearby,
    /// http to anywhere else.
    PlainPublic,
}

impl ServerUrl {
    /// The URL, with the path `/`.
    pub fn url(&self) -> &Url {
        &self.0
    }

    /// Host name or address, without brackets.
    pub fn host(&self) -> String {
        match self.0.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            None => String::new(),
        }
    }

    /// Host and port, `control.example.net:443`: what answers there is one server, whatever the scheme. A Service of a cluster
    /// is one in its short form and with the cluster's domain.
    pub fn endpoint(&self) -> String {
        let host = self.host();
        let host = match host.find(".svc.") {
            Some(at) => &host[..at + ".svc".len()],
            None => &host,
        };
        let port = self.0.port_or_known_default().unwrap_or_default();
        format!("{host}:{port}")
    }

    /// How well the traffic is protected.
    pub fn transport(&self) -> Transport {
        if self.0.scheme() == "https" {
            return Transport::Tls;
        }
        let nearby = match self.0.host() {
            Some(Host::Ipv4(v4)) => v4.is_loopback() || v4.is_private(),
            Some(Host::Ipv6(v6)) => v6.is_loopback() || v6.is_unique_local(),
            Some(Host::Domain(name)) => {
                name == "localhost" || !name.contains('.') || name.ends_with(".svc") || name.contains(".svc.")
            }
            None => false,
        };
        if nearby {
            Transport::PlainNearby
        } else {
            Transport::PlainPublic
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.as_str();
        f.write_str(text.strip_suffix('/').unwrap_or(text))
    }
}

impl Format for ServerUrl {
    const NAME: &'static str = "URL";
    const MAX_LENGTH: u32 = 512;
}

impl FromStr for ServerUrl {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

fn read(text: &str) -> Result<ServerUrl, FormatError> {
    // The URL parser drops tabs and newlines anywhere, and reads a backslash as a slash.
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err(FormatError::unreadable("has white space or backslashes in it"));
    }
    let url = Url::parse(text).map_err(|error| FormatError::unreadable(format!("is not an absolute URL: {error}")))?;
    let scheme = url.scheme();
    if scheme != "http" && scheme != "https" {
        return Err(FormatError::unreadable("is not an https URL"));
    }
    let (written_scheme, rest) = text
        .split_once("://")
        .filter(|(_, rest)| !rest.starts_with('/'))
        .ok_or_else(|| FormatError::unreadable("is not an absolute URL: write https:// and a host"))?;
    if rest.contains('@') {
        return Err(FormatError::unreadable("has user info in it"));
    }
    if rest.contains('?') || rest.contains('#') {
        return Err(FormatError::unreadable("has a query or fragment"));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(FormatError::unreadable("has a path"));
    }
    let url = ServerUrl(url);
    if let Some(spelling) = host_spelling(authority, url.0.host())? {
        // The host as it is read may itself still be no canonical name (a trailing dot).
        let canonical = url.to_string().replacen(".:", ":", 1);
        let canonical = canonical.strip_suffix('.').unwrap_or(&canonical);
        return Err(FormatError::not_canonical(spelling, canonical));
    }
    if written_scheme != url.0.scheme() {
        return Err(FormatError::not_canonical(Spelling::UpperCase, url.to_string()));
    }
    Ok(url)
}

/// What is unusual about the host as written. `parsed` is what the URL parser made of it.
fn host_spelling(authority: &str, parsed: Option<Host<&str>>) -> Result<Option<Spelling>, FormatError> {
    let (written, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, ""),
    };
    if port.len() > 1 && port.starts_with('0') {
        return Ok(Some(Spelling::LeadingZeros));
    }
    match parsed {
        Some(Host::Domain(_)) => match written.parse::<DnsName>() {
            Ok(_) => Ok(None),
            Err(FormatError::NotCanonical { spelling, .. }) => Ok(Some(spelling)),
            Err(FormatError::Unreadable(problem)) => Err(FormatError::unreadable(format!("has a host that {problem}"))),
        },
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => {
            let written = written
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
                .unwrap_or(written);
            match written.parse::<IpAddress>() {
                Ok(_) => Ok(None),
                // The URL parser keeps an IPv4 address inside IPv6 as it is, so there is no canonical URL to name.
                Err(FormatError::NotCanonical {
                    spelling: Spelling::MappedIpv4,
                    canonical,
                }) => Err(FormatError::unreadable(format!(
                    "has an IPv4 address inside IPv6: write {canonical}"
                ))),
                Err(FormatError::NotCanonical { spelling, .. }) => Ok(Some(spelling)),
                Err(FormatError::Unreadable(_)) => Err(FormatError::unreadable("has a host that nobody can read")),
            }
        }
        None => Err(FormatError::unreadable("has no host")),
    }
}
