//! The certificate of http exposes: `tls.crt` and `tls.key` of a mounted Secret, looked at every second.
//!
//! A new certificate is taken for new connections; what is open goes on with the old one. One that cannot be used changes
//! nothing while the one in use is valid.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys, ServerConfig};
use sha2::{Digest, Sha256};
use tailnet_crds::agent::{AgentCertificate, CertificateCause, CertificateProblem};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::usage::MESSAGE_MAX;

/// Protocols of the agent's TLS, best first.
pub(crate) const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A certificate that can be served.
#[derive(Debug)]
pub(crate) struct Certificate {
    /// For new connections.
    pub(crate) config: Arc<ServerConfig>,
    not_before: Timestamp,
    not_after: Timestamp,
    dns_names: Vec<String>,
    sha256: String,
}

/// The files and what is in use of them.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    /// The files as last read, and what they are.
    files: Option<(Files, Result<Arc<Certificate>, CertificateProblem>)>,
    in_use: Option<Arc<Certificate>>,
    problem: Option<CertificateProblem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Files {
    chain: Result<Vec<u8>, String>,
    key: Result<Vec<u8>, String>,
}

impl Store {
    pub(crate) fn new(dir: PathBuf) -> Store {
        Store {
            dir,
            files: None,
            in_use: None,
            problem: None,
        }
    }

    /// Looks at the files; `wanted` are the names that must be covered. Gives what is in use then.
    pub(crate) fn look(&mut self, wanted: &[String], now: Timestamp) -> Option<Arc<Certificate>> {
        // Small files in memory: reading them does not block.
        let files = Files {
            chain: read(&self.dir, "tls.crt"),
            key: read(&self.dir, "tls.key"),
        };
        if self.files.as_ref().is_none_or(|(seen, _)| *seen != files) {
            let parsed = parse(&files);
            self.files = Some((files, parsed));
        }
        let newest = self.files.as_ref().map(|(_, parsed)| parsed.clone());
        if self.in_use.as_ref().is_some_and(|cert| cert.not_after <= now) {
            self.in_use = None;
        }
        let before = (
            self.in_use.as_ref().map(|cert| cert.sha256.clone()),
            self.problem.clone(),
        );
        self.problem = match newest {
            None => None,
            Some(Err(problem)) => Some(problem),
            Some(Ok(cert)) => self.consider(cert, wanted, now),
        };
        let after = (
            self.in_use.as_ref().map(|cert| cert.sha256.clone()),
            self.problem.clone(),
        );
        if before != after {
            self.tell();
        }
        self.in_use.clone()
    }

    /// Takes `cert` if it is no worse than the one in use; gives what is wrong with it.
    fn consider(&mut self, cert: Arc<Certificate>, wanted: &[String], now: Timestamp) -> Option<CertificateProblem> {
        if now < cert.not_before || cert.not_after <= now {
            return Some(problem(
                CertificateCause::Expired,
                format!(
                    "the certificate is valid from {} to {} only",
                    cert.not_before, cert.not_after
                ),
            ));
        }
        let missing: Vec<&str> = wanted
            .iter()
            .map(String::as_str)
            .filter(|name| !cert.covers(name))
            .collect();
        let lost = |old: &Certificate| wanted.iter().filter(|name| !old.covers(name)).count();
        if self.in_use.as_deref().is_none_or(|old| missing.len() <= lost(old)) {
            self.in_use = Some(cert.clone());
        }
        (!missing.is_empty()).then(|| {
            let has = cert.dns_names.join(", ");
            problem(
                CertificateCause::SANMismatch,
                format!("the certificate is for [{has}] and lacks {}", missing.join(", ")),
            )
        })
    }

    fn tell(&self) {
        match (&self.problem, &self.in_use) {
            (None, Some(cert)) => {
                tracing::info!(not_after = %cert.not_after, names = cert.dns_names.join(","), "certificate taken");
            }
            (Some(problem), in_use) => tracing::error!(
                cause = problem.cause.as_str(),
                problem = problem.message,
                in_use = in_use.as_ref().map(|cert| cert.sha256.as_str()),
                "certificate not usable (for every name)"
            ),
            (None, None) => {}
        }
    }

