//! Which log a line belongs to, found out line by line: both kinds may be mixed, with the webhook's own log between them
//! (`kubectl logs` mixes both streams of a container) and with what a collector puts in front of a line.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::api_server::{self, Found};
use super::input::{self, InputError, Piece};
use super::record::Record;
use super::stream;

/// Problems that are named one by one; more are only counted.
const NAMED: usize = 10;

/// What was read, and what could not be.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Lines that were read.
    pub lines: u64,
    /// Lines of the webhook's stream.
    pub stream_lines: u64,
    /// Events of the API server's audit log.
    pub api_server_events: u64,
    /// Lines of something else, the webhook's own log for example.
    pub other_lines: u64,
    /// Lines that look like one of ours and cannot be read.
    pub broken_lines: u64,
    /// Decisions that were read before from the other log.
    pub duplicates: u64,
    /// Decisions that the webhook could not write into its stream.
    pub lost: u64,
    /// Writes on our kinds that were stored although the webhook was not asked.
    pub unasked: u64,
    /// The first broken lines, with file, line and reason.
    pub problems: Vec<String>,
}

/// Reads logs and gives each decision on, once.
pub struct Reader<F> {
    tally: Tally,
    /// Fingerprints: a log of a year has more reviews than their texts would fit into memory.
    seen: HashSet<(u64, u64)>,
    each: F,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    schema: Option<Value>,
    #[serde(default)]
    api_version: Option<Value>,
    #[serde(default)]
    kind: Option<Value>,
    /// Docker's json-file log wraps lines.
    #[serde(default)]
    log: Option<Value>,
    /// Batches of events.
    #[serde(default)]
    items: Option<Vec<Value>>,
}

enum Line {
    Decisions(Vec<Record>),
    Unasked,
    Other,
    Broken(String),
}

impl<F: FnMut(Record)> Reader<F> {
    /// `each` gets every decision.
    pub fn new(each: F) -> Self {
        Self {
            tally: Tally::default(),
            seen: HashSet::new(),
            each,
        }
    }

    /// Reads a whole log.
    ///
    /// # Errors
    /// When it cannot be opened, or reading breaks off; what was read counts.
    pub fn log(&mut self, path: &Path) -> Result<(), InputError> {
        let name = path.display().to_string();
        input::lines(path, |number, piece| match piece {
            Piece::Line(text) => self.line(&name, number, text),
            Piece::Unreadable(why) => {
                self.tally.lines += 1;
                self.broken(&name, number, why);
            }
        })
    }

    /// What was read.
    pub fn finish(self) -> Tally {
        self.tally
    }

    fn line(&mut self, name: &str, number: u64, text: &str) {
        self.tally.lines += 1;
        match self.classify(text, 0) {
            Line::Decisions(records) => records.into_iter().for_each(|record| self.take(record)),
            Line::Unasked => self.tally.unasked += 1,
            Line::Other => self.tally.other_lines += 1,
            Line::Broken(why) => self.broken(name, number, &why),
        }
    }

    fn take(&mut self, record: Record) {
        self.tally.lost += record.lost_before;
        let again = !record.review.is_empty() && !self.seen.insert(fingerprint(&record));
        if again {
            self.tally.duplicates += 1;
        } else {
            (self.each)(record);
        }
    }

    fn broken(&mut self, name: &str, number: u64, why: &str) {
        self.tally.broken_lines += 1;
        if self.tally.problems.len() < NAMED {
            self.tally.problems.push(format!("{name}:{number}: {why}"));
        }
    }

