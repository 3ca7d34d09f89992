//! Events about the policy of a Tailnet.
//!
//! They are about the ConfigMap of the rendered policy: an Event of a cluster-scoped object would have to be in the
//! namespace `default`, where the operator has no rights.

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Resource, ResourceExt};
use tailnet_crds::Tailnet;
use tailnet_crds::names::tailnet::rendered_policy_config_map;

use crate::context::Context;
use crate::settings::FIELD_MANAGER;

/// Most bytes of an Event's note: the API server takes 1,024.
pub const MAX_NOTE: usize = 1000;

/// Somebody else's document was overwritten.
pub const OVERWRITTEN: &str = "PolicyOverwritten";
/// A route that a person had taken the approval from was approved again.
pub const APPROVED_AGAIN: &str = "RouteApprovedAgain";

/// Publishes a warning. Failing to is logged only: nothing depends on it.
pub async fn warn(context: &Context, tailnet: &Tailnet, reason: &str, action: &str, note: &str) {
    let mut end = note.len().min(MAX_NOTE);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    let event = Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note[..end].to_owned()),
        action: action.to_owned(),
        secondary: Some(tailnet.object_ref(&())),
    };
    let regarding = ObjectReference {
        api_version: Some(ConfigMap::api_version(&()).into_owned()),
        kind: Some(ConfigMap::kind(&()).into_owned()),
        namespace: Some(context.namespace().to_owned()),
        name: Some(rendered_policy_config_map(&tailnet.name_any())),
        ..ObjectReference::default()
    };
    // A recorder of its own for each: they show different things, so that none is a repetition of another.
    let recorder = Recorder::new(
        context.client.clone(),
        Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: context.settings.identity.clone(),
        },
    );
    tracing::warn!(tailnet = tailnet.name_any(), reason, note = event.note, "event");
    if let Err(error) = recorder.publish(&event, &regarding).await {
        tracing::warn!(tailnet = tailnet.name_any(), reason, %error, "event not published");
    }
}
