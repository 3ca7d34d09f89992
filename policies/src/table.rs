//! The one table of rules. A rule is a row; its check is a function whose type says what it may look at.

use std::fmt::Write as _;

use tailnet_crds::Kind;

use crate::finding::Severity;
use crate::object::Object;
use crate::report::Report;
use crate::request::{Operation, Requester};
use crate::rules;
use crate::view::View;

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations(u8);

impl Operations {
    /// CREATE.
    pub const CREATE: Self = Self(1);
    /// UPDATE.
    pub const UPDATE: Self = Self(2);
    /// DELETE.
    pub const DELETE: Self = Self(4);
    /// CREATE and UPDATE.
    pub const WRITE: Self = Self(3);

    /// Whether the set holds an operation.
    pub fn has(self, operation: Operation) -> bool {
        let bit = match operation {
            Operation::Create => Self::CREATE,
            Operation::Update => Self::UPDATE,
            Operation::Delete => Self::DELETE,
        };
        self.0 & bit.0 != 0
    }
}

/// A set of places where a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers(u8);

impl Layers {
    /// The CRD schema's CEL rules say it too.
    pub const CEL: Self = Self(1);
    /// The admission webhook.
    pub const WEBHOOK: Self = Self(2);
    /// The operator's guard.
    pub const GUARD: Self = Self(4);
    /// `kubectl tailnet lint`.
    pub const LINT: Self = Self(8);

    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets share a place.
    pub fn has(self, layer: Self) -> bool {
        self.0 & layer.0 != 0
    }
}

/// Webhook, guard and lint.
pub const WGV: Layers = Layers::WEBHOOK.and(Layers::GUARD).and(Layers::LINT);
/// Schema, webhook, guard and lint.
pub const CWGV: Layers = Layers::CEL.and(WGV);
/// Webhook and guard.
pub const WG: Layers = Layers::WEBHOOK.and(Layers::GUARD);
/// Schema, webhook and lint.
pub const CWV: Layers = Layers::CEL.and(Layers::WEBHOOK).and(Layers::LINT);
/// Schema and webhook.
pub const CW: Layers = Layers::CEL.and(Layers::WEBHOOK);