    pub(crate) fn status(&self) -> AgentCertificate {
        let in_use = self.in_use.as_deref();
        AgentCertificate {
            not_after: in_use.map(|cert| cert.not_after.to_string()),
            dns_names: in_use.map(|cert| cert.dns_names.clone()).unwrap_or_default(),
            sha256: in_use.map(|cert| cert.sha256.clone()),
            problem: self.problem.clone(),
        }
    }

    /// Unix time of the end of validity; 0 when there is no certificate.
    pub(crate) fn not_after(&self) -> i64 {
        self.in_use.as_ref().map_or(0, |cert| cert.not_after.as_second())
    }
}

impl Certificate {
    /// Whether it is for `name`, which is canonical.
    pub(crate) fn covers(&self, name: &str) -> bool {
        self.dns_names.iter().any(|san| matches(san, name))
    }
}

/// A name of a certificate; `*` stands for exactly one label.
fn matches(san: &str, name: &str) -> bool {
    match san.strip_prefix("*.") {
        Some(parent) => name
            .split_once('.')
            .is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(parent)),
        None => san.eq_ignore_ascii_case(name),
    }
}

fn read(dir: &std::path::Path, name: &str) -> Result<Vec<u8>, String> {
    match std::fs::read(dir.join(name)) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(format!("{name} cannot be read: {error}")),
    }
}

fn problem(cause: CertificateCause, message: String) -> CertificateProblem {
    CertificateProblem {
        cause,
        message: message.chars().take(MESSAGE_MAX).collect(),
    }
}

fn parse(files: &Files) -> Result<Arc<Certificate>, CertificateProblem> {
    let invalid = |why: String| problem(CertificateCause::Invalid, why);
    let chain_text = files.chain.as_ref().map_err(|why| invalid(why.clone()))?;
    let key_text = files.key.as_ref().map_err(|why| invalid(why.clone()))?;
    for (text, name) in [(chain_text, "tls.crt"), (key_text, "tls.key")] {
        if text.is_empty() {
            let why = format!("the Secret has no {name} (yet)");
            return Err(problem(CertificateCause::NotIssued, why));
        }
    }
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain_text)
        .collect::<Result<_, _>>()
        .map_err(|error| invalid(format!("tls.crt is not PEM: {error}")))?;
    let Some(leaf) = chain.first() else {
        return Err(invalid("tls.crt holds no certificate".to_owned()));
    };
    // The parser's own words could quote the key.
    let key = PrivateKeyDer::from_pem_slice(key_text)
        .map_err(|_| invalid("tls.key is not a private key in PEM".to_owned()))?;
    let (_, parsed) =
        parse_x509_certificate(leaf).map_err(|error| invalid(format!("tls.crt is not a certificate: {error}")))?;
    let time = |seconds: i64| Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    let validity = parsed.validity();
    let (not_before, not_after) = (
        time(validity.not_before.timestamp()),
        time(validity.not_after.timestamp()),
    );
    let sans = parsed.subject_alternative_name().ok().flatten();
    let dns_names = sans
        .into_iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect();
    let sha256 = Sha256::digest(chain_text).iter().map(|b| format!("{b:02x}")).collect();
    let signing = ring::sign::any_supported_type(&key).map_err(|_| {
        invalid("tls.key is of a kind that is not supported: use RSA, ECDSA P-256/P-384 or Ed25519".to_owned())
    })?;
    match CertifiedKey::new(chain.clone(), signing).keys_match() {
        Ok(()) | Err(TlsError::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(TlsError::InconsistentKeys(_)) => {
            let why = "tls.key is not the key of the certificate in tls.crt".to_owned();
            return Err(problem(CertificateCause::KeyMismatch, why));
        }
        Err(error) => return Err(invalid(format!("tls.crt cannot be used: {error}"))),
    }
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| invalid(format!("the certificate cannot be used: {error}")))?;
    config.alpn_protocols = ALPN.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(Certificate {
        config: Arc::new(config),
        not_before,
        not_after,
        dns_names,
        sha256,
    }))
}

