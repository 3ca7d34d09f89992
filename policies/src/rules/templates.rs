//! Templates of published names.

use tailnet_crds::Kind;
use tailnet_crds::types::{FormatError, NameTemplate, Text};

use crate::finding::Severity;
use crate::index::read;
use crate::object::Object;
use crate::report::{Report, cut};
use crate::table::{CWV, Check, Operations, Rule};
use crate::view::View;

/// Templates give names.
pub static TN103: Rule = Rule {
    id: "TN103",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.dns.ingressNameTemplate, spec.dns.ingressAliasTemplate, spec.dns.reservedNames",
    message: "a name template has `{name}`, no unknown placeholder, and gives a DNS name that no other Tailnet's template gives",
    why: "Without `{name}` all exposes would have one name. Where two Tailnets' templates can give one name, names are unique within each \
          Tailnet only, and a resolver that serves both answers by chance; that is said.",
    example: "kind: Tailnet\nspec:\n  dns:\n    ingressNameTemplate: \"{service}.{namespace}.lab.example.net\"",
    fix: "Write a template such as `{name}.{namespace}.lab.example.net`, with a zone (or `{tailnet}`) for each Tailnet.",
    check: Check::Cross(templates),
};

fn templates(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let reserved = object.tailnet().map_or(&[][..], |spec| spec.reserved_names());
    for (at, name) in reserved.iter().enumerate() {
        if let Err(FormatError::Unreadable(problem)) = name.parse() {
            let detail = format!("is not a DNS name, so it reserves nothing: it {}", cut(&problem, 80));
            report.invalid(format!("spec.dns.reservedNames[{at}]"), name.as_str(), detail);
        }
    }
    for (field, text) in templates_of(object) {
        let path = format!("spec.dns.{field}");
        if let Err(FormatError::Unreadable(problem)) = text.parse() {
            report.invalid(path, text.as_str(), problem);
            continue;
        }
        let Some(own) = pattern(text, &object.name) else {
            continue;
        };
        let last: Vec<&str> = own.iter().rev().map(String::as_str).collect();
        let domain: Vec<&str> = view.snapshot.config().cluster_domain.rsplit('.').collect();
        if last.starts_with(&domain) || ["svc", "localhost", "arpa"].contains(&last[0]) {
            let detail =
                "gives names that no ingress may have: of the cluster's own domain, or below svc, localhost or arpa";
            report.forbidden(path, text.as_str(), detail);
            continue;
        }
        let clash = view
            .snapshot
            .list(Kind::Tailnet)
            .filter(|other| !other.same_as(object) && !other.deleting)
            .flat_map(|other| {
                templates_of(other)
                    .into_iter()
                    .map(move |(field, text)| (other, field, text))
            })
            .find(|(other, _, text)| pattern(text, &other.name).is_some_and(|theirs| can_meet(&own, &theirs)));
        if let Some((other, field, _)) = clash {
            let detail =
                format!("can give a name that dns.{field} of {other} gives too: use another zone, or {{tailnet}}");
            report.duplicate(path, text.as_str(), detail).warn();
        }
    }
}

/// The templates of a Tailnet with their fields.
fn templates_of(object: &Object) -> Vec<(&'static str, &Text<NameTemplate>)> {
    let Some(dns) = object.tailnet().and_then(|spec| spec.dns.as_ref()) else {
        return Vec::new();
    };
    [
        ("ingressNameTemplate", dns.ingress_name_template.as_ref()),
        ("ingressAliasTemplate", dns.ingress_alias_template.as_ref()),
    ]
    .into_iter()
    .filter_map(|(field, text)| Some((field, text?)))
    .collect()
}

/// The labels of a template, `*` for what may be any text; a placeholder never holds a dot.
fn pattern(text: &Text<NameTemplate>, tailnet: &str) -> Option<Vec<String>> {
    let template = read(text)?.to_string();
    let filled = template
        .replace("{tailnet}", tailnet)
        .replace("{name}", "*")
        .replace("{namespace}", "*");
    Some(filled.split('.').map(str::to_owned).collect())
}

/// Whether some name fits both patterns.
fn can_meet(a: &[String], b: &[String]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| labels_can_meet(a, b))
}

/// What stands before the first and behind the last `*` of both must agree.
fn labels_can_meet(a: &str, b: &str) -> bool {
    fn agree(a: &str, b: &str, starts: fn(&str, &str) -> bool) -> bool {
        starts(a, b) || starts(b, a)
    }
    match (a.split_once('*'), b.split_once('*')) {
        (None, None) => a == b,
        (Some((head, _)), None) => b.starts_with(head) && b.ends_with(a.rsplit('*').next().unwrap_or_default()),
        (None, Some(_)) => labels_can_meet(b, a),
        (Some((head_a, _)), Some((head_b, _))) => {
            let tail = |label: &str| label.rsplit('*').next().unwrap_or_default().to_owned();
            agree(head_a, head_b, |x, y| x.starts_with(y)) && agree(&tail(a), &tail(b), |x, y| x.ends_with(y))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_meet_where_a_name_fits_both() {
        let meet = |a: &str, b: &str| {
            let pattern = |text: &str, tailnet| pattern(&Text::new(text), tailnet).unwrap();
            can_meet(&pattern(a, "a"), &pattern(b, "b"))
        };
        assert!(meet("{name}.x.net", "{name}.x.net"));
        assert!(meet("{name}.{namespace}.x.net", "{name}.team.x.net"));
        assert!(meet("{name}-{namespace}.x.net", "{name}.x.net"));
        assert!(!meet("{name}.{tailnet}.x.net", "{name}.{tailnet}.x.net"));
        assert!(!meet("{name}.x.net", "{name}.{namespace}.x.net"));
        assert!(!meet("{name}-a.x.net", "{name}-b.x.net"));
        assert!(!meet("a-{name}.x.net", "b-{name}.x.net"));
        assert!(!meet("{name}.x.net", "{name}.y.net"));
    }
}
