//! Exposes of an ingress: ports, backends, certificates and time limits.

use std::collections::BTreeMap;
use std::time::Duration;

use tailnet_crds::types::{FormatError, GoDuration, Text};
use tailnet_crds::{ExposeMode, Kind};

use crate::finding::Severity;
use crate::index::{canonical, read};
use crate::object::Object;
use crate::report::{Report, Shown, cut, quoted};
use crate::table::{CWGV, CWV, Check, Operations, Rule, WGV};
use crate::view::View;

const INGRESS: &[Kind] = &[Kind::TailnetIngress];
/// Longest time limit.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Exposes can be told apart.
pub static TN303: Rule = Rule {
    id: "TN303",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.exposes[*]",
    message: "exposes can be told apart: a tcp expose has a port of its own, http exposes on one port have different names",
    why: "A tcp expose has nothing but its port; http exposes are told apart by the name that the client asks for.",
    example: "kind: TailnetIngress\nspec:\n  exposes:\n    - { name: a, port: 5432, backend: { service: a, port: 5432 } }\n    - { name: b, port: 5432, backend: { service: b, port: 5432 } }",
    fix: "Give a tcp expose another port, an http expose another `dnsLabel`.",
    check: Check::Object(distinct_exposes),
};

/// Tenants expose their own Services.
pub static TN306: Rule = Rule {
    id: "TN306",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.exposes[*].backend.namespace",
    message: "only an ingress in the operator namespace has backends in other namespaces",
    why: "Whoever may write a TailnetIngress in one namespace would otherwise publish the Services of every other one, past their \
          NetworkPolicies and their owners.",
    example: "kind: TailnetIngress\nmetadata: { name: portal, namespace: team-a }\nspec:\n  exposes:\n    - name: db\n      port: 5432\n      backend: { service: postgres, namespace: team-b, port: 5432 }",
    fix: "Put the TailnetIngress beside the Service, or have an administrator put it into the operator namespace.",
    check: Check::Cross(own_backends),
};

/// Backend TLS is verified.
pub static TN308: Rule = Rule {
    id: "TN308",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.exposes[*].backend.tls",
    message: "backend.tls is for http exposes and names a DNS name to verify and a CA bundle",
    why: "The agent speaks TLS to the backend only for http exposes; a tcp expose carries the client's own TLS. The certificate is checked \
          against serverName and the CA bundle, and there is no way to skip that.",
    example: "kind: TailnetIngress\nspec:\n  exposes:\n    - name: db\n      port: 5432\n      backend:\n        service: db\n        port: 5432\n        tls: { serverName: db.team-a.svc, caConfigMapRef: { name: ca } }   # on a tcp expose",
    fix: "Set `mode: http`, or leave TLS to the client and `backend.tls` out.",
    check: Check::Object(backend_tls),
};

/// Http exposes have a certificate.
pub static TN309: Rule = Rule {
    id: "TN309",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.tls",
    message: "an http expose has one source of its certificate: secretRef, issuerRef, or the Tailnet's default issuer",
    why: "Headscale has no certificates, and there is no fallback to plaintext: without a source the listener would never open.",
    example: "kind: TailnetIngress\nspec:\n  exposes: [{ name: web, mode: http, port: 443, backend: { service: web, port: 80 } }]\n  tls: { secretRef: { name: cert }, issuerRef: { name: apps-ca } }",
    fix: "Name a TLS Secret or an issuer, or have the administrator set `defaults.tls.issuerRef` of the Tailnet.",
    check: Check::Cross(certificate_source),
};

/// Time limits.
pub static TN312: Rule = Rule {
    id: "TN312",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.exposes[*].timeouts",
    message: "time limits are of http exposes, durations of at most 24h, and backendRequest is not longer than request",
    why: "A tcp expose knows no requests, so a limit there would have no effect. Durations are written as in the Gateway API. A request that ends before its backend may answer would always end with an error of ours.",
    example: "kind: TailnetIngress\nspec:\n  exposes:\n    - name: web\n      mode: http\n      timeouts: { request: 10s, backendRequest: 60s }",
    fix: "Write `600s`, `1h30m` or `500ms`; make `request` at least as long as `backendRequest`.",
    check: Check::Object(timeouts),
};

fn distinct_exposes(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (at, expose) in spec.exposes.iter().enumerate() {
        if let Some(first) = names.get(&canonical(&expose.name)) {
            let detail = format!("is the name of spec.exposes[{first}] too");
            report.duplicate(format!("spec.exposes[{at}].name"), expose.name.as_str(), detail);
        } else {
            names.insert(canonical(&expose.name), at);
        }
        // Each pair is reported at the later of the two.
        for (of, earlier) in spec.exposes[..at]
            .iter()
            .enumerate()
            .filter(|(_, earlier)| earlier.port == expose.port)
        {
            if expose.mode() == ExposeMode::Tcp || earlier.mode() == ExposeMode::Tcp {
                let said = report.said(object.kind, "spec.exposes", 0);
                let detail = format!("{said} (spec.exposes[{of}] has it too)");
                report.duplicate(format!("spec.exposes[{at}].port"), i64::from(expose.port), detail);
                break;
            }
            let label = |expose| spec.dns_label(&object.name, expose).to_ascii_lowercase();
            if label(earlier) == label(expose) {
                let said = report.said(object.kind, "spec.exposes", 1);
                let detail = format!("{said} (spec.exposes[{of}] has it too)");
                report.duplicate(format!("spec.exposes[{at}].dnsLabel"), label(expose).as_str(), detail);
                break;
            }
        }
    }
}

