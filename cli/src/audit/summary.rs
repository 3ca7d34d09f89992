//! What a platform team asks: who was refused what, which rules refuse most, which bypasses happened.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use serde::Serialize;
use tailnet_crds::audit::{Decision, Endpoint};
use tailnet_policies::table::rule;

use super::read::Tally;
use super::record::{Layer, Record, Target};
use super::timeline::{Counts, Minutes, Timeline};

/// What the property `schema` of the JSON output says.
pub const SCHEMA: &str = "tsunaro.io/audit-summary/v1";

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// [`SCHEMA`]
    pub schema: &'static str,
    /// Time of the first decision.
    pub from: Option<Timestamp>,
    /// Time of the last decision.
    pub to: Option<Timestamp>,
    /// The filters, as flags; empty when everything was asked about.
    pub asked: Vec<String>,
    /// What was read, before any filter.
    pub read: Tally,
    /// How many decisions there are, by decision.
    pub decisions: Counts,
    /// How many of them were only tries.
    pub dry_runs: u64,
    /// How often defaults were filled in.
    pub defaults_filled: u64,
    /// Rules that refused, were skipped or warned; who refuses most comes first.
    pub rules: Vec<RuleRow>,
    /// Requesters; who was refused most comes first.
    pub users: Vec<UserRow>,
    /// Who was refused what, most often first.
    pub refusals: Vec<Refusal>,
    /// Every decision in which a rule was skipped, newest first.
    pub bypasses: Vec<Bypass>,
    /// What could not be decided, by reason.
    pub errors: Vec<Fault>,
    /// Time in the webhook; null when only the API server's log was read.
    pub latency: Option<Latency>,
    /// Decisions over time.
    pub timeline: Timeline,
}

/// A rule.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleRow {
    /// Its id.
    pub rule: String,
    /// What must hold; empty for a rule that this version does not know.
    pub says: &'static str,
    /// Requests that it refused.
    pub refused: u64,
    /// Requests in which it was skipped.
    pub bypassed: u64,
    /// Requests in which it warned.
    pub warned: u64,
    /// How many users it refused.
    pub users: u64,
}

/// A requester.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserRow {
    /// Name.
    pub user: String,
    /// Their decisions.
    #[serde(flatten)]
    pub decisions: Counts,
}

/// The same request of the same user, refused for the same rules.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Who.
    pub user: String,
    /// What.
    #[serde(flatten)]
    pub target: Target,
    /// Who refused.
    pub by: Layer,
    /// The policy, where one did.
    pub policy: Option<String>,
    /// Rules.
    pub rules: Vec<String>,
    /// All fields that were named.
    pub fields: BTreeSet<String>,
    /// How often.
    pub times: u64,
    /// How many of those were tries.
    pub dry_runs: u64,
    /// First time.
    pub first: Timestamp,
    /// Last time.
    pub last: Timestamp,
    /// Whether the same object was accepted after the last refusal, by whomever; false where it has no name.
    pub accepted_since: bool,
}

/// A decision in which a rule was skipped.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bypass {
    /// When.
    pub time: Timestamp,
    /// Who.
    pub user: String,
    /// The requester's groups.
    pub groups: Vec<String>,
    /// CREATE or UPDATE.
    pub verb: String,
    /// What.
    #[serde(flatten)]
    pub target: Target,
    /// Rules that were skipped.
    pub rules: Vec<String>,
    /// Fields of all findings.
    pub fields: Vec<String>,
    /// Whether it was only a try.
    pub dry_run: bool,
}

/// What could not be decided.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Why.
    pub reason: String,
    /// `validate` or `mutate`.
    pub endpoint: Endpoint,
    /// Who noted it: the webhook, or the API server that did not reach it.
    pub by: Layer,
    /// How often.
    pub times: u64,
    /// First time.
    pub first: Timestamp,
    /// Last time.
    pub last: Timestamp,
    /// What the last one was about.
    pub last_user: String,
    /// What the last one was about.
    pub last_target: Target,
}

/// Time in the webhook's handler, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// How many decisions have one.
    pub count: usize,
    /// Half of them took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

#[derive(Default)]
struct RuleCount {
    refused: u64,
    bypassed: u64,
    warned: u64,
    users: BTreeSet<String>,
}

/// What makes two refusals the same one: user, object, who refused, which policy, which rules.
type RefusalKey = (String, Target, Layer, Option<String>, Vec<String>);

