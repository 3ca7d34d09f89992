//! ConfigMaps and Secrets of the operator namespace that two objects name: what one of them writes, the other loses.

use tailnet_crds::names::{egress, tailnet as names};
use tailnet_crds::{Kind, TailnetSpec};

use crate::finding::Class;
use crate::index::IndexKey;
use crate::object::Object;
use crate::report::Report;
use crate::view::View;

/// Whether the operator keeps a ConfigMap of that name for itself.
fn is_own_config_map(name: &str) -> bool {
    let of_egress = name
        .strip_prefix("tailnet-egress-")
        .and_then(|rest| rest.strip_suffix("-config"))
        .is_some_and(|egress_name| egress::config_map(egress_name) == name);
    name == names::TRUSTED_CA
        || name.starts_with("tailnet-facts-")
        || names::claims_part_of(name).is_some()
        || of_egress
}

/// Whether the operator keeps a Secret of that name for itself.
fn is_own_secret(name: &str, view: &View<'_>) -> bool {
    let of_egress = name
        .strip_prefix("tailnet-egress-")
        .and_then(|rest| rest.strip_suffix("-authkey"))
        .is_some_and(|egress_name| egress::auth_key_secret(egress_name) == name);
    let of_tailnet = name
        .strip_prefix("tailnet-")
        .and_then(|rest| rest.strip_suffix("-apikey"))
        .is_some_and(|tailnet| view.snapshot.get(Kind::Tailnet, None, tailnet).is_some());
    name == names::KEY_LEDGER || of_egress || of_tailnet
}

/// What a Tailnet names: the hosts ConfigMap, which the operator writes, and what is only read.
pub(crate) fn of_tailnet(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    let old = view.old().and_then(Object::tailnet);
    let hosts = hosts_of(spec);
    let read = read_by(spec);
    if let Some(hosts) = hosts {
        let path = "spec.dns.hostsConfigMap";
        let had = old.and_then(hosts_of) == Some(hosts);
        let rival = |key: fn(String) -> IndexKey| {
            view.others(&key(hosts.to_owned()))
                .find(|other| view.comes_after(had, other))
        };
        if is_own_config_map(hosts) {
            report.forbidden(path, hosts, "is a ConfigMap of the operator's own: use another name");
        } else if let Some((field, _)) = read.iter().find(|(_, name)| *name == hosts) {
            let detail = format!("is {field} too, which the hosts file would overwrite: use another name");
            report.duplicate(path, hosts, detail);
        } else if let Some(other) = rival(IndexKey::HostsConfigMap) {
            let detail =
                format!("is the hosts ConfigMap of {other}: both would overwrite each other; use another name");
            report.duplicate(path, hosts, detail).held_by(other.reference());
        } else if let Some(other) = rival(IndexKey::ReadConfigMap) {
            let detail = format!(
                "is the base document or CA bundle of {other}, which the hosts file would overwrite: use another name"
            );
            report.duplicate(path, hosts, detail).held_by(other.reference());
        }
    }
    for (field, name) in read {
        let had = old.is_some_and(|old| read_by(old).contains(&(field, name)));
        let rival = view
            .others(&IndexKey::HostsConfigMap(name.to_owned()))
            .find(|other| view.comes_after(had, other));
        if let Some(other) = rival {
            let detail = format!("is the hosts ConfigMap of {other}, which the operator overwrites: use another name");
            report.duplicate(field, name, detail).held_by(other.reference());
        }
    }
    api_secret(spec, old, view, report);
}

fn api_secret(spec: &TailnetSpec, old: Option<&TailnetSpec>, view: &View<'_>, report: &mut Report<'_>) {
    let path = "spec.apiSecretRef.name";
    let secret = &spec.api_secret_ref;
    if is_own_secret(&secret.name, view) {
        let detail = "is a Secret of the operator's own: name the one with the bootstrap key that you made";
        report.forbidden(path, &secret.name, detail);
        return;
    }
    let had = old.is_some_and(|old| old.api_secret_ref.name == secret.name);
    let gateway = view
        .others(&IndexKey::StateSecret(secret.name.clone()))
        .find(|other| view.comes_after(had, other));
    if let Some(gateway) = gateway {
        let detail = format!("is the state Secret of {gateway}, which its node overwrites: use another name");
        report
            .add(Class::Duplicate, path, &secret.name, detail)
            .held_by(gateway.reference());
        return;
    }
    let same_key = |other: &Object| {
        other
            .tailnet()
            .is_some_and(|other| other.api_secret_ref.key() == secret.key())
    };
    let other = view
        .others(&IndexKey::ApiSecret(secret.name.clone()))
        .find(|other| same_key(other) && view.comes_after(had, other));
    if let Some(other) = other {
        let detail = format!(
            "holds the key of {other} too: a key is one server's, so one of the two will refuse it and has then seen it"
        );
        report.duplicate(path, &secret.name, detail).warn();
    }
}

/// The state Secret of a gateway, which its node writes.
pub(crate) fn of_gateway(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let path = "spec.stateSecretRef.name";
    let name = &spec.state_secret_ref.name;
    let old = view.old().and_then(Object::gateway);
    let had = old.is_some_and(|old| old.state_secret_ref == spec.state_secret_ref);
    let rival = |key: fn(String) -> IndexKey| {
        view.others(&key(name.clone()))
            .find(|other| view.comes_after(had, other))
    };
    if is_own_secret(name, view) {
        report.forbidden(path, name, "is a Secret of the operator's own: use another name");
    } else if spec.auth_key_secret_ref.as_ref() == Some(&spec.state_secret_ref) {
        report.duplicate(
            path,
            name,
            "is authKeySecretRef too, which the node's state would overwrite: use another name",
        );
    } else if let Some(other) = rival(IndexKey::StateSecret) {
        let detail = format!(
            "is the state Secret of {other}: two nodes with one identity throw each other out; use another name"
        );
        view.held(report, path, name, &other, detail);
    } else if let Some(other) = rival(IndexKey::ApiSecret) {
        let detail = format!(
            "is the Secret with the API key of {other}, which the node's state would overwrite: use another name"
        );
        report.duplicate(path, name, detail).held_by(other.reference());
    }
}

fn hosts_of(spec: &TailnetSpec) -> Option<&str> {
    spec.dns.as_ref()?.hosts_config_map.as_deref()
}

/// Fields with ConfigMaps that are only read.
fn read_by(spec: &TailnetSpec) -> Vec<(&'static str, &str)> {
    let base = spec
        .policy
        .as_ref()
        .map(|policy| ("spec.policy.baseConfigMap", policy.base_config_map.as_str()));
    let bundle = spec
        .ca_config_map_ref()
        .map(|bundle| ("spec.api.caConfigMapRef.name", bundle.name.as_str()));
    base.into_iter().chain(bundle).collect()
}
