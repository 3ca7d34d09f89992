//! Certificates that somebody else makes: a Secret with `tls.crt`, `tls.key` and `ca.crt`, written by cert-manager or by hand.
//!
//! It is watched, not mounted: a mounted Secret reaches a Pod after a minute or more, and all replicas must follow together.
//! What cannot serve (a key of another certificate, a missing name, an end in the past) is not taken; the certificate before
//! it goes on, and log and metric say why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rustls::CertificateError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::authority::Leaf;
use super::keeper::{Keeper, KeeperError, PROPAGATION};
use super::trusted::{Trusted, bundle, certificates};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";

/// Why the Secret's content cannot serve. No variant carries key material.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GivenError {
    /// A key of the Secret's data is missing or empty.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// The CA is missing.
    #[error(
        "it has no {CA}: the CA that signed {CERTIFICATE}, which API servers are told to trust (issuers of ACME do not fill it in; use a CA issuer)"
    )]
    NoCa,
    /// A key of the Secret's data is not what it should be.
    #[error("its {key} is not {expected}")]
    Malformed {
        /// The data key.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// Key and certificate are not a pair.
    #[error("its {KEY} does not belong to the first certificate of {CERTIFICATE}")]
    Mismatch,
    /// A name of the certificate cannot be one.
    #[error("{0:?} is neither a DNS name nor an address, so no certificate can be valid for it; see --serving-name")]
    Name(String),
    /// An API server would refuse it.
    #[error("an API server that calls {name} would refuse its {CERTIFICATE}: {reason}")]
    Refused {
        /// The name that is called.
        name: String,
        /// The verifier's words.
        reason: String,
    },
}

/// What is remembered between looks.
#[derive(Debug)]
pub struct Given {
    secret: String,
    /// What is wrong with what the Secret holds now; `None` when nothing is.
    problem: Option<String>,
}

/// A leaf with the CA certificates that a caller must trust for it.
#[derive(Debug)]
struct Content {
    leaf: Leaf,
    trusted: Vec<Trusted>,
}

impl Given {
    /// From the Secret called `name`.
    pub fn new(name: &str) -> Self {
        Self {
            secret: name.to_owned(),
            problem: None,
        }
    }

    /// Name of the Secret.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Whether the Secret holds something that cannot serve, or is gone.
    pub fn is_rejected(&self) -> bool {
        self.problem.is_some()
    }

    /// Why there is no certificate, for `/readyz`.
    pub fn why_none(&self, namespace: &str) -> String {
        let problem = self.problem.as_deref().unwrap_or("it has not been read yet");
        format!("no certificate in Secret {namespace}/{}: {problem}", self.secret)
    }

    /// One look: Secret, configurations, leaf.
    pub(super) async fn look(&mut self, keeper: &Keeper) -> Result<(), KeeperError> {
        let (found, now) = keeper.read_secret(&self.secret).await?;
        let content = match found {
            None => Err("it does not exist; cert-manager or whoever brings the certificate writes it".to_owned()),
            Some(secret) => {
                read(&secret.data.unwrap_or_default(), &keeper.names, now).map_err(|error| error.to_string())
            }
        };
        match content {
            Err(problem) => {
                self.note(keeper, Some(problem));
                // What is served is still what callers must trust.
                let trusted = keeper
                    .source
                    .signed_by()
                    .map(|pem| certificates(&pem))
                    .unwrap_or_default();
                if !trusted.is_empty() {
                    keeper.inject(&trusted, false).await?;
                }
                Ok(())
            }
            Ok(content) => {
                self.note(keeper, None);
                take(keeper, content, now).await
            }
        }
    }

    /// Remembers and tells a change of what is wrong.
    fn note(&mut self, keeper: &Keeper, problem: Option<String>) {
        if self.problem == problem {
            return;
        }
        match &problem {
            Some(problem) if keeper.source.serves(keeper.clock.now()) => tracing::error!(
                secret = self.secret,
                problem,
                "the Secret holds no certificate that could be served: the one before goes on until it ends"
            ),
            Some(problem) => tracing::error!(
                secret = self.secret,
                problem,
                "the Secret holds no certificate that could be served"
            ),
            None => tracing::info!(
                secret = self.secret,
                "the Secret holds a certificate that can be served"
            ),
        }
        self.problem = problem;
    }
}

