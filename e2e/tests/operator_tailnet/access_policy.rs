//! The access policy that the operator renders and, in mode Apply, writes to a real Headscale.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use serde_json::{Value, json};
use tailnet_e2e::{Account, Exit, binaries, wait_for};
use tailnet_headscale::PolicyText;
use tailnet_headscale::document::{Document, Policy};
use tailnet_operator::rbac;
use tailnet_policies::access_policy::sha256_hex;

use crate::bed::{Bed, join};
use crate::cut_answers::CutAnswers;

/// A write waits for more changes, and for the one before it.
const PATIENCE: Duration = Duration::from_secs(90);

const BASE: &str = r#"{
  // what people write
  "groups": { "group:ops": ["ann@"] },
  "tagOwners": {
    "tag:router": ["group:ops"], // routers
  },
  "grants": [
    { "src": ["group:ops"], "dst": ["*"], "ip": ["*"] },
  ],
  "tests": [
    // no node has this tag yet, so Headscale would refuse every policy
    { "src": "tag:egress-pa", "accept": ["192.0.2.10:5432"], "deny": ["192.0.2.10:22"] },
    { "src": "192.0.2.9", "deny": ["198.51.100.1:1"] },
  ],
}
"#;

/// Puts an open policy back in the end: the other tests of this server need one.
pub struct Open<'b>(&'b Bed);

impl<'b> Open<'b> {
    pub fn begin(bed: &'b Bed, policy: &str) -> Result<Self> {
        let open = Self(bed);
        bed.block(bed.admin.put_policy(policy))?;
        Ok(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let _ = self.0.block(self.0.admin.put_policy("{ \"tagOwners\": {} }"));
    }
}

fn live(bed: &Bed) -> Result<PolicyText> {
    bed.block(bed.admin.policy())?.context("Headscale has no policy")
}

fn policy(text: &str) -> Result<Policy> {
    Ok(Document::parse(text)?.policy().clone())
}

fn base(bed: &Bed, text: &str) -> Result<()> {
    bed.apply(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "base", "namespace": bed.ns()},
        "data": {"policy.hujson": text}}),
    )
}

pub fn own(bed: &Bed, mode: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
    bed.tailnet(|spec| {
        spec["policy"] = json!({"baseConfigMap": "base", "mode": mode, "tagOwners": ["group:ops"],
            "routeApprovers": ["tag:router"], "ingressSourceAllowlist": ["*"]});
        change(&mut spec["policy"]);
    })
}

/// Waits for `PolicyReady` of the Tailnet; gives the message.
pub fn expect(bed: &Bed, status: &str, reason: &str) -> Result<String> {
    wait_for(&format!("PolicyReady is {status}/{reason}"), PATIENCE, || {
        let seen = bed.condition(&["tailnet", &bed.tailnet], "PolicyReady")?;
        ensure!(seen.0 == status && seen.1 == reason, "{seen:?}");
        Ok::<_, anyhow::Error>(seen.2)
    })
}

fn wait_for_live(bed: &Bed, what: &str, holds: impl Fn(&str) -> bool) -> Result<String> {
    wait_for(what, PATIENCE, || {
        let text = live(bed)?.text;
        ensure!(holds(&text), "the live policy:\n{text}");
        Ok::<_, anyhow::Error>(text)
    })
}

fn rendered(bed: &Bed) -> Result<Value> {
    let found = bed.get(&["configmap", &format!("tailnet-rendered-policy-{}", bed.tailnet)])?;
    ensure!(!found.is_null(), "there is no rendered policy");
    Ok(found)
}

fn note(bed: &Bed, reason: &str, holds: impl Fn(&str) -> bool) -> Result<String> {
    wait_for(&format!("an Event {reason}"), PATIENCE, || {
        let events = bed.get(&["events.events.k8s.io"])?;
        let notes: Vec<String> = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|event| event["reason"] == reason)
            .map(|event| event["note"].as_str().unwrap_or_default().to_owned())
            .collect();
        notes
            .iter()
            .find(|note| holds(note))
            .cloned()
            .with_context(|| format!("events: {notes:?}"))
    })
}

