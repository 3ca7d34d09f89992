//! The hosts file of a Tailnet: rendered from complete lists, written only when it changed, never into a foreign ConfigMap.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::runtime::controller::Action;
use parking_lot::Mutex;
use tailnet_crds::Tailnet;
use tailnet_crds::names::annotation::CONFIG_SHA256;
use tailnet_crds::names::tailnet::HOSTS_KEY;
use tokio_util::sync::CancellationToken;

use crate::children::{self, ChildError};
use crate::claims::KeepError;
use crate::context::Context;
use crate::controllers::{claims, runner};
use crate::desired::hosts::render;
use crate::hosts;
use crate::ownership::{owned_by_tailnet, tailnet_labels};
use crate::queue::Requests;

/// `app.kubernetes.io/component` of the chart's resolver, which serves the hosts file.
const RESOLVER_COMPONENT: &str = "resolver";

/// Why the names of a Tailnet are not up to date.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    /// Without the record nobody knows whose a name is.
    #[error(transparent)]
    Claims(#[from] Arc<KeepError>),
    /// The ConfigMap, or a Pod of the resolver.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The resolver's Pods could not be told of the new file.
    #[error("cannot list the resolver's Pods, so that they read the new hosts file at once: {0}")]
    Resolver(#[source] Box<kube::Error>),
}

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, requests: Requests<Tailnet>, stop: CancellationToken) {
    let store = context.stores.tailnets.clone();
    let told = Arc::new(Told::default());
    let reconcile = move |tailnet, context| reconcile(tailnet, context, Arc::clone(&told));
    runner::run("TailnetNames", context, store, requests, stop, reconcile).await;
}

/// The sha256 of the hosts file that the resolver's Pods were last told of, by Tailnet.
type Told = Mutex<HashMap<String, String>>;

async fn reconcile(tailnet: Arc<Tailnet>, context: Arc<Context>, told: Arc<Told>) -> Result<Action, NamesError> {
    let resync = Action::requeue(context.settings.resync());
    if tailnet.metadata.deletion_timestamp.is_some() {
        return Ok(resync);
    }
    claims::settle(&context, &tailnet.name_any()).await?;
    for config_map in hosts::superfluous(&context, &tailnet) {
        children::delete(&context, tailnet.as_ref(), config_map.as_ref()).await?;
    }
    let (Some(name), Some(owner)) = (hosts::config_map_name(&tailnet), owned_by_tailnet(&tailnet)) else {
        return Ok(resync);
    };
    let mut labels = tailnet_labels(&tailnet.name_any());
    labels.insert(hosts::COMPONENT.to_owned(), hosts::HOSTS_COMPONENT.to_owned());
    let text = render(&hosts::entries(&context, &tailnet.name_any()));
    let sha256 = children::sha256_hex(&text);
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(context.namespace().to_owned()),
            labels: Some(labels),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(HOSTS_KEY.to_owned(), text)])),
        ..ConfigMap::default()
    };
    match children::apply(&context, &context.stores.config_maps, tailnet.as_ref(), config_map).await {
        // The condition DNSReady tells; the watch tells when the name becomes free.
        Err(ChildError::Foreign { .. }) => return Ok(resync),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    if told.lock().get(&tailnet.name_any()) != Some(&sha256) {
        tell_resolver(&context, &sha256).await?;
        told.lock().insert(tailnet.name_any(), sha256);
    }
    Ok(resync)
}

/// Tells the resolver's Pods of their new hosts file.
async fn tell_resolver(context: &Context, sha256: &str) -> Result<(), NamesError> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), context.namespace());
    let selector = ListParams::default().labels(&format!("{}={RESOLVER_COMPONENT}", hosts::COMPONENT));
    let pods = api
        .list(&selector)
        .await
        .map_err(|source| NamesError::Resolver(Box::new(source)))?;
    for pod in pods {
        children::annotate_pod(context, &pod, CONFIG_SHA256, sha256).await?;
    }
    Ok(())
}
