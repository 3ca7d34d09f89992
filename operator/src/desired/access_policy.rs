//! Whether the rendered policy is written now, and what people are told. Pure: no client, no clock.

use std::time::Duration;

use tailnet_crds::conditions::reason;
use tailnet_crds::{DefaultPosture, PolicyMode};
use tailnet_headscale::document::Posture;
use tailnet_policies::access_policy::{Owner, Rendered};

use crate::status::Truth;

/// Changes that come within this time are written together: every write is a full push to every node.
pub const SETTLE: Duration = Duration::from_secs(1);
/// Changes that never cease are written at last after this time.
pub const LONGEST: Duration = Duration::from_secs(10);
/// Least time between two writes.
pub const SPACING: Duration = Duration::from_secs(5);

/// What `PolicyReady` of the Tailnet says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Status of the condition.
    pub truth: Truth,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

impl Told {
    /// A condition.
    pub fn new(truth: Truth, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            truth,
            reason,
            message: message.into(),
        }
    }
}

/// What is known when a decision is due.
pub struct Situation<'a> {
    /// The rendered policy.
    pub rendered: &'a Rendered,
    /// The live document; None when none was ever set.
    pub live: Option<&'a str>,
    /// What holds now where no rule says anything.
    pub live_posture: DefaultPosture,
    /// Whether the tailnet has any node.
    pub has_nodes: bool,
    /// Another writer of the document.
    pub foreign: Option<&'a Owner>,
    /// `policy.mode`.
    pub mode: PolicyMode,
    /// `policy.acknowledgePosture`.
    pub acknowledged: Option<&'a str>,
    /// Why the Tailnet is not accepted.
    pub refused: Option<&'a str>,
    /// Number of entries that would come and go.
    pub added: usize,
    /// See `added`.
    pub removed: usize,
    /// What the ConfigMap does not show, and why.
    pub unpublished: Option<&'a str>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest(Told),
    /// The document is to be in Headscale.
    Write,
}

/// The decision.
pub fn decide(situation: &Situation<'_>) -> Step {
    let rest = |truth, reason, message: String| Step::Rest(Told::new(truth, reason, message));
    let (text, sha256, posture) = situation.rendered.wanted(situation.acknowledged);
    if let Some(owner) = situation.foreign {
        return rest(
            Truth::False,
            reason::OWNED_ELSEWHERE,
            format!(
                "the live policy is written by {owner}, as its first line says: remove spec.policy here or there. If that installation is gone, take the line out of the live document (headscale policy get, headscale policy set)"
            ),
        );
    }
    if situation.live == Some(text) {
        return rest(Truth::True, in_force(situation.mode), in_force_message(situation));
    }
    let difference = format!("{} entries come, {} go", situation.added, situation.removed);
    if let Some(why) = situation.refused {
        return rest(
            Truth::False,
            reason::NOT_ACCEPTED,
            format!("the live policy is left as it is while the Tailnet is not accepted: {why}"),
        );
    }
    let opens_or_closes = closes(situation, posture).then(|| {
        format!(
            "allow-all → deny: the live policy has no rules, the rendered one has some, and whatever no rule allows would stop working. Set policy.acknowledgePosture: {sha256} when that is meant"
        )
    });
    if situation.mode == PolicyMode::DryRun {
        let flip = opens_or_closes.map(|text| format!("; {text}")).unwrap_or_default();
        return rest(
            Truth::False,
            reason::POLICY_DRY_RUN,
            format!(
                "mode DryRun: the rendered policy is not written; {difference}{flip}{}",
                remarks(situation)
            ),
        );
    }
    if let Some(flip) = opens_or_closes.filter(|_| situation.acknowledged != Some(sha256)) {
        return rest(Truth::False, reason::POSTURE_HELD, flip);
    }
    Step::Write
}

/// Whether traffic that goes through now would stop. A tailnet without nodes has none.
fn closes(situation: &Situation<'_>, posture: Posture) -> bool {
    situation.live_posture == DefaultPosture::AllowAll && posture == Posture::Deny && situation.has_nodes
}

