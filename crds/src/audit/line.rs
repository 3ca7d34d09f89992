//! A line of the webhook's audit stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Decision, Endpoint, Reason, SCHEMA};

/// Longest text in a line, in bytes; a longer one ends in `…`.
pub const MAX_TEXT: usize = 256;
/// Most entries of a list in a line.
pub const MAX_ITEMS: usize = 64;
/// Longest line, in bytes: container runtimes cut log lines at 16 KiB, and the cut pieces are no JSON.
pub const MAX_LINE: usize = 12 * 1024;

/// One admission decision. It holds no field values, only paths, so nothing secret; texts and lists are bounded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// `tsunaro.io/admission-decision/v1`. New properties may come without a new number.
    pub schema: String,
    /// When it was decided, RFC 3339.
    pub time: String,
    /// Uid of the admission review; the API server's audit log has it as annotation `review-uid`. Empty when it could not be read.
    pub uid: String,
    /// Which of the two endpoints was called. The rules are asked by `validate` only.
    pub endpoint: Endpoint,
    /// What was answered.
    pub decision: Decision,
    /// Why no rule decided; absent when rules did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Who asked.
    pub user: String,
    /// The requester's groups.
    pub groups: Vec<String>,
    /// CREATE, UPDATE or DELETE.
    pub verb: String,
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object; absent for cluster-scoped kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the object; empty with generateName.
    pub name: String,
    /// Whether the requester only tried (`--dry-run=server`). False where a review could not be read to its end.
    pub dry_run: bool,
    /// Ids of the rules that refused (`TN203`), and of the organisation's policies (`ORG/<policy>/<number>`).
    pub rules: Vec<String>,
    /// Ids of the rules that warned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warned_rules: Vec<String>,
    /// Ids of the rules that would have refused and were skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bypassed_rules: Vec<String>,
    /// Field paths of all findings, each once; never their values.
    pub fields: Vec<String>,
    /// Time in the handler, in milliseconds.
    pub latency_ms: f64,
    /// Names of the properties that are cut, because a text or list was too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
    /// How many decisions before this one have no line, because the writer was too slow or could not write.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_before: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Line {
    /// A line about which only the endpoint and the decision are known.
    pub fn new(time: String, endpoint: Endpoint, decision: Decision) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            time,
            uid: String::new(),
            endpoint,
            decision,
            reason: None,
            user: String::new(),
            groups: Vec::new(),
            verb: String::new(),
            kind: String::new(),
            namespace: None,
            name: String::new(),
            dry_run: false,
            rules: Vec::new(),
            warned_rules: Vec::new(),
            bypassed_rules: Vec::new(),
            fields: Vec::new(),
            latency_ms: 0.0,
            cut: Vec::new(),
            lost_before: 0,
        }
    }

    /// Cuts every text to [`MAX_TEXT`] and every list to [`MAX_ITEMS`], and notes what was cut.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let mut cut = Vec::new();
        let texts = [
            ("uid", Some(&mut self.uid)),
            ("user", Some(&mut self.user)),
            ("verb", Some(&mut self.verb)),
            ("kind", Some(&mut self.kind)),
            ("namespace", self.namespace.as_mut()),
            ("name", Some(&mut self.name)),
        ];
        for (name, text) in texts {
            if text.is_some_and(shorten) {
                cut.push(name);
            }
        }
        for (name, list) in [
            ("groups", &mut self.groups),
            ("rules", &mut self.rules),
            ("warnedRules", &mut self.warned_rules),
            ("bypassedRules", &mut self.bypassed_rules),
            ("fields", &mut self.fields),
        ] {
            let mut shortened = list.len() > MAX_ITEMS;
            list.truncate(MAX_ITEMS);
            for item in list.iter_mut() {
                shortened |= shorten(item);
            }
            if shortened {
                cut.push(name);
            }
        }
        self.cut = cut.into_iter().map(str::to_owned).collect();
        self
    }

    /// The line as JSON text without a line break, of at most [`MAX_LINE`] bytes: where escapes make a bounded line longer,
    /// the ends of `groups` and `fields` go.
    ///
    /// # Errors
    /// When serde cannot write it, which no value of these types causes.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string(self)?;
        if text.len() <= MAX_LINE {
            return Ok(text);
        }
        let mut smaller = self.clone();
        loop {
            for (name, list) in [("groups", &mut smaller.groups), ("fields", &mut smaller.fields)] {
                let half = list.len() / 2;
                list.truncate(half);
                if !smaller.cut.iter().any(|known| known == name) {
                    smaller.cut.push(name.to_owned());
                }
            }
            let text = serde_json::to_string(&smaller)?;
            if text.len() <= MAX_LINE || (smaller.groups.is_empty() && smaller.fields.is_empty()) {
                return Ok(text);
            }
        }
    }

    /// About how many bytes the line takes in memory.
    pub fn weight(&self) -> usize {
        let lists = [
            &self.groups,
            &self.rules,
            &self.warned_rules,
            &self.bypassed_rules,
            &self.fields,
        ];
        let listed: usize = lists.into_iter().flatten().map(|text| text.len() + 24).sum();
        size_of::<Self>() + self.user.len() + self.name.len() + self.uid.len() + self.kind.len() + listed
    }
}

