//! Set-ups in which the Tailnet is what is wrong.

use anyhow::{Context, Result};
use base64::Engine;
use serde_json::{Value, json};

use crate::bed::{Bed, NAMESPACE, Said};

const DEMO: &[&str] = &["tailnet/demo"];

/// Every one, and at the end a Tailnet that is ready.
pub fn set_ups(bed: &Bed) -> Result<()> {
    bed.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "headscale-ca", "namespace": NAMESPACE},
        "data": {"ca.crt": bed.headscale.ca_pem()?},
    }))?;
    key(bed)?;
    trust_and_way(bed)?;
    bed.tailnet(|_| {})?;
    bed.expect(
        "1–9 put right",
        DEMO,
        &Said {
            link: "",
            reason: "",
            sentence: "Tailnet demo works: every link holds.",
            next: "",
        },
    );
    bed.expect_doctor("Tailnet demo", "ok", "ready; Headscale v0.29*");
    bed.expect_doctor("Tailnet demo: heartbeat", "ok", "Headscale was last read * s ago");
    bed.expect_doctor(
        "admission fills in defaults",
        "ok",
        "an egress gets \"tag:egress-tailnet-doctor\" *",
    );
    Ok(())
}

/// What is wrong with the bootstrap key.
fn key(bed: &Bed) -> Result<()> {
    bed.tailnet(|_| {})?;
    bed.expect(
        "1 no Secret",
        DEMO,
        &Said {
            link: "apiKey",
            reason: "SecretNotFound",
            sentence: "Tailnet demo does not work: its first broken link is apiKey (SecretNotFound): Secret network/headscale-api of spec.apiSecretRef does not exist; create it with an API key of this Headscale (headscale apikeys create) under the key apiKey. It is the turn of the platform team.",
            next: "kubectl * -n network create secret generic headscale-api --from-literal=apiKey=\"$(headscale apikeys create --expiration 90d)\"",
        },
    );
    bed.expect_doctor("Tailnet demo", "fail", "apiKey (SecretNotFound): *");
    bed.secret("apikey", "x")?;
    bed.expect(
        "2 the Secret has another key",
        DEMO,
        &Said {
            link: "apiKey",
            reason: "SecretKeyMissing",
            sentence: "Tailnet demo does not work: its first broken link is apiKey (SecretKeyMissing): *apikey* It is the turn of the platform team.",
            next: "kubectl * -n network create secret generic headscale-api *--dry-run=client -o yaml | kubectl * apply -f -",
        },
    );
    bed.secret("apiKey", "two words")?;
    bed.expect(
        "3 what the Secret has is no key",
        DEMO,
        &Said {
            link: "apiKey",
            reason: "APIKeyMalformed",
            sentence: "Tailnet demo does not work: its first broken link is apiKey (APIKeyMalformed): * It is the turn of the platform team.",
            next: "kubectl * create secret generic headscale-api *",
        },
    );
    bed.secret("apiKey", "hskey-api-abcdefghijkl-WRONGWRONGWRONGWRONG")?;
    bed.expect(
        "4 Headscale refuses the key",
        DEMO,
        &Said {
            link: "apiKey",
            reason: "APIKeyRefused",
            sentence: "Tailnet demo does not work: its first broken link is apiKey (APIKeyRefused): Headscale refuses the API key in Secret network/headscale-api, * It is the turn of the tailnet admin.",
            next: "kubectl * create secret generic headscale-api *",
        },
    );
    bed.secret("apiKey", &bed.headscale.admin_key()?)
}

/// What is wrong between the operator and Headscale.
fn trust_and_way(bed: &Bed) -> Result<()> {
    bed.tailnet(|spec| spec["api"]["caConfigMapRef"]["name"] = json!("no-such-map"))?;
    bed.expect(
        "5 no such CA bundle",
        DEMO,
        &Said {
            link: "reachable",
            reason: "CAUnusable",
            sentence: "Tailnet demo does not work: its first broken link is reachable (CAUnusable): *no-such-map* It is the turn of the platform team.",
            next: "kubectl * -n network create configmap no-such-map --from-file=ca.crt=ca.pem *",
        },
    );
    bed.tailnet(|spec| spec["api"] = Value::Null)?;
    bed.expect(
        "6 a private CA that nobody named",
        DEMO,
        &Said {
            link: "reachable",
            reason: "CertificateNotTrusted",
            sentence: "Tailnet demo does not work: its first broken link is reachable (CertificateNotTrusted): * It is the turn of the platform team.",
            next: "kubectl * -n network create configmap headscale-ca --from-file=ca.crt=ca.pem",
        },
    );
    for (set_up, endpoint, reason, turn, next) in [
        (
            "7 a name that does not resolve",
            "https://no-such-host.example.net",
            "NameNotResolved",
            "platform team",
            "kubectl * edit tailnet demo",
        ),
        (
            "8 nothing listens there",
            "https://control.example.net:9",
            "ConnectionRefused",
            "tailnet admin",
            "curl --fail --max-time 10 https://control.example.net:9/health",
        ),
    ] {
        bed.tailnet(|spec| spec["api"]["endpoint"] = json!(endpoint))?;
        bed.expect(
            set_up,
            DEMO,
            &Said {
                link: "reachable",
                reason,
                sentence: &format!("Tailnet demo does not work: its first broken link is reachable ({reason}): * It is the turn of the {turn}."),
                next,
            },
        );
    }
    bed.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-ca", "namespace": NAMESPACE},
        "data": {"ca.crt": kube_ca(bed)?},
    }))?;
    let other = format!("https://{}:6443", bed.cluster.node_address());
    bed.tailnet(|spec| spec["api"] = json!({"endpoint": other, "caConfigMapRef": {"name": "kube-ca"}}))?;
    bed.expect(
        "9 another server answers",
        DEMO,
        &Said {
            link: "reachable",
            reason: "UnexpectedAnswer",
            sentence: "Tailnet demo does not work: its first broken link is reachable (UnexpectedAnswer): * It is the turn of the platform team.",
            next: &format!("curl --max-time 10 {other}/version"),
        },
    );
    Ok(())
}

fn kube_ca(bed: &Bed) -> Result<String> {
    let config = bed.kubectl(&["config", "view", "--raw", "-o", "json"])?;
    let config: Value = serde_json::from_str(&config)?;
    let data = config["clusters"][0]["cluster"]["certificate-authority-data"]
        .as_str()
        .context("no CA")?;
    Ok(String::from_utf8(
        base64::engine::general_purpose::STANDARD.decode(data)?,
    )?)
}