fn in_force(mode: PolicyMode) -> &'static str {
    match mode {
        PolicyMode::DryRun => reason::POLICY_DRY_RUN,
        PolicyMode::Apply => reason::POLICY_APPLIED,
    }
}

fn in_force_message(situation: &Situation<'_>) -> String {
    let mode = match situation.mode {
        PolicyMode::DryRun => "mode DryRun: nothing is written; ",
        PolicyMode::Apply => "",
    };
    format!("{mode}the live policy is the rendered one{}", remarks(situation))
}

/// What else people should know: objects without entries, tests that wait, the empty list of rules.
pub fn remarks(situation: &Situation<'_>) -> String {
    let rendered = situation.rendered;
    let mut parts: Vec<String> = Vec::new();
    if !rendered.left_out.is_empty() {
        let named = rendered
            .left_out
            .iter()
            .take(3)
            .map(|left| format!("{} ({})", left.object, left.why));
        parts.push(format!(
            "{} objects have no entries: {}",
            rendered.left_out.len(),
            named.collect::<Vec<_>>().join(", ")
        ));
    }
    if !rendered.waiting.is_empty() {
        let named = rendered.waiting.iter().take(3).cloned().collect::<Vec<_>>();
        parts.push(format!("{} tests wait: {}", rendered.waiting.len(), named.join(", ")));
    }
    parts.extend(rendered.notes.iter().cloned());
    parts.extend(situation.unpublished.map(str::to_owned));
    if let Some((_, sha256)) = rendered
        .open
        .as_ref()
        .filter(|(_, sha256)| situation.acknowledged != Some(sha256))
    {
        parts.push(format!(
            "no rules are left, and an empty list of grants keeps the tailnet closed; policy.acknowledgePosture: {sha256} opens it"
        ));
    }
    parts.into_iter().map(|part| format!("; {part}")).collect()
}