/// Cuts a text to [`MAX_TEXT`] bytes; whether it was longer.
fn shorten(text: &mut String) -> bool {
    const MARK: &str = "…";
    if text.len() <= MAX_TEXT {
        return false;
    }
    let mut end = MAX_TEXT - MARK.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(MARK);
    true
}

#[cfg(test)]
mod tests {
    use super::{Line, MAX_ITEMS, MAX_LINE, MAX_TEXT};
    use crate::audit::{Decision, Endpoint, SCHEMA};

    fn line() -> Line {
        Line::new("2026-11-30T12:00:00Z".to_owned(), Endpoint::Validate, Decision::Deny)
    }

    #[test]
    fn the_schema_comes_first_so_that_grep_finds_lines() {
        let text = line().to_json().unwrap();
        assert!(text.starts_with(&format!("{{\"schema\":\"{SCHEMA}\"")), "{text}");
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line());
        for absent in [
            "namespace",
            "reason",
            "cut",
            "lostBefore",
            "warnedRules",
            "bypassedRules",
        ] {
            assert!(!text.contains(&format!("\"{absent}\"")), "{text}");
        }
    }

    #[test]
    fn a_reader_takes_lines_with_properties_of_later_versions() {
        let mut value = serde_json::to_value(line()).unwrap();
        value["later"] = serde_json::json!({"a": 1});
        assert_eq!(serde_json::from_value::<Line>(value).unwrap(), line());
    }

    #[test]
    fn what_is_long_is_cut_and_said() {
        let mut long = line();
        long.user = "ü".repeat(MAX_TEXT);
        long.groups = (0..MAX_ITEMS + 5).map(|n| format!("group-{n}")).collect();
        long.fields = vec!["spec.ok".to_owned(), "x".repeat(MAX_TEXT + 1)];
        let bounded = long.bounded();
        assert!(bounded.user.len() <= MAX_TEXT && bounded.user.ends_with("ü…"));
        assert_eq!(bounded.groups.len(), MAX_ITEMS);
        assert_eq!(
            (bounded.fields[0].as_str(), bounded.fields[1].len()),
            ("spec.ok", MAX_TEXT)
        );
        assert_eq!(bounded.cut, ["user", "groups", "fields"]);
        let untouched = line().bounded();
        assert_eq!(untouched, line(), "nothing to cut, nothing said");
    }

    #[test]
    fn no_line_is_longer_than_a_container_log_takes() {
        let mut hostile = line();
        let escaped = "\u{1}".repeat(MAX_TEXT);
        hostile.uid = escaped.clone();
        hostile.user = escaped.clone();
        hostile.verb = escaped.clone();
        hostile.kind = escaped.clone();
        hostile.namespace = Some(escaped.clone());
        hostile.name = escaped.clone();
        hostile.groups = vec![escaped.clone(); MAX_ITEMS];
        hostile.fields = vec![escaped; MAX_ITEMS];
        hostile.rules = vec!["TN101".to_owned(); MAX_ITEMS];
        let text = hostile.bounded().to_json().unwrap();
        assert!(text.len() <= MAX_LINE, "{}", text.len());
        assert!(!text.contains('\n'));
        let read: Line = serde_json::from_str(&text).unwrap();
        assert!(read.cut.contains(&"groups".to_owned()) && read.cut.contains(&"fields".to_owned()));
        assert_eq!(read.rules.len(), MAX_ITEMS, "rules stay");
    }
}
