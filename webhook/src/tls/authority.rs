//! The certificate authority in the Secret [`SECRET_NAME`]: one for all replicas, rotated with overlap.
//!
//! A rotation has three steps, so that no call fails between an API server that trusts the old CA and a replica that
//! already uses the new one: a next CA is added to the bundle; when both configurations carry it (and a day later at the
//! earliest) it becomes the signing one; the old certificate leaves the bundle when no leaf of it can be alive.
//! All functions take the time: nothing here looks at a clock.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Name of the Secret in the operator namespace.
pub const SECRET_NAME: &str = "tailnet-webhook-ca";

/// Life of a CA.
pub const CA_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// A next CA is made when less than this is left.
pub const CA_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(120 * 24);
/// A next CA is announced at least this long before it signs.
pub const CA_ANNOUNCE: SignedDuration = SignedDuration::from_hours(24);
/// Life of a leaf.
pub const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(7 * 24);
/// A leaf is replaced when less than this is left.
pub const LEAF_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(3 * 24);
/// An old CA stays in the bundle this long after it stopped signing: longer than any leaf of it lives.
pub const OLD_CA_KEPT: SignedDuration = SignedDuration::from_hours(8 * 24);
/// Certificates begin this long before they are made: several API servers of one cluster may disagree about the time, and
/// each checks by its own.
const BACKDATE: SignedDuration = SignedDuration::from_hours(24);

const CURRENT_CERTIFICATE: &str = "tls.crt";
const CURRENT_KEY: &str = "tls.key";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
const OLD_CERTIFICATE: &str = "old.crt";
const OLD_UNTIL: &str = "old.until";

/// Why the authority cannot be read or used. No variant carries key material.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A key of the Secret's data is missing.
    #[error("Secret {SECRET_NAME} has no {key}; delete the Secret and the webhook makes a new CA")]
    Missing {
        /// The data key.
        key: &'static str,
    },
    /// A key of the Secret's data is not what it should be.
    #[error("{key} in Secret {SECRET_NAME} is not {expected}; delete the Secret and the webhook makes a new CA")]
    Malformed {
        /// The data key.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// Key and certificate are not a pair.
    #[error(
        "{key} in Secret {SECRET_NAME} does not belong to its certificate; delete the Secret and the webhook makes a new CA"
    )]
    Mismatch {
        /// The data key of the private key.
        key: &'static str,
    },
    /// Making a key or certificate failed.
    #[error("cannot make a {what} certificate: {source}")]
    Generate {
        /// CA or leaf.
        what: &'static str,
        /// The library's words.
        source: rcgen::Error,
    },
    /// The made leaf's key is not one that the TLS library can use.
    #[error("cannot use the key of the leaf certificate: {0}")]
    LeafKey(rustls::Error),
}

/// A CA certificate and its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaCertificate {
    pem: String,
    /// When it was made (a day after its first second of validity).
    pub made: Timestamp,
    /// Last second of validity.
    pub not_after: Timestamp,
}

/// A CA that can sign.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningCa {
    /// Its certificate.
    pub certificate: CaCertificate,
    key_pem: String,
}

impl std::fmt::Debug for SigningCa {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SigningCa")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// What the Secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// Signs the leaves.
    pub current: SigningCa,
    /// Announced, will sign.
    pub next: Option<SigningCa>,
    /// No longer signs, still trusted until the given time.
    pub old: Option<(CaCertificate, Timestamp)>,
}

/// What a rotation needs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Make a next CA and announce it.
    Announce,
    /// Let the next CA sign.
    Promote,
    /// Forget the old CA.
    DropOld,
    /// The current CA is not valid (any more, or yet: a clock was wrong), and there is no usable next one: start over.
    Replace,
}

