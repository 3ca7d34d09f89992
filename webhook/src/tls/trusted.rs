//! CA certificates that callers trust: the content of `caBundle`, certificate by certificate.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// How long a certificate that we do not ask for stays in a bundle: another replica may still serve leaves of it (a rolling
/// update that changes where certificates come from, a new CA that this replica has read first).
const KEPT: Duration = Duration::from_secs(600);
/// More of them at once are nobody's rotation.
const MOST: usize = 8;

/// One certificate. Two with the same content are equal, however they are written.
#[derive(Debug, Clone)]
pub struct Trusted {
    der: Vec<u8>,
    pem: String,
}

impl PartialEq for Trusted {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for Trusted {}

impl Trusted {
    /// Its DER form.
    pub fn der(&self) -> &[u8] {
        &self.der
    }
}

/// The certificates in a PEM text, each once, in its order. What is between them, or is none, is left out.
pub fn certificates(text: &str) -> Vec<Trusted> {
    let mut found: Vec<Trusted> = Vec::new();
    let mut rest = text;
    while let Some(begin) = rest.find(BEGIN) {
        let Some(length) = rest[begin..].find(END) else { break };
        let end = begin + length + END.len();
        let pem = &rest[begin..end];
        rest = &rest[end..];
        let der = CertificateDer::from_pem_slice(pem.as_bytes());
        if let Some(der) = der.ok().filter(|der| x509_parser::parse_x509_certificate(der).is_ok()) {
            let one = Trusted {
                der: der.to_vec(),
                pem: pem.to_owned(),
            };
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    found
}

/// The PEM text of `certificates`.
pub fn bundle<'a>(certificates: impl IntoIterator<Item = &'a Trusted>) -> String {
    certificates.into_iter().fold(String::new(), |mut bundle, one| {
        bundle.push_str(&one.pem);
        bundle.push('\n');
        bundle
    })
}

/// Which certificates that nobody asked for stay in a bundle, and for how long.
#[derive(Debug, Default)]
pub struct Others {
    /// Since when each is seen, by the place where it is.
    seen: Mutex<HashMap<&'static str, HashMap<Vec<u8>, Instant>>>,
}

impl Others {
    /// Of `others`, seen at `place` now, those that have not been there for ten minutes.
    pub fn still_kept(&self, place: &'static str, others: Vec<Trusted>, now: Instant) -> Vec<Trusted> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let here = seen.entry(place).or_default();
        here.retain(|der, _| others.iter().any(|other| other.der == *der));
        let mut kept = others;
        kept.retain(|other| {
            let since = *here.entry(other.der.clone()).or_insert(now);
            now.saturating_duration_since(since) < KEPT
        });
        kept.truncate(MOST);
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use jiff::Timestamp;

    use super::{KEPT, MOST, Others, bundle, certificates};
    use crate::tls::authority::Authority;

    fn ca() -> String {
        Authority::generate(Timestamp::now()).expect("CA").bundle()
    }

    #[test]
    fn certificates_are_read_from_any_text_around_them() {
        let (one, two) = (ca(), ca());
        let text = format!(
            "# roots\r\n{}\n\n  {two}{one}-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n",
            one.trim()
        );
        let found = certificates(&text);
        assert_eq!(found.len(), 2, "each once");
        assert_eq!(bundle(&found), format!("{one}{two}"));
        assert_eq!(certificates(&bundle(&found)), found);
        for none in ["", "text", "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"] {
            assert!(certificates(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn what_nobody_asks_for_goes_after_a_while_and_its_time_begins_anew_when_it_was_gone() {
        let others = Others::default();
        let start = Instant::now();
        let one = certificates(&ca());
        assert_eq!(others.still_kept("a", one.clone(), start), one);
        assert_eq!(others.still_kept("a", one.clone(), start + KEPT / 2), one);
        assert!(others.still_kept("a", one.clone(), start + KEPT).is_empty());
        assert_eq!(
            others.still_kept("b", one.clone(), start + KEPT),
            one,
            "each place has its own time"
        );
        assert!(others.still_kept("a", Vec::new(), start + KEPT).is_empty());
        assert_eq!(others.still_kept("a", one.clone(), start + KEPT), one);
        let many = certificates(&(0..=MOST).map(|_| ca()).collect::<String>());
        assert_eq!(others.still_kept("c", many, start).len(), MOST);
    }
}
