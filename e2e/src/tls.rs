//! The process-wide TLS provider.

/// Makes ring the provider of libraries that ask for the default one. Harmless when there is one already.
pub fn install_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
