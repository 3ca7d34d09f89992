//! Which queue learns of which change: the event-driven half of every controller.

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tailnet_crds::Kind;
use tailnet_crds::names::label::{OWNER_KIND, TAILNET};
use tailnet_crds::names::tailnet::rendered_policy_config_map;

use crate::backends;
use crate::context::Context;
use crate::controllers::runner;
use crate::hosts;
use crate::organisation;
use crate::ownership::{labelled_egress, labelled_ingress};
use crate::start::Watches;

/// Connects all watches to the queues.
pub(crate) fn connect(watches: &mut Watches, context: &Arc<Context>) {
    let on = |context: &Arc<Context>| Arc::clone(context);

    let ctx = on(context);
    watches.tailnets.listen(move |tailnet| {
        let exists = ctx.stores.tailnets.get(&ObjectRef::from_obj(tailnet)).is_some();
        ctx.guard.object(Kind::Tailnet, tailnet, exists);
        if !exists {
            ctx.metrics.forget(Kind::Tailnet, None, &tailnet.name_any());
            ctx.backoff.succeeded(&runner::key("Tailnet", tailnet));
            ctx.backoff.succeeded(&runner::key("TailnetNames", tailnet));
            ctx.backoff.succeeded(&runner::key("TailnetPolicy", tailnet));
            ctx.access_policies.forget(&tailnet.name_any());
        }
        ctx.queues.tailnet.push(ObjectRef::from_obj(tailnet));
        ctx.enqueue_members(&tailnet.name_any());
    });

    let ctx = on(context);
    watches.egresses.listen(move |egress| {
        let reference = ObjectRef::from_obj(egress);
        let exists = ctx.stores.egresses.get(&reference).is_some();
        ctx.guard.object(Kind::TailnetEgress, egress, exists);
        if !exists {
            ctx.metrics
                .forget(Kind::TailnetEgress, egress.namespace().as_deref(), &egress.name_any());
            ctx.backoff.succeeded(&runner::key("TailnetEgress", egress));
            // The keys of a deleted CR end now, not at the next look.
            ctx.queues.tailnet.push(ObjectRef::new(&egress.spec.tailnet_ref.name));
        }
        ctx.queues.egress.push(reference);
        ctx.queues.names.push(ObjectRef::new(&egress.spec.tailnet_ref.name));
        ctx.queues.policy.push(ObjectRef::new(&egress.spec.tailnet_ref.name));
    });

    let ctx = on(context);
    watches.ingresses.listen(move |ingress| {
        let reference = ObjectRef::from_obj(ingress);
        let exists = ctx.stores.ingresses.get(&reference).is_some();
        ctx.guard.object(Kind::TailnetIngress, ingress, exists);
        if !exists {
            ctx.metrics.forget(
                Kind::TailnetIngress,
                ingress.namespace().as_deref(),
                &ingress.name_any(),
            );
            ctx.backoff.succeeded(&runner::key("TailnetIngress", ingress));
            ctx.queues.tailnet.push(ObjectRef::new(&ingress.spec.tailnet_ref.name));
        }
        ctx.queues.ingress.push(reference);
        ctx.queues.names.push(ObjectRef::new(&ingress.spec.tailnet_ref.name));
        ctx.queues.policy.push(ObjectRef::new(&ingress.spec.tailnet_ref.name));
    });

    let ctx = on(context);
    watches.sites.listen(move |site| {
        let reference = ObjectRef::from_obj(site);
        let exists = ctx.stores.sites.get(&reference).is_some();
        ctx.guard.object(Kind::TailnetSite, site, exists);
        if !exists {
            ctx.metrics.forget(Kind::TailnetSite, None, &site.name_any());
            ctx.backoff.succeeded(&runner::key("TailnetSite", site));
        }
        ctx.queues.site.push(reference);
        ctx.queues.names.push(ObjectRef::new(&site.spec.tailnet_ref.name));
        ctx.queues.policy.push(ObjectRef::new(&site.spec.tailnet_ref.name));
    });

    let ctx = on(context);
    watches.gateways.listen(move |gateway| {
        let reference = ObjectRef::from_obj(gateway);
        let exists = ctx.stores.gateways.get(&reference).is_some();
        ctx.guard.object(Kind::TailnetGateway, gateway, exists);
        if !exists {
            ctx.metrics.forget(Kind::TailnetGateway, None, &gateway.name_any());
            ctx.backoff.succeeded(&runner::key("TailnetGateway", gateway));
        }
        ctx.queues.gateway.push(reference);
        ctx.queues.names.push(ObjectRef::new(&gateway.spec.tailnet_ref.name));
        ctx.queues.policy.push(ObjectRef::new(&gateway.spec.tailnet_ref.name));
    });

    let ctx = on(context);
    watches.services.listen(move |service| {
        let exists = ctx.stores.services.get(&ObjectRef::from_obj(service)).is_some();
        ctx.guard.service(service, exists);
        // Also when only the address has changed, which no rule reads.
        backends::tell_ingresses(&ctx, service);
        tell_owner(&ctx, service);
        let name = service.name_any();
        for egress in ctx.stores.egresses.state() {
            if egress.spec.targets.iter().any(|target| target.name == name.as_str()) {
                ctx.queues.egress.push(ObjectRef::from_obj(egress.as_ref()));
                ctx.queues.names.push(ObjectRef::new(&egress.spec.tailnet_ref.name));
            }
        }
    });

    let ctx = on(context);
    watches.backends.listen(move |service| {
        let exists = ctx.stores.backends.get(&ObjectRef::from_obj(service)).is_some();
        ctx.guard.service(service, exists);
        backends::tell_ingresses(&ctx, service);
    });

    let ctx = on(context);
    watches.config_maps.listen(move |config_map| {
        let exists = ctx.stores.config_maps.get(&ObjectRef::from_obj(config_map)).is_some();
        if ctx.claims.saw(config_map, exists) {
            ctx.guard.look_at_records();
        }
        let base_changed = ctx.guard.config_map(config_map, exists);
        if ctx.guard.policy(config_map, exists) {
            organisation::wake_all(&ctx);
        }
        ctx.policies.changed();
        tell_owner(&ctx, config_map);
        let name = config_map.name_any();
        tell_waiting(&ctx, &name, "-config");
        for tailnet in ctx.stores.tailnets.state() {
            let ca = tailnet
                .spec
                .ca_config_map_ref()
                .is_some_and(|reference| reference.name == name);
            let policy = tailnet.spec.policy.as_ref();
            let base = base_changed && policy.is_some_and(|policy| policy.base_config_map == name);
            if ca || base {
                ctx.queues.tailnet.push(ObjectRef::from_obj(tailnet.as_ref()));
            }
            if base || rendered_policy_config_map(&tailnet.name_any()) == name {
                ctx.queues.policy.push(ObjectRef::from_obj(tailnet.as_ref()));
            }
            if ca || hosts::config_map_name(&tailnet) == Some(name.as_str()) {
                ctx.enqueue_members(&tailnet.name_any());
            }
        }
    });

    let ctx = on(context);
    watches.namespaces.listen(move |namespace| {
        let exists = ctx.stores.namespaces.get(&ObjectRef::from_obj(namespace)).is_some();
        if ctx.guard.namespace(namespace, exists) {
            organisation::wake_all(&ctx);
        }
    });

    let ctx = on(context);
    watches.secrets.listen(move |secret| {
        tell_owner(&ctx, secret);
        let name = secret.name_any();
        tell_waiting(&ctx, &name, "-authkey");
        for tailnet in ctx.stores.tailnets.state() {
            if tailnet.spec.api_secret_ref.name == name {
                ctx.queues.tailnet.push(ObjectRef::from_obj(tailnet.as_ref()));
            }
        }
    });

    let ctx = on(context);
    watches
        .deployments
        .listen(move |deployment| tell_owner(&ctx, deployment));
    let ctx = on(context);
    watches.pods.listen(move |pod| {
        tell_owner(&ctx, pod);
        // Whether a Pod is ready decides which node the names of an ingress lead to.
        if let Some(ingress) = labelled_ingress(pod).and_then(|reference| ctx.stores.ingresses.get(&reference)) {
            ctx.queues.names.push(ObjectRef::new(&ingress.spec.tailnet_ref.name));
        }
    });
    let ctx = on(context);
    watches.network_policies.listen(move |policy| tell_owner(&ctx, policy));
    let ctx = on(context);
    watches
        .pod_disruption_budgets
        .listen(move |budget| tell_owner(&ctx, budget));
}

/// Wakes the egress that wants this name for a child of its own, whoever has it now.
fn tell_waiting(context: &Context, name: &str, suffix: &str) {
    if let Some(egress) = name
        .strip_prefix("tailnet-egress-")
        .and_then(|rest| rest.strip_suffix(suffix))
    {
        let reference = ObjectRef::new(egress).within(context.namespace());
        if context.stores.egresses.get(&reference).is_some() {
            context.queues.egress.push(reference);
        }
    }
}

fn tell_owner(context: &Context, child: &impl Resource) {
    if let Some(egress) = labelled_egress(child) {
        context.queues.egress.push(egress);
        return;
    }
    if let Some(ingress) = labelled_ingress(child) {
        context.queues.ingress.push(ingress);
        return;
    }
    let labels = child.meta().labels.as_ref();
    if let Some(tailnet) =
        labels.and_then(|labels| (labels.get(OWNER_KIND)? == "Tailnet").then(|| labels.get(TAILNET))?)
    {
        context.queues.names.push(ObjectRef::new(tailnet));
    }
}
