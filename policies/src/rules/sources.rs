//! Who may connect to an ingress.

use ipnet::IpNet;
use tailnet_crds::types::{FormatError, Principal, Text};
use tailnet_crds::{Kind, TailnetSpec};
use tailnet_headscale::document::Policy;

use crate::facts::PolicyFacts;
use crate::finding::Severity;
use crate::index::{canonical, read};
use crate::object::Object;
use crate::report::{Report, cut, list, quoted};
use crate::snapshot::Snapshot;
use crate::table::{Check, Operations, Rule, WGV};
use crate::view::View;

const INGRESS: &[Kind] = &[Kind::TailnetIngress];

/// Sources are within the allowlist.
pub static TN301: Rule = Rule {
    id: "TN301",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.allowFrom[*]",
    message: "every source is in the Tailnet's ingressSourceAllowlist, or a network inside one that is",
    why: "allowFrom becomes a grant in the policy of the whole tailnet. The allowlist is the administrator's bound on what a namespace may \
          grant; absent or empty it allows no source at all. Sources are compared by meaning, not by spelling.",
    example: "kind: Tailnet\nspec:\n  policy: { baseConfigMap: tailnet-policy, ingressSourceAllowlist: [\"group:team-a\"] }\n---\nkind: TailnetIngress\nspec:\n  allowFrom: [\"group:everyone\"]",
    fix: "Name sources that the message lists, or have the administrator extend `spec.policy.ingressSourceAllowlist`.",
    check: Check::Cross(sources_are_allowed),
};

/// Sources are such as Headscale takes.
pub static TN302: Rule = Rule {
    id: "TN302",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.allowFrom[*]",
    message: "a source is a user, group, tag, host, address, network, autogroup:member, autogroup:tagged, autogroup:danger-all or *",
    why: "Headscale refuses a whole policy for one source that it does not know, so that nobody's change would take effect any more. A user \
          name must have an @, also without a domain. A group or host that the base document does not define is refused where that \
          document is known; else one that the live policy does not define is warned about.",
    example: "kind: TailnetIngress\nspec:\n  allowFrom: [alice, autogroup:admin]",
    fix: "Write `alice@` for a user without a domain; write groups as `group:name`.",
    check: Check::Cross(sources_are_readable),
};

/// Everyone is said aloud.
pub static TN315: Rule = Rule {
    id: "TN315",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.allowFrom[*]",
    message: "everyone (`*`, autogroup:danger-all) is allowed only where the allowlist itself says `*`",
    why: "`*` opens the ingress to every node of the tailnet, autogroup:danger-all to what subnet routers carry besides. That is a decision of \
          the administrator, so the allowlist must contain `*`; autogroup:danger-all in the allowlist is not enough.",
    example: "kind: TailnetIngress\nspec:\n  allowFrom: [\"*\"]",
    fix: "Name the groups, users or tags that shall connect.",
    check: Check::Cross(everyone_is_explicit),
};

const DANGER_ALL: &str = "danger-all";

fn is_everyone(principal: &Principal) -> bool {
    match principal {
        Principal::Any => true,
        Principal::Autogroup(name) => name == DANGER_ALL,
        _ => false,
    }
}

/// The network that a principal stands for, if it is one.
fn network_of(principal: &Principal) -> Option<IpNet> {
    match principal {
        Principal::Ip(address) => Some(IpNet::from(address.addr())),
        Principal::Cidr(cidr) => Some(cidr.net()),
        _ => None,
    }
}

fn allows(allowed: &Principal, source: &Principal) -> bool {
    if *allowed == Principal::Any || allowed == source {
        return true;
    }
    matches!((network_of(allowed), network_of(source)), (Some(outer), Some(inner)) if outer.contains(&inner))
}

/// The allowlist; None when this installation does not own the policy, so that no grant is made at all.
fn allowlist<'v>(view: &'v View<'_>, report: &mut Report<'_>) -> Option<&'v [Text<Principal>]> {
    let (_, tailnet) = view.tailnet(report)?;
    Some(&tailnet.policy.as_ref()?.ingress_source_allowlist)
}

fn sources_are_allowed(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    if spec.allow_from.is_empty() {
        return;
    }
    let Some(listed) = allowlist(view, report) else { return };
    let allowed: Vec<Principal> = listed.iter().filter_map(read).collect();
    for (at, text) in spec.allow_from.iter().enumerate() {
        // What nobody can read is inside no allowlist; TN302 says what is wrong with it.
        let Some(source) = read(text) else { continue };
        if is_everyone(&source) || allowed.iter().any(|allowed| allows(allowed, &source)) {
            continue;
        }
        let names: Vec<String> = listed.iter().map(canonical).collect();
        let detail = format!(
            "is not in ingressSourceAllowlist of the Tailnet, which allows {}",
            list(&names)
        );
        report.forbidden(format!("spec.allowFrom[{at}]"), text.as_str(), detail);
    }
}

