//! What stays of a decision: metrics, and a line in the audit stream.

use std::time::Duration;

use jiff::Timestamp;
use tailnet_crds::Kind;
use tailnet_crds::audit::{Decision, Endpoint, Line, Reason};
use tailnet_policies::{Finding, Outcome};

use crate::audit::Audit;
use crate::clock::ApiClock;
use crate::metrics::{EndpointLabels, Metrics, RequestLabels, RuleLabels};
use crate::review::{fields, ids};
use crate::subject::Subject;

/// One decision.
#[derive(Debug)]
pub struct Record<'d> {
    /// Which endpoint was called.
    pub endpoint: Endpoint,
    /// What was answered.
    pub decision: Decision,
    /// Why no rule decided.
    pub reason: Option<Reason>,
    /// Who asked for what; None where not even that can be read.
    pub subject: Option<&'d Subject>,
    /// What the rules found.
    pub outcome: &'d Outcome,
    /// Time in the handler.
    pub latency: Duration,
}

impl Record<'_> {
    /// Counts the decision and hands its line to the stream.
    pub fn keep(&self, metrics: &Metrics, audit: &Audit, clock: &ApiClock) {
        self.count(metrics);
        if audit.is_on() {
            audit.write(self.line(clock.now()));
        }
    }

    fn count(&self, metrics: &Metrics) {
        // Only known words become labels: a caller must not be able to grow the metrics.
        let kind = match self.subject.map(|subject| subject.kind.as_str()) {
            Some("ConfigMap") => "ConfigMap",
            kind => kind
                .and_then(|kind| kind.parse::<Kind>().ok())
                .map_or("other", Kind::as_str),
        };
        let operation = match self.subject.map(|subject| subject.verb.as_str()) {
            Some("CREATE") => "CREATE",
            Some("UPDATE") => "UPDATE",
            Some("DELETE") => "DELETE",
            _ => "other",
        };
        let endpoint = self.endpoint.as_str();
        let labels = RequestLabels {
            endpoint,
            kind,
            operation,
            decision: self.decision.as_str(),
        };
        metrics.requests.get_or_create(&labels).inc();
        let time = metrics.duration.get_or_create(&EndpointLabels { endpoint });
        time.observe(self.latency.as_secs_f64());
        if let Some(reason) = self.reason.filter(|_| self.decision == Decision::Error) {
            metrics.undecided(reason.as_str());
        }
        let findings: [(_, &mut dyn Iterator<Item = &Finding>); 3] = [
            (&metrics.denials, &mut self.outcome.denials()),
            (&metrics.warnings, &mut self.outcome.warnings()),
            (&metrics.bypasses, &mut self.outcome.bypassed.iter()),
        ];
        for (counter, findings) in findings {
            for finding in findings {
                let labels = RuleLabels {
                    rule: finding.rule,
                    kind,
                    operation,
                };
                counter.get_or_create(&labels).inc();
            }
        }
    }

    fn line(&self, now: Timestamp) -> Line {
        let mut line = Line::new(now.to_string(), self.endpoint, self.decision);
        let owned = |ids: Vec<&str>| ids.into_iter().map(str::to_owned).collect();
        line.reason = self.reason;
        if let Some(subject) = self.subject.cloned() {
            line.uid = subject.uid;
            line.user = subject.user;
            line.groups = subject.groups;
            line.verb = subject.verb;
            line.kind = subject.kind;
            line.namespace = subject.namespace;
            line.name = subject.name;
            line.dry_run = subject.dry_run;
        }
        line.rules = owned(ids(self.outcome.denials()));
        line.warned_rules = owned(ids(self.outcome.warnings()));
        line.bypassed_rules = owned(ids(self.outcome.bypassed.iter()));
        line.fields = fields(self.outcome).into_iter().map(str::to_owned).collect();
        line.latency_ms = (self.latency.as_secs_f64() * 1e6).round() / 1e3;
        line
    }
}
