//! The certificate that the listener shows: swapped without touching open connections.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::authority::Leaf;

/// Holder of the leaf. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Source(Arc<ArcSwapOption<Held>>);

#[derive(Debug)]
struct Held {
    leaf: Leaf,
    key: Arc<CertifiedKey>,
}

impl Source {
    /// Shows `leaf` from the next handshake on.
    pub fn set(&self, mut leaf: Leaf) {
        let key = Arc::new(CertifiedKey::new(
            std::mem::take(&mut leaf.key.cert),
            leaf.key.key.clone(),
        ));
        self.0.store(Some(Arc::new(Held { leaf, key })));
    }

    /// Whether the leaf is missing, near its end at `now`, or signed by another CA than `signing`.
    pub fn is_due(&self, signing: &super::authority::SigningCa, now: Timestamp) -> bool {
        self.0.load().as_ref().is_none_or(|held| held.leaf.is_due(signing, now))
    }

    /// Whether there is a leaf that is valid at `now`.
    pub fn serves(&self, now: Timestamp) -> bool {
        let held = self.0.load();
        held.as_ref()
            .is_some_and(|held| held.leaf.not_before <= now && now < held.leaf.not_after)
    }

    /// Whether this very leaf is shown.
    pub fn shows(&self, leaf: &Leaf) -> bool {
        let held = self.0.load();
        held.as_ref()
            .is_some_and(|held| held.key.cert == leaf.key.cert && held.leaf.signed_by == leaf.signed_by)
    }

    /// PEM of the CA of the leaf that is shown.
    pub fn signed_by(&self) -> Option<String> {
        self.0.load().as_ref().map(|held| held.leaf.signed_by.clone())
    }

    /// Whether the leaf is signed by `signing`.
    pub fn is_signed_by(&self, signing: &super::authority::SigningCa) -> bool {
        self.0
            .load()
            .as_ref()
            .is_some_and(|held| held.leaf.signed_by == signing.certificate.pem())
    }

    /// Seconds until the leaf ends at `now`; negative when it ended, `None` without a leaf.
    pub fn seconds_left(&self, now: Timestamp) -> Option<i64> {
        self.0
            .load()
            .as_ref()
            .map(|held| held.leaf.not_after.as_second() - now.as_second())
    }
}

impl ResolvesServerCert for Source {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref().map(|held| Arc::clone(&held.key))
    }
}

/// The listener's TLS settings: TLS 1.2 and 1.3, HTTP/1.1 only (API servers speak HTTP/1.1 to webhooks on purpose, so that
/// connections spread over replicas).
pub fn server_config(source: Source) -> Result<rustls::ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(source));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