/// The one crypto provider of the tree.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Folder {
            Folder(tempfile::tempdir().unwrap())
        }

        fn store(&self) -> Store {
            Store::new(self.0.path().to_owned())
        }

        fn put(&self, names: &[&str], not_after: i32) -> String {
            let key = KeyPair::generate().unwrap();
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(not_after, 1, 1);
            let pem = params.self_signed(&key).unwrap().pem();
            self.write("tls.crt", &pem);
            self.write("tls.key", &key.serialize_pem());
            pem
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.path().join(name), text).unwrap();
        }
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn now() -> Timestamp {
        "2026-06-01T00:00:00Z".parse().unwrap()
    }

    fn cause(store: &Store) -> Option<CertificateCause> {
        store.status().problem.map(|problem| problem.cause)
    }

    #[test]
    fn every_cause_has_its_name_and_a_good_one_stays() {
        let folder = Folder::new();
        let mut store = folder.store();
        let wanted = names(&["a.example"]);
        assert!(store.look(&wanted, now()).is_none());
        assert_eq!(cause(&store), Some(CertificateCause::NotIssued));

        folder.put(&["a.example"], 2030);
        let first = store.look(&wanted, now()).unwrap();
        assert_eq!(cause(&store), None);
        assert_eq!(store.status().dns_names, ["a.example"]);

        let key = std::fs::read_to_string(folder.0.path().join("tls.key")).unwrap();
        folder.put(&["a.example"], 2031);
        folder.write("tls.key", &key);
        assert!(Arc::ptr_eq(&first, &store.look(&wanted, now()).unwrap()));
        assert_eq!(cause(&store), Some(CertificateCause::KeyMismatch));

        folder.put(&["a.example"], 2025);
        assert!(Arc::ptr_eq(&first, &store.look(&wanted, now()).unwrap()));
        assert_eq!(cause(&store), Some(CertificateCause::Expired));

        folder.put(&["b.example"], 2030);
        assert!(Arc::ptr_eq(&first, &store.look(&wanted, now()).unwrap()));
        assert_eq!(cause(&store), Some(CertificateCause::SANMismatch));

        folder.write("tls.crt", "half a file");
        assert!(Arc::ptr_eq(&first, &store.look(&wanted, now()).unwrap()));
        assert_eq!(cause(&store), Some(CertificateCause::Invalid));

        folder.put(&["a.example"], 2032);
        let second = store.look(&wanted, now()).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(cause(&store), None);
    }

    #[test]
    fn an_expired_one_is_not_served_any_more() {
        let folder = Folder::new();
        let mut store = folder.store();
        folder.put(&["a.example"], 2027);
        assert!(store.look(&names(&["a.example"]), now()).is_some());
        let later = "2027-06-01T00:00:00Z".parse().unwrap();
        assert!(store.look(&names(&["a.example"]), later).is_none());
        assert_eq!(cause(&store), Some(CertificateCause::Expired));
        assert_eq!(store.not_after(), 0);
    }

    #[test]
    fn a_new_name_waits_for_its_certificate_without_harm_to_the_others() {
        let folder = Folder::new();
        let mut store = folder.store();
        folder.put(&["a.example"], 2030);
        store.look(&names(&["a.example"]), now()).unwrap();
        let both = names(&["a.example", "b.example"]);
        let cert = store.look(&both, now()).unwrap();
        assert!(cert.covers("a.example") && !cert.covers("b.example"));
        assert_eq!(cause(&store), Some(CertificateCause::SANMismatch));
        folder.put(&["*.example"], 2030);
        let cert = store.look(&both, now()).unwrap();
        assert!(cert.covers("b.example") && !cert.covers("example") && !cert.covers("x.b.example"));
        assert_eq!(cause(&store), None);
    }
}
