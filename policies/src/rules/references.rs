//! Names of other objects: what no object can be called is a mistake, whoever comes later.

use tailnet_crds::Kind;
use tailnet_crds::types::{ConfigMapKeyRef, IssuerRef};

use crate::finding::Severity;
use crate::object::{Object, Spec};
use crate::report::Report;
use crate::rules::agent_pods::{is_label_value, is_qualified_name};
use crate::table::{ALL, CWGV, Check, Operations, Rule};

/// References can be followed.
pub static TN017: Rule = Rule {
    id: "TN017",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.tailnetRef, spec.exposes[*].backend, spec.tls, spec.apiSecretRef, spec.stateSecretRef and other references",
    message: "a reference is a name, key or label that Kubernetes can have",
    why: "An object that is not there yet is only said, since objects may arrive in any order. A name that no object can have never arrives: \
          the reference would wait for ever, or what is made from it would be refused later, where nobody looks.",
    example: "kind: TailnetIngress\nspec:\n  exposes:\n    - name: web\n      port: 443\n      backend: { service: Web_App, port: 8080 }",
    fix: "Write the name as `kubectl get` shows it: lower-case letters, digits and dashes, with dots where the kind allows them.",
    check: Check::Object(references),
};

/// What a text must be.
#[derive(Clone, Copy)]
enum Form {
    /// Name of most objects: a DNS name in lower case, of labels of any length.
    Object,
    /// Name of a namespace: a DNS label.
    Namespace,
    /// Name of a Service.
    Service,
    /// Key in the data of a ConfigMap or Secret.
    Key,
    /// Kind of an object.
    Kind,
    /// `[prefix/]name`.
    Qualified,
}

impl Form {
    fn fits(self, text: &str) -> bool {
        let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let label = |label: &str| {
            let bytes = label.as_bytes();
            let edges = [bytes.first(), bytes.last()];
            edges.into_iter().all(|edge| edge.is_some_and(|byte| lower(*byte)))
                && bytes.iter().all(|byte| lower(*byte) || *byte == b'-')
        };
        match self {
            Self::Object => text.len() <= 253 && text.split('.').all(label),
            Self::Namespace => text.len() <= 63 && label(text),
            Self::Service => {
                text.len() <= 63 && label(text) && text.starts_with(|first: char| first.is_ascii_lowercase())
            }
            Self::Key => {
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
                !text.is_empty()
                    && text.len() <= 253
                    && text.bytes().all(fits)
                    && text != "."
                    && !text.starts_with("..")
            }
            Self::Kind => {
                !text.is_empty()
                    && text.len() <= 63
                    && text.starts_with(|first: char| first.is_ascii_uppercase())
                    && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
            }
            Self::Qualified => is_qualified_name(text),
        }
    }
}

/// Whether an object can be called so.
pub(crate) fn is_object_name(name: &str) -> bool {
    Form::Object.fits(name)
}

/// Writes findings for the references of one object.
struct Checked<'o, 'c, 'r> {
    object: &'o Object,
    report: &'c mut Report<'r>,
}

impl Checked<'_, '_, '_> {
    /// A text at `path`; the words are the schema's.
    fn text(&mut self, path: &str, text: &str, form: Form) {
        if !form.fits(text) {
            let said = self.said(path);
            self.report.invalid(path, text, said);
        }
    }

    fn said(&self, path: &str) -> &'static str {
        let place: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.report.said(self.object.kind, &place, 0)
    }

    fn key(&mut self, path: &str, key: Option<&String>) {
        if let Some(key) = key {
            self.text(path, key, Form::Key);
        }
    }

    fn ca_bundle(&mut self, path: &str, bundle: &ConfigMapKeyRef) {
        // No name at all is the place's own error (TN308), and the schema's.
        if !bundle.name.is_empty() {
            self.text(&format!("{path}.name"), &bundle.name, Form::Object);
        }
        self.key(&format!("{path}.key"), bundle.key.as_ref());
    }

    fn issuer(&mut self, path: &str, issuer: &IssuerRef) {
        self.text(&format!("{path}.name"), &issuer.name, Form::Object);
        if let Some(kind) = &issuer.kind {
            self.text(&format!("{path}.kind"), kind, Form::Kind);
            if Form::Kind.fits(kind)
                && issuer.group() == "cert-manager.io"
                && !["Issuer", "ClusterIssuer"].contains(&kind.as_str())
            {
                let detail =
                    "is no kind of cert-manager: write Issuer or ClusterIssuer, or the group of another issuer";
                self.report.invalid(format!("{path}.kind"), kind, detail);
            }
        }
        if let Some(group) = &issuer.group {
            self.text(&format!("{path}.group"), group, Form::Object);
        }
    }
}