fn everyone_is_explicit(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    let everyone: Vec<_> = spec
        .allow_from
        .iter()
        .enumerate()
        .filter(|(_, text)| read(*text).is_some_and(|source| is_everyone(&source)))
        .collect();
    if everyone.is_empty() {
        return;
    }
    let Some(listed) = allowlist(view, report) else { return };
    if listed.iter().any(|allowed| read(allowed) == Some(Principal::Any)) {
        return;
    }
    for (at, text) in everyone {
        let detail = "opens this to everyone, which ingressSourceAllowlist of the Tailnet must allow by \"*\": name who shall connect";
        report.forbidden(format!("spec.allowFrom[{at}]"), text.as_str(), detail);
    }
}

fn sources_are_readable(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    let facts = object
        .tailnet_name()
        .and_then(|name| view.snapshot.facts(name))
        .map(|aged| &aged.facts.policy);
    let facts = facts.filter(|policy| policy.present);
    // Where this installation owns the policy, it defines the tags that objects use.
    let base = view.tailnet_spec().and_then(|tailnet| base_of(tailnet, view.snapshot));
    let owned_here = view.tailnet_spec().is_some_and(|tailnet| tailnet.policy.is_some());
    for (at, text) in spec.allow_from.iter().enumerate() {
        let path = format!("spec.allowFrom[{at}]");
        if let Err(FormatError::Unreadable(problem)) = text.parse() {
            report.invalid(path, text.as_str(), cut(&problem, 160));
            continue;
        }
        let Some(source) = read(text) else { continue };
        if !is_source(&source) {
            report.invalid(path, text.as_str(), NO_SOURCE);
            continue;
        }
        // Who writes the policy knows what it will define; else what is live says what may be missing.
        if let Some(base) = base {
            if let Some(problem) = undefined_in_base(&source, base) {
                report.invalid(path, text.as_str(), problem);
            }
            continue;
        }
        let Some(facts) = facts else { continue };
        if let Some(problem) = undefined(&source, facts) {
            report.invalid(path, text.as_str(), problem).warn();
        } else if let Principal::Tag(tag) = &source
            && !owned_here
            && !facts.tag_owners.contains_key(tag.as_str())
        {
            let detail = "is a tag without owner in the live policy: define it in tagOwners first";
            report.invalid(path, text.as_str(), detail).warn();
        }
    }
}

/// Said of an autogroup that is none.
pub(crate) const NO_SOURCE: &str =
    "is no source: Headscale takes autogroup:member, autogroup:tagged and autogroup:danger-all";

/// Whether Headscale takes it as the source of a grant.
pub(crate) fn is_source(principal: &Principal) -> bool {
    match principal {
        Principal::Autogroup(name) => ["member", "tagged", DANGER_ALL].contains(&name.as_str()),
        _ => true,
    }
}

/// The base document of a Tailnet that writes its policy, where it is known and HuJSON.
pub(crate) fn base_of<'s>(tailnet: &TailnetSpec, snapshot: &'s Snapshot) -> Option<&'s Policy> {
    let policy = tailnet.policy.as_ref()?;
    snapshot.base_document(&policy.base_config_map)?.policy()
}

/// What is wrong with a group or host that the base document does not define: nobody else defines any.
pub(crate) fn undefined_in_base(principal: &Principal, base: &Policy) -> Option<String> {
    undefined_by(
        "the base document",
        "define it there first",
        principal,
        |name, kind| match kind {
            Defined::Host => base.hosts.contains_key(name),
            Defined::Group => base.groups.contains_key(name),
        },
    )
}

/// What is wrong with a group or host that the live policy does not define.
pub(crate) fn undefined(principal: &Principal, facts: &PolicyFacts) -> Option<String> {
    undefined_by(
        "the live policy",
        "define it in the base first",
        principal,
        |name, kind| match kind {
            Defined::Host => facts.hosts.contains_key(name),
            Defined::Group => facts.groups.contains(name),
        },
    )
}

/// What a policy gives a name.
enum Defined {
    Host,
    Group,
}

fn undefined_by(
    document: &str,
    remedy: &str,
    principal: &Principal,
    has: impl Fn(&str, Defined) -> bool,
) -> Option<String> {
    match principal {
        Principal::Host(name) if !has(name, Defined::Host) => {
            let user = quoted(&format!("{}@", cut(name, 62)));
            Some(format!("is no host that {document} defines; for a user write {user}"))
        }
        Principal::Group(name) if !has(&format!("group:{name}"), Defined::Group) => {
            Some(format!("is a group that {document} does not define: {remedy}"))
        }
        _ => None,
    }
}
