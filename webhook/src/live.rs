//! The one live read of an admission: is the object that a denial rests on still there? Watches are a moment behind, and
//! "delete, then create" must work.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::api::ApiResource;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use tailnet_crds::{Kind, Scope};
use tailnet_policies::{ObjectRef, RefKind};

use crate::snapshot::api_resource;

/// A read that takes longer counts as failed, and the denial stands.
const DEADLINE: Duration = Duration::from_millis(1500);

/// What a live read says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is there and stays.
    Present,
    /// It is gone, or on its way out: such an object holds nothing.
    Gone,
    /// Nobody knows.
    Unknown,
}

impl Presence {
    /// Label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Gone => "gone",
            Self::Unknown => "failed",
        }
    }
}

/// Answers whether an object is there now.
pub trait Live: Send + Sync + 'static {
    /// Reads `holder` by name.
    fn look<'a>(&'a self, holder: &'a ObjectRef) -> Pin<Box<dyn Future<Output = Presence> + Send + 'a>>;
}

/// [`Live`] by asking the API server for the object's metadata.
pub struct ApiServer(pub Client);

impl Live for ApiServer {
    fn look<'a>(&'a self, holder: &'a ObjectRef) -> Pin<Box<dyn Future<Output = Presence> + Send + 'a>> {
        Box::pin(async move {
            let read = async {
                match holder.kind {
                    RefKind::Ours(kind) => self.metadata(kind, holder).await,
                    RefKind::Service => {
                        let api: Api<PartialObjectMeta<Service>> =
                            Api::namespaced(self.0.clone(), holder.namespace.as_deref().unwrap_or_default());
                        api.get_opt(&holder.name)
                            .await
                            .map(|found| found.map(|object| object.metadata))
                    }
                }
            };
            match tokio::time::timeout(DEADLINE, read).await {
                Ok(Ok(Some(metadata))) if metadata.deletion_timestamp.is_none() => Presence::Present,
                Ok(Ok(_)) => Presence::Gone,
                Ok(Err(error)) => {
                    tracing::warn!(%holder, %error, "cannot read the holder live, the denial stands");
                    Presence::Unknown
                }
                Err(_) => {
                    tracing::warn!(%holder, "reading the holder live took too long, the denial stands");
                    Presence::Unknown
                }
            }
        })
    }
}

impl ApiServer {
    async fn metadata(
        &self,
        kind: Kind,
        holder: &ObjectRef,
    ) -> kube::Result<Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>> {
        let resource: ApiResource = api_resource(kind);
        let api: Api<kube::api::DynamicObject> = match kind.scope() {
            Scope::Cluster => Api::all_with(self.0.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(
                self.0.clone(),
                holder.namespace.as_deref().unwrap_or_default(),
                &resource,
            ),
        };
        Ok(api.get_metadata_opt(&holder.name).await?.map(|object| object.metadata))
    }
}
