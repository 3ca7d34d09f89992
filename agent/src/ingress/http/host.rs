//! The host that a request is for, compared as RFC 9110 has it.

use http::Uri;
use http::header::HOST;
use http::request::Parts;

/// A request's authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    /// As it was sent.
    pub(crate) sent: String,
    /// The name alone, in lower case, without a trailing dot.
    pub(crate) name: String,
    /// The port, when one was sent.
    pub(crate) port: Option<u16>,
}

/// The authority of a request; None when there is none, it is unreadable, or `:authority` and `Host` differ.
pub(crate) fn authority(parts: &Parts) -> Option<Authority> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = match hosts.next() {
        Some(value) => Some(read(value.to_str().ok()?)?),
        None => None,
    };
    if hosts.next().is_some() {
        return None;
    }
    match (parts.uri.authority(), host) {
        (Some(authority), host) => {
            let authority = read(authority.as_str())?;
            let same = host.is_none_or(|host| host.name == authority.name && host.port == authority.port);
            same.then_some(authority)
        }
        (None, host) => host,
    }
}

fn read(text: &str) -> Option<Authority> {
    // Neither user nor IPv6 literal: no certificate of ours is for one.
    let parsed: Uri = text.parse().ok()?;
    if text.contains(['@', '[', '/', '?', '#']) || parsed.host()?.is_empty() {
        return None;
    }
    let port = match text.split_once(':') {
        Some((_, port)) => Some(port.parse().ok()?),
        None => None,
    };
    Some(Authority {
        sent: text.to_owned(),
        name: canonical(parsed.host()?),
        port,
    })
}

/// A name in lower case without one trailing dot.
pub(crate) fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str, hosts: &[&str]) -> Parts {
        let mut request = http::Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn name(uri: &str, hosts: &[&str]) -> Option<String> {
        authority(&parts(uri, hosts)).map(|authority| authority.name)
    }

    #[test]
    fn case_port_and_one_trailing_dot_do_not_matter() {
        for host in [
            "a.example",
            "A.Example",
            "a.example.",
            "a.example:443",
            "A.EXAMPLE.:8443",
        ] {
            assert_eq!(name("/", &[host]).as_deref(), Some("a.example"), "{host}");
        }
        assert_eq!(name("/", &["a.example.."]).as_deref(), Some("a.example."));
        assert_eq!(authority(&parts("/", &["a.example:8443"])).unwrap().port, Some(8443));
    }

    #[test]
    fn authority_and_host_must_agree() {
        assert_eq!(name("https://a.example/x", &[]).as_deref(), Some("a.example"));
        assert_eq!(
            name("https://a.example/x", &["A.example"]).as_deref(),
            Some("a.example")
        );
        assert_eq!(name("https://a.example/x", &["b.example"]), None);
        assert_eq!(name("https://a.example/x", &["a.example:1"]), None);
        assert_eq!(name("/", &["a.example", "a.example"]), None);
        assert_eq!(name("/", &[]), None);
        for bad in [
            "",
            "a b",
            "u@a.example",
            "a.example:x",
            "a.example:70000",
            "[::1]",
            "a.example/x",
        ] {
            assert_eq!(name("/", &[bad]), None, "{bad}");
        }
    }
}