    fn classify(&mut self, line: &str, depth: u8) -> Line {
        // `kubectl logs --prefix`, `--timestamps` and CRI log files put words in front.
        let Some(start) = line.find('{') else {
            let marked = line.contains(stream::SCHEMAS) || line.contains(api_server::VERSIONS);
            return if marked {
                Line::Broken("is the rest of a cut line".to_owned())
            } else {
                Line::Other
            };
        };
        let text = line[start..].trim_end();
        // Only what can be ours is parsed: the API server's log is mostly about others.
        if !text.contains("tsunaro.io") {
            return match (start, text.ends_with('}')) {
                (0, false) => Line::Broken("is cut".to_owned()),
                _ => Line::Other,
            };
        }
        let head: Head = match serde_json::from_str(text) {
            Ok(head) => head,
            Err(error) => {
                // A log text that happens to hold a brace and our group is no broken record, nor is one that quotes a record.
                let begins = text.starts_with("{\"");
                let marked = begins && (text.contains(stream::SCHEMAS) || text.contains(api_server::VERSIONS));
                return if marked || (start == 0 && !error.is_data()) {
                    Line::Broken(format!("is no JSON: {error}"))
                } else {
                    Line::Other
                };
            }
        };
        let word = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let (schema, version) = (word(&head.schema), word(&head.api_version));
        if schema.starts_with(stream::SCHEMAS) {
            return match stream::read(text, &schema) {
                Ok(record) => {
                    self.tally.stream_lines += 1;
                    Line::Decisions(vec![record])
                }
                Err(why) => Line::Broken(why),
            };
        }
        if version.starts_with(api_server::VERSIONS) {
            return match word(&head.kind).as_str() {
                "EventList" => self.batch(&head.items.unwrap_or_default()),
                _ => self.event(text),
            };
        }
        match head.log.as_ref().and_then(Value::as_str) {
            Some(inner) if depth == 0 => self.classify(inner, 1),
            _ => Line::Other,
        }
    }

    fn event(&mut self, text: &str) -> Line {
        match api_server::read(text) {
            Ok(found) => {
                self.tally.api_server_events += 1;
                match found {
                    Found::Records(records) => Line::Decisions(records),
                    Found::Unasked => Line::Unasked,
                    Found::Other => Line::Decisions(Vec::new()),
                }
            }
            Err(why) => Line::Broken(why),
        }
    }

    fn batch(&mut self, items: &[Value]) -> Line {
        let mut all = Vec::new();
        for item in items {
            match self.event(&item.to_string()) {
                Line::Decisions(records) => all.extend(records),
                Line::Unasked => self.tally.unasked += 1,
                Line::Other => {}
                broken @ Line::Broken(_) => return broken,
            }
        }
        Line::Decisions(all)
    }
}