/// A leaf, ready for the TLS library.
#[derive(Debug)]
pub struct Leaf {
    /// Certificate and key.
    pub key: rustls::sign::CertifiedKey,
    /// First second of validity.
    pub not_before: Timestamp,
    /// Last second of validity.
    pub not_after: Timestamp,
    /// PEM of the CA that signed it; all that a caller may trust for it, where somebody else made it.
    pub signed_by: String,
}

fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::from(at)
}

fn add(at: Timestamp, duration: SignedDuration) -> Timestamp {
    // Out of range only in year 9999; the end of time is then as good as any.
    at.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn subtract(at: Timestamp, duration: SignedDuration) -> Timestamp {
    at.checked_sub(duration).unwrap_or(Timestamp::MIN)
}

impl CaCertificate {
    fn parse(key: &'static str, pem: &str) -> Result<Self, AuthorityError> {
        let malformed = || AuthorityError::Malformed {
            key,
            expected: "one PEM certificate of a CA",
        };
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| malformed())?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).map_err(|_| malformed())?;
        if !certificate.is_ca() {
            return Err(malformed());
        }
        let validity = certificate.validity();
        let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|_| malformed());
        Ok(Self {
            pem: pem.to_owned(),
            made: add(time(validity.not_before.timestamp())?, BACKDATE),
            not_after: time(validity.not_after.timestamp())?,
        })
    }

    /// PEM text.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Whether a caller whose clock shows `now` may take it.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        subtract(self.made, BACKDATE) <= now && now < self.not_after
    }
}

impl SigningCa {
    /// A new CA, made at `now`.
    pub fn generate(now: Timestamp) -> Result<Self, AuthorityError> {
        let generate = |source| AuthorityError::Generate { what: "CA", source };
        let key = KeyPair::generate().map_err(generate)?;
        let mut parameters = CertificateParams::default();
        let mut name = DistinguishedName::new();
        // Old and new stand in one bundle: different names let a verifier pick the right one at once.
        name.push(DnType::CommonName, format!("tailnet-webhook-ca {}", now.as_second()));
        parameters.distinguished_name = name;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        parameters.not_before = system_time(subtract(now, BACKDATE)).into();
        parameters.not_after = system_time(add(now, CA_LIFE)).into();
        let certificate = parameters.self_signed(&key).map_err(generate)?;
        let certificate = CaCertificate::parse(CURRENT_CERTIFICATE, &certificate.pem())?;
        Ok(Self {
            certificate,
            key_pem: key.serialize_pem(),
        })
    }

    fn parse(
        (certificate_key, certificate): (&'static str, &str),
        (private_key, private): (&'static str, &str),
    ) -> Result<Self, AuthorityError> {
        let certificate = CaCertificate::parse(certificate_key, certificate)?;
        let key = KeyPair::from_pem(private).map_err(|_| AuthorityError::Malformed {
            key: private_key,
            expected: "a PEM private key",
        })?;
        let der =
            CertificateDer::from_pem_slice(certificate.pem.as_bytes()).map_err(|_| AuthorityError::Malformed {
                key: certificate_key,
                expected: "one PEM certificate of a CA",
            })?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|_| AuthorityError::Malformed {
            key: certificate_key,
            expected: "one PEM certificate of a CA",
        })?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(AuthorityError::Mismatch { key: private_key });
        }
        Ok(Self {
            certificate,
            key_pem: private.to_owned(),
        })
    }

