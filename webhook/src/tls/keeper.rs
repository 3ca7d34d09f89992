//! The loop that keeps Secret, leaf and configurations true: on every change of one of them, and every half minute by the
//! wall clock (a suspended machine must not sleep through an expiry).

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tailnet_process::Condition;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::authority::{Authority, AuthorityError, CaCertificate, SECRET_NAME, Step};
use super::inject::{InjectError, Target};
use super::source::Source;
use crate::metrics::Metrics;

/// Longest time between two looks.
const PERIOD: Duration = Duration::from_secs(30);
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// How long API servers may take to follow a changed configuration.
const PROPAGATION: Duration = Duration::from_secs(5);
/// A CA whose Secret was deleted is trusted this long: until every replica serves leaves of the new one, and not longer,
/// since whoever deletes it may have a reason.
const LOST_CA_KEPT: SignedDuration = SignedDuration::from_mins(10);
/// One look may not take longer: an API server that hangs must not stop the renewals for good.
const LOOK_DEADLINE: Duration = Duration::from_secs(20);

/// Why a look failed; the loop tries again.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The Secret cannot be read.
    #[error("cannot read Secret {SECRET_NAME}: {0}")]
    ReadSecret(Box<kube::Error>),
    /// The Secret cannot be created or changed.
    #[error("cannot write Secret {SECRET_NAME}: {0}")]
    WriteSecret(Box<kube::Error>),
    /// The authority is broken.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The configurations cannot be brought up to date.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The look took too long.
    #[error("the API server did not answer within {} s", LOOK_DEADLINE.as_secs())]
    Deadline,
}

/// What [`Keeper`] keeps.
pub struct Keeper {
    /// API server.
    pub client: Client,
    /// Namespace of the Secret.
    pub namespace: String,
    /// DNS names and addresses of the leaf.
    pub names: Vec<String>,
    /// The two configurations.
    pub targets: Vec<Target>,
    /// Where the leaf goes.
    pub source: Source,
    /// Met when a leaf is loaded and valid.
    pub certificate: Condition,
    /// Met when every configuration carries the CA.
    pub bundle: Condition,
    /// Where the seconds to expiry go.
    pub metrics: Arc<Metrics>,
}

