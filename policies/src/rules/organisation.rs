//! The organisation's own policies.

use crate::finding::Severity;
use crate::table::{ALL, Check, Operations, Rule, WGV};

/// The organisation's policies hold.
pub static TN009: Rule = Rule {
    id: "TN009",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec, metadata",
    message: "the organisation's policies hold",
    why: "A ConfigMap of the operator namespace with the label `tsunaro.io/admission-policy: \"true\"` is a policy in CEL. When one of its \
          validations is false, the finding carries the policy's own message and the id `ORG/<ConfigMap>/<number of the validation>`, and denies \
          or warns as the policy says. `TN009` itself stands where a policy cannot decide: an expression fails, takes too many steps or too long, \
          or does not compile (it slipped in while the webhook was down). What cannot be decided is not let through. An update that leaves \
          everything as it was that a policy reads is only warned about.",
    example: "kind: TailnetSite\nmetadata: { name: lab }\nspec:\n  owner: somebody   # a policy has a list of owners",
    fix: "Do what the policy's message says; for TN009 itself, correct the ConfigMap that the message names (docs/organisation-policies.md).",
    check: Check::Engine,
};
