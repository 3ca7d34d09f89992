//! Headers that a proxy must take away, and those that it adds.

use http::header::{
    CONNECTION, EXPECT, FORWARDED, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};

use crate::ingress::carrier::Peer;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const USER_LOGIN: HeaderName = HeaderName::from_static("tailscale-user-login");
const USER_NAME: HeaderName = HeaderName::from_static("tailscale-user-name");

/// Whether a request asks for another protocol on its connection.
pub(crate) fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE) && listed(headers).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

fn listed(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Takes away what concerns one connection only; `upgrade` leaves what an upgrade needs.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap, upgrade: bool) {
    let named: Vec<HeaderName> = listed(headers).filter_map(|name| name.parse().ok()).collect();
    let protocol = headers.get(UPGRADE).cloned();
    let trailers = headers.get_all(TE).iter().any(|value| {
        value
            .to_str()
            .is_ok_and(|text| text.split(',').any(|t| t.trim().eq_ignore_ascii_case("trailers")))
    });
    for name in named {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
    ] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "http2-settings"] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if upgrade && let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Replaces whatever a peer says about itself by what is so. Also names that some applications read as the same, with `_`
/// for `-`, are taken away.
pub(crate) fn identify(headers: &mut HeaderMap, peer: &Peer, host: &str) {
    let told: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name.as_str())).cloned().collect();
    for name in told {
        headers.remove(name);
    }
    headers.remove(EXPECT); // answered here
    let address = peer
        .source
        .rsplit_once(':')
        .map_or(peer.source.as_str(), |(address, _)| address);
    let plain = address.trim_start_matches('[').trim_end_matches(']');
    let node = if plain.contains(':') {
        format!("\"[{plain}]\"")
    } else {
        plain.to_owned()
    };
    let quoted: String = host.chars().filter(|c| !matches!(c, '"' | '\\')).collect();
    for (name, value) in [
        (X_FORWARDED_FOR, plain.to_owned()),
        (X_FORWARDED_PROTO, "https".to_owned()),
        (X_FORWARDED_HOST, host.to_owned()),
        (FORWARDED, format!("for={node};host=\"{quoted}\";proto=https")),
        (USER_LOGIN, encoded(&peer.login)),
        (USER_NAME, encoded(&peer.name)),
    ] {
        if value.is_empty() {
            continue;
        }
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
}

/// Whether a header says who the client is.
fn is_claim(name: &str) -> bool {
    let name = name.replace('_', "-");
    name == "forwarded" || name == "x-real-ip" || name.starts_with("x-forwarded-") || name.starts_with("tailscale-")
}

/// ASCII as it is; anything else as an encoded word (RFC 2047), as Tailscale's own proxy does.
fn encoded(text: &str) -> String {
    if text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return text.to_owned();
    }
    let mut out = String::from("=?utf-8?q?");
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('_'),
            b'!'..=b'~' if !matches!(byte, b'=' | b'?' | b'_') => out.push(char::from(byte)),
            _ => out.push_str(&format!("={byte:02X}")),
        }
    }
    out + "?="
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn text(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_concerns_the_connection_goes() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Mine"),
            ("keep-alive", "timeout=5"),
            ("x-mine", "1"),
            ("te", "gzip, trailers"),
            ("accept-encoding", "br"),
            ("upgrade", "websocket"),
        ]);
        assert!(!wants_upgrade(&headers));
        strip_hop_by_hop(&mut headers, false);
        assert_eq!(text(&headers), ["accept-encoding: br", "te: trailers"]);
        let mut headers = map(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
        assert!(wants_upgrade(&headers));
        strip_hop_by_hop(&mut headers, true);
        assert_eq!(text(&headers), ["connection: Upgrade", "upgrade: websocket"]);
    }

    #[test]
    fn what_a_peer_says_about_itself_goes() {
        let mut headers = map(&[
            ("x-forwarded-for", "10.0.0.1"),
            ("X_Forwarded_For", "10.0.0.1"),
            ("x-forwarded-prefix", "/x"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
            ("tailscale-user-login", "root@example.net"),
            ("tailscale_user_login", "root@example.net"),
            ("tailscale-app-capabilities", "{}"),
        ]);
        let peer = Peer {
            source: "100.64.0.7:5000".into(),
            login: "anna@example.net".into(),
            name: "Ännä B".into(),
            ..Peer::default()
        };
        identify(&mut headers, &peer, "Web.example:8443");
        assert_eq!(
            text(&headers),
            [
                "forwarded: for=100.64.0.7;host=\"Web.example:8443\";proto=https",
                "tailscale-user-login: anna@example.net",
                "tailscale-user-name: =?utf-8?q?=C3=84nn=C3=A4_B?=",
                "x-forwarded-for: 100.64.0.7",
                "x-forwarded-host: Web.example:8443",
                "x-forwarded-proto: https",
            ]
        );
        let mut headers = map(&[("tailscale-user-login", "root@example.net")]);
        let tagged = Peer {
            source: "[fd7a:115c:a1e0::7]:5000".into(),
            ..Peer::default()
        };
        identify(&mut headers, &tagged, "web.example");
        assert!(
            text(&headers)
                .contains(&"forwarded: for=\"[fd7a:115c:a1e0::7]\";host=\"web.example\";proto=https".to_owned())
        );
        assert!(!headers.contains_key("tailscale-user-login"));
    }
}
