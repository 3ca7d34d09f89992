//! The reference to the Tailnet.

use tailnet_crds::Kind;

use crate::finding::{Class, Severity};
use crate::object::Object;
use crate::report::{Report, Unchecked, quoted};
use crate::table::{CW, Check, MEMBERS, Operations, Rule, WGV};
use crate::view::View;

/// The Tailnet exists.
pub static TN001: Rule = Rule {
    id: "TN001",
    kinds: MEMBERS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.tailnetRef.name",
    message: "the Tailnet exists",
    why: "Objects may arrive in any order, as with `kubectl apply -f dir/`, so a Tailnet that does not exist yet is only a warning. Until it \
          exists the object has no effect (`Accepted=False`, reason `TailnetNotFound`), what already runs stays as it is, and the rules that \
          need the Tailnet are checked when it comes.",
    example: "kind: TailnetEgress\nspec:\n  tailnetRef: { name: corpp }   # the Tailnet is called corp",
    fix: "Create the Tailnet, or write its name as `kubectl get tailnets` shows it.",
    check: Check::Cross(tailnet_exists),
};

/// The reference never changes.
pub static TN002: Rule = Rule {
    id: "TN002",
    kinds: MEMBERS,
    operations: Operations::UPDATE,
    layers: CW,
    severity: Severity::Deny,
    security: false,
    field: "spec.tailnetRef",
    message: "tailnetRef never changes",
    why: "Keys, nodes, routes and grants of an object live on its Tailnet's server. Pointing it elsewhere would leave them behind, or carry \
          rights of one network into another.",
    example: "kind: TailnetEgress\nspec:\n  tailnetRef: { name: other }   # was corp",
    fix: "Delete the object and create it on the other Tailnet.",
    check: Check::Transition(tailnet_ref_is_immutable),
};

fn tailnet_exists(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(name) = object.tailnet_name() else { return };
    if view.tailnet_spec().is_some() {
        return;
    }
    if !view.snapshot.is_complete(Kind::Tailnet) {
        report.unchecked(Unchecked::Incomplete(Kind::Tailnet));
        return;
    }
    let detail = match view.snapshot.get(Kind::Tailnet, None, name) {
        Some(_) => "this Tailnet cannot be read; put it right first",
        None => "there is no Tailnet of this name yet; without effect until there is",
    };
    report.add(Class::NotFound, "spec.tailnetRef.name", name, detail);
}

fn tailnet_ref_is_immutable(old: &Object, new: &Object, report: &mut Report<'_>) {
    let (Some(before), Some(after)) = (old.tailnet_name(), new.tailnet_name()) else {
        return;
    };
    if before != after {
        let detail = format!("{} (it was {})", report.said(new.kind, "spec", 0), quoted(before));
        report.forbidden("spec.tailnetRef", after, detail);
    }
}
