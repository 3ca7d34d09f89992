//! Which certificates the client trusts: the system's roots and the bundles it was given.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// A CA bundle that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// No PEM block at all, or a broken one.
    #[error("{name} is not a PEM bundle of certificates: {detail}")]
    NotPem {
        /// Where the bundle is from, as the caller named it.
        name: String,
        /// What the reader said.
        detail: String,
    },
    /// A PEM block whose content is not an X.509 certificate.
    #[error("certificate {index} of {name} is not usable as a trust anchor: {detail}")]
    NotACertificate {
        /// Where the bundle is from.
        name: String,
        /// Position in the bundle, from 1.
        index: usize,
        /// What the reader said.
        detail: String,
    },
    /// The TLS library refuses the protocol versions: cannot happen with the built-in set, yet must not panic.
    #[error("the TLS client cannot be set up: {0}")]
    Setup(String),
}

/// A TLS client configuration that trusts the system's roots plus every certificate in `bundles` (pairs of a name for error
/// texts and PEM text). Blank bundles are left out. Missing system roots are not an error here: a handshake then says
/// that the issuer is unknown.
pub(crate) fn client_config(bundles: &[(String, String)]) -> Result<ClientConfig, TrustError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(system.certs);
    for error in system.errors {
        tracing::debug!(%error, "a system CA certificate could not be read");
    }
    for (name, pem) in bundles.iter().filter(|(_, pem)| !pem.trim().is_empty()) {
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|e| TrustError::NotPem {
                name: name.clone(),
                detail: format!("{e:?}"),
            })?;
            count += 1;
            roots.add(certificate).map_err(|e| TrustError::NotACertificate {
                name: name.clone(),
                index: count,
                detail: e.to_string(),
            })?;
        }
        if count == 0 {
            return Err(TrustError::NotPem {
                name: name.clone(),
                detail: "it has no CERTIFICATE block".into(),
            });
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| TrustError::Setup(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Headscale itself offers HTTP/1.1 only; a proxy in front of it may offer more.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pem: &str) -> Result<(), TrustError> {
        client_config(&[("ConfigMap lab-ca".into(), pem.into())]).map(|_| ())
    }

    #[test]
    fn bundles_are_checked() {
        let ca = rcgen::generate_simple_self_signed(vec!["lab".into()])
            .unwrap()
            .cert
            .pem();
        assert_eq!(one(&ca), Ok(()));
        assert_eq!(one(&format!("{ca}\n{ca}")), Ok(()));
        assert_eq!(one("  \n"), Ok(()));
        assert_eq!(
            one("hello").unwrap_err().to_string(),
            "ConfigMap lab-ca is not a PEM bundle of certificates: it has no CERTIFICATE block"
        );
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(
            one(&format!("{ca}{junk}")),
            Err(TrustError::NotACertificate { index: 2, .. })
        ));
        assert!(matches!(
            one("-----BEGIN CERTIFICATE-----\nAAAA\n"),
            Err(TrustError::NotPem { .. })
        ));
    }
}
