//! What of a gateway never changes, and what it cannot do.

use std::net::IpAddr;

use serde_json::{Value, json};
use tailnet_crds::{Kind, TailnetGatewaySpec};

use crate::finding::Severity;
use crate::index::read;
use crate::object::Object;
use crate::report::{Report, Shown};
use crate::table::{CW, CWV, Check, Operations, Rule};

const GATEWAY: &[Kind] = &[Kind::TailnetGateway];

/// Identity is fixed after activation.
pub static TN505: Rule = Rule {
    id: "TN505",
    kinds: GATEWAY,
    operations: Operations::UPDATE,
    layers: CW,
    severity: Severity::Deny,
    security: false,
    field: "spec.hostname, spec.tags, spec.stateSecretRef, spec.service, spec.dns, spec.adoption",
    message: "the identity of an active gateway never changes",
    why: "An active gateway is one node with one state Secret, one address and one zone, which receipts pin. A change of any of them would need \
          another node. Drafts (never active) may change freely. Resources, tolerations and sysctls are pinned too: a change is let in with a \
          warning and blocks the gateway (`FreshBlocked`) until it is taken back.",
    example: "kind: TailnetGateway\nspec:\n  suspend: false\n  hostname: prod-2-gw   # was prod-1-gw",
    fix: "Take the change back, or delete the gateway with `deletionPolicy: Delete` and create it anew.",
    check: Check::Transition(identity_is_fixed),
};

/// What is declared and not built.
pub static TN506: Rule = Rule {
    id: "TN506",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.forwards, spec.forwardImage, spec.authKeySecretRef, spec.adoption, spec.replicas, IPv6 addresses",
    message: "an active gateway uses only what is built",
    why: "TCP forwards, an external key, adoption, IPv6 and more than one replica are in the schema so that manifests need not change later. An \
          active gateway with them would be blocked by the operator; while it is suspended they are only warned about.",
    example: "kind: TailnetGateway\nspec:\n  suspend: false\n  replicas: 2",
    fix: "Leave it out, or keep `suspend: true`.",
    check: Check::Object(only_what_is_built),
};

fn identity_is_fixed(old: &Object, new: &Object, report: &mut Report<'_>) {
    let (Some(before), Some(after)) = (old.gateway(), new.gateway()) else {
        return;
    };
    if !old.activated {
        return;
    }
    let said = report.said(new.kind, "", 0);
    for ((field, before), (_, after)) in identity(before).into_iter().zip(identity(after)) {
        if before != after {
            report.forbidden(format!("spec.{field}"), &after, said);
        }
    }
    for ((field, before), (_, after)) in pinned(before).into_iter().zip(pinned(after)) {
        if before != after {
            let detail = "is fixed once the gateway is active: this blocks it (FreshBlocked) until it is taken back";
            report.forbidden(format!("spec.{field}"), Shown::NOTHING, detail).warn();
        }
    }
}

/// The fields that receipts pin, absent ones as null: adding and removing are changes too.
fn identity(spec: &TailnetGatewaySpec) -> Vec<(&'static str, Value)> {
    vec![
        ("hostname", json!(spec.hostname)),
        ("tags", json!(spec.tags)),
        ("stateSecretRef", json!(spec.state_secret_ref)),
        ("service.loadBalancerIP", json!(spec.service.load_balancer_ip)),
        ("service.loadBalancerClass", json!(spec.service.load_balancer_class)),
        ("dns.zone", json!(spec.dns.zone)),
        ("dns.serviceName", json!(spec.dns.service_name)),
        ("dns.serviceClusterIP", json!(spec.dns.service_cluster_ip)),
        ("dns.extraZones", json!(spec.dns.extra_zones)),
        ("adoption", json!(spec.adoption)),
    ]
}

fn pinned(spec: &TailnetGatewaySpec) -> Vec<(&'static str, Value)> {
    vec![
        ("resources", json!(spec.resources)),
        ("tolerations", json!(spec.tolerations)),
        ("sysctls", json!(spec.sysctls)),
    ]
}

fn only_what_is_built(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let said = report.said(object.kind, "spec", 0);
    let mut unsupported = |field: &str, value: Shown, detail: &str| {
        let draft = report.forbidden(format!("spec.{field}"), value, detail);
        if spec.suspend {
            draft.warn();
        }
    };
    let fields = [
        ("authKeySecretRef", spec.auth_key_secret_ref.is_some()),
        ("forwards", !spec.forwards.is_empty()),
        ("forwardImage", spec.forward_image.is_some()),
        ("adoption", spec.adoption.is_some()),
    ];
    for (field, used) in fields {
        if used {
            unsupported(field, Shown::NOTHING, said);
        }
    }
    if spec.replicas != 1 {
        let detail = "is not supported: a gateway is one node, so write 1, or keep suspend: true";
        unsupported("replicas", Shown::from(i64::from(spec.replicas)), detail);
    }
    // The words of the schema's row for addresses.
    let ipv6 = tailnet_crds::cel::rules()
        .find(|row| row.id == TN506.id && row.field_path == Some(".service.loadBalancerIP"))
        .map_or(TN506.message, |row| row.message);
    let addresses = [
        ("service.loadBalancerIP", &spec.service.load_balancer_ip),
        ("dns.serviceClusterIP", &spec.dns.service_cluster_ip),
    ];
    for (field, text) in addresses {
        if read(text).is_some_and(|address| matches!(address.addr(), IpAddr::V6(_))) {
            unsupported(field, Shown::from(text.as_str()), ipv6);
        }
    }
}