fn references(object: &Object, report: &mut Report<'_>) {
    let mut check = Checked { object, report };
    if object.kind != Kind::Tailnet
        && let Some(tailnet) = object.tailnet_name()
    {
        check.text("spec.tailnetRef.name", tailnet, Form::Object);
    }
    match &object.spec {
        Ok(Spec::Tailnet(_)) => of_tailnet(object, &mut check),
        Ok(Spec::Ingress(_)) => of_ingress(object, &mut check),
        Ok(Spec::Gateway(_)) => of_gateway(object, &mut check),
        Ok(Spec::Egress(_) | Spec::Site(_)) | Err(_) => {}
    }
}

fn of_tailnet(object: &Object, check: &mut Checked<'_, '_, '_>) {
    let Some(spec) = object.tailnet() else { return };
    check.text("spec.apiSecretRef.name", &spec.api_secret_ref.name, Form::Object);
    check.key("spec.apiSecretRef.key", spec.api_secret_ref.key.as_ref());
    if let Some(bundle) = spec.ca_config_map_ref() {
        check.ca_bundle("spec.api.caConfigMapRef", bundle);
    }
    if let Some(dns) = &spec.dns {
        if let Some(hosts) = &dns.hosts_config_map {
            check.text("spec.dns.hostsConfigMap", hosts, Form::Object);
        }
        for (at, namespace) in dns.alias_namespaces.iter().flatten().enumerate() {
            check.text(&format!("spec.dns.aliasNamespaces[{at}]"), namespace, Form::Namespace);
        }
    }
    if let Some(policy) = &spec.policy {
        check.text("spec.policy.baseConfigMap", &policy.base_config_map, Form::Object);
    }
    for (at, grant) in spec.tag_grants.iter().enumerate() {
        for (of, namespace) in grant.namespaces.iter().enumerate() {
            check.text(
                &format!("spec.tagGrants[{at}].namespaces[{of}]"),
                namespace,
                Form::Namespace,
            );
        }
    }
    if let Some(tls) = spec.defaults.as_ref().and_then(|defaults| defaults.tls.as_ref()) {
        if let Some(issuer) = &tls.issuer_ref {
            check.issuer("spec.defaults.tls.issuerRef", issuer);
        }
        for (at, issuer) in tls.allowed_issuers.iter().enumerate() {
            check.issuer(&format!("spec.defaults.tls.allowedIssuers[{at}]"), issuer);
        }
    }
}

fn of_ingress(object: &Object, check: &mut Checked<'_, '_, '_>) {
    let Some(spec) = object.ingress() else { return };
    for (at, expose) in spec.exposes.iter().enumerate() {
        let path = format!("spec.exposes[{at}].backend");
        let backend = &expose.backend;
        check.text(&format!("{path}.service"), &backend.service, Form::Service);
        if let Some(namespace) = &backend.namespace {
            check.text(&format!("{path}.namespace"), namespace, Form::Namespace);
        }
        if let Some(tls) = &backend.tls {
            check.ca_bundle(&format!("{path}.tls.caConfigMapRef"), &tls.ca_config_map_ref);
        }
    }
    if let Some(tls) = &spec.tls {
        if let Some(secret) = &tls.secret_ref {
            check.text("spec.tls.secretRef.name", &secret.name, Form::Object);
        }
        if let Some(issuer) = &tls.issuer_ref {
            check.issuer("spec.tls.issuerRef", issuer);
        }
    }
}

fn of_gateway(object: &Object, check: &mut Checked<'_, '_, '_>) {
    let Some(spec) = object.gateway() else { return };
    check.text("spec.stateSecretRef.name", &spec.state_secret_ref.name, Form::Object);
    if let Some(secret) = &spec.auth_key_secret_ref {
        check.text("spec.authKeySecretRef.name", &secret.name, Form::Object);
    }
    if let Some(class) = &spec.service.load_balancer_class {
        check.text("spec.service.loadBalancerClass", class, Form::Qualified);
    }
    for (key, value) in &spec.service.pool_labels {
        let path = "spec.service.poolLabels";
        if !is_qualified_name(key) {
            let said = check.said(path);
            check.report.invalid(path, key, said);
        } else if !is_label_value(value) {
            let said = check.said(path);
            check.report.invalid(path, value, said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_those_of_kubernetes() {
        let long = "a".repeat(64);
        for (form, good, bad) in [
            (
                Form::Object,
                &["a", "1.b-c", &long, "a.example"][..],
                &["", "A", "a..b", "-a", "a.", "a_b", "a b"][..],
            ),
            (Form::Namespace, &["a", "1"], &["a.b", "", &long, "a-", "Team-A"]),
            (Form::Service, &["a", "a-1"], &["1a", "a.b", "", &long]),
            (
                Form::Key,
                &["ca.crt", "A_b-c", ".dot"],
                &["", "..", ".", "..a", "a/b", "a b"],
            ),
            (
                Form::Kind,
                &["Issuer", "ClusterIssuer"],
                &["issuer", "", "Cluster-Issuer"],
            ),
            (Form::Qualified, &["io.cilium/l2", "class"], &["a/b/c", "/a", ""]),
        ] {
            for text in good {
                assert!(form.fits(text), "{text:?}");
            }
            for text in bad {
                assert!(!form.fits(text), "{text:?}");
            }
        }
    }
}