fn own_backends(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    if view.in_operator_namespace() {
        return;
    }
    let own = object.namespace.as_deref().unwrap_or_default();
    for (at, expose) in spec.exposes.iter().enumerate() {
        if let Some(namespace) = expose
            .backend
            .namespace
            .as_deref()
            .filter(|namespace| *namespace != own)
        {
            let detail = format!(
                "is another namespace than {}: only an ingress in the operator namespace {:?} has backends elsewhere",
                quoted(own),
                view.snapshot.config().operator_namespace
            );
            report.forbidden(format!("spec.exposes[{at}].backend.namespace"), namespace, detail);
        }
    }
}

fn backend_tls(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    for (at, expose) in spec.exposes.iter().enumerate() {
        let Some(tls) = &expose.backend.tls else { continue };
        let path = format!("spec.exposes[{at}].backend.tls");
        if expose.mode() == ExposeMode::Tcp {
            let said = report.said(object.kind, "spec.exposes[]", 0);
            report.add(crate::finding::Class::Forbidden, &path, Shown::NOTHING, said);
        }
        // Another spelling is TN010's.
        if let Err(FormatError::Unreadable(problem)) = tls.server_name.parse() {
            let said = report.said(object.kind, "spec.exposes[].backend.tls.serverName", 0);
            let detail = format!("{said}: it {}", cut(&problem, 80));
            report.invalid(format!("{path}.serverName"), tls.server_name.as_str(), detail);
        }
        if tls.ca_config_map_ref.name.is_empty() {
            let detail = "name the ConfigMap with the CA bundle: a backend is verified or not spoken to";
            report.required(format!("{path}.caConfigMapRef.name"), detail);
        }
    }
}

fn certificate_source(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    let tls = spec.tls.as_ref();
    let secret = tls.and_then(|tls| tls.secret_ref.as_ref());
    let issuer = tls.and_then(|tls| tls.issuer_ref.as_ref());
    if secret.is_some() && issuer.is_some() {
        let said = report.said(object.kind, "spec.tls", 0);
        report.forbidden("spec.tls", Shown::NOTHING, said);
    }
    let http = spec.exposes.iter().position(|expose| expose.mode() == ExposeMode::Http);
    if http.is_none() && tls.is_some() {
        let detail = "has no effect: no expose is http, and a tcp expose carries the client's own TLS";
        report.forbidden("spec.tls", Shown::NOTHING, detail).warn();
    }
    let Some(http) = http.filter(|_| secret.is_none() && issuer.is_none()) else {
        return;
    };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    if tailnet.default_issuer().is_none() {
        let detail = format!(
            "spec.exposes[{http}] is http and needs a certificate, and Tailnet {} has no default issuer: set secretRef or issuerRef",
            quoted(name)
        );
        report.required("spec.tls", detail);
    }
}

fn timeouts(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    for (at, expose) in spec.exposes.iter().enumerate() {
        let Some(timeouts) = &expose.timeouts else { continue };
        if expose.mode() == ExposeMode::Tcp {
            let said = report.said(object.kind, "spec.exposes[]", 0);
            let path = format!("spec.exposes[{at}].timeouts");
            report.add(crate::finding::Class::Forbidden, path, Shown::NOTHING, said);
        }
        let mut limit = |text: Option<&Text<GoDuration>>, field: &str| -> Option<Duration> {
            let text = text?;
            let path = format!("spec.exposes[{at}].timeouts.{field}");
            let place = format!("spec.exposes[].timeouts.{field}");
            if let Err(FormatError::Unreadable(_)) = text.parse() {
                let said = report.said(Kind::TailnetIngress, &place, 0);
                report.invalid(path, text.as_str(), said);
                return None;
            }
            let value = read(text)?.get();
            if value > MAX_TIMEOUT {
                let said = report.said(Kind::TailnetIngress, &place, 1);
                report.invalid(path, text.as_str(), said);
            }
            Some(value)
        };
        let request = limit(timeouts.request.as_ref(), "request");
        let backend = limit(timeouts.backend_request.as_ref(), "backendRequest");
        if let (Some(request_limit), Some(backend_limit)) = (request, backend)
            && backend_limit > request_limit
        {
            let said = report.said(object.kind, "spec.exposes[].timeouts", 0);
            let text = timeouts.backend_request.as_ref().map(Text::as_str).unwrap_or_default();
            let whole = timeouts.request.as_ref().map(Text::as_str).unwrap_or_default();
            let detail = format!("{said} ({})", cut(whole, 32));
            report.invalid(format!("spec.exposes[{at}].timeouts.backendRequest"), text, detail);
        }
    }
}
