//! TailnetSite: guard, claims, and what Headscale says of its prefixes. It makes nothing: the policy has its approvers.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::conditions::condition::{ACCEPTED, ADVERTISED, APPROVED, READY};
use tailnet_crds::conditions::reason;
use tailnet_crds::types::{Cidr, Format, Tag, Text};
use tailnet_crds::{Kind, Tailnet, TailnetSite, TailnetSiteStatus};
use tailnet_policies::access_policy::missing_entries;
use tokio_util::sync::CancellationToken;

use super::accepted_only::AcceptError;
use crate::context::Context;
use crate::controllers::{claims, runner};
use crate::desired::tailnet_site::{Missing, Seen, look, unadvertised, unapproved, unserved};
use crate::guard::{Verdict, frozen_reason, message};
use crate::headscale_clients::Observed;
use crate::queue::Requests;
use crate::status::{self, Conditions, Truth};
use crate::writes::is_gone;

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, requests: Requests<TailnetSite>, stop: CancellationToken) {
    let store = context.stores.sites.clone();
    runner::run(
        "TailnetSite",
        context,
        store,
        requests,
        stop,
        |site, context| async move { reconcile(&site, &context).await },
    )
    .await;
}

async fn reconcile(site: &TailnetSite, context: &Context) -> Result<Action, AcceptError> {
    let name = &site.spec.tailnet_ref.name;
    let settled = claims::settle(context, name).await;
    let (verdict, outcome) = context.guard.verdict(Kind::TailnetSite, site)?;
    let before = site.status.clone().unwrap_or_default();
    let now = Timestamp::now();
    let mut conditions = Conditions::new(site.metadata.generation, &before.conditions, now);
    let tailnet = context.stores.tailnets.get(&ObjectRef::<Tailnet>::new(name));
    let mut accepted = false;
    match verdict {
        Verdict::Valid if let Err(error) = &settled => {
            conditions.set(ACCEPTED, Truth::Unknown, reason::CLAIMS_NOT_RECORDED, error.to_string());
        }
        Verdict::Valid if tailnet.is_none() => {
            conditions.set(
                ACCEPTED,
                Truth::False,
                reason::TAILNET_NOT_FOUND,
                message(&outcome.findings),
            );
        }
        Verdict::Valid => {
            accepted = true;
            conditions.set(ACCEPTED, Truth::True, reason::VALID, "all rules are kept");
        }
        Verdict::Freeze(findings) | Verdict::Withdraw(findings) => {
            conditions.set(
                ACCEPTED,
                Truth::False,
                frozen_reason(site, &findings),
                message(&findings),
            );
        }
    }
    let prefixes = match tailnet.filter(|_| accepted) {
        Some(tailnet) => observe(context, site, &tailnet, &before, &mut conditions, now),
        None => {
            let nothing = "the site has no effect until it is accepted; see Accepted";
            for r#type in [ADVERTISED, APPROVED] {
                conditions.set(r#type, Truth::Unknown, reason::NOT_ACCEPTED, nothing);
            }
            conditions.set(READY, Truth::False, reason::NOT_ACCEPTED, nothing);
            Vec::new()
        }
    };
    let new = TailnetSiteStatus {
        conditions: conditions.finish(),
        prefixes,
    };
    let told = new.conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str()));
    context
        .metrics
        .conditions(Kind::TailnetSite, None, &site.name_any(), told);
    let api: Api<TailnetSite> = Api::all(context.client.clone());
    match status::write(&api, site, &new).await {
        Ok(_) => {}
        Err(error) if is_gone(&error) => {}
        Err(error) => return Err(AcceptError::Status(Box::new(error))),
    }
    settled?;
    Ok(Action::requeue(context.settings.resync()))
}

