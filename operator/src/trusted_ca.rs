//! Which CA bundles a Tailnet's Headscale is verified with, by the operator and by the agents alike.

use std::io;
use std::path::PathBuf;

use kube::runtime::reflector::ObjectRef;
use tailnet_crds::Tailnet;

use crate::context::Context;
use crate::data_keys;

/// Why the bundles cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// `--trusted-ca-file` cannot be read.
    #[error("cannot read the trusted CA file {}: {source}", path.display())]
    File {
        /// The flag's value.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// `spec.api.caConfigMapRef` names a ConfigMap that does not exist.
    #[error("ConfigMap {namespace}/{name} of spec.api.caConfigMapRef does not exist")]
    NoConfigMap {
        /// Namespace of the operator.
        namespace: String,
        /// Name in the reference.
        name: String,
    },
    /// The ConfigMap has no such key, or it is blank.
    #[error("ConfigMap {namespace}/{name} of spec.api.caConfigMapRef has no PEM text under the key {key} ({present})")]
    NoKey {
        /// Namespace of the operator.
        namespace: String,
        /// Name in the reference.
        name: String,
        /// Key in the reference.
        key: String,
        /// Which keys there are, as `data_keys::present` says it.
        present: String,
    },
}

/// Bundles as (name for error texts, PEM text): the operator's trusted CA and the Tailnet's own. Whether they hold
/// certificates is not checked here.
///
/// # Errors
/// See [`CaError`].
pub fn bundles(context: &Context, tailnet: &Tailnet) -> Result<Vec<(String, String)>, CaError> {
    let mut bundles = trusted(context)?;
    if let Some(reference) = tailnet.spec.ca_config_map_ref() {
        let (namespace, name) = (context.namespace().to_owned(), reference.name.clone());
        let stored = context
            .stores
            .config_maps
            .get(&ObjectRef::new(&name).within(&namespace));
        let Some(stored) = stored else {
            return Err(CaError::NoConfigMap { namespace, name });
        };
        let pem = stored.data.as_ref().and_then(|data| data.get(reference.key()));
        match pem.filter(|pem| !pem.trim().is_empty()) {
            Some(pem) => bundles.push((
                format!("ConfigMap {namespace}/{name}, key {}", reference.key()),
                pem.clone(),
            )),
            None => {
                return Err(CaError::NoKey {
                    namespace,
                    name,
                    key: reference.key().to_owned(),
                    present: data_keys::present(stored.data.iter().flatten().map(|(key, _)| key.as_str())),
                });
            }
        }
    }
    Ok(bundles)
}

/// The operator's own bundle; read every time, so that a renewed file counts at once. A missing file is an error only when
/// the flag is given; a blank file is none, since the chart mounts an empty one when `trustedCA` is not set.
///
/// # Errors
/// [`CaError::File`].
pub fn trusted(context: &Context) -> Result<Vec<(String, String)>, CaError> {
    let Some(path) = context.settings.trusted_ca_file.clone() else {
        return Ok(Vec::new());
    };
    let pem = std::fs::read_to_string(&path).map_err(|source| CaError::File {
        path: path.clone(),
        source,
    })?;
    if pem.trim().is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![(format!("the trusted CA file {}", path.display()), pem)])
}

/// All bundles of a Tailnet as one PEM text for the agents' `ca.crt`; None when there is none.
///
/// # Errors
/// See [`CaError`].
pub fn joined(context: &Context, tailnet: &Tailnet) -> Result<Option<String>, CaError> {
    let texts: Vec<String> = bundles(context, tailnet)?
        .into_iter()
        .map(|(_, pem)| pem.trim().to_owned())
        .collect();
    Ok((!texts.is_empty()).then(|| texts.join("\n") + "\n"))
}
