//! Announced renames.

use tailnet_crds::Kind;
use tailnet_crds::names::annotation::TAKES_OVER;

use crate::claims::ClaimKey;
use crate::finding::Severity;
use crate::index::claim_keys;
use crate::object::Object;
use crate::prefixes::overlap;
use crate::report::Report;
use crate::request::Layer;
use crate::table::{Check, MEMBERS, Operations, Rule, WGV};
use crate::view::View;

/// A rename names its predecessor.
pub static TN013: Rule = Rule {
    id: "TN013",
    kinds: MEMBERS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "metadata.annotations[tsunaro.io/takes-over]",
    message: "takes-over names an object of this Tailnet that holds something which this one asks for, or one that is gone; outside the \
              operator namespace only one of the same namespace",
    why: "Under GitOps a renamed object is applied before the old one is pruned. The annotation lets it in with a warning, and it waits for the \
          old one to go. Naming an object that holds nothing of it is a mistake, which would otherwise show only when a real conflict is refused. A \
          tenant that could name an object of another namespace would get its names whenever that one is made anew.",
    example: "kind: TailnetEgress\nmetadata:\n  name: new\n  annotations: { tsunaro.io/takes-over: old }",
    fix: "Write `<Kind>/<namespace>/<name>` of the old object (without namespace for cluster-scoped kinds), or leave the annotation out.",
    check: Check::Cross(takes_over_a_holder),
};

fn takes_over_a_holder(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(text) = &object.takes_over else { return };
    let path = format!("metadata.annotations[{TAKES_OVER}]");
    let Some((kind, namespace, name)) = parse(text) else {
        report.invalid(
            path,
            text,
            "is not <Kind>/<namespace>/<name> (or <Kind>/<name>) of an object of ours",
        );
        return;
    };
    if !view.may_take_over(namespace) {
        report.invalid(
            path,
            text,
            "is not in this object's namespace: outside the operator namespace nobody takes over from another namespace",
        );
        return;
    }
    view.need(&[kind], report);
    // Gone is what it waits for: the annotation may stay in the manifest.
    let Some(holder) = view
        .snapshot
        .get(kind, namespace, name)
        .filter(|holder| !holder.deleting)
    else {
        return;
    };
    let spec = view.tailnet_spec();
    let (own, theirs) = (claim_keys(object, spec), claim_keys(holder, spec));
    let shares = |a: &ClaimKey, b: &ClaimKey| match (a, b) {
        (ClaimKey::Prefix(a), ClaimKey::Prefix(b)) => overlap(a, b),
        _ => a == b,
    };
    let same_tailnet = holder.tailnet_name() == object.tailnet_name();
    let shared = own.iter().any(|a| {
        theirs
            .iter()
            .any(|b| shares(a, b) && (same_tailnet || matches!(a, ClaimKey::Service(_))))
    });
    if holder.same_as(object) || !shared {
        let draft = report.invalid(
            path,
            text,
            format!("{holder} holds nothing that this object asks for: leave the annotation out"),
        );
        // The annotation may stay in the manifest after the rename. Somebody who uses the old name for something else
        // must not stop the object by that.
        if view.layer() == Layer::Guard {
            draft.warn();
        }
    }
}

/// Kind, namespace and name.
fn parse(text: &str) -> Option<(Kind, Option<&str>, &str)> {
    let mut parts = text.split('/');
    let kind: Kind = parts.next()?.parse().ok()?;
    let parsed = match (parts.next()?, parts.next(), parts.next()) {
        (namespace, Some(name), None) => (kind, Some(namespace), name),
        (name, None, None) => (kind, None, name),
        _ => return None,
    };
    let namespaced = kind.scope() == tailnet_crds::Scope::Namespaced;
    (parsed.1.is_some() == namespaced && !parsed.2.is_empty()).then_some(parsed)
}