/// What `kubectl tailnet policy` says of the cluster, with no more rights than the operator has.
fn plugin(bed: &Bed) -> Result<()> {
    let binary = binaries::workspace("kubectl-tailnet", "kubectl-tailnet")?
        .display()
        .to_string();
    let ask = |arguments: &[&str]| -> Result<String> {
        let mut argv = vec![binary.as_str(), "policy"];
        argv.extend(arguments);
        argv.extend(["--cluster", "--kubeconfig", &bed.kubeconfig, "--tailnet", &bed.tailnet]);
        argv.extend(["--operator-namespace", bed.ns()]);
        Ok(bed.cluster.inside().run(&argv)?.success()?.to_owned())
    };
    assert_eq!(ask(&["diff"])?, "", "the cluster's own render is what is live");
    assert_eq!(ask(&["render"])?.trim_end(), live(bed)?.text.trim_end());
    let told = ask(&["why", "tag:egress-pa", "192.0.2.10:5432"])?;
    assert!(
        told.contains(&format!("generated for TailnetEgress {}/pa", bed.ns())),
        "{told}"
    );
    // Who may not list everything is not given an answer that rests on a part.
    for (resource, named) in [("tailnetsites", "tailnetsites"), ("services", "services")] {
        let kubeconfig = account_without(bed, resource)?;
        for command in [&["diff"][..], &["render"], &["why", "tag:egress-pa", "192.0.2.10:5432"]] {
            let mut argv = vec![binary.as_str(), "policy"];
            argv.extend(command);
            argv.extend(["--cluster", "--kubeconfig", &kubeconfig, "--tailnet", &bed.tailnet]);
            argv.extend(["--operator-namespace", bed.ns()]);
            let done = bed.cluster.inside().run(&argv)?;
            assert_eq!(
                done.exit,
                Exit::Code(2),
                "{command:?} without {resource}: {}",
                done.stderr
            );
            assert_eq!(done.stdout, "", "{command:?} without {resource}");
            assert!(
                done.stderr.contains(&format!("not to be had: {named}")),
                "{}",
                done.stderr
            );
        }
    }
    Ok(())
}

/// Kubeconfig of an account with the operator's rights, but for lists of one resource in the whole cluster.
fn account_without(bed: &Bed, resource: &str) -> Result<String> {
    let name = format!("without-{resource}");
    let mut cluster_rules = rbac::cluster_rules();
    for rule in &mut cluster_rules {
        rule.resources.iter_mut().flatten().for_each(|listed| {
            if listed == resource {
                "nothing".clone_into(listed);
            }
        });
    }
    bed.cluster.install_account(&Account {
        namespace: bed.ns(),
        name: &name,
        cluster_role: &format!("{name}-{}", bed.ns()),
        cluster_rules,
        namespace_rules: rbac::namespace_rules(),
    })?;
    let kubeconfig = bed.cluster.service_account_kubeconfig(bed.ns(), &name)?;
    Ok(kubeconfig.to_str().context("UTF-8")?.to_owned())
}

fn begin(bed: &Bed) -> Result<()> {
    bed.bootstrap(&bed.headscale.admin_key()?)
}