    /// A leaf for the DNS names and IP addresses `names`, made at `now`.
    pub fn issue(&self, names: &[String], now: Timestamp) -> Result<Leaf, AuthorityError> {
        let generate = |source| AuthorityError::Generate { what: "leaf", source };
        let ca_key = KeyPair::from_pem(&self.key_pem).map_err(generate)?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate.pem, ca_key).map_err(generate)?;
        let key = KeyPair::generate().map_err(generate)?;
        let mut parameters = CertificateParams::new(names.to_vec()).map_err(generate)?;
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, "tailnet-webhook");
        parameters.distinguished_name = subject;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        parameters.use_authority_key_identifier_extension = true;
        let not_before = subtract(now, BACKDATE);
        parameters.not_before = system_time(not_before).into();
        // A leaf must not outlive its CA: a verifier would refuse it with a text that names the wrong certificate.
        let not_after = add(now, LEAF_LIFE).min(self.certificate.not_after);
        parameters.not_after = system_time(not_after).into();
        let certificate = parameters.signed_by(&key, &issuer).map_err(generate)?;
        let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let signing = rustls::crypto::ring::sign::any_supported_type(&private).map_err(AuthorityError::LeafKey)?;
        Ok(Leaf {
            key: rustls::sign::CertifiedKey::new(vec![certificate.der().clone()], signing),
            not_before,
            not_after,
            signed_by: self.certificate.pem.clone(),
        })
    }
}

impl Leaf {
    /// Whether it should be replaced: its life nears the end or has not begun, or another CA signs now.
    pub fn is_due(&self, signing: &SigningCa, now: Timestamp) -> bool {
        self.signed_by != signing.certificate.pem
            || now < self.not_before
            || now >= subtract(self.not_after, LEAF_RENEW_BEFORE)
    }
}

impl Authority {
    /// A first CA, made at `now`.
    pub fn generate(now: Timestamp) -> Result<Self, AuthorityError> {
        Ok(Self {
            current: SigningCa::generate(now)?,
            next: None,
            old: None,
        })
    }

    /// Reads the Secret's data.
    pub fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, AuthorityError> {
        let text = |key: &'static str| -> Result<Option<&str>, AuthorityError> {
            let Some(bytes) = data.get(key) else { return Ok(None) };
            let text = std::str::from_utf8(&bytes.0);
            text.map(Some)
                .map_err(|_| AuthorityError::Malformed { key, expected: "text" })
        };
        let needed = |key: &'static str| text(key)?.ok_or(AuthorityError::Missing { key });
        let current = SigningCa::parse(
            (CURRENT_CERTIFICATE, needed(CURRENT_CERTIFICATE)?),
            (CURRENT_KEY, needed(CURRENT_KEY)?),
        )?;
        let next = match text(NEXT_CERTIFICATE)? {
            Some(certificate) => Some(SigningCa::parse(
                (NEXT_CERTIFICATE, certificate),
                (NEXT_KEY, needed(NEXT_KEY)?),
            )?),
            None => None,
        };
        let old = match text(OLD_CERTIFICATE)? {
            Some(certificate) => {
                let until = needed(OLD_UNTIL)?.parse::<Timestamp>();
                let until = until.map_err(|_| AuthorityError::Malformed {
                    key: OLD_UNTIL,
                    expected: "an RFC 3339 time",
                })?;
                Some((CaCertificate::parse(OLD_CERTIFICATE, certificate)?, until))
            }
            None => None,
        };
        Ok(Self { current, next, old })
    }

    /// The Secret's data.
    pub fn to_data(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::new();
        let mut put = |key: &str, text: &str| data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
        put(CURRENT_CERTIFICATE, &self.current.certificate.pem);
        put(CURRENT_KEY, &self.current.key_pem);
        if let Some(next) = &self.next {
            put(NEXT_CERTIFICATE, &next.certificate.pem);
            put(NEXT_KEY, &next.key_pem);
        }
        if let Some((old, until)) = &self.old {
            put(OLD_CERTIFICATE, &old.pem);
            put(OLD_UNTIL, &until.to_string());
        }
        data
    }

    /// All certificates that a caller must trust now, as PEM: the content of `caBundle`.
    pub fn bundle(&self) -> String {
        let certificates = [
            Some(&self.current.certificate),
            self.next.as_ref().map(|next| &next.certificate),
        ];
        let certificates = certificates
            .into_iter()
            .flatten()
            .chain(self.old.as_ref().map(|(old, _)| old));
        let mut bundle = String::new();
        for certificate in certificates {
            bundle.push_str(certificate.pem.trim_end());
            bundle.push('\n');
        }
        bundle
    }

    /// What has to be done at `now`; `injected` = both webhook configurations carry the whole [`Authority::bundle`].
    pub fn due(&self, now: Timestamp, injected: bool) -> Option<Step> {
        let useless = !self.current.certificate.is_valid(now);
        // A next one that is not valid now is as good as none.
        match self.next.as_ref().filter(|next| next.certificate.is_valid(now)) {
            // Such a current CA helps nobody: trust in the next one cannot get worse by promoting it early.
            Some(_) if useless => return Some(Step::Promote),
            None if useless => return Some(Step::Replace),
            Some(next) if injected && now >= add(next.certificate.made, CA_ANNOUNCE) => return Some(Step::Promote),
            None if self.next.is_some() || now >= subtract(self.current.certificate.not_after, CA_RENEW_BEFORE) => {
                return Some(Step::Announce);
            }
            _ => {}
        }
        match &self.old {
            Some((_, until)) if now >= *until => Some(Step::DropOld),
            _ => None,
        }
    }

    /// The authority after `step`.
    pub fn after(&self, step: Step, now: Timestamp) -> Result<Self, AuthorityError> {
        let mut after = self.clone();
        match step {
            Step::Announce => after.next = Some(SigningCa::generate(now)?),
            Step::Promote => {
                if let Some(next) = after.next.take() {
                    let former = std::mem::replace(&mut after.current, next);
                    after.old = Some((former.certificate, add(now, OLD_CA_KEPT)));
                }
            }
            Step::DropOld => after.old = None,
            Step::Replace => after = Self::generate(now)?,
        }
        Ok(after)
    }
}

