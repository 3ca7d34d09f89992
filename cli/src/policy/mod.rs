//! `policy`: the policy that the operator would write, from files, from the cluster, or from both.

mod args;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::Value;
use tailnet_crds::Kind;
use tailnet_headscale::document::{ParseError, Rule, diff, rule_lines};
use tailnet_policies::access_policy::{
    Allowance, Ask, Owner, Question, QuestionError, Registered, RenderError, Rendered, owner_of, render, why,
};
use tailnet_policies::{Config, Snapshot, base, organisation};

use crate::lint::cluster::{self, ClusterError, Live, NotPublished};
use crate::lint::manifests::{self, Found};
use crate::lint::policies::{self, PolicyText};

pub use args::PolicyArgs;
use args::{PolicyCommand, Source, WhyArgs};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum PolicyError {
    #[error("{0}")]
    Files(String),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(
        "--cluster: not to be had: {0}. A policy without them is not the one that the operator writes: ask as somebody who may list them"
    )]
    Unlisted(String),
    #[error("the live policy is not known: {0}; name it with --live (headscale policy get > live.hujson)")]
    NotPublished(#[from] NotPublished),
    #[error("{file}: the organisation's policy {name} cannot be used: {problem}")]
    Policy {
        file: String,
        name: String,
        problem: String,
    },
    #[error("no Tailnet with a spec.policy is among what was read")]
    NoTailnet,
    #[error("several Tailnets have a spec.policy ({0}): choose one with --tailnet")]
    SeveralTailnets(String),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error("{path}: {source}")]
    Live { path: String, source: std::io::Error },
    #[error(
        "the live policy is not known: name a file with --live (headscale policy get > live.hujson), or use --cluster"
    )]
    NoLive,
    #[error("the policy is no HuJSON: {0}")]
    Parse(#[from] ParseError),
    #[error(transparent)]
    Question(#[from] QuestionError),
}

/// Does what was asked; the exit status is described in the help.
pub fn run(args: &PolicyArgs) -> ExitCode {
    let result = match &args.command {
        PolicyCommand::Render(source) => print_rendered(source),
        PolicyCommand::Diff(source) => print_diff(source),
        PolicyCommand::Why(args) => print_why(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kubectl tailnet: {error}");
            ExitCode::from(2)
        }
    }
}

/// What files and cluster gave.
struct Read {
    snapshot: Snapshot,
    tailnet: String,
    live: Option<String>,
    owner: Option<Owner>,
    /// `policy.acknowledgePosture`.
    acknowledged: Option<String>,
}

impl Read {
    /// The document that the operator would write.
    fn wanted(&self) -> Result<String, PolicyError> {
        Ok(self.rendered()?.wanted(self.acknowledged.as_deref()).0.to_owned())
    }

    fn rendered(&self) -> Result<Rendered, PolicyError> {
        let facts = self.snapshot.facts(&self.tailnet);
        let registered = facts.map(|known| Registered::from_facts(&known.facts));
        let rendered = render(
            &self.snapshot,
            Ask {
                tailnet: &self.tailnet,
                owner: self.owner.as_ref(),
                live: self.live.as_deref(),
                registered: registered.as_ref(),
            },
        )?;
        for left in &rendered.left_out {
            eprintln!("note: {} has no entries: {}", left.object, left.why);
        }
        for note in rendered.waiting.iter().chain(&rendered.notes) {
            eprintln!("note: {note}");
        }
        if let Some((_, sha256)) = rendered
            .open
            .as_ref()
            .filter(|(_, sha256)| self.acknowledged.as_ref() != Some(sha256))
        {
            eprintln!(
                "note: no rules are left; an empty list of grants keeps the tailnet closed (acknowledgePosture: {sha256} opens it)"
            );
        }
        Ok(rendered)
    }
}

fn read(source: &Source) -> Result<Read, PolicyError> {
    let (found, errors) = manifests::read(&source.paths, &source.namespace);
    if let Some(error) = errors.first() {
        return Err(PolicyError::Files(error.to_string()));
    }
    let config = Config {
        operator_namespace: source.operator_namespace.clone(),
        cluster_domain: source.cluster_domain.clone(),
        service_cidrs: source.service_cidrs.clone(),
        // They serve warnings only.
        pod_cidrs: Vec::new(),
    };
    let mut snapshot = Snapshot::closed(config);
    let live = match source.cluster {
        true => cluster::read(&cluster::Access {
            context: source.context.clone(),
            kubeconfig: source.kubeconfig.clone(),
            timeout: source.timeout,
            operator_namespace: source.operator_namespace.clone(),
        })?,
        false => Live::default(),
    };
    for note in found.notes.iter().chain(&live.notes) {
        eprintln!("note: {note}");
    }
    if !live.unlisted.is_empty() {
        return Err(PolicyError::Unlisted(live.unlisted.join(", ")));
    }
    let published = live.rendered_policies.clone();
    live.fill(&mut snapshot);
    fill(&found, &mut snapshot, &source.operator_namespace);
    let (given, errors) = policies::read(&source.policies, &source.namespace);
    if let Some(error) = errors.first() {
        return Err(PolicyError::Files(error.to_string()));
    }
    let of_files = found
        .policies
        .iter()
        .filter(|policy| policy.namespace.as_deref() == Some(source.operator_namespace.as_str()));
    for policy in given.iter().chain(of_files) {
        set_policy(policy, &mut snapshot)?;
    }
    let tailnet = tailnet(source, &snapshot)?;
    let published = published.into_iter().find(|policy| policy.tailnet == tailnet);
    let live = match &source.live {
        Some(path) => Some(live_file(path)?),
        None => match &published {
            Some(policy) => policy.live.clone()?,
            None => {
                if source.cluster {
                    eprintln!(
                        "note: the operator has published no policy of Tailnet {tailnet}, so the live one is not known: what frozen objects keep is not in the render (--live)"
                    );
                }
                None
            }
        },
    };
    let owner = published
        .and_then(|policy| owner_of(&policy.rendered))
        .or_else(|| owner_of(live.as_deref()?));
    let acknowledged = snapshot
        .get(Kind::Tailnet, None, &tailnet)
        .and_then(|tailnet| tailnet.tailnet()?.policy.as_ref()?.acknowledge_posture.clone());
    Ok(Read {
        snapshot,
        tailnet,
        live,
        owner,
        acknowledged,
    })
}

fn set_policy(policy: &PolicyText, snapshot: &mut Snapshot) -> Result<(), PolicyError> {
    let compiled =
        organisation::Policy::compile(&policy.name, &policy.data).map_err(|problems| PolicyError::Policy {
            file: policy.file.clone(),
            name: policy.name.clone(),
            problem: problems.first().map(ToString::to_string).unwrap_or_default(),
        })?;
    snapshot.set_policy(&policy.name, Some(Arc::new(Ok(compiled))));
    Ok(())
}

fn live_file(path: &PathBuf) -> Result<String, PolicyError> {
    fs::read_to_string(path).map_err(|source| PolicyError::Live {
        path: path.display().to_string(),
        source,
    })
}

/// The objects and base documents of the files.
fn fill(found: &Found, snapshot: &mut Snapshot, operator_namespace: &str) {
    for (name, labels) in &found.namespaces {
        snapshot.set_namespace_labels(name, labels.clone());
    }
    for document in &found.base_documents {
        let text = |pointer: &str| document.object.pointer(pointer).and_then(Value::as_str);
        if text("/metadata/namespace") == Some(operator_namespace) {
            let policy = document.object.pointer("/data").and_then(|data| data.get(base::KEY));
            snapshot.set_base_document(
                text("/metadata/name").unwrap_or_default(),
                policy.and_then(Value::as_str),
            );
        }
    }
    for manifest in &found.manifests {
        snapshot.upsert(manifest.kind, &manifest.object);
    }
}

fn tailnet(source: &Source, snapshot: &Snapshot) -> Result<String, PolicyError> {
    if let Some(name) = &source.tailnet {
        return Ok(name.clone());
    }
    let owning: BTreeSet<String> = snapshot
        .list(Kind::Tailnet)
        .filter(|tailnet| tailnet.tailnet().is_some_and(|spec| spec.policy.is_some()))
        .map(|tailnet| tailnet.name.clone())
        .collect();
    let mut names = owning.iter();
    match (names.next(), names.next()) {
        (None, _) => Err(PolicyError::NoTailnet),
        (Some(name), None) => Ok(name.clone()),
        _ => Err(PolicyError::SeveralTailnets(
            owning.into_iter().collect::<Vec<_>>().join(", "),
        )),
    }
}

fn print_rendered(source: &Source) -> Result<ExitCode, PolicyError> {
    print!("{}", read(source)?.wanted()?);
    Ok(ExitCode::SUCCESS)
}

fn print_diff(source: &Source) -> Result<ExitCode, PolicyError> {
    let read = read(source)?;
    let live = read.live.as_deref().ok_or(PolicyError::NoLive)?;
    let difference = diff::unified(live, &read.wanted()?, "live", "rendered");
    print!("{difference}");
    Ok(match difference.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print_why(args: &WhyArgs) -> Result<ExitCode, PolicyError> {
    let question = Question::new(&args.src, &args.dst)?;
    let source = &args.source;
    let (text, base_lines) = match &source.live {
        Some(path) if source.paths.is_empty() && !source.cluster => (live_file(path)?, Vec::new()),
        _ => {
            let read = read(source)?;
            let lines = base_lines(&read)?;
            (read.wanted()?, lines)
        }
    };
    let allowed = why(&text, &question)?;
    for allowance in &allowed {
        println!("{allowance}{}", base_line(allowance, &base_lines));
        if let Some(line) = text
            .lines()
            .nth(allowance.line - 1)
            .filter(|_| !allowance.rule.is_empty())
        {
            println!("    {}", line.trim());
        }
    }
    if allowed.is_empty() {
        println!(
            "refused: no rule lets {} reach port {} of {}",
            question.src, question.port, question.dst
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The lines of the base document's own rules: they come first in the rendered one.
fn base_lines(read: &Read) -> Result<Vec<(Rule, usize)>, PolicyError> {
    let tailnet = read.snapshot.get(Kind::Tailnet, None, &read.tailnet);
    let config_map = tailnet
        .and_then(|tailnet| tailnet.tailnet()?.policy.as_ref())
        .map(|policy| policy.base_config_map.clone());
    let document = config_map.and_then(|name| read.snapshot.base_document(&name));
    Ok(rule_lines(
        document.map(|document| document.text()).unwrap_or_default(),
    )?)
}

fn base_line(allowance: &Allowance, lines: &[(Rule, usize)]) -> String {
    let own = lines
        .iter()
        .find(|(rule, _)| allowance.object.is_none() && rule.to_string() == allowance.rule);
    own.map(|(_, line)| format!(", line {line} of it")).unwrap_or_default()
}
