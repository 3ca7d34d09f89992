//! Which texts name one Headscale server: URLs are compared in the one canonical spelling, since a slash at the end or the
//! scheme's own port is no other server. (One server under two host names is recognized by its keys:
//! [`crate::working_key::is_listed`].)

use tailnet_crds::types::{FormatError, ServerUrl, Transport};

/// The canonical spelling of `url`; a text that is no server URL as it is.
pub fn canonical(url: &str) -> String {
    match url.parse::<ServerUrl>() {
        Ok(url) => url.to_string(),
        Err(FormatError::NotCanonical { canonical, .. }) => canonical,
        Err(FormatError::Unreadable(_)) => url.to_owned(),
    }
}

/// Whether both texts are one URL.
pub fn same(a: &str, b: &str) -> bool {
    a == b || canonical(a) == canonical(b)
}

/// Why nothing may be sent to `url`, in words that follow "it"; None for a URL that may be used. The same bounds as the
/// admission rule TN101, for objects that came past admission.
pub fn refusal(url: &str) -> Option<String> {
    match canonical(url).parse::<ServerUrl>() {
        Ok(url) if url.transport() == Transport::PlainPublic => {
            Some("is http to a public host: the API key would be readable on the way".to_owned())
        }
        Ok(_) => None,
        Err(FormatError::Unreadable(problem)) => Some(problem),
        Err(FormatError::NotCanonical { .. }) => Some("cannot be read in one way only".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_url_are_one_server() {
        for other in [
            "https://control.example.net/",
            "https://control.example.net:443",
            "https://control.example.net:443/",
            "https://CONTROL.example.net",
        ] {
            assert!(same("https://control.example.net", other), "{other}");
        }
        for other in [
            "https://control.example.net:8443",
            "http://control.example.net",
            "https://control2.example.net",
        ] {
            assert!(!same("https://control.example.net", other), "{other}");
        }
    }

    #[test]
    fn a_url_that_admission_denies_is_not_contacted() {
        assert_eq!(refusal("https://control.example.net"), None);
        assert_eq!(refusal("https://127.0.0.1:8443/"), None);
        assert_eq!(refusal("http://headscale.tailnet-system.svc"), None);
        assert!(refusal("http://control.example.net").unwrap().contains("http"));
        assert!(
            refusal("https://control.example.net/headscale")
                .unwrap()
                .contains("path")
        );
        assert!(refusal("https://me:pw@control.example.net").is_some());
    }
}