/// Adds decisions up.
#[derive(Default)]
pub struct Builder {
    minutes: Minutes,
    decisions: Counts,
    dry_runs: u64,
    defaults_filled: u64,
    rules: BTreeMap<String, RuleCount>,
    users: BTreeMap<String, Counts>,
    refusals: BTreeMap<RefusalKey, Refusal>,
    bypasses: Vec<Bypass>,
    errors: BTreeMap<(String, &'static str, Layer), Fault>,
    accepted: HashMap<Target, Timestamp>,
    latencies: Vec<f64>,
    ends: Option<(Timestamp, Timestamp)>,
}

impl Builder {
    /// Adds a decision.
    pub fn add(&mut self, record: Record) {
        self.latencies.extend(record.latency_ms);
        if record.decision == Decision::Error {
            self.fault(&record);
        }
        if record.endpoint == Endpoint::Mutate {
            self.defaults_filled += u64::from(record.decision == Decision::Patch);
            return;
        }
        let (from, to) = self.ends.unwrap_or((record.time, record.time));
        self.ends = Some((from.min(record.time), to.max(record.time)));
        self.minutes.add(record.time, record.decision);
        self.decisions.add(record.decision);
        self.dry_runs += u64::from(record.dry_run);
        self.users.entry(record.user.clone()).or_default().add(record.decision);
        for id in &record.rules {
            let count = self.rules.entry(id.clone()).or_default();
            count.refused += 1;
            count.users.insert(record.user.clone());
        }
        for id in &record.warned {
            self.rules.entry(id.clone()).or_default().warned += 1;
        }
        for id in &record.bypassed {
            self.rules.entry(id.clone()).or_default().bypassed += 1;
        }
        match record.decision {
            Decision::Deny => self.refusal(record),
            Decision::Allow | Decision::Warn | Decision::Bypass | Decision::Patch => self.acceptance(record),
            Decision::Error => {}
        }
    }

    fn refusal(&mut self, record: Record) {
        let key = (
            record.user.clone(),
            record.target.clone(),
            record.layer,
            record.reason.clone(),
            record.rules.clone(),
        );
        let refusal = self.refusals.entry(key).or_insert_with(|| Refusal {
            user: record.user,
            target: record.target,
            by: record.layer,
            policy: record.reason,
            rules: record.rules,
            fields: BTreeSet::new(),
            times: 0,
            dry_runs: 0,
            first: record.time,
            last: record.time,
            accepted_since: false,
        });
        refusal.times += 1;
        refusal.dry_runs += u64::from(record.dry_run);
        refusal.first = refusal.first.min(record.time);
        refusal.last = refusal.last.max(record.time);
        refusal.fields.extend(record.fields);
    }

    fn acceptance(&mut self, record: Record) {
        if !record.dry_run && !record.target.name.is_empty() && record.verb != "DELETE" {
            let last = self.accepted.entry(record.target.clone()).or_insert(record.time);
            *last = record.time.max(*last);
        }
        if record.decision == Decision::Bypass {
            self.bypasses.push(Bypass {
                time: record.time,
                user: record.user,
                groups: record.groups,
                verb: record.verb,
                target: record.target,
                rules: record.bypassed,
                fields: record.fields,
                dry_run: record.dry_run,
            });
        }
    }

    fn fault(&mut self, record: &Record) {
        let reason = record.reason.clone().unwrap_or_else(|| "unknown".to_owned());
        let key = (reason.clone(), record.endpoint.as_str(), record.layer);
        let fault = self.errors.entry(key).or_insert_with(|| Fault {
            reason,
            endpoint: record.endpoint,
            by: record.layer,
            times: 0,
            first: record.time,
            last: record.time,
            last_user: record.user.clone(),
            last_target: record.target.clone(),
        });
        fault.times += 1;
        fault.first = fault.first.min(record.time);
        if record.time >= fault.last {
            fault.last = record.time;
            fault.last_user.clone_from(&record.user);
            fault.last_target.clone_from(&record.target);
        }
    }

    /// The answer about what was read; `asked` are the filters that the decisions fit.
    pub fn finish(mut self, asked: Vec<String>, read: Tally) -> Summary {
        let mut rules: Vec<_> = self
            .rules
            .into_iter()
            .map(|(id, count)| RuleRow {
                says: says(&id),
                rule: id,
                refused: count.refused,
                bypassed: count.bypassed,
                warned: count.warned,
                users: count.users.len() as u64,
            })
            .collect();
        rules.sort_by_key(|row| std::cmp::Reverse((row.refused, row.bypassed, row.warned)));
        let mut users: Vec<_> = self
            .users
            .into_iter()
            .map(|(user, decisions)| UserRow { user, decisions })
            .collect();
        users.sort_by_key(|row| std::cmp::Reverse((row.decisions.deny, row.decisions.bypass, row.decisions.total())));
        let mut refusals: Vec<_> = self.refusals.into_values().collect();
        for refusal in &mut refusals {
            let accepted = self.accepted.get(&refusal.target);
            refusal.accepted_since = accepted.is_some_and(|accepted| *accepted > refusal.last);
        }
        refusals.sort_by_key(|refusal| std::cmp::Reverse((refusal.times, refusal.last)));
        self.bypasses.sort_by_key(|bypass| std::cmp::Reverse(bypass.time));
        let mut errors: Vec<_> = self.errors.into_values().collect();
        errors.sort_by_key(|fault| std::cmp::Reverse(fault.times));
        Summary {
            schema: SCHEMA,
            from: self.ends.map(|(from, _)| from),
            to: self.ends.map(|(_, to)| to),
            asked,
            read,
            decisions: self.decisions,
            dry_runs: self.dry_runs,
            defaults_filled: self.defaults_filled,
            rules,
            users,
            refusals,
            bypasses: self.bypasses,
            errors,
            latency: latency(self.latencies),
            timeline: self.minutes.timeline(),
        }
    }
}

/// What must hold, in the words of the table of rules.
fn says(id: &str) -> &'static str {
    if id.starts_with("ORG/") {
        return "a policy of your organisation, in the ConfigMap of that name";
    }
    rule(id).map_or("", |rule| rule.message)
}