#[cfg(test)]
mod tests {
    use super::{Authority, AuthorityError, CA_LIFE, CA_RENEW_BEFORE, LEAF_LIFE, OLD_CA_KEPT, Step};
    use jiff::{SignedDuration, Timestamp};
    use k8s_openapi::ByteString;

    fn start() -> Timestamp {
        "2026-11-30T00:00:00Z".parse().expect("time")
    }

    fn days(count: i64) -> SignedDuration {
        SignedDuration::from_hours(24 * count)
    }

    #[test]
    fn a_rotation_overlaps_in_every_step() {
        let mut now = start();
        let first = Authority::generate(now).expect("generated");
        assert_eq!(first.due(now, true), None);
        now = now + CA_LIFE - CA_RENEW_BEFORE;
        assert_eq!(first.due(now, true), Some(Step::Announce));

        let announced = first.after(Step::Announce, now).expect("announced");
        assert!(
            announced.bundle().contains(first.bundle().trim()),
            "the old one is still trusted"
        );
        assert_eq!(announced.bundle().matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(announced.current, first.current, "the old one still signs");
        assert_eq!(
            announced.due(now + days(2), false),
            None,
            "not before both configurations carry it"
        );
        assert_eq!(
            announced.due(now + SignedDuration::from_hours(23), true),
            None,
            "not before a day"
        );
        now += days(2);
        assert_eq!(announced.due(now, true), Some(Step::Promote));

        let promoted = announced.after(Step::Promote, now).expect("promoted");
        assert_eq!(Some(&promoted.current), announced.next.as_ref());
        assert!(
            promoted.bundle().contains(first.bundle().trim()),
            "leaves of the old one are still alive"
        );
        assert_eq!(promoted.due(now + LEAF_LIFE, true), None);
        assert_eq!(promoted.due(now + OLD_CA_KEPT, true), Some(Step::DropOld));

        let done = promoted.after(Step::DropOld, now).expect("dropped");
        assert!(!done.bundle().contains(first.bundle().trim()));
        assert_eq!(done.bundle().matches("BEGIN CERTIFICATE").count(), 1);
        assert_eq!(done.due(now + days(30), true), None);
    }

    #[test]
    fn an_ended_authority_starts_over() {
        let first = Authority::generate(start()).expect("generated");
        assert_eq!(first.due(start() + CA_LIFE + days(1), false), Some(Step::Replace));
        let replaced = first
            .after(Step::Replace, start() + CA_LIFE + days(1))
            .expect("replaced");
        assert_ne!(replaced.current, first.current);
        let announced = first.after(Step::Announce, start() + days(300)).expect("announced");
        assert_eq!(
            announced.due(start() + CA_LIFE + days(1), false),
            Some(Step::Promote),
            "a usable next one is used"
        );
    }

    #[test]
    fn the_secret_holds_all_of_it() {
        let now = start();
        let authority = Authority::generate(now)
            .and_then(|first| first.after(Step::Announce, now))
            .expect("announced");
        let promoted = authority
            .after(Step::Promote, now)
            .and_then(|one| one.after(Step::Announce, now))
            .expect("promoted");
        assert_eq!(Authority::from_data(&promoted.to_data()).expect("read"), promoted);
        assert!(!format!("{promoted:?}").contains("PRIVATE"), "Debug shows no key");
    }

    #[test]
    fn an_authority_of_the_future_starts_over() {
        // Made by a replica whose clock was ahead, before clocks were compared.
        let first = Authority::generate(start() + days(395)).expect("generated");
        assert_eq!(first.due(start(), true), Some(Step::Replace));
        let names = ["127.0.0.1".to_owned()];
        let leaf = first.current.issue(&names, start() + days(395)).expect("issued");
        assert!(leaf.is_due(&first.current, start()), "its life has not begun");
        let announced = Authority::generate(start())
            .and_then(|sound| sound.after(Step::Announce, start() + days(395)))
            .expect("announced");
        assert_eq!(
            announced.due(start(), true),
            Some(Step::Announce),
            "that next one is of no use"
        );
        assert_eq!(
            first
                .after(Step::Announce, start() + days(395))
                .expect("announced")
                .due(start(), true),
            Some(Step::Replace),
            "neither of the two is of use"
        );
    }

    #[test]
    fn a_broken_secret_is_named_without_its_content() {
        let authority = Authority::generate(start()).expect("generated");
        let other = Authority::generate(start()).expect("generated");
        let mut data = authority.to_data();
        data.insert("tls.key".to_owned(), other.to_data()["tls.key"].clone());
        assert!(matches!(
            Authority::from_data(&data),
            Err(AuthorityError::Mismatch { key: "tls.key" })
        ));
        data.insert("tls.key".to_owned(), ByteString(b"s3cret".to_vec()));
        let error = Authority::from_data(&data).expect_err("not a key");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        data.remove("tls.key");
        assert!(matches!(
            Authority::from_data(&data),
            Err(AuthorityError::Missing { key: "tls.key" })
        ));
    }

    #[test]
    fn a_leaf_is_due_in_time_and_never_outlives_its_ca() {
        let authority = Authority::generate(start()).expect("generated");
        let names = ["tailnet-webhook.tailnet-system.svc".to_owned(), "127.0.0.1".to_owned()];
        let leaf = authority.current.issue(&names, start()).expect("issued");
        assert_eq!(leaf.not_after, start() + LEAF_LIFE);
        assert!(!leaf.is_due(&authority.current, start() + days(3)));
        assert!(leaf.is_due(&authority.current, start() + days(5)));
        let other = Authority::generate(start() + days(1)).expect("generated");
        assert!(leaf.is_due(&other.current, start()), "another CA signs now");
        let late = authority
            .current
            .issue(&names, start() + CA_LIFE - days(1))
            .expect("issued");
        assert_eq!(late.not_after, start() + CA_LIFE);
        let der = late.key.cert.first().expect("a certificate");
        let (_, certificate) = x509_parser::parse_x509_certificate(der).expect("x509");
        let san = certificate.subject_alternative_name().expect("one").expect("present");
        assert_eq!(san.value.general_names.len(), 2);
        assert!(!certificate.is_ca());
    }
}