/// Of the review and the endpoint, long enough that no two are ever alike.
fn fingerprint(record: &Record) -> (u64, u64) {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, record.endpoint, &record.review).hash(&mut hasher);
        hasher.finish()
    };
    (half(0), half(1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tailnet_crds::audit::{Decision, Endpoint, Line};

    use super::{Reader, Tally};

    fn line(uid: &str) -> String {
        let mut line = Line::new("2026-11-30T12:00:00Z".to_owned(), Endpoint::Validate, Decision::Deny);
        line.uid = uid.to_owned();
        line.user = "alice".to_owned();
        line.kind = "TailnetSite".to_owned();
        line.to_json().unwrap()
    }

    fn event(uid: &str) -> String {
        json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "stage": "ResponseComplete", "verb": "create",
            "requestURI": "/", "user": {"username": "bob"}, "requestReceivedTimestamp": "2026-11-30T12:00:00.000000Z",
            "objectRef": {"resource": "tailnetsites", "apiGroup": "tsunaro.io", "name": "lab"},
            "responseStatus": {"code": 422},
            "annotations": {"validate.tsunaro.io/decision": "deny", "validate.tsunaro.io/review-uid": uid},
        })
        .to_string()
    }

    fn read(lines: &[String]) -> (Vec<String>, Tally) {
        let mut users = Vec::new();
        let mut reader = Reader::new(|record| users.push(format!("{} {}", record.user, record.review)));
        for (at, line) in lines.iter().enumerate() {
            reader.line("log", at as u64 + 1, line);
        }
        let tally = reader.finish();
        (users, tally)
    }

    #[test]
    fn both_logs_are_told_apart_line_by_line() {
        let program = json!({"timestamp": "2026-11-30T12:00:00Z", "level": "INFO", "message": "tsunaro.io is here"});
        let (seen, tally) = read(&[
            line("1"),
            program.to_string(),
            "2026-11-30T12:00:00Z  INFO tailnet_webhook: starts {tsunaro.io}".to_owned(),
            String::new(),
            event("2"),
            format!("[pod/tailnet-webhook-1/webhook] {}", line("3")),
            format!("2026-11-30T12:00:00.1Z stdout F {}", line("4")),
            json!({"log": format!("{}\n", line("5")), "stream": "stdout"}).to_string(),
            json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "items": [serde_json::from_str::<serde_json::Value>(&event("6")).unwrap()]}).to_string(),
            json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "stage": "ResponseComplete"}).to_string(),
        ]);
        assert_eq!(seen, ["alice 1", "bob 2", "alice 3", "alice 4", "alice 5", "bob 6"]);
        assert_eq!((tally.stream_lines, tally.api_server_events), (4, 2));
        assert_eq!((tally.other_lines, tally.broken_lines), (4, 0), "{tally:?}");
    }

    #[test]
    fn the_same_decision_in_both_logs_counts_once() {
        let (seen, tally) = read(&[line("1"), event("1"), line(""), line("")]);
        assert_eq!(seen.len(), 3, "without a uid nothing can be said: {seen:?}");
        assert_eq!(tally.duplicates, 1);
    }

    #[test]
    fn broken_lines_are_counted_named_and_hide_nothing() {
        let whole = line("1");
        let (seen, tally) = read(&[
            whole[..whole.len() - 9].to_owned(),
            whole[30..].to_owned(),
            "{\"a\": 1".to_owned(),
            format!("{whole}{whole}"),
            whole.replace("v1\"", "v7\""),
            line("2"),
        ]);
        assert_eq!(seen, ["alice 2"]);
        assert_eq!(tally.broken_lines, 4, "{tally:?}");
        assert!(tally.problems[0].starts_with("log:1: is no JSON"), "{tally:?}");
        assert!(
            tally
                .problems
                .iter()
                .any(|problem| problem.contains("admission-decision/v7")),
            "{tally:?}"
        );
        let many: Vec<_> = (0..100).map(|_| "{\"a\": 1".to_owned()).collect();
        let (_, tally) = read(&many);
        assert_eq!((tally.broken_lines, tally.problems.len()), (100, 10));
    }

    #[test]
    fn no_damage_to_a_line_does_more_than_cost_it() {
        // Every place of both kinds of line, cut off there or overwritten with what JSON and UTF-8 dislike most.
        for whole in [line("1"), event("1")] {
            for at in 0..whole.len() {
                let mut damaged = vec![whole[..at].to_owned()];
                for letter in ["\"", "\\", "{", "}", "\u{0}", "ü", ",", "9"] {
                    damaged.push(format!("{}{letter}{}", &whole[..at], &whole[at + 1..]));
                }
                damaged.push(line("2"));
                let count = damaged.len() as u64;
                let (seen, tally) = read(&damaged);
                assert_eq!(seen.last().map(String::as_str), Some("alice 2"), "{at}");
                assert_eq!(tally.lines, count);
            }
        }
    }

    #[test]
    fn an_object_that_quotes_our_records_changes_nothing() {
        // A tenant may write anything into an object, and the API server logs the object.
        let mut value: serde_json::Value = serde_json::from_str(&event("1")).unwrap();
        value["requestObject"] =
            json!({"metadata": {"annotations": {"a": line("9"), "schema": "tsunaro.io/admission-decision/v1"}}});
        let mut hostile: serde_json::Value = serde_json::from_str(&line("2")).unwrap();
        hostile["user"] = json!("{\"apiVersion\":\"audit.k8s.io/v1\"}");
        let (seen, tally) = read(&[value.to_string(), hostile.to_string()]);
        assert_eq!(seen, ["bob 1", "{\"apiVersion\":\"audit.k8s.io/v1\"} 2"]);
        assert_eq!(tally.broken_lines, 0);
    }
}
