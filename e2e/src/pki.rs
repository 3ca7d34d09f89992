//! Certificates and keys of a cluster: EC P-256, from a CA that lives as long as the box.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

/// A certificate authority with its key in memory and both in files.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
    name: String,
    pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a certificate is for.
#[derive(Debug, Default, Clone)]
pub struct Subject<'a> {
    /// Common name.
    pub common_name: &'a str,
    /// Organisation: a group for the API server.
    pub organisation: Option<&'a str>,
    /// DNS names.
    pub names: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
}

/// Files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Pair {
    /// PEM file of the certificate.
    pub certificate: PathBuf,
    /// PEM file of the key, readable by root only.
    pub key: PathBuf,
}

impl Pair {
    /// The files of the certificate called `name` in `folder`.
    pub fn at(folder: &Path, name: &str) -> Self {
        Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        }
    }
}

fn write_secret(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

fn days(params: &mut CertificateParams, count: i64) -> Result<()> {
    let now = rcgen::date_time_ymd(1970, 1, 1) + std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    // A clock that is read by two programs is never quite the same.
    params.not_before = now - std::time::Duration::from_secs(3600);
    params.not_after = now + std::time::Duration::from_secs(u64::try_from(count)? * 86400);
    Ok(())
}

impl Authority {
    /// Makes a CA called `name` whose files go to `folder` (`NAME.crt`, `NAME.key`).
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn create(folder: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        days(&mut params, 30)?;
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        let files = Pair::at(folder, name);
        fs::write(&files.certificate, &pem)?;
        write_secret(&files.key, &key.serialize_pem())?;
        Ok(Self {
            issuer: Issuer::new(params, key),
            folder: folder.to_owned(),
            name: name.to_owned(),
            pem,
        })
    }

    /// A CA that [`Authority::create`] made earlier.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn load(folder: &Path, name: &str) -> Result<Self> {
        let files = Pair::at(folder, name);
        let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let pem = read(&files.certificate)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, KeyPair::from_pem(&read(&files.key)?)?)?;
        Ok(Self {
            issuer,
            folder: folder.to_owned(),
            name: name.to_owned(),
            pem,
        })
    }

    /// The CA's certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its files.
    pub fn files(&self) -> Pair {
        Pair::at(&self.folder, &self.name)
    }

    /// Issues a certificate for client and server use, with files `NAME.crt` and `NAME.key` beside the CA's.
    ///
    /// # Errors
    /// When a name is not one, or a file cannot be written.
    pub fn issue(&self, name: &str, subject: &Subject<'_>) -> Result<Pair> {
        let mut params = CertificateParams::new(subject.names.clone())?;
        params
            .subject_alt_names
            .extend(subject.addresses.iter().copied().map(SanType::IpAddress));
        params.distinguished_name = DistinguishedName::new();
        if let Some(organisation) = subject.organisation {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        params.distinguished_name.push(DnType::CommonName, subject.common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        days(&mut params, 20)?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let files = Pair::at(&self.folder, name);
        fs::write(&files.certificate, certificate.pem())?;
        write_secret(&files.key, &key.serialize_pem())?;
        Ok(files)
    }
}

/// Makes the key pair that signs ServiceAccount tokens: `sa.key` and `sa.pub`.
///
/// # Errors
/// When a file cannot be written.
pub fn service_account_key(folder: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    write_secret(&folder.join("sa.key"), &key.serialize_pem())?;
    fs::write(folder.join("sa.pub"), key.public_key_pem())?;
    Ok(())
}

fn base64(text: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn kubeconfig(path: &Path, server: &str, authority_pem: &str, user: &Value, namespace: &str) -> Result<()> {
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "box",
        "clusters": [{"name": "box", "cluster": {"server": server, "certificate-authority-data": base64(authority_pem.as_bytes())}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "box", "context": {"cluster": "box", "user": "user", "namespace": namespace}}],
    });
    write_secret(path, &serde_json::to_string_pretty(&text)?)
}

/// Writes a kubeconfig for the user whose certificate is `pair`.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write_kubeconfig(path: &Path, server: &str, authority_pem: &str, pair: &Pair) -> Result<()> {
    let user = json!({
        "client-certificate-data": base64(&fs::read(&pair.certificate)?),
        "client-key-data": base64(&fs::read(&pair.key)?),
    });
    kubeconfig(path, server, authority_pem, &user, "default")
}

/// Writes a kubeconfig for the owner of a bearer token.
///
/// # Errors
/// When the file cannot be written.
pub fn write_token_kubeconfig(
    path: &Path,
    server: &str,
    authority_pem: &str,
    token: &str,
    namespace: &str,
) -> Result<()> {
    kubeconfig(path, server, authority_pem, &json!({"token": token}), namespace)
}
