//! A password in a URL comes back nowhere: neither from the schema, which the API server checks itself, nor from the webhook.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::{one_at_a_time, wait_for};

use super::installed::{Caller, Webhook, cluster, egress, tailnet};
use super::start_over;

const PASSWORD: &str = "hunter2";

/// Wrong objects with a password, by the field that has it, and who refuses each.
fn wrong() -> Vec<(&'static str, &'static str, Value)> {
    let url = |scheme: &str, rest: &str| json!(format!("{scheme}://admin:{PASSWORD}@control.example.net{rest}"));
    let mut server = tailnet("quoted-server");
    server["spec"]["server"] = url("https", "");
    let mut endpoint = tailnet("quoted-endpoint");
    endpoint["spec"]["api"] = json!({"endpoint": url("https", ":50443/api")});
    let mut address = egress("quoted-address", "not-yet");
    address["spec"]["targets"][0]["address"] = url("postgres", "/app");
    let mut foreign = egress("quoted-foreign", "not-yet");
    foreign["spec"]["targets"][0]["address"] = url("postgr\u{e9}s", "/app");
    // The schema leaves what has an @ to the webhook, which does not repeat it.
    let mut namespace = egress("quoted-namespace", "not-yet");
    namespace["spec"]["consumerNamespaces"] = json!([url("https", "")]);
    vec![
        ("spec.server", "TN101", server),
        ("spec.api.endpoint", "TN101", endpoint),
        ("spec.targets[0].address", "TN203", address),
        ("spec.targets[0].address", "TN203", foreign),
        ("spec.consumerNamespaces[0]", "TN209", namespace),
    ]
}

#[test]
fn a_password_in_a_url_comes_back_nowhere() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-passwords", 9443)?;
    let mut names = Vec::new();
    for (field, rule, object) in wrong() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        for dry in [true, false] {
            let said = caller.create(&object, dry)?;
            let text = said.body.to_string();
            assert_eq!(said.status, 422, "{text}");
            assert!(
                !text.contains(PASSWORD) && !said.warnings.concat().contains(PASSWORD),
                "{said:?}"
            );
            assert!(
                said.message().contains(field) && said.message().contains(rule),
                "{text}"
            );
        }
        let text = cluster.apply_refused(&object.to_string())?;
        assert!(!text.contains(PASSWORD) && text.contains(rule), "{text}");
        // A change of a right object to the wrong one.
        let mut right = if rule == "TN101" {
            tailnet(&name)
        } else {
            egress(&name, "not-yet")
        };
        right["metadata"]["name"] = json!(name);
        assert_eq!(caller.create(&right, false)?.status, 201);
        let said = caller.update_as(&object, false, None)?;
        assert_eq!(said.status, 422, "{said:?}");
        assert!(!format!("{said:?}").contains(PASSWORD), "{said:?}");
        assert_eq!(caller.delete(&right)?.status, 200);
        names.push(name);
    }
    // What a value without a password gets is as clear as before.
    let mut path = tailnet("with-path");
    path["spec"]["server"] = json!("https://control.example.net/headscale");
    let said = caller.create(&path, true)?;
    let wanted = "spec.server: Invalid value: \"https://control.example.net/headscale\": is not an absolute https URL";
    assert!(said.message().contains(wanted), "{}", said.message());

    // The API server's own log has the objects, as it is told to; nothing that anybody said of them has it.
    wait_for("the last request is in the audit log", Duration::from_secs(20), || {
        let events = cluster.audit_log()?;
        let mut seen = 0;
        for event in &events {
            let of = |name: &String| {
                event["objectRef"]["name"] == **name || event["requestObject"]["metadata"]["name"] == **name
            };
            if !names.iter().any(of) || event["responseStatus"]["code"] != 422 {
                continue;
            }
            seen += 1;
            for part in ["annotations", "responseStatus", "responseObject"] {
                assert!(!event[part].to_string().contains(PASSWORD), "{part}: {event}");
            }
        }
        // Four times two creates, an apply and an update.
        ensure!(seen >= 4 * names.len(), "{seen} events");
        Ok(())
    })?;
    let stream: Vec<_> = webhook.audit_lines().iter().map(Value::to_string).collect();
    assert!(
        stream.iter().any(|line| line.contains("quoted-namespace")),
        "the webhook has seen one"
    );
    for line in &stream {
        assert!(!line.contains(PASSWORD), "{line}");
    }
    assert!(!webhook.process.log().contains(PASSWORD));
    let events = cluster.kubectl(&["get", "events", "--all-namespaces", "-o", "json"])?;
    assert!(!events.success()?.contains(PASSWORD));
    Ok(())
}

/// Without a webhook the schema alone answers.
#[test]
fn the_schema_alone_repeats_no_password() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller: Caller = start_over(cluster)?;
    for (field, rule, object) in wrong().into_iter().take(4) {
        let said = caller.create(&object, true)?;
        let text = said.body.to_string();
        assert_eq!(said.status, 422, "{text}");
        assert!(!text.contains(PASSWORD), "{text}");
        assert!(
            said.message().contains(field) && said.message().contains(rule),
            "{text}"
        );
    }
    Ok(())
}