/// Sets the conditions of an accepted site.
fn observe(
    context: &Context,
    site: &TailnetSite,
    tailnet: &Tailnet,
    before: &TailnetSiteStatus,
    conditions: &mut Conditions,
    now: Timestamp,
) -> Vec<tailnet_crds::SitePrefixStatus> {
    let name = tailnet.name_any();
    let Some(observed) = context.hub.facts(&name) else {
        let message = "Headscale has not been read yet; see Reachable of the Tailnet";
        for r#type in [ADVERTISED, APPROVED, READY] {
            conditions.set(r#type, Truth::Unknown, reason::CONTROL_PLANE_UNREACHABLE, message);
        }
        return before.prefixes.clone();
    };
    let tags = routers(site, tailnet);
    let seen: Vec<Seen> = site
        .spec
        .prefixes
        .iter()
        .map(|prefix| look(&canonical::<Cidr>(prefix), &tags, &observed.nodes, now))
        .collect();
    let advertised = unadvertised(&seen, &tags);
    let place = match &tailnet.spec.policy {
        Some(policy) => format!(
            "the base document (ConfigMap {}), or the tag to policy.routeApprovers of the Tailnet",
            policy.base_config_map
        ),
        None => "Headscale's policy".to_owned(),
    };
    let approved = unapproved(&seen, &paste(context, site, tailnet, &observed), &place);
    let served = unserved(&seen);
    set(
        conditions,
        ADVERTISED,
        &advertised,
        reason::ADVERTISED_REASON,
        seen.len(),
    );
    match (&approved, &advertised) {
        (None, Some((_, why))) => conditions.set(
            APPROVED,
            Truth::Unknown,
            reason::UNKNOWN,
            format!("what is not advertised cannot be looked at: {why}"),
        ),
        _ => set(conditions, APPROVED, &approved, reason::APPROVED_REASON, seen.len()),
    }
    let reachable = context.hub.client(&name).is_some();
    match [advertised, approved, served].into_iter().flatten().next() {
        Some((reason, message)) => conditions.set(READY, Truth::False, reason, message),
        None if !reachable => conditions.set(
            READY,
            Truth::Unknown,
            reason::CONTROL_PLANE_UNREACHABLE,
            "Headscale cannot be reached now; the prefixes are those of the last read",
        ),
        None => conditions.set(
            READY,
            Truth::True,
            reason::READY_REASON,
            format!("a live router serves each of {} prefixes", seen.len()),
        ),
    }
    seen.into_iter().map(|seen| seen.status).collect()
}

fn set(conditions: &mut Conditions, r#type: &str, missing: &Missing, good: &str, count: usize) {
    match missing {
        Some((reason, message)) => conditions.set(r#type, Truth::False, reason, message.clone()),
        None => conditions.set(r#type, Truth::True, good, format!("all of {count} prefixes")),
    }
}

/// Tags of the nodes that count as routers: the site's own, else those that the Tailnet lets approve.
fn routers(site: &TailnetSite, tailnet: &Tailnet) -> BTreeSet<String> {
    let own: BTreeSet<String> = site.spec.advertised_by.iter().map(canonical::<Tag>).collect();
    if !own.is_empty() {
        return own;
    }
    let policy = tailnet.spec.policy.iter();
    policy
        .flat_map(|policy| &policy.route_approvers)
        .map(canonical::<Tag>)
        .collect()
}

/// What the live policy lacks for the site; empty when it lacks nothing.
fn paste(context: &Context, site: &TailnetSite, tailnet: &Tailnet, observed: &Observed) -> String {
    context.guard.with(|snapshot| {
        snapshot
            .get(Kind::TailnetSite, None, &site.name_any())
            .map(|object| missing_entries(object, &tailnet.spec, snapshot, &observed.policy).to_string())
            .unwrap_or_default()
    })
}

/// A text in its canonical form; one that nobody can read stands for itself.
fn canonical<T: Format>(text: &Text<T>) -> String {
    match text.parse() {
        Ok(value) => value.to_string(),
        Err(error) => error.canonical().unwrap_or(text.as_str()).to_owned(),
    }
}
