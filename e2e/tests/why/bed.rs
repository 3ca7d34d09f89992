//! A cluster with the chart, a Headscale and a site behind its router; and how the plugin is asked.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, Headscale, Output, Site, SiteSpec, binaries, command, images, paths, wait_for};

/// The operator's namespace: not the usual one, so that every text has to get it right.
pub const NAMESPACE: &str = "network";
/// Tag of the agents of egress `team-a`.
pub const TAG: &str = "tag:egress-team-a";
/// Longest wait for a verdict that takes seconds on an idle machine.
const SOON: Duration = Duration::from_secs(60);

/// Everything that the set-ups share.
pub struct Bed {
    pub cluster: &'static Cluster,
    pub headscale: Headscale,
    pub depot: Option<Site<'static>>,
    plugin: PathBuf,
    wrong: RefCell<Vec<String>>,
}

/// What `why` must say.
pub struct Said<'a> {
    /// The first broken link; empty when every link holds.
    pub link: &'a str,
    /// Its reason.
    pub reason: &'a str,
    /// The whole sentence; `*` stands for what differs from run to run.
    pub sentence: &'a str,
    /// The first command; `*` as above.
    pub next: &'a str,
}

impl Bed {
    /// The cluster with the image, and no installation yet.
    pub fn new() -> Result<Self> {
        let cluster = Cluster::shared();
        cluster.load_image(&images::ours()?)?;
        Ok(Self {
            cluster,
            headscale: cluster.headscale()?,
            depot: None,
            plugin: binaries::workspace("kubectl-tailnet", "kubectl-tailnet")?,
            wrong: RefCell::default(),
        })
    }

    /// A site whose routes nobody approves.
    pub fn add_site(&mut self) -> Result<()> {
        self.depot = Some(self.cluster.site(SiteSpec {
            postgres: false,
            echo: false,
            ..SiteSpec::new("depot")
        })?);
        Ok(())
    }

    /// Installs the chart; the operator looks every second.
    pub fn install(&self) -> Result<()> {
        let fast = |name: &str, value: &str| json!({"name": name, "value": value});
        let values = json!({
            "image": {"tag": "dev", "pullPolicy": "Never"},
            "operator": {"extraEnv": [
                fast("FACTS_INTERVAL_SECONDS", "1"), fast("AGENT_POLL_SECONDS", "1"), fast("KEY_MINTS_PER_HOUR", "1000"),
            ]},
            "webhook": {"replicas": 1},
        });
        let file = self.cluster.dir().join("why-values.json");
        std::fs::write(&file, values.to_string())?;
        let chart = paths::repository().join("chart").display().to_string();
        let file = file.display().to_string();
        let args = [
            "install",
            "tailnet-operator",
            &chart,
            "--namespace",
            NAMESPACE,
            "--values",
            &file,
        ];
        let wait = ["--create-namespace", "--wait", "--timeout", "180s"];
        self.cluster.helm(&[&args[..], &wait[..]].concat())?.success().map(drop)
    }