#[test]
fn from_dry_run_to_apply_and_back() -> Result<()> {
    let bed = Bed::new("policy_apply")?;
    begin(&bed)?;
    let people = "{ \"grants\": [{ \"src\": [\"*\"], \"dst\": [\"*\"], \"ip\": [\"*\"] }] } // by hand\n";
    let _open = Open::begin(&bed, people)?;
    let before = live(&bed)?;
    base(&bed, BASE)?;
    own(&bed, "DryRun", |_| {})?;
    bed.egress("pa")?;
    let operator = bed.operator(&[])?;

    // DryRun: everything to be seen, nothing written.
    let message = expect(&bed, "False", "DryRun")?;
    assert!(message.contains("entries come"), "{message}");
    wait_for("the render has the egress", PATIENCE, || {
        let text = rendered(&bed)?["data"]["rendered.hujson"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        ensure!(
            text.contains(&format!("// from TailnetEgress {}/pa", bed.ns())),
            "{text}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    let shown = rendered(&bed)?;
    assert!(
        shown["data"]["diff"]
            .as_str()
            .context("a diff")?
            .contains("-{ \"grants\": [{ \"src\": [\"*\"]"),
        "{shown}"
    );
    assert_eq!(shown["data"]["live.hujson"], people);
    assert_eq!(live(&bed)?, before, "DryRun wrote");

    // Apply: written once, byte for byte what was shown.
    own(&bed, "Apply", |_| {})?;
    expect(&bed, "True", "Applied")?;
    let applied = live(&bed)?;
    assert_eq!(rendered(&bed)?["data"]["rendered.hujson"], applied.text);
    let seen = policy(&applied.text)?;
    assert!(
        applied.text.contains("// what people write") && applied.text.contains("// routers"),
        "{}",
        applied.text
    );
    assert!(seen.tag_owners.contains_key("tag:egress-pa") && seen.tag_owners.contains_key("tag:router"));
    assert_eq!(seen.auto_approvers.routes["192.0.2.10/32"], ["tag:router"]);
    assert_eq!(
        seen.tests.len(),
        1,
        "the test that waits for a node is set aside:\n{}",
        applied.text
    );
    assert!(
        applied.text.contains("/* waits until a node has tag:egress-pa"),
        "{}",
        applied.text
    );
    assert_eq!(
        rendered(&bed)?["data"]["overwritten.hujson"],
        people,
        "what was taken over is kept"
    );
    let status = bed.get(&["tailnet", &bed.tailnet])?["status"]["policy"].clone();
    assert_eq!(status["defaultPosture"], "Deny", "{status}");
    assert!(
        status["appliedAt"].is_string() && status["rejection"].is_null(),
        "{status}"
    );
    assert_eq!(status["renderedSHA256"], status["liveSHA256"], "{status}");
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(live(&bed)?, applied, "written again although nothing changed");
    plugin(&bed)?;

    // An egress more, an egress less.
    bed.egress("pb")?;
    wait_for_live(&bed, "the second egress is in", |text| {
        text.contains("\"tag:egress-pb\"")
    })?;
    bed.delete(&["tailnetegress", "pb"])?;
    wait_for_live(&bed, "the second egress is out", |text| {
        !text.contains("\"tag:egress-pb\"")
    })?;
    let settled = expect(&bed, "True", "Applied").and_then(|_| live(&bed))?;

    // A person's edit is overwritten, and what it was is told.
    let edited = settled.text.replace(
        "{ \"src\": [\"group:ops\"]",
        "{ \"src\": [\"bob@\"], \"dst\": [\"203.0.113.7\"], \"ip\": [\"tcp:7\"] },\n    { \"src\": [\"group:ops\"]",
    );
    assert_ne!(edited, settled.text);
    bed.block(bed.admin.put_policy(&edited))?;
    wait_for_live(&bed, "the edit is overwritten", |text| text == settled.text)?;
    let told = note(&bed, "PolicyOverwritten", |note| note.contains("203.0.113.7"))?;
    assert!(
        told.contains("edited outside") && told.contains("overwritten.hujson"),
        "{told}"
    );
    wait_for("the edit is kept", PATIENCE, || {
        let kept = rendered(&bed)?["data"]["overwritten.hujson"].clone();
        ensure!(kept == edited, "{kept}");
        Ok::<_, anyhow::Error>(())
    })?;

    // The policy is given up: the document stays, without the owner's line.
    bed.tailnet(|_| {})?;
    let given_up = wait_for_live(&bed, "the owner's line is gone", |text| !text.contains("policy-owner"))?;
    let rest: Vec<&str> = settled.text.lines().skip(1).collect();
    assert_eq!(given_up.lines().collect::<Vec<_>>(), rest);
    expect(&bed, "True", "ReadOnly")?;
    operator.terminate(Duration::from_secs(20))?;
    bed.no_key_is_told(&[])
}

#[test]
fn a_write_whose_answer_gets_lost_is_finished_all_the_same() -> Result<()> {
    let bed = Bed::new("policy_cut")?;
    begin(&bed)?;
    let people = "{ \"grants\": [{ \"src\": [\"*\"], \"dst\": [\"203.0.113.9\"], \"ip\": [\"tcp:9\"] }] }\n";
    let _open = Open::begin(&bed, people)?;
    base(&bed, BASE)?;
    bed.egress("cut")?;
    let between = CutAnswers::start(&bed)?;
    between.cut_next_write();
    bed.tailnet(|spec| {
        spec["api"]["endpoint"] = json!(between.url);
        spec["policy"] = json!({"baseConfigMap": "base", "mode": "Apply", "tagOwners": ["group:ops"],
            "routeApprovers": ["tag:router"], "ingressSourceAllowlist": ["*"]});
    })?;
    let operator = bed.operator(&[])?;
    expect(&bed, "True", "Applied")?;
    assert_eq!(between.cut(), 1, "no answer got lost");
    let written = live(&bed)?;
    assert!(written.text.contains("tag:egress-cut"), "{}", written.text);
    // What follows a write followed this one too.
    let told = note(&bed, "PolicyOverwritten", |note| note.contains("203.0.113.9"))?;
    assert!(told.contains("was not written by this installation before"), "{told}");
    let shown = rendered(&bed)?;
    assert_eq!(shown["data"]["overwritten.hujson"], people);
    let sum = &shown["metadata"]["annotations"]["tsunaro.io/policy-applied-sha256"];
    assert_eq!(*sum, json!(sha256_hex(&written.text)), "{shown}");
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(live(&bed)?, written);
    assert_eq!(between.writes(), 1, "written again although it was in force");
    operator.terminate(Duration::from_secs(20))?;
    Ok(())
}

#[test]
fn what_is_held_and_what_is_refused() -> Result<()> {
    let bed = Bed::new("policy_held")?;
    begin(&bed)?;
    let _open = Open::begin(&bed, "{ \"tagOwners\": {} }")?;
    let key = bed.headscale.preauth_key(&["tag:held"], true, true)?;
    let _node = join(&bed, "held-node", &key)?;
    let own_base = "{ \"groups\": { \"group:ops\": [\"ann@\"] }, \"tagOwners\": { \"tag:router\": [] } }";
    base(&bed, own_base)?;
    own(&bed, "Apply", |_| {})?;
    let operator = bed.operator(&[])?;
    expect(&bed, "True", "Applied")?;
    assert_eq!(
        policy(&live(&bed)?.text)?.grants,
        None,
        "the base says allow all, and so does what is written"
    );

    // The first rule would close the tailnet.
    bed.egress("held")?;
    let message = expect(&bed, "False", "PostureHeld")?;
    assert!(message.contains("allow-all → deny"), "{message}");
    assert_eq!(policy(&live(&bed)?.text)?.grants, None);
    let sha256 = bed.get(&["tailnet", &bed.tailnet])?["status"]["policy"]["renderedSHA256"].clone();
    assert!(message.contains(sha256.as_str().context("a sum")?), "{message}");
    own(&bed, "Apply", |policy| policy["acknowledgePosture"] = sha256)?;
    expect(&bed, "True", "Applied")?;
    wait_for_live(&bed, "it is closed", |text| text.contains("192.0.2.10\"]"))?;

    // The last deletion does not open it again.
    bed.delete(&["tailnetegress", "held"])?;
    let closed = wait_for_live(&bed, "the rule is gone", |text| !text.contains("192.0.2.10\"]"))?;
    assert_eq!(policy(&closed)?.grants.as_deref(), Some(&[][..]), "{closed}");
    wait_for("how to open it is told", PATIENCE, || {
        let seen = bed.condition(&["tailnet", &bed.tailnet], "PolicyReady")?;
        ensure!(seen.0 == "True" && seen.2.contains("acknowledgePosture"), "{seen:?}");
        Ok::<_, anyhow::Error>(())
    })?;

    // What Headscale refuses changes nothing, and its words are told.
    let old = live(&bed)?;
    base(&bed, "{ \"grants\": [ }")?;
    let message = expect(&bed, "False", "BaseInvalid")?;
    assert!(message.contains("line 1"), "{message}");
    base(
        &bed,
        "{ \"groups\": { \"group:ops\": [\"ann@\"] }, \"grants\": [{ \"src\": [\"group:nobody\"], \"dst\": [\"*\"], \"ip\": [\"*\"] }] }",
    )?;
    let message = expect(&bed, "False", "Rejected")?;
    assert!(message.contains("group:nobody"), "{message}");
    let status = bed.get(&["tailnet", &bed.tailnet])?["status"]["policy"].clone();
    assert!(
        status["rejection"]
            .as_str()
            .context("a rejection")?
            .contains("group:nobody"),
        "{status}"
    );
    assert_eq!(live(&bed)?, old, "a refused policy changed something");
    bed.delete(&["configmap", "base"])?;
    expect(&bed, "False", "BaseNotFound")?;
    base(&bed, BASE)?;
    expect(&bed, "True", "Applied")?;

    // Another installation's mark stops everything.
    let theirs = "// tsunaro.io/policy-owner: 11111111-2222/other\n{ \"grants\": [] }\n";
    bed.block(bed.admin.put_policy(theirs))?;
    let message = expect(&bed, "False", "OwnedElsewhere")?;
    assert!(
        message.contains("Tailnet other of installation 11111111-2222"),
        "{message}"
    );
    wait_for("the rules know it too", PATIENCE, || {
        let accepted = bed.condition(&["tailnet", &bed.tailnet], "Accepted")?;
        ensure!(accepted.0 == "False" && accepted.2.contains("TN108"), "{accepted:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    bed.egress("foreign")?;
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(
        live(&bed)?.text,
        theirs,
        "another installation's policy was overwritten"
    );
    bed.block(bed.admin.put_policy("{ \"grants\": [] }"))?;
    wait_for_live(&bed, "it is ours again", |text| text.contains("tag:egress-foreign"))?;
    expect(&bed, "True", "Applied")?;

    // One object with an undefined name loses its own rules only.
    bed.apply(&json!({"apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetIngress", "metadata": {"name": "lost", "namespace": bed.ns()},
        "spec": {"tailnetRef": {"name": bed.tailnet}, "tag": "tag:ingress-lost", "hostname": "lost", "allowFrom": ["ann@", "group:undefined"],
            "exposes": [{"name": "web", "port": 443, "backend": {"service": "web", "port": 80}}]}}))?;
    wait_for("it is told", PATIENCE, || {
        let seen = bed.condition(&["tailnet", &bed.tailnet], "PolicyReady")?;
        ensure!(seen.0 == "True" && seen.2.contains("group:undefined"), "{seen:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    let text = live(&bed)?.text;
    assert!(
        text.contains("tag:egress-foreign") && !text.contains("group:undefined"),
        "{text}"
    );
    operator.terminate(Duration::from_secs(20))?;
    Ok(())
}

#[test]
fn a_killed_operator_goes_on_where_it_was() -> Result<()> {
    let bed = Bed::new("policy_killed")?;
    begin(&bed)?;
    let _open = Open::begin(&bed, "{ \"grants\": [] }")?;
    base(&bed, BASE)?;
    own(&bed, "Apply", |_| {})?;
    let operator = bed.operator(&[])?;
    expect(&bed, "True", "Applied")?;
    drop(operator);
    bed.egress("later")?;
    let edited = live(&bed)?
        .text
        .replace("// what people write", "// edited while nobody looked");
    bed.block(bed.admin.put_policy(&edited))?;
    let operator = bed.operator(&[])?;
    let text = wait_for_live(&bed, "the change is in", |text| text.contains("tag:egress-later"))?;
    assert!(text.contains("// what people write"), "{text}");
    note(&bed, "PolicyOverwritten", |note| note.contains("edited outside"))?;
    expect(&bed, "True", "Applied")?;
    // The Tailnet goes while nobody looks: its mark goes too.
    drop(operator);
    bed.delete(&["tailnetegress", "later"])?;
    bed.delete(&["tailnet", &bed.tailnet])?;
    let operator = bed.operator(&[])?;
    wait_for_live(&bed, "the owner's line is gone", |text| !text.contains("policy-owner"))?;
    operator.terminate(Duration::from_secs(20))?;
    Ok(())
}

#[test]
fn a_large_policy_is_published_compressed() -> Result<()> {
    let bed = Bed::new("policy_large")?;
    begin(&bed)?;
    let _open = Open::begin(&bed, "{ \"grants\": [] }")?;
    let hosts: Vec<String> = (0..8000)
        .map(|n| format!("    \"host-{n}\": \"10.{}.{}.1\",", n / 250, n % 250))
        .collect();
    let text = format!(
        "{{\n  \"hosts\": {{\n{}\n  }},\n  \"groups\": {{ \"group:ops\": [\"ann@\"] }},\n  \"grants\": [],\n}}\n",
        hosts.join("\n")
    );
    let document = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "base", "namespace": bed.ns()},
        "data": {"policy.hujson": text}});
    // Too large for the annotation of an apply.
    bed.cluster
        .kubectl_with_input(&["create", "-f", "-"], &document.to_string())?
        .success()?;
    own(&bed, "Apply", |_| {})?;
    let operator = bed.operator(&[])?;
    expect(&bed, "True", "Applied")?;
    let text = live(&bed)?.text;
    assert!(text.len() > 200 * 1024 && text.contains("host-7999"), "{}", text.len());
    let shown = rendered(&bed)?;
    let bytes = shown["binaryData"]["rendered.hujson.gz"]
        .as_str()
        .context("a compressed document")?;
    assert!(
        base64::engine::general_purpose::STANDARD
            .decode(bytes)?
            .starts_with(&[0x1f, 0x8b])
    );
    operator.terminate(Duration::from_secs(20))?;
    Ok(())
}