/// The objects whose entries a message of Headscale is about: those of whose names it has one.
pub fn concerned(rendered: &Rendered, message: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, ':' | '-' | '.' | '_' | '/' | '@');
    let words: std::collections::BTreeSet<&str> = message
        .split(|c: char| !is_name(c))
        .map(|word| word.trim_end_matches(['.', ':']))
        .collect();
    let concerns = |names: &std::collections::BTreeSet<String>| {
        names.iter().any(|name| name.len() > 1 && words.contains(name.as_str()))
    };
    rendered
        .names
        .iter()
        .filter(|(_, names)| concerns(names))
        .take(5)
        .map(|(object, _)| object.to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str, posture: Posture) -> Rendered {
        Rendered {
            text: text.to_owned(),
            sha256: "aa".to_owned(),
            posture,
            open: None,
            left_out: Vec::new(),
            sources: Default::default(),
            waiting: Vec::new(),
            notes: Vec::new(),
            names: Vec::new(),
        }
    }

    fn situation(rendered: &Rendered) -> Situation<'_> {
        Situation {
            rendered,
            live: Some("old"),
            live_posture: DefaultPosture::Deny,
            has_nodes: true,
            foreign: None,
            mode: PolicyMode::Apply,
            acknowledged: None,
            refused: None,
            added: 1,
            removed: 0,
            unpublished: None,
        }
    }

    fn reason_of(step: Step) -> (Truth, &'static str) {
        match step {
            Step::Rest(told) => (told.truth, told.reason),
            Step::Write => (Truth::True, "write"),
        }
    }

    #[test]
    fn apply_writes_what_differs_and_dry_run_never_does() {
        let new = rendered("new", Posture::Deny);
        assert_eq!(decide(&situation(&new)), Step::Write);
        let same = Situation {
            live: Some("new"),
            ..situation(&new)
        };
        assert_eq!(reason_of(decide(&same)), (Truth::True, "Applied"));
        let dry = |live| Situation {
            mode: PolicyMode::DryRun,
            live,
            ..situation(&new)
        };
        assert_eq!(reason_of(decide(&dry(Some("old")))), (Truth::False, "DryRun"));
        assert_eq!(reason_of(decide(&dry(None))), (Truth::False, "DryRun"));
        assert_eq!(reason_of(decide(&dry(Some("new")))), (Truth::True, "DryRun"));
    }

    #[test]
    fn what_is_not_shown_is_told_and_holds_nothing() {
        let new = rendered("new", Posture::Deny);
        let unpublished = Situation {
            unpublished: Some("the ConfigMap is full"),
            ..situation(&new)
        };
        assert_eq!(decide(&unpublished), Step::Write);
        assert_eq!(remarks(&unpublished), "; the ConfigMap is full");
    }

    #[test]
    fn others_come_first_and_a_tailnet_that_is_not_accepted_writes_nothing() {
        let new = rendered("new", Posture::Deny);
        let owner = Owner {
            installation: "i".to_owned(),
            tailnet: "t".to_owned(),
        };
        let foreign = Situation {
            foreign: Some(&owner),
            live: Some("new"),
            ..situation(&new)
        };
        assert_eq!(reason_of(decide(&foreign)), (Truth::False, "OwnedElsewhere"));
        let refused = Situation {
            refused: Some("TN102"),
            ..situation(&new)
        };
        assert_eq!(reason_of(decide(&refused)), (Truth::False, "NotAccepted"));
    }

    #[test]
    fn a_tailnet_is_closed_only_with_a_word_and_opened_only_with_a_word() {
        let closing = rendered("new", Posture::Deny);
        let held = Situation {
            live_posture: DefaultPosture::AllowAll,
            ..situation(&closing)
        };
        let Step::Rest(told) = decide(&held) else {
            panic!("written")
        };
        assert_eq!(told.reason, "PostureHeld");
        assert!(told.message.contains("allow-all → deny") && told.message.contains("acknowledgePosture: aa"));
        let said = |acknowledged, has_nodes| {
            reason_of(decide(&Situation {
                live_posture: DefaultPosture::AllowAll,
                acknowledged,
                has_nodes,
                ..situation(&closing)
            }))
            .1
        };
        assert_eq!(said(Some("bb"), true), "PostureHeld");
        assert_eq!(said(Some("aa"), true), "write");
        assert_eq!(said(None, false), "write", "nobody is there");

        let kept_closed = Rendered {
            open: Some(("open".to_owned(), "cc".to_owned())),
            ..rendered("closed", Posture::Deny)
        };
        assert_eq!(kept_closed.wanted(None).0, "closed");
        assert_eq!(kept_closed.wanted(Some("aa")).0, "closed");
        assert_eq!(kept_closed.wanted(Some("cc")), ("open", "cc", Posture::AllowAll));
        let rest = Situation {
            live: Some("closed"),
            ..situation(&kept_closed)
        };
        let Step::Rest(told) = decide(&rest) else {
            panic!("written")
        };
        assert!(told.message.contains("acknowledgePosture: cc"), "{}", told.message);
    }

    #[test]
    fn a_rejection_names_the_objects_that_it_is_about() {
        let mut new = rendered("new", Posture::Deny);
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        let object = |name: &str| {
            tailnet_policies::ObjectRef::ours(tailnet_crds::Kind::TailnetEgress, Some("tailnet-system"), name)
        };
        new.names = vec![
            (object("a"), names(&["tag:egress-a", "192.0.2.1"])),
            (object("b"), names(&["tag:egress-b", "192.0.2.10"])),
        ];
        assert_eq!(
            concerned(&new, "tag not found: \"tag:egress-b\""),
            ["TailnetEgress tailnet-system/b"]
        );
        assert_eq!(concerned(&new, "192.0.2.10: bad."), ["TailnetEgress tailnet-system/b"]);
        assert_eq!(concerned(&new, "nothing"), [""; 0]);
    }
}
