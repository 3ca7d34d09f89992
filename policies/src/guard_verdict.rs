//! What the guard's findings on a stored object mean for what it has: the one answer for whoever acts on it (the operator's
//! guard, the record of claims, the access policy).

use crate::evaluate::{organisation_denials, verdict_of};
use crate::finding::{Finding, Outcome};
use crate::object::Object;
use crate::snapshot::Snapshot;
use crate::table;

/// What the verdict means for what already runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing stands against it.
    Valid,
    /// Something that an existing object may survive: what runs keeps running and nothing is changed.
    Freeze(Vec<Finding>),
    /// A security rule: it has no effect, not even what ran before.
    Withdraw(Vec<Finding>),
}

impl Verdict {
    /// The verdict of the guard's answer.
    pub fn of(outcome: &Outcome) -> Self {
        Self::of_denials(outcome.denials().cloned().collect())
    }

    fn of_denials(denials: Vec<Finding>) -> Self {
        if denials.is_empty() {
            return Self::Valid;
        }
        // A held name or Service freezes: what the object runs with it holds itself. A security rule leaves it nothing.
        let withdraws = |finding: &Finding| table::rule(finding.rule).is_some_and(|rule| rule.security);
        match denials.iter().any(withdraws) {
            true => Self::Withdraw(denials),
            false => Self::Freeze(denials),
        }
    }
}

/// The verdict on an object of the snapshot: that of the guard, of the denials for which `counts` holds.
///
/// The organisation's policies take a while and can at most freeze, so they are asked last, and only if it makes a difference
/// whether the object is frozen, which `matters` says.
pub(crate) fn guard_verdict(
    object: &Object,
    snapshot: &Snapshot,
    counts: impl Fn(&Finding) -> bool,
    matters: impl FnOnce() -> bool,
) -> Verdict {
    let of_rules: Vec<Finding> = verdict_of(object, snapshot).into_iter().filter(&counts).collect();
    if !of_rules.is_empty() || snapshot.policies().is_empty() || !matters() {
        return Verdict::of_denials(of_rules);
    }
    let of_organisation = organisation_denials(object, snapshot).into_iter().filter(counts);
    Verdict::of_denials(of_organisation.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tailnet_crds::Kind;

    use super::*;
    use crate::{Config, Request, evaluate, organisation};

    fn site(change: impl FnOnce(&mut Value)) -> Value {
        let mut site = json!({
            "metadata": { "name": "lab", "uid": "lab" },
            "spec": { "tailnetRef": { "name": "demo" }, "prefixes": ["10.20.0.0/16"], "owner": "network" },
        });
        change(&mut site);
        site
    }

    #[test]
    fn it_is_the_guards_own_answer_whatever_speaks() {
        let mut snapshot = Snapshot::closed(Config::default());
        snapshot.upsert(
            Kind::Tailnet,
            json!({ "metadata": { "name": "demo" }, "spec": {
                "server": "https://control.example.net", "apiSecretRef": { "name": "a" }, "reservedNetworks": ["10.66.0.0/16"],
            } }),
        );
        let policy = "matchConstraints:\n  resourceRules:\n    - resources: [tailnetsites]\n\
                      validations:\n  - expression: object.spec.?owner.orValue('') == 'network'\n";
        let data = BTreeMap::from([("policy.yaml".to_owned(), policy.to_owned())]);
        snapshot.set_policy("owners", Some(Arc::new(organisation::standing("owners", &data))));
        let owner = |name: &'static str| move |site: &mut Value| site["spec"]["owner"] = json!(name);
        let reserved = |site: &mut Value| site["spec"]["prefixes"] = json!(["10.66.1.0/24"]);
        type Change<'a> = Box<dyn FnOnce(&mut Value) + 'a>;
        let cases: [(Change<'_>, &str); 6] = [
            (Box::new(|_| {}), "valid"),
            (Box::new(owner("somebody")), "freeze"),
            (
                Box::new(|site| site["spec"]["prefixes"] = json!(["10.20.0.0/16", "10.20.1.0/24"])),
                "freeze",
            ),
            (Box::new(reserved), "withdraw"),
            // Both: a security rule counts more.
            (
                Box::new(|site| {
                    reserved(site);
                    owner("somebody")(site);
                }),
                "withdraw",
            ),
            // What asks to be let past the rules is not let past a policy.
            (
                Box::new(|site| {
                    owner("somebody")(site);
                    site["metadata"]["annotations"] = json!({ "tsunaro.io/validation": "disabled" });
                }),
                "freeze",
            ),
        ];
        for (change, wanted) in cases {
            let value = site(change);
            let object = Object::parse(Kind::TailnetSite, &value);
            let outcome = evaluate(&Request::guard(Kind::TailnetSite, value), &snapshot);
            let class = |verdict: &Verdict| match verdict {
                Verdict::Valid => "valid",
                Verdict::Freeze(_) => "freeze",
                Verdict::Withdraw(_) => "withdraw",
            };
            assert_eq!(class(&Verdict::of(&outcome)), wanted, "{outcome:?}");
            assert_eq!(
                class(&guard_verdict(&object, &snapshot, |_| true, || true)),
                wanted,
                "{object:?}"
            );
        }
        let refused = Object::parse(Kind::TailnetSite, &site(owner("somebody")));
        let unasked = guard_verdict(&refused, &snapshot, |_| true, || false);
        assert_eq!(
            unasked,
            Verdict::Valid,
            "the policies were asked although it does not matter"
        );
    }
}