/// Serves `content`, once callers trust it.
async fn take(keeper: &Keeper, content: Content, now: Timestamp) -> Result<(), KeeperError> {
    if keeper.source.shows(&content.leaf) {
        return keeper.inject(&content.trusted, false).await.map(drop);
    }
    let serves = keeper.source.serves(now);
    // Both before and after: others may still show the one before. What is not wanted any more goes after a while.
    let injected = keeper.inject(&content.trusted, false).await;
    if serves {
        if injected? {
            // API servers follow a changed configuration a moment later.
            tokio::time::sleep(PROPAGATION).await;
        }
        keeper.source.set(content.leaf);
        tracing::info!("serving the new certificate of the Secret");
        return Ok(());
    }
    keeper.source.set(content.leaf);
    tracing::info!("serving the certificate of the Secret");
    injected.map(drop)
}

/// Reads the Secret's data and proves that API servers that call `names` at `now` will take it.
fn read(data: &BTreeMap<String, ByteString>, names: &[String], now: Timestamp) -> Result<Content, GivenError> {
    let part = |key: &'static str| {
        data.get(key)
            .map(|bytes| bytes.0.as_slice())
            .filter(|bytes| !bytes.is_empty())
    };
    let ca = part(CA).ok_or(GivenError::NoCa)?;
    let trusted = certificates(&String::from_utf8_lossy(ca));
    let chain: Vec<_> = CertificateDer::pem_slice_iter(part(CERTIFICATE).ok_or(GivenError::Missing(CERTIFICATE))?)
        .collect::<Result<_, _>>()
        .unwrap_or_default();
    let malformed = |key, expected| GivenError::Malformed { key, expected };
    let key = PrivateKeyDer::from_pem_slice(part(KEY).ok_or(GivenError::Missing(KEY))?);
    let key = key.map_err(|_| malformed(KEY, "a PEM private key"))?;
    let (first, intermediates) = chain.split_first().ok_or(malformed(CERTIFICATE, "a PEM certificate"))?;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(first).map_err(|_| malformed(CERTIFICATE, "a PEM certificate"))?;
    let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|_| malformed(CERTIFICATE, "a PEM certificate"));
    let (not_before, not_after) = (
        time(parsed.validity().not_before.timestamp())?,
        time(parsed.validity().not_after.timestamp())?,
    );
    let signing = rustls::crypto::ring::sign::any_supported_type(&key)
        .map_err(|_| malformed(KEY, "a key of a supported kind (ECDSA P-256 or P-384, RSA, Ed25519)"))?;

    let mut roots = rustls::RootCertStore::empty();
    for one in &trusted {
        // One that is no root for our verifier may still be one for others.
        let _ = roots.add(CertificateDer::from(one.der()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|_| malformed(CA, "one or more PEM certificates"))?;
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    for name in names {
        let called = ServerName::try_from(name.as_str()).map_err(|_| GivenError::Name(name.clone()))?;
        verifier
            .verify_server_cert(first, intermediates, &called, &[], now)
            .map_err(|error| GivenError::Refused {
                name: name.clone(),
                reason: reason(error),
            })?;
    }
    let key = CertifiedKey::new(chain.clone(), signing);
    key.keys_match().map_err(|_| GivenError::Mismatch)?;
    Ok(Content {
        leaf: Leaf {
            key,
            not_before,
            not_after,
            signed_by: bundle(&trusted),
        },
        trusted,
    })
}

/// The verifier's words without their frame.
fn reason(error: rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("{CA} did not sign it")
        }
        rustls::Error::InvalidCertificate(error) => error.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::{SignedDuration, Timestamp};
    use k8s_openapi::ByteString;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::{CA, CERTIFICATE, GivenError, KEY, read};

    const SERVICE: &str = "tailnet-webhook.tailnet-system.svc";

    fn now() -> Timestamp {
        "2026-12-01T00:00:00Z".parse().expect("time")
    }

    fn hours(count: i64) -> Timestamp {
        now() + SignedDuration::from_hours(count)
    }

    /// A Secret as cert-manager writes it; the leaf lives from one hour before `now` to a day after it.
    fn secret(names: &[&str], key: Option<&KeyPair>) -> BTreeMap<String, ByteString> {
        let ca_key = KeyPair::generate().expect("key");
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).expect("CA").pem();
        let issuer = Issuer::new(ca, ca_key);
        let mut leaf =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).expect("names");
        leaf.not_before = std::time::SystemTime::from(hours(-1)).into();
        leaf.not_after = std::time::SystemTime::from(hours(24)).into();
        let leaf_key = KeyPair::generate().expect("key");
        let certificate = leaf.signed_by(&leaf_key, &issuer).expect("leaf").pem();
        let text = |text: String| ByteString(text.into_bytes());
        [
            (CERTIFICATE.to_owned(), text(certificate)),
            (KEY.to_owned(), text(key.unwrap_or(&leaf_key).serialize_pem())),
            (CA.to_owned(), text(ca_pem)),
        ]
        .into()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn refused(data: &BTreeMap<String, ByteString>, called: &[&str], at: Timestamp) -> GivenError {
        read(data, &names(called), at).expect_err("refused")
    }

    #[test]
    fn a_sound_secret_is_taken_with_its_life_and_its_ca() {
        let data = secret(&[SERVICE, "127.0.0.1"], None);
        let content = read(&data, &names(&[SERVICE, "127.0.0.1"]), now()).expect("taken");
        assert_eq!(
            (content.leaf.not_before, content.leaf.not_after),
            (hours(-1), hours(24))
        );
        assert_eq!(content.trusted.len(), 1);
        assert_eq!(
            content.leaf.signed_by.as_bytes(),
            data[CA]
                .0
                .trim_ascii_end()
                .iter()
                .copied()
                .chain(*b"\n")
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_cannot_serve_is_refused_with_the_cause_and_without_the_key() {
        let sound = secret(&[SERVICE], None);
        let without = |key: &str| {
            let mut data = sound.clone();
            data.remove(key);
            data
        };
        assert_eq!(refused(&without(CA), &[SERVICE], now()), GivenError::NoCa);
        assert_eq!(refused(&without(KEY), &[SERVICE], now()), GivenError::Missing(KEY));
        assert_eq!(
            refused(&without(CERTIFICATE), &[SERVICE], now()),
            GivenError::Missing(CERTIFICATE)
        );
        let with = |key: &str, text: &str| {
            let mut data = sound.clone();
            data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
            data
        };
        for key in [CA, CERTIFICATE, KEY] {
            let error = refused(&with(key, "s3cret"), &[SERVICE], now());
            assert!(
                matches!(error, GivenError::Malformed { key: named, .. } if named == key),
                "{error}"
            );
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        assert_eq!(refused(&with(KEY, ""), &[SERVICE], now()), GivenError::Missing(KEY));
        assert_eq!(
            refused(
                &secret(&[SERVICE], Some(&KeyPair::generate().expect("key"))),
                &[SERVICE],
                now()
            ),
            GivenError::Mismatch
        );
        let mut other_ca = sound.clone();
        other_ca.insert(CA.to_owned(), secret(&[SERVICE], None)[CA].clone());
        for (data, called, at, word) in [
            (&sound, "127.0.0.1", now(), "not valid for name"),
            (&sound, SERVICE, hours(25), "expired"),
            (&sound, SERVICE, hours(-2), "not valid yet"),
            (&other_ca, SERVICE, now(), "ca.crt did not sign it"),
        ] {
            let error = refused(data, &[called], at).to_string();
            assert!(error.contains(word) && error.contains(called), "{word}: {error}");
        }
    }
}
