//! The loop that keeps leaf and configurations true: on every change of the Secret or of a configuration, and every half
//! minute, also of a machine that was suspended meanwhile ([`pause`]): it must not sleep through an expiry. Where certificates
//! come from is [`Origin`]'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tailnet_process::Condition;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::authority::{AuthorityError, SECRET_NAME};
use super::given::Given;
use super::inject::{InjectError, Target};
use super::own::Own;
use super::source::Source;
use super::trusted::{Others, Trusted};
use crate::clock::ApiClock;
use crate::clock::moment::pause;
use crate::metrics::Metrics;

/// Longest time between two looks.
const PERIOD: Duration = Duration::from_secs(30);
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// How long API servers may take to follow a changed configuration.
pub(super) const PROPAGATION: Duration = Duration::from_secs(5);
/// One look may not take longer: an API server that hangs must not stop the renewals for good.
const LOOK_DEADLINE: Duration = Duration::from_secs(20);

/// Why a look failed; the loop tries again.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The Secret cannot be read.
    #[error("cannot read Secret {name}: {source}")]
    ReadSecret {
        /// Its name.
        name: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
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

/// Where certificates come from.
#[derive(Debug)]
pub enum Origin {
    /// From our own CA, in the Secret [`SECRET_NAME`].
    Own(Own),
    /// From a Secret that cert-manager or somebody else writes.
    Given(Given),
}

impl Origin {
    /// Our own CA, or the Secret called `secret`.
    pub fn new(secret: Option<&str>) -> Self {
        match secret {
            None => Self::Own(Own::default()),
            Some(name) => Self::Given(Given::new(name)),
        }
    }

    fn secret(&self) -> &str {
        match self {
            Self::Own(_) => SECRET_NAME,
            Self::Given(given) => given.secret(),
        }
    }
}

/// What [`Keeper`] keeps.
pub struct Keeper {
    /// API server.
    pub client: Client,
    /// Its clock, by which it will judge our leaf.
    pub clock: ApiClock,
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
    /// What else the configurations carry.
    pub others: Others,
    /// Whether both configurations have carried all that we want since this process began. Until then another kind of
    /// [`Origin`] may be at work beside us, whose CA must stay.
    pub carried: AtomicBool,
}

impl Keeper {
    /// Keeps until `stop`.
    pub async fn run(self, mut origin: Origin, stop: CancellationToken) {
        let changed = Arc::new(Notify::new());
        let watches = self.watches(origin.secret().to_owned(), Arc::clone(&changed));
        let work = async {
            let mut wait = RETRY.0;
            loop {
                let look = match tokio::time::timeout(LOOK_DEADLINE, self.look(&mut origin)).await {
                    Ok(look) => look,
                    Err(_) => Err(KeeperError::Deadline),
                };
                self.report(&origin);
                match look {
                    Ok(()) => {
                        wait = RETRY.0;
                        tokio::select! {
                            () = pause(PERIOD) => {}
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
    async fn watches(&self, secret: String, changed: Arc<Notify>) {
        let only = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut all = vec![wakes(watcher(self.secrets(), only(&secret)).default_backoff()).boxed()];
        for target in &self.targets {
            all.push(wakes(watcher(target.api(&self.client), only(target.name())).default_backoff()).boxed());
        }
        let mut all = futures::stream::select_all(all);
        while all.next().await.is_some() {
            changed.notify_one();
        }
        std::future::pending().await
    }

    async fn look(&self, origin: &mut Origin) -> Result<(), KeeperError> {
        match origin {
            Origin::Own(own) => own.look(self).await,
            Origin::Given(given) => given.look(self).await,
        }
    }

    pub(super) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The Secret called `name`, and the time at the API server that its answer told.
    pub(super) async fn read_secret(&self, name: &str) -> Result<(Option<Secret>, Timestamp), KeeperError> {
        let secret = self.secrets().get_opt(name).await;
        let secret = secret.map_err(|error| KeeperError::ReadSecret {
            name: name.to_owned(),
            source: Box::new(error),
        })?;
        Ok((secret, self.clock.now()))
    }

    /// Makes both configurations carry `wanted`; true when something had to be written.
    ///
    /// Where `strict`, a configuration that lost what is wanted is not asked what it carries instead, once both have carried it.
    pub(super) async fn inject(&self, wanted: &[Trusted], strict: bool) -> Result<bool, KeeperError> {
        let strict = strict && self.carried.load(Ordering::Relaxed);
        let mut failure = None;
        let mut any = false;
        for target in &self.targets {
            match target.inject(&self.client, wanted, &self.others, strict).await {
                Ok(true) => {
                    any = true;
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
                self.carried.store(true, Ordering::Relaxed);
                self.bundle.met();
                Ok(any)
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

    fn report(&self, origin: &Origin) {
        let left = self.source.seconds_left(self.clock.now());
        match left {
            Some(seconds) if seconds > 0 => self.certificate.met(),
            Some(_) => self
                .certificate
                .missing("the leaf certificate has ended and could not be renewed, see the log"),
            None => self.certificate.missing(match origin {
                Origin::Own(_) => format!("no leaf certificate yet: Secret {SECRET_NAME} is not readable or writable"),
                Origin::Given(given) => given.why_none(&self.namespace),
            }),
        }
        if let Some(seconds) = left {
            self.metrics.certificate_expiry.set(seconds);
        }
        if let Origin::Given(given) = origin {
            self.metrics.certificate_rejected.set(i64::from(given.is_rejected()));
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