    /// Runs the plugin against this cluster.
    pub fn plugin(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.plugin);
        command
            .args(args)
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(["--operator-namespace", NAMESPACE])
            .env_remove("HTTPS_PROXY")
            .env_remove("https_proxy");
        command::output(&mut command, "", Duration::from_secs(90))
    }

    /// The plugin's answer as JSON, with its exit code.
    pub fn json(&self, args: &[&str]) -> Result<(i32, Value)> {
        let done = self.plugin(&[args, &["-o", "json"]].concat())?;
        let code = done.status.code().context("ended by a signal")?;
        let answer = serde_json::from_str(&done.stdout);
        let answer = answer.with_context(|| format!("no JSON: {}{}", done.stdout, done.stderr))?;
        Ok((code, answer))
    }

    /// Asks until the answer is `said`; prints the sentence. A wrong answer does not hide those to other set-ups: it is told at
    /// the end, by [`Bed::verdict`].
    pub fn expect(&self, set_up: &str, subject: &[&str], said: &Said<'_>) {
        if let Err(error) = self.asked(set_up, subject, said) {
            println!("- WRONG {error:#}");
            self.wrong.borrow_mut().push(format!("{error:#}"));
        }
    }

    /// Whether every answer was right.
    pub fn verdict(&self) -> Result<()> {
        let wrong = self.wrong.borrow();
        ensure!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
        Ok(())
    }

    fn asked(&self, set_up: &str, subject: &[&str], said: &Said<'_>) -> Result<()> {
        let asked = [&["why"], subject].concat();
        let answer = wait_for(&format!("{set_up}: {}", said.sentence), SOON, || {
            let (code, answer) = self.json(&asked)?;
            let found = &answer["broken"];
            let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
            let sentence = answer["sentence"].as_str().unwrap_or_default();
            ensure!(fits(said.sentence, sentence), "{sentence}");
            ensure!(
                text("link") == said.link && text("reason") == said.reason,
                "{} ({})",
                text("link"),
                text("reason")
            );
            let next = found["next"][0].as_str().unwrap_or_default();
            ensure!(fits(said.next, next), "next: {next}");
            ensure!(code == i32::from(!said.link.is_empty()), "exit status {code}");
            Ok::<_, anyhow::Error>(answer)
        })?;
        println!("- {set_up}\n  {}", answer["sentence"].as_str().unwrap_or_default());
        Ok(())
    }

    /// The findings of `doctor`, with its exit code.
    pub fn doctor(&self) -> Result<(i32, Vec<Value>)> {
        let (code, report) = self.json(&["doctor"])?;
        Ok((code, report["checks"].as_array().context("no checks")?.clone()))
    }

    /// Asks `doctor` until the finding `check` has `state` and says `message` (`*` as in [`Said`]).
    pub fn expect_doctor(&self, check: &str, state: &str, message: &str) {
        if let Err(error) = self.examined(check, state, message) {
            println!("- WRONG {error:#}");
            self.wrong.borrow_mut().push(format!("{error:#}"));
        }
    }

    fn examined(&self, check: &str, state: &str, message: &str) -> Result<()> {
        wait_for(&format!("doctor says of {check}: {state}, {message}"), SOON, || {
            let (code, checks) = self.doctor()?;
            let found: Vec<&Value> = checks.iter().filter(|found| found["check"] == check).collect();
            let is = |found: &&&Value| {
                found["state"] == state && fits(message, found["message"].as_str().unwrap_or_default())
            };
            ensure!(found.iter().any(|one| is(&one)), "{found:?}");
            ensure!(state != "fail" || code == 1, "exit status {code}");
            Ok::<_, anyhow::Error>(())
        })?;
        println!("- doctor: {state} {check}: {message}");
        Ok(())
    }

    pub fn apply(&self, document: &Value) -> Result<()> {
        self.cluster.apply(&document.to_string()).map(drop)
    }

    /// kubectl in the operator's namespace; must succeed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let done = self.cluster.kubectl(&[&["-n", NAMESPACE], args].concat())?;
        done.success().map(str::to_owned).with_context(|| args.join(" "))
    }

    /// Deletes what may not be there.
    pub fn delete(&self, what: &[&str]) -> Result<()> {
        self.kubectl(&[&["delete", "--ignore-not-found", "--timeout=60s"], what].concat())
            .map(drop)
    }

    pub fn tailnet(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut document = json!({
            "apiVersion": "tsunaro.io/v1alpha1", "kind": "Tailnet", "metadata": {"name": "demo"},
            "spec": {
                "server": self.headscale.url(),
                "api": {"caConfigMapRef": {"name": "headscale-ca"}},
                "apiSecretRef": {"name": "headscale-api"},
            },
        });
        change(&mut document["spec"]);
        self.apply(&document)
    }

    /// Egress `name`, which has one target called `name`-t.
    pub fn egress(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut document = json!({
            "apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetEgress",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "tailnetRef": {"name": "demo"},
                "tag": format!("tag:egress-{name}"),
                "consumerNamespaces": ["team-a"],
                "targets": [{"name": format!("{name}-t"), "address": "198.51.100.20", "port": 443}],
            },
        });
        change(&mut document["spec"]);
        self.apply(&document)
    }

    pub fn secret(&self, key: &str, value: &str) -> Result<()> {
        self.delete(&["secret", "headscale-api"])?;
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "headscale-api", "namespace": NAMESPACE},
            "stringData": {key: value},
        }))
    }

    /// Headscale's policy: owners of these tags, and these grants beside one that has nothing to do with them, since a policy
    /// without any would let everybody through.
    pub fn policy(&self, tags: &[&str], grants: &[Value]) -> Result<()> {
        let owners: Value = tags
            .iter()
            .map(|tag| ((*tag).to_owned(), json!([])))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let mut all = vec![json!({"src": ["tag:router"], "dst": ["tag:router"], "ip": ["*"]})];
        all.extend(grants.iter().cloned());
        self.headscale
            .set_policy(&json!({"tagOwners": owners, "grants": all}).to_string())
    }
}

/// Whether `text` is `pattern`, in which `*` stands for anything.
pub fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, between)) = pieces.split_last() else {
        return rest.is_empty();
    };
    for piece in between {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
