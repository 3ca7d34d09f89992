//! Certificates from our own CA: the Secret, made when it is missing and rotated with overlap, and leaves of it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;

use super::authority::{Authority, CaCertificate, SECRET_NAME, Step};
use super::keeper::{Keeper, KeeperError, PROPAGATION};
use super::trusted::certificates;

/// A CA whose Secret was deleted is trusted this long: until every replica serves leaves of the new one, and not longer,
/// since whoever deletes it may have a reason.
const LOST_CA_KEPT: SignedDuration = SignedDuration::from_mins(10);

/// What is remembered between looks.
#[derive(Debug, Default)]
pub struct Own {
    /// The CA that signed at the last look.
    last: Option<CaCertificate>,
}

/// What the Secret holds, with the Secret, for a write that must not overwrite another's.
struct Stored {
    authority: Authority,
    secret: Secret,
}

impl Stored {
    fn read(secret: Secret) -> Result<Self, KeeperError> {
        let authority = Authority::from_data(secret.data.as_ref().unwrap_or(&Default::default()))?;
        Ok(Self { authority, secret })
    }
}

impl Own {
    /// One look: Secret, leaf, configurations, rotation.
    pub(super) async fn look(&mut self, keeper: &Keeper) -> Result<(), KeeperError> {
        let (found, now) = keeper.read_secret(SECRET_NAME).await?;
        let mut stored = match found {
            Some(secret) => Stored::read(secret)?,
            None => self.make(keeper, now).await?,
        };
        self.last = Some(stored.authority.current.certificate.clone());
        let ended = stored.authority.due(now, false) == Some(Step::Replace);
        // Without a leaf there is nothing to lose; a renewal by the same CA is trusted already.
        let current = &stored.authority.current;
        let harmless = !keeper.source.serves(now) || keeper.source.is_signed_by(current);
        if harmless && !ended && keeper.source.is_due(current, now) {
            keeper.source.set(current.issue(&keeper.names, now)?);
            tracing::info!(names = keeper.names.join(","), "serving a new leaf certificate");
        }
        let injected = inject(keeper, &stored.authority, now).await;
        while let Some(step) = stored.authority.due(now, injected.is_ok()) {
            let after = stored.authority.after(step, now)?;
            stored = replace(keeper, stored.secret, after).await?;
            tracing::info!(?step, "CA rotation");
            self.last = Some(stored.authority.current.certificate.clone());
            inject(keeper, &stored.authority, now).await?;
        }
        let current = &stored.authority.current;
        if keeper.source.is_due(current, now) && (injected.is_ok() || !keeper.source.serves(now)) {
            if keeper.source.serves(now) {
                // API servers follow a changed configuration a moment later.
                tokio::time::sleep(PROPAGATION).await;
            }
            keeper.source.set(current.issue(&keeper.names, now)?);
            tracing::info!(
                names = keeper.names.join(","),
                "serving a leaf certificate of the new CA"
            );
        }
        injected
    }

    /// The authority of a Secret that does not exist yet. Who loses the race for it uses the winner's.
    ///
    /// Where the Secret went while leaves of its CA are served, that CA stays trusted for a while.
    async fn make(&self, keeper: &Keeper, now: Timestamp) -> Result<Stored, KeeperError> {
        let mut authority = Authority::generate(now)?;
        authority.old = self.last.as_ref().map(|last| (last.clone(), now + LOST_CA_KEPT));
        let labels = [("app.kubernetes.io/managed-by".to_owned(), "tailnet-webhook".to_owned())];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(SECRET_NAME.to_owned()),
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(authority.to_data()),
            ..Secret::default()
        };
        match keeper.secrets().create(&PostParams::default(), &secret).await {
            Ok(secret) => {
                tracing::info!(secret = SECRET_NAME, namespace = keeper.namespace, "made a new CA");
                Ok(Stored { authority, secret })
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let secret = keeper.secrets().get(SECRET_NAME).await;
                Stored::read(secret.map_err(|error| KeeperError::ReadSecret {
                    name: SECRET_NAME.to_owned(),
                    source: Box::new(error),
                })?)
            }
            Err(error) => Err(KeeperError::WriteSecret(Box::new(error))),
        }
    }
}

/// Makes the configurations carry the authority's CAs, and the CA of the leaf that is served: a Secret that was put back from
/// a backup does not know it.
async fn inject(keeper: &Keeper, authority: &Authority, now: Timestamp) -> Result<(), KeeperError> {
    let mut text = authority.bundle();
    if keeper.source.serves(now) {
        text.push_str(&keeper.source.signed_by().unwrap_or_default());
    }
    keeper.inject(&certificates(&text), true).await.map(drop)
}

/// Writes `authority` over the Secret; a conflict (the other replica was first) is an error, the next look reads again.
async fn replace(keeper: &Keeper, mut secret: Secret, authority: Authority) -> Result<Stored, KeeperError> {
    secret.data = Some(authority.to_data());
    let written = keeper
        .secrets()
        .replace(SECRET_NAME, &PostParams::default(), &secret)
        .await;
    let secret = written.map_err(|error| KeeperError::WriteSecret(Box::new(error)))?;
    Ok(Stored { authority, secret })
}
