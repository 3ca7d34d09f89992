//! What the engine itself finds: objects that are none, and objects that are going.

use serde_json::Value;
use tailnet_crds::Kind;
use tailnet_crds::structural::SchemaProblem;

use crate::finding::{Class, Severity};
use crate::object::ShapeError;
use crate::report::{Draft, Notes, Report, Shown, cut, list};
use crate::rules::references;
use crate::table::{ALL, Check, Layers, Operations, Rule, WGV};

/// The object does not have the shape of its kind.
pub static TN014: Rule = Rule {
    id: "TN014",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec",
    message: "the object has the shape of its kind",
    why: "A field that is required is missing, or has a value of another type. The API server refuses such an object by its schema before \
          any rule runs; offline, and for objects that an older schema let in, this rule says it. No other rule looks at such an object.",
    example: "kind: TailnetSite\nspec:\n  tailnetRef: { name: corp }\n  prefixes: 10.0.0.0/24   # a list is expected",
    fix: "Write the field as `kubectl explain` shows it.",
    check: Check::Engine,
};

/// The spec of an object that is being deleted is frozen.
pub static TN015: Rule = Rule {
    id: "TN015",
    kinds: ALL,
    operations: Operations::UPDATE,
    layers: Layers::WEBHOOK,
    severity: Severity::Deny,
    security: false,
    field: "spec",
    message: "the spec of an object that is being deleted stays as it is",
    why: "An object with a deletionTimestamp holds nothing any more: its names, tags and prefixes may already be another object's. A change of \
          its spec could not take effect, or would have to take it away from the new holder. Finalizers, labels and annotations may change.",
    example: "metadata:\n  deletionTimestamp: \"2026-01-01T00:00:00Z\"\nspec:\n  prefixes: [10.9.0.0/16]   # was 10.8.0.0/16",
    fix: "Wait until the object is gone and create it anew.",
    check: Check::Engine,
};

/// Every field is known.
pub static TN007: Rule = Rule {
    id: "TN007",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: Layers::LINT,
    severity: Severity::Deny,
    security: false,
    field: "spec",
    message: "every field is one that the kind has",
    why: "A mistyped optional field is simply not there: `alowFrom` would be an ingress without sources. kubectl asks the API server to be \
          strict and shows such fields; offline, and where a GitOps tool is not strict, lint says it.",
    example: "kind: TailnetEgress\nspec:\n  consumerNamespace: [team-a]",
    fix: "Write the name that the message suggests, or see `kubectl explain`.",
    check: Check::Engine,
};

/// What the structural schema finds (for lint): unknown fields as TN007, the rest as TN014.
pub(crate) fn schema(kind: Kind, object: &Value, drafts: &mut Vec<Draft>, notes: &mut Notes) {
    // A name that is too long is a rule's (TN003), and so is all about a gateway's (TN501); what no object can be called the API server refuses first.
    if let Some(name) = object.pointer("/metadata/name").and_then(Value::as_str)
        && kind != Kind::TailnetGateway
        && !references::is_object_name(name)
    {
        let mut report = Report {
            rule: &TN014,
            drafts,
            notes,
        };
        let detail = "is no name that an object can have: write lower-case letters, digits, dashes and dots";
        report.invalid("metadata.name", name, detail);
    }
    for error in tailnet_crds::structural::check(kind, object) {
        let rule = match error.problem {
            SchemaProblem::UnknownField(_) => &TN007,
            _ => &TN014,
        };
        let mut report = Report { rule, drafts, notes };
        match error.problem {
            SchemaProblem::UnknownField(known) => {
                let name = error.path.rsplit('.').next().unwrap_or_default();
                report.add(Class::Invalid, &error.path, name, unknown(name, &known));
            }
            SchemaProblem::Required => {
                report.required(&error.path, "is required and missing");
            }
            SchemaProblem::Type(wanted) => {
                report.invalid(&error.path, Shown::NOTHING, format!("must be of type {wanted}"));
            }
            SchemaProblem::Value(text) => {
                report.invalid(&error.path, Shown::NOTHING, format!("must {}", cut(&text, 160)));
            }
        }
    }
}

/// What to say of an unknown field: the nearest known name, else all that there are.
fn unknown(name: &str, known: &[String]) -> String {
    let nearest = known
        .iter()
        .map(|known| {
            (
                strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase()),
                known,
            )
        })
        .min()
        .filter(|(distance, known)| *distance <= 2.max(known.len() / 3));
    match nearest {
        Some((_, known)) => format!("is not a field here: did you mean {known}?"),
        None => format!("is not a field here: there are {}", list(known)),
    }
}

pub(crate) fn misfit(error: &ShapeError, report: &mut Report<'_>) {
    let detail = format!("does not have the shape of its kind: {}", cut(&error.problem, 160));
    report.invalid(&error.field, Shown::NOTHING, detail);
}

pub(crate) fn frozen(report: &mut Report<'_>) {
    report.forbidden(
        "spec",
        Shown::NOTHING,
        "the object is being deleted, so its spec is frozen; create it anew when it is gone",
    );
}