/// The function of a rule. The type is the scope: an object rule cannot read the cluster.
#[derive(Clone, Copy)]
pub enum Check {
    /// The object alone.
    Object(fn(&Object, &mut Report<'_>)),
    /// The object before and after.
    Transition(fn(&Object, &Object, &mut Report<'_>)),
    /// Who asks, and for what.
    Requester(fn(&Requester, &Object, &mut Report<'_>)),
    /// The object among the others.
    Cross(fn(&Object, &View<'_>, &mut Report<'_>)),
    /// The engine itself finds it, before the others run.
    Engine,
}

/// One rule.
pub struct Rule {
    /// Id, never reused.
    pub id: &'static str,
    /// Kinds that it looks at.
    pub kinds: &'static [Kind],
    /// Operations that it looks at.
    pub operations: Operations,
    /// Where it runs.
    pub layers: Layers,
    /// Its severity; a rule with denials may also warn.
    pub severity: Severity,
    /// Whether it is a security rule: never bypassed, and existing objects that break it lose effect.
    pub security: bool,
    /// Field or fields, for the reference.
    pub field: &'static str,
    /// What must hold, in one sentence.
    pub message: &'static str,
    /// Why, for the reference.
    pub why: &'static str,
    /// YAML that is refused or warned about.
    pub example: &'static str,
    /// How to put it right.
    pub fix: &'static str,
    /// The check.
    pub check: Check,
}

/// Every kind.
pub const ALL: &[Kind] = &[
    Kind::Tailnet,
    Kind::TailnetEgress,
    Kind::TailnetIngress,
    Kind::TailnetSite,
    Kind::TailnetGateway,
];
/// The kinds with a tailnetRef.
pub const MEMBERS: &[Kind] = &[
    Kind::TailnetEgress,
    Kind::TailnetIngress,
    Kind::TailnetSite,
    Kind::TailnetGateway,
];

/// All rules, by id.
pub static RULES: &[&Rule] = &[
    &rules::tailnet_ref::TN001,
    &rules::tailnet_ref::TN002,
    &rules::object_names::TN003,
    &rules::tags::TN004,
    &rules::tags::TN005,
    &rules::tag_owners::TN006,
    &rules::shape::TN007,
    &rules::bypass::TN008,
    &rules::organisation::TN009,
    &rules::spelling::TN010,
    &rules::tags::TN011,
    &rules::agent_settings::TN012,
    &rules::takes_over::TN013,
    &rules::shape::TN014,
    &rules::shape::TN015,
    &rules::agent_pods::TN016,
    &rules::references::TN017,
    &rules::restored::TN018,
    &rules::server::TN101,
    &rules::server::TN102,
    &rules::templates::TN103,
    &rules::policy_lists::TN104,
    &rules::server::TN105,
    &rules::base_policy::TN106,
    &rules::tailnet_changes::TN107,
    &rules::tailnet_changes::TN108,
    &rules::deletions::TN109,
    &rules::base_policy::TN110,
    &rules::base_policy::TN111,
    &rules::egress::TN201,
    &rules::egress::TN202,
    &rules::addresses::TN203,
    &rules::addresses::TN204,
    &rules::reachability::TN205,
    &rules::dns_names::TN206,
    &rules::reachability::TN207,
    &rules::reachability::TN208,
    &rules::egress::TN209,
    &rules::egress::TN210,
    &rules::sources::TN301,
    &rules::sources::TN302,
    &rules::exposes::TN303,
    &rules::dns_names::TN304,
    &rules::dns_names::TN305,
    &rules::exposes::TN306,
    &rules::backends::TN307,
    &rules::exposes::TN308,
    &rules::exposes::TN309,
    &rules::exposes::TN312,
    &rules::hostnames::TN313,
    &rules::dns_names::TN314,
    &rules::sources::TN315,
    &rules::backends::TN316,
    &rules::effect::TN317,
    &rules::issuers::TN318,
    &rules::site::TN400,
    &rules::site::TN401,
    &rules::site::TN402,
    &rules::site::TN403,
    &rules::site::TN404,
    &rules::site::TN405,
    &rules::reachability::TN406,
    &rules::gateway::TN501,
    &rules::gateway::TN502,
    &rules::gateway_network::TN503,
    &rules::gateway_network::TN504,
    &rules::gateway_identity::TN505,
    &rules::gateway_identity::TN506,
    &rules::gateway_dns::TN507,
    &rules::gateway_dns::TN508,
    &rules::gateway_conflicts::TN509,
    &rules::gateway_conflicts::TN510,
    &rules::gateway_network::TN511,
    &rules::gateway_conflicts::TN512,
    &rules::gateway_conflicts::TN513,
    &rules::gateway_conflicts::TN514,
    &rules::deletions::TN515,
    &rules::gateway_conflicts::TN516,
    &rules::gateway_names::TN517,
];

/// The row of a rule.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().copied().find(|rule| rule.id.eq_ignore_ascii_case(id))
}

/// Per kind the operations that the validating webhook must be registered for.
pub fn webhook_rules() -> Vec<(Kind, Vec<Operation>)> {
    ALL.iter()
        .map(|kind| {
            let operations = [Operation::Create, Operation::Update, Operation::Delete]
                .into_iter()
                .filter(|operation| {
                    RULES.iter().any(|rule| {
                        rule.layers.has(Layers::WEBHOOK) && rule.kinds.contains(kind) && rule.operations.has(*operation)
                    })
                })
                .collect();
            (*kind, operations)
        })
        .collect()
}

/// `docs/reference/rules.md`; the anchor of a rule is its id in lower case.
pub fn reference_md() -> String {
    let mut text = String::from(
        "<!-- Generated from the table of rules by `cargo xtask gen`. Do not edit. -->\n\n\
         # Admission rules\n\n\
         A rule runs in the CRD's schema (CEL) where CEL can say it, in the admission webhook, in the operator before it acts, and in \
         `kubectl tailnet lint`. Rules marked ★ are security rules: nothing switches them off, and an existing object that breaks one \
         loses its grants and names. A change of an object is only warned about what was wrong with it before.\n\n\
         | rule | kinds | verdict | what must hold |\n|---|---|---|---|\n",
    );
    for rule in RULES {
        let _ = writeln!(
            text,
            "| [{id}](#{anchor}){star} | {kinds} | {verdict} | {message} |",
            id = rule.id,
            anchor = rule.id.to_lowercase(),
            star = if rule.security { " ★" } else { "" },
            kinds = kinds(rule),
            verdict = verdict(rule),
            message = rule.message,
        );
    }
    for rule in RULES {
        let _ = write!(
            text,
            "\n## {id}\n\n**{message}**\n\n\
             Field: `{field}`. Kinds: {kinds}. Verdict: {verdict}. Checked in: {layers}.{star}\n\n\
             {why}\n\nWrong:\n\n```yaml\n{example}\n```\n\nFix: {fix}\n",
            id = rule.id,
            message = rule.message,
            field = rule.field,
            kinds = kinds(rule),
            verdict = verdict(rule),
            layers = layers(rule),
            star = if rule.security { " Security rule." } else { "" },
            why = rule.why,
            example = rule.example.trim_end(),
            fix = rule.fix,
        );
    }
    text
}

/// What the reference says of one rule, as plain text for a terminal.
pub fn explanation(rule: &Rule) -> String {
    format!(
        "{id}  {message}\n\nField:      {field}\nKinds:      {kinds}\nVerdict:    {verdict}{star}\nChecked in: {layers}\n\n{why}\n\nWrong:\n{example}\n\nFix:\n{fix}\n",
        id = rule.id,
        message = rule.message,
        field = rule.field,
        kinds = kinds(rule),
        verdict = verdict(rule),
        star = if rule.security {
            " (security rule: nothing switches it off)"
        } else {
            ""
        },
        layers = layers(rule),
        why = wrapped(rule.why, ""),
        example = rule
            .example
            .trim_end()
            .lines()
            .map(|line| format!("  {line}"))
            .collect::<Vec<_>>()
            .join("\n"),
        fix = wrapped(rule.fix, "  "),
    )
}

/// A text in lines of at most about 80 characters.
fn wrapped(text: &str, indent: &str) -> String {
    const WIDTH: usize = 80;
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.len() > indent.len() && line.len() + 1 + word.len() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else {
            if line.len() > indent.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// The kinds of a rule for people.
fn kinds(rule: &Rule) -> String {
    if rule.kinds.len() == ALL.len() {
        return "all".to_owned();
    }
    rule.kinds
        .iter()
        .map(|kind| kind.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

fn verdict(rule: &Rule) -> &'static str {
    match rule.severity {
        Severity::Deny => "denied",
        Severity::Warn => "warning",
    }
}

fn layers(rule: &Rule) -> String {
    [
        (Layers::CEL, "schema"),
        (Layers::WEBHOOK, "webhook"),
        (Layers::GUARD, "operator"),
        (Layers::LINT, "lint"),
    ]
    .into_iter()
    .filter_map(|(layer, name)| rule.layers.has(layer).then_some(name))
    .collect::<Vec<_>>()
    .join(", ")
}
