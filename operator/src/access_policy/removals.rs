//! Whether entries go for a reason: before a write that takes the entries of objects away, the API server itself is asked
//! whether those objects are gone. A watch that is behind must never cut a connection.

use std::collections::BTreeSet;
use std::fmt::Debug;

use kube::api::{Api, ListParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tailnet_crds::{Kind, TailnetEgress, TailnetGateway, TailnetIngress, TailnetSite};
use tailnet_policies::ObjectRef as Reference;

use crate::context::Context;

/// Objects per page of a list.
const PAGE: u32 = 500;

/// Those of `removed` (objects as in their references' texts) that exist and that the stores do not know as they are: nothing
/// explains that their entries go.
///
/// # Errors
/// The API server's; nobody may write then.
pub async fn unexplained(context: &Context, removed: &BTreeSet<String>) -> Result<Vec<String>, kube::Error> {
    let stores = &context.stores;
    let mut found = Vec::new();
    found.extend(of_kind::<TailnetEgress>(context, Kind::TailnetEgress, &stores.egresses, removed).await?);
    found.extend(of_kind::<TailnetIngress>(context, Kind::TailnetIngress, &stores.ingresses, removed).await?);
    found.extend(of_kind::<TailnetSite>(context, Kind::TailnetSite, &stores.sites, removed).await?);
    found.extend(of_kind::<TailnetGateway>(context, Kind::TailnetGateway, &stores.gateways, removed).await?);
    Ok(found)
}

async fn of_kind<K>(
    context: &Context,
    kind: Kind,
    store: &Store<K>,
    removed: &BTreeSet<String>,
) -> Result<Vec<String>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let prefix = format!("{} ", kind.as_str());
    if !removed.iter().any(|name| name.starts_with(&prefix)) {
        return Ok(Vec::new());
    }
    let api: Api<K> = Api::all(context.client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut unexplained = Vec::new();
    loop {
        // Metadata only, and not from a cache: no resource version is given.
        let page = api.list_metadata(&params).await?;
        for object in &page.items {
            let named = Reference::ours(kind, object.namespace().as_deref(), &object.name_any()).to_string();
            if object.metadata.deletion_timestamp.is_some() || !removed.contains(&named) {
                continue;
            }
            let mut reference = ObjectRef::<K>::new(&object.name_any());
            if let Some(namespace) = object.namespace() {
                reference = reference.within(&namespace);
            }
            let known = store.get(&reference).is_some_and(|known| {
                known.meta().uid == object.metadata.uid && known.meta().generation == object.metadata.generation
            });
            if !known {
                unexplained.push(named);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(unexplained),
        }
    }
}