impl Keeper {
    /// Keeps until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let changed = Arc::new(Notify::new());
        let watches = self.watches(Arc::clone(&changed));
        let work = async {
            let mut wait = RETRY.0;
            let mut last = None;
            loop {
                let look = match tokio::time::timeout(LOOK_DEADLINE, self.look(Timestamp::now(), &mut last)).await {
                    Ok(look) => look,
                    Err(_) => Err(KeeperError::Deadline),
                };
                self.report(Timestamp::now());
                match look {
                    Ok(()) => {
                        wait = RETRY.0;
                        tokio::select! {
                            () = tokio::time::sleep(PERIOD) => {}
                            () = changed.notified() => {}
                        }
                    }
                    Err(error) => {
                        match &error {
                            KeeperError::Inject(absent @ InjectError::Absent { .. }) => tracing::info!("{absent}"),
                            other => {
                                tracing::warn!(error = %other, retry_in = ?wait, "certificates are not up to date")
                            }
                        }
                        // A little jitter, so that two replicas that collided do not collide again.
                        let jitter =
                            Duration::from_millis(u64::from(Timestamp::now().subsec_nanosecond().unsigned_abs() % 250));
                        tokio::select! {
                            () = tokio::time::sleep(wait + jitter) => {}
                            () = async { tokio::time::sleep(RETRY.0).await; changed.notified().await } => {}
                        }
                        wait = (wait * 2).min(RETRY.1);
                    }
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = watches => {}
            () = stop.cancelled() => {}
        }
    }

    /// Wakes the loop when the Secret or a configuration changes. Never ends.
    async fn watches(&self, changed: Arc<Notify>) {
        let only = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut all = vec![wakes(watcher(secrets, only(SECRET_NAME)).default_backoff()).boxed()];
        for target in &self.targets {
            all.push(wakes(watcher(target.api(&self.client), only(target.name())).default_backoff()).boxed());
        }
        let mut all = futures::stream::select_all(all);
        while all.next().await.is_some() {
            changed.notify_one();
        }
        std::future::pending().await
    }

    /// One look: Secret, leaf, configurations, rotation. `last` is the CA that signed at the last look.
    async fn look(&self, now: Timestamp, last: &mut Option<CaCertificate>) -> Result<(), KeeperError> {
        let (mut authority, mut stored) = self.authority(now, last.as_ref()).await?;
        *last = Some(authority.current.certificate.clone());
        let ended = authority.due(now, false) == Some(Step::Replace);
        // Without a leaf there is nothing to lose; a renewal by the same CA is trusted already.
        let harmless = !self.source.serves(now) || self.source.is_signed_by(&authority.current);
        if harmless && !ended && self.source.is_due(&authority.current, now) {
            self.source.set(authority.current.issue(&self.names, now)?);
            tracing::info!(names = self.names.join(","), "serving a new leaf certificate");
        }
        let injected = self.inject(&authority).await;
        while let Some(step) = authority.due(now, injected.is_ok()) {
            let after = authority.after(step, now)?;
            stored = self.replace(stored, &after).await?;
            tracing::info!(?step, "CA rotation");
            authority = after;
            *last = Some(authority.current.certificate.clone());
            self.inject(&authority).await?;
        }
        if self.source.is_due(&authority.current, now) && (injected.is_ok() || !self.source.serves(now)) {
            if self.source.serves(now) {
                // API servers follow a changed configuration a moment later.
                tokio::time::sleep(PROPAGATION).await;
            }
            self.source.set(authority.current.issue(&self.names, now)?);
            tracing::info!(names = self.names.join(","), "serving a leaf certificate of the new CA");
        }
        injected
    }

    async fn inject(&self, authority: &Authority) -> Result<(), KeeperError> {
        let bundle = authority.bundle();
        let mut failure = None;
        for target in &self.targets {
            match target.inject(&self.client, &bundle).await {
                Ok(true) => {
                    let configuration = target.name();
                    tracing::info!(configuration, "wrote the CA into the webhook configuration");
                }
                Ok(false) => {}
                // The other configuration must not wait for this one.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            None => {
                self.bundle.met();
                Ok(())
            }
            Some(error) => {
                // An API server that does not answer says nothing about the CA: what was there still is.
                let unknown = matches!(error, InjectError::Read { .. });
                if !(unknown && self.bundle.is_met()) {
                    self.bundle.missing(error.to_string());
                }
                Err(error.into())
            }
        }
    }

    /// The authority of the Secret; made when there is none. Who loses the race uses the winner's.
    ///
    /// Where the Secret went while leaves of its CA are served, that CA (`last`) stays trusted for a while.
    async fn authority(
        &self,
        now: Timestamp,
        last: Option<&CaCertificate>,
    ) -> Result<(Authority, Secret), KeeperError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = |error| KeeperError::ReadSecret(Box::new(error));
        if let Some(secret) = secrets.get_opt(SECRET_NAME).await.map_err(read)? {
            let authority = Authority::from_data(secret.data.as_ref().unwrap_or(&Default::default()))?;
            return Ok((authority, secret));
        }
        let mut authority = Authority::generate(now)?;
        authority.old = last.map(|last| (last.clone(), now + LOST_CA_KEPT));
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
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(stored) => {
                tracing::info!(secret = SECRET_NAME, namespace = self.namespace, "made a new CA");
                Ok((authority, stored))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let secret = secrets.get(SECRET_NAME).await.map_err(read)?;
                Ok((
                    Authority::from_data(secret.data.as_ref().unwrap_or(&Default::default()))?,
                    secret,
                ))
            }
            Err(error) => Err(KeeperError::WriteSecret(Box::new(error))),
        }
    }

    /// Writes `authority` over `stored`; a conflict (the other replica was first) is an error, the next look reads again.
    async fn replace(&self, mut stored: Secret, authority: &Authority) -> Result<Secret, KeeperError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        stored.data = Some(authority.to_data());
        let written = secrets.replace(SECRET_NAME, &PostParams::default(), &stored).await;
        written.map_err(|error| KeeperError::WriteSecret(Box::new(error)))
    }

    fn report(&self, now: Timestamp) {
        match self.source.seconds_left(now) {
            Some(seconds) if seconds > 0 => self.certificate.met(),
            Some(_) => self
                .certificate
                .missing("the leaf certificate has ended and could not be renewed, see the log"),
            None => self.certificate.missing(format!(
                "no leaf certificate yet: Secret {SECRET_NAME} is not readable or writable"
            )),
        }
        if let Some(seconds) = self.source.seconds_left(now) {
            self.metrics.certificate_expiry.set(seconds);
        }
    }
}

fn wakes<K: Send>(
    events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send,
) -> impl Stream<Item = ()> + Send {
    events.filter_map(|event| async move {
        match event {
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone) => Some(()),
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => None,
            Err(error) => {
                // Only a hint is lost: the loop looks every half minute anyhow.
                tracing::debug!(%error, "a watch for certificate changes broke and starts again");
                None
            }
        }
    })
}
