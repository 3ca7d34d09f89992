use std::collections::HashSet;
use std::time::Duration;

use tailnet_crds::conditions::REASONS;
use tailnet_crds::types::{SecretKeyRef, Text};
use tailnet_crds::{PolicyMode, TailnetDns, TailnetPolicy};
use tailnet_headscale::PolicyText;

use super::*;
use crate::desired::access_policy::Told;
use crate::ledger::IntentionError;

fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

fn spec() -> TailnetSpec {
    TailnetSpec {
        server: Text::new("https://control.example.net"),
        api_secret_ref: SecretKeyRef {
            name: "headscale-api".into(),
            key: None,
        },
        ..TailnetSpec::default()
    }
}

fn observed(policy: Option<&str>) -> Observed {
    let node = serde_json::from_str(r#"{"id":"1","availableRoutes":["192.0.2.0/24","10.0.0.0/8"]}"#).unwrap();
    let other = serde_json::from_str(r#"{"id":"2","availableRoutes":["192.0.2.0/24"]}"#).unwrap();
    let text = policy.map(|text| PolicyText {
        text: text.into(),
        updated_at: None,
    });
    Observed::new("v0.29.3".into(), vec![node, other], text, now())
}

fn healthy<'a>(observed: &'a Observed, verdict: &'a Verdict) -> Found<'a> {
    Found {
        verdict,
        reachable: Some(Ok("v0.29.3")),
        key: Some(Ok(ApiKeyStatus {
            prefix: "abcdefghijkl".into(),
            ..ApiKeyStatus::default()
        })),
        key_hint: None,
        observed: Some(observed),
        facts: Some(Ok(vec!["tailnet-facts-corp-0".into()])),
        hosts: Published::NotConfigured,
        counts: ObjectCounts {
            egress: 1,
            ..ObjectCounts::default()
        },
        organisation: Standings::default(),
        policy: None,
        used_tags: vec![("tag:egress-a".into(), "TailnetEgress tailnet-system/a".into())],
    }
}

fn told(status: &TailnetStatus, r#type: &str) -> (String, String, String) {
    let condition = status.conditions.iter().find(|c| c.type_ == r#type).unwrap();
    // Ready repeats the reason of the condition that fails.
    let listed = REASONS
        .iter()
        .any(|row| row.reason == condition.reason && (row.conditions.contains(&r#type) || r#type == READY));
    assert!(listed, "{type} {} is not in the table of reasons", condition.reason);
    (
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    )
}

fn make(spec: &TailnetSpec, found: &Found<'_>) -> TailnetStatus {
    status(spec, Some(3), None, found, now())
}

#[test]
fn a_healthy_tailnet() {
    let observed = observed(Some(r#"{"tagOwners":{"tag:egress-a":[]},"grants":[]}"#));
    let status = make(&spec(), &healthy(&observed, &Verdict::Valid));
    for r#type in [
        "Accepted",
        "Reachable",
        "APIKeyReady",
        "PolicyReady",
        "DNSReady",
        "Ready",
    ] {
        assert_eq!(told(&status, r#type).0, "True", "{type}");
    }
    assert!(status.conditions.iter().all(|c| c.observed_generation == Some(3)));
    let seen = status.observed.unwrap();
    assert_eq!((seen.nodes, seen.routes, seen.tags), (2, 2, 1));
    assert_eq!(seen.facts_config_maps, ["tailnet-facts-corp-0"]);
    let policy = status.policy.unwrap();
    assert_eq!(
        (policy.default_posture, policy.live_sha256.unwrap().len()),
        (Some(DefaultPosture::Deny), 64)
    );
    assert_eq!(status.server_version.as_deref(), Some("v0.29.3"));
}

#[test]
fn whose_turn_it_is() {
    let call = "GET /version".to_owned();
    let address = "control.example.net:443".to_owned();
    let cases = [
        (
            Trouble::Ca(CaError::NoConfigMap {
                namespace: "n".into(),
                name: "ca".into(),
            }),
            "CAUnusable",
        ),
        (Trouble::Url("x".into()), "InvalidURL"),
        (
            Trouble::Call(HeadscaleError::Dns {
                host: "h".into(),
                detail: "d".into(),
            }),
            "NameNotResolved",
        ),
        (
            Trouble::Call(HeadscaleError::Connect {
                address: address.clone(),
                detail: "d".into(),
                refused: true,
            }),
            "ConnectionRefused",
        ),
        (
            Trouble::Call(HeadscaleError::ConnectTimeout {
                address: address.clone(),
                after: Duration::from_secs(5),
            }),
            "NoAnswer",
        ),
        (
            Trouble::Call(HeadscaleError::Timeout {
                call: call.clone(),
                after: Duration::from_secs(15),
            }),
            "NoAnswer",
        ),
        (
            Trouble::Call(HeadscaleError::Tls {
                address: address.clone(),
                detail: "d".into(),
                unknown_issuer: true,
            }),
            "CertificateNotTrusted",
        ),
        (
            Trouble::Call(HeadscaleError::Tls {
                address,
                detail: "certificate expired".into(),
                unknown_issuer: false,
            }),
            "TLSFailed",
        ),
        (
            Trouble::Call(HeadscaleError::NotHeadscale {
                call: call.clone(),
                detail: "text/html".into(),
            }),
            "UnexpectedAnswer",
        ),
        (
            Trouble::Call(HeadscaleError::Server {
                call: call.clone(),
                status: 502,
                message: "m".into(),
            }),
            "ServerError",
        ),
        (Trouble::Version("v0.28.0".into()), "UnsupportedVersion"),
        (
            Trouble::Read(HeadscaleError::Server {
                call,
                status: 500,
                message: "m".into(),
            }),
            "ReadFailed",
        ),
    ];
    let observed = observed(None);
    for (trouble, reason) in cases {
        let mut found = healthy(&observed, &Verdict::Valid);
        (found.reachable, found.key) = (Some(Err(&trouble)), None);
        let status = make(&spec(), &found);
        assert_eq!(told(&status, "Reachable").1, reason);
        assert_eq!(told(&status, "APIKeyReady").1, "ControlPlaneUnreachable");
        let ready = told(&status, "Ready");
        assert_eq!(
            (ready.0.as_str(), ready.1.as_str()),
            ("False", reason),
            "Ready repeats the first cause"
        );
    }
}

#[test]
fn key_troubles_are_all_listed() {
    let (namespace, name, key) = (
        "tailnet-system".to_owned(),
        "headscale-api".to_owned(),
        "apiKey".to_owned(),
    );
    let errors = [
        WorkingKeyError::NoSecret {
            namespace: namespace.clone(),
            name: name.clone(),
            key: key.clone(),
        },
        WorkingKeyError::NoKey {
            namespace: namespace.clone(),
            name: name.clone(),
            key: key.clone(),
            present: "it has apikey".to_owned(),
        },
        WorkingKeyError::Malformed {
            namespace: namespace.clone(),
            name: name.clone(),
            key: key.clone(),
        },
        WorkingKeyError::Refused {
            namespace: namespace.clone(),
            name: name.clone(),
            key,
        },
        WorkingKeyError::Foreign { namespace, name },
        WorkingKeyError::Headscale(HeadscaleError::MalformedKey),
        WorkingKeyError::NotProven(HeadscaleError::MalformedKey),
        WorkingKeyError::Limit(IntentionError::Full),
        WorkingKeyError::Ledger(crate::ledger::LedgerError::Contended),
    ];
    let observed = observed(None);
    let mut reasons = HashSet::new();
    for error in &errors {
        let mut found = healthy(&observed, &Verdict::Valid);
        found.key = Some(Err(error));
        let (truth, reason, message) = told(&make(&spec(), &found), "APIKeyReady");
        assert_eq!((truth.as_str(), message), ("False", error.to_string()));
        reasons.insert(reason);
    }
    assert_eq!(reasons.len(), 8, "MintFailed stands for two");
}

#[test]
fn the_policy_is_reported_as_it_is() {
    let report = |policy: Option<&str>| {
        let observed = observed(policy);
        let (truth, reason, message) = told(&make(&spec(), &healthy(&observed, &Verdict::Valid)), "PolicyReady");
        format!("{truth} {reason} {message}")
    };
    let untagged =
        "False TagNotOwned no tagOwners entry in the live policy for tag:egress-a (TailnetEgress tailnet-system/a)";
    assert_eq!(report(None), untagged);
    assert_eq!(report(Some(r#"{"acls":[]}"#)), untagged);
    assert!(
        report(Some("{broken")).starts_with("False PolicyUnreadable the live policy is no HuJSON: line 1, column 2")
    );
    assert!(report(Some("{\"x\":1}")).starts_with("False PolicyUnreadable the live policy: line 1, column 2: x: "));
    assert!(report(Some(r#"{"tagOwners":{"tag:egress-a":[]}}"#)).ends_with("everybody may reach everything"));
}

#[test]
fn the_outcome_of_an_owned_policy_is_told() {
    let observed = observed(Some("{}"));
    let owning = |mode| TailnetSpec {
        policy: Some(TailnetPolicy {
            mode,
            ..TailnetPolicy::default()
        }),
        ..spec()
    };
    let mut found = healthy(&observed, &Verdict::Valid);
    let status = make(&owning(PolicyMode::Apply), &found);
    assert_eq!(told(&status, "PolicyReady").1, "Unknown", "not looked at yet");
    assert_eq!(told(&status, "Ready").0, "False");
    found.policy = Some(Outcome {
        told: Told::new(Truth::False, reason::POLICY_REJECTED, "no"),
        status: PolicyStatus {
            rendered_sha256: Some("ab".into()),
            rejection: Some("no".into()),
            ..PolicyStatus::default()
        },
        left_out: Default::default(),
    });
    let status = make(&owning(PolicyMode::Apply), &found);
    assert_eq!(
        told(&status, "PolicyReady"),
        ("False".into(), "Rejected".into(), "no".into())
    );
    assert_eq!(told(&status, "Ready").1, "Rejected");
    assert_eq!(status.policy.as_ref().unwrap().rejection.as_deref(), Some("no"));
    let status = make(&owning(PolicyMode::DryRun), &found);
    assert_eq!(told(&status, "Ready").0, "True", "nothing was to be written");
    // An outcome of before says nothing once others write the policy.
    let status = make(&spec(), &found);
    assert_eq!(status.policy.unwrap().rendered_sha256, None);
}

#[test]
fn what_was_seen_stays_while_headscale_is_down() {
    let seen = observed(Some("{}"));
    let before = make(&spec(), &healthy(&seen, &Verdict::Valid));
    let down = Trouble::Call(HeadscaleError::Connect {
        address: "a:1".into(),
        detail: "d".into(),
        refused: true,
    });
    let mut found = healthy(&seen, &Verdict::Valid);
    (found.reachable, found.key, found.observed, found.facts) = (Some(Err(&down)), None, None, None);
    let after = status(&spec(), Some(3), Some(&before), &found, now());
    assert_eq!((&after.observed, &after.api_key), (&before.observed, &before.api_key));
    assert_eq!(
        (&after.policy, &after.server_version),
        (&before.policy, &before.server_version)
    );
    let again = status(
        &spec(),
        Some(3),
        Some(&after),
        &found,
        now() + jiff::SignedDuration::from_secs(9),
    );
    assert_eq!(again, after, "an unchanged state is an unchanged status");
}

#[test]
fn names() {
    let observed = observed(None);
    let spec = TailnetSpec {
        dns: Some(TailnetDns {
            ingress_name_template: Some(Text::new("{name}.example.org")),
            ..TailnetDns::default()
        }),
        ..spec()
    };
    for (hosts, reason) in [
        (Published::Missing { name: "h".into() }, "NotPublished"),
        (
            Published::Foreign {
                name: "h".into(),
                holder: "nobody".into(),
            },
            "HostsNotOurs",
        ),
        (
            Published::Ours {
                name: "h".into(),
                text: String::new(),
            },
            "Published",
        ),
    ] {
        let status = make(
            &spec,
            &Found {
                hosts,
                ..healthy(&observed, &Verdict::Valid)
            },
        );
        assert_eq!(told(&status, "DNSReady").1, reason);
        assert_eq!(told(&status, "SplitDNS").1, "CannotVerify");
    }
}

#[test]
fn a_tailnet_that_rules_forbid_is_not_asked() {
    let observed = observed(None);
    let verdict = Verdict::Withdraw(Vec::new());
    let mut found = healthy(&observed, &verdict);
    (found.reachable, found.key, found.facts) = (None, None, None);
    let status = make(&spec(), &found);
    assert_eq!(told(&status, "Accepted").1, "Invalid");
    assert_eq!(told(&status, "Reachable").1, "NotAccepted");
    assert_eq!(told(&status, "APIKeyReady").1, "NotAccepted");
    assert_eq!(told(&status, "Ready").1, "Invalid");
}

#[test]
fn facts_that_cannot_be_written_are_told() {
    let observed = observed(None);
    let found = Found {
        facts: Some(Err("ConfigMap x is foreign".into())),
        ..healthy(&observed, &Verdict::Valid)
    };
    let ready = told(&make(&spec(), &found), "Ready");
    assert_eq!(
        ready,
        (
            "False".into(),
            "FactsNotPublished".into(),
            "ConfigMap x is foreign".into()
        )
    );
}

#[test]
fn the_organisations_policies_are_said_where_there_are_some() {
    let observed = observed(None);
    let with = |organisation: Standings| {
        let found = Found {
            organisation,
            ..healthy(&observed, &Verdict::Valid)
        };
        make(&spec(), &found)
    };
    let none = with(Standings::default());
    assert!(
        !none
            .conditions
            .iter()
            .any(|condition| condition.type_ == "OrganisationPolicies")
    );
    let in_force = vec![("owners".to_owned(), 2)];
    let sound = Standings {
        in_force: in_force.clone(),
        ..Standings::default()
    };
    let (status, reason, message) = told(&with(sound.clone()), "OrganisationPolicies");
    assert_eq!(
        (status.as_str(), reason.as_str(), message.as_str()),
        ("True", "InForce", "owners (2 validations)")
    );
    let unusable = Standings {
        unusable: vec![("ssh".to_owned(), "it ends too early".to_owned())],
        ..sound.clone()
    };
    let (status, reason, message) = told(&with(unusable.clone()), "OrganisationPolicies");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "PolicyUnusable"));
    assert!(message.contains("ssh: it ends too early"), "{message}");
    let vanished = Standings {
        vanished: vec![("gone".to_owned(), "2026-01-01T00:00:00Z".to_owned())],
        ..unusable
    };
    let status = with(vanished);
    let (truth, reason, message) = told(&status, "OrganisationPolicies");
    assert_eq!((truth.as_str(), reason.as_str()), ("False", "PolicyVanished"));
    assert!(
        message.contains("gone (known since 2026-01-01T00:00:00Z)") && message.contains(RECORD),
        "{message}"
    );
    assert_eq!(told(&status, "Ready").0, "True", "the Tailnet works all the same");
}
