//! Who signs the certificate of an ingress.

use tailnet_crds::Kind;

use crate::finding::Severity;
use crate::object::Object;
use crate::report::Report;
use crate::table::{Check, Operations, Rule, WGV};
use crate::view::View;

const INGRESS: &[Kind] = &[Kind::TailnetIngress];

/// Issuers are allowed.
pub static TN318: Rule = Rule {
    id: "TN318",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.tls.issuerRef",
    message: "the issuer is the Tailnet's default, an Issuer of the own namespace, or in allowedIssuers",
    why: "A ClusterIssuer may sign names for everybody with the cluster's own credentials. Which of them tenants may use is the administrator's \
          decision.",
    example: "kind: TailnetIngress\nspec:\n  tls: { issuerRef: { name: corporate-ca } }",
    fix: "Use an issuer that the message names, or an `Issuer` of the namespace.",
    check: Check::Cross(issuer_is_allowed),
};

fn issuer_is_allowed(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(issuer) = object
        .ingress()
        .and_then(|spec| spec.tls.as_ref())
        .and_then(|tls| tls.issuer_ref.as_ref())
    else {
        return;
    };
    // An Issuer is of the namespace in which the Certificate lies.
    if issuer.kind() == "Issuer" && issuer.group() == "cert-manager.io" {
        return;
    }
    let Some((_, tailnet)) = view.tailnet(report) else {
        return;
    };
    let tls = tailnet.defaults.as_ref().and_then(|defaults| defaults.tls.as_ref());
    let allowed: Vec<_> = tls
        .iter()
        .flat_map(|tls| tls.issuer_ref.iter().chain(&tls.allowed_issuers))
        .collect();
    if allowed.iter().any(|allowed| allowed.same_as(issuer)) {
        return;
    }
    let names: Vec<String> = allowed
        .iter()
        .map(|allowed| format!("{} {}", allowed.kind(), allowed.name))
        .collect();
    let detail = format!(
        "is not an issuer that the Tailnet allows ({}), nor an Issuer of this namespace",
        crate::report::list(&names)
    );
    report.forbidden("spec.tls.issuerRef", issuer.name.as_str(), detail);
}