fn latency(mut all: Vec<f64>) -> Option<Latency> {
    all.sort_by(f64::total_cmp);
    let max = *all.last()?;
    // The smallest value that at least `share` of them do not exceed.
    let at = |share: usize| {
        let rank = (all.len() * share).div_ceil(100);
        all.get(rank.saturating_sub(1)).copied().unwrap_or(max)
    };
    Some(Latency {
        count: all.len(),
        p50: at(50),
        p99: at(99),
        max,
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tailnet_crds::audit::{Decision, Endpoint};

    use super::{Builder, Latency, Summary, latency};
    use crate::audit::read::Tally;
    use crate::audit::record::{Layer, Record, Target};

    fn record(second: i64, user: &str, name: &str, decision: Decision) -> Record {
        let rules = |wanted| {
            if decision == wanted {
                vec!["TN203".to_owned()]
            } else {
                Vec::new()
            }
        };
        Record {
            time: Timestamp::from_second(1_800_000_000 + second).unwrap(),
            review: String::new(),
            endpoint: Endpoint::Validate,
            layer: Layer::Webhook,
            decision,
            reason: None,
            user: user.to_owned(),
            groups: Vec::new(),
            verb: "CREATE".to_owned(),
            target: Target {
                kind: "TailnetSite".to_owned(),
                namespace: None,
                name: name.to_owned(),
            },
            dry_run: false,
            rules: rules(Decision::Deny),
            warned: rules(Decision::Warn),
            bypassed: rules(Decision::Bypass),
            fields: vec![format!("spec.{name}")],
            latency_ms: Some(1.0),
            lost_before: 0,
        }
    }

    fn summary(records: Vec<Record>) -> Summary {
        let mut builder = Builder::default();
        records.into_iter().for_each(|record| builder.add(record));
        builder.finish(Vec::new(), Tally::default())
    }

    #[test]
    fn the_three_questions_are_answered() {
        use Decision::{Allow, Bypass, Deny, Warn};
        let mut tried = record(4, "alice", "lab", Deny);
        tried.dry_run = true;
        let summary = summary(vec![
            record(1, "alice", "lab", Deny),
            record(2, "bob", "lab", Deny),
            record(3, "alice", "lab", Warn),
            tried,
            record(5, "carol", "lab", Bypass),
            record(9, "carol", "other", Bypass),
            record(7, "bob", "other", Allow),
        ]);
        assert_eq!(
            (summary.decisions.deny, summary.decisions.bypass, summary.dry_runs),
            (3, 2, 1)
        );
        let rule = &summary.rules[0];
        assert_eq!(
            (rule.rule.as_str(), rule.refused, rule.bypassed, rule.warned, rule.users),
            ("TN203", 3, 2, 1, 2)
        );
        assert!(!rule.says.is_empty());
        let most = &summary.refusals[0];
        assert_eq!((most.user.as_str(), most.times, most.dry_runs), ("alice", 2, 1));
        assert!(most.accepted_since, "the bypass at second 5 let it through");
        assert_eq!(summary.bypasses[0].target.name, "other", "newest first");
        assert_eq!(summary.users[0].user, "alice");
        assert_eq!(summary.users.len(), 3);
    }

    #[test]
    fn a_dry_run_or_an_earlier_write_is_no_acceptance_since() {
        use Decision::{Allow, Deny};
        let mut tried = record(9, "alice", "lab", Allow);
        tried.dry_run = true;
        let summary = summary(vec![
            record(1, "alice", "lab", Allow),
            record(5, "alice", "lab", Deny),
            tried,
            record(9, "alice", "other", Allow),
        ]);
        assert!(!summary.refusals[0].accepted_since);
    }

    #[test]
    fn defaults_are_counted_apart_and_their_failures_are_errors() {
        let mut patch = record(1, "alice", "lab", Decision::Patch);
        patch.endpoint = Endpoint::Mutate;
        let mut failed = record(2, "alice", "lab", Decision::Error);
        failed.endpoint = Endpoint::Mutate;
        failed.reason = Some("panic".to_owned());
        let summary = summary(vec![patch, failed, record(3, "bob", "lab", Decision::Allow)]);
        assert_eq!((summary.defaults_filled, summary.decisions.total()), (1, 1));
        assert_eq!(
            (summary.errors[0].reason.as_str(), summary.errors[0].times),
            ("panic", 1)
        );
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        assert_eq!(latency(Vec::new()), None);
        let all = (1..=100).rev().map(f64::from).collect();
        assert_eq!(
            latency(all),
            Some(Latency {
                count: 100,
                p50: 50.0,
                p99: 99.0,
                max: 100.0
            })
        );
        assert_eq!(latency(vec![7.0]).map(|latency| latency.p99), Some(7.0));
    }
}
