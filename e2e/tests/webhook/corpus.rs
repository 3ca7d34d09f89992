//! Ordinary set-ups through kubectl, as people and GitOps tools apply them: nothing is refused, nothing changes by itself, and
//! two managers do not meet. All of them with `TAILNET_LONG_TESTS`, else every fifth.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, one_at_a_time};
use tailnet_policies::corpus::{self, Setup};

use crate::installed::{Caller, Webhook, clear, cluster};
use crate::start_over;

/// kubectl with the files of the set-ups; gives what it printed, one line per object, and its warnings.
fn kubectl(cluster: &Cluster, args: &[&str], setups: &[Setup]) -> Result<(Vec<String>, Vec<String>)> {
    let mut all: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    for setup in setups {
        all.extend(["-f".to_owned(), setup.path.display().to_string()]);
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let done = cluster.kubectl(&all)?;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let printed = lines(done.success()?);
    let warnings = lines(&done.stderr)
        .into_iter()
        .filter(|line| line.starts_with("Warning: "))
        .collect();
    Ok((printed, warnings))
}

fn objects(setups: &[Setup]) -> impl Iterator<Item = &Value> {
    setups
        .iter()
        .flat_map(|setup| setup.objects.iter().map(|(_, object)| object))
}

/// The objects with what tells whether they were written.
fn versions(caller: &Caller, setups: &[Setup]) -> Result<Vec<String>> {
    objects(setups)
        .map(|object| {
            let live = caller.get(object)?;
            ensure!(live.status.is_success(), "{live:?}");
            let metadata = &live.body["metadata"];
            Ok(format!(
                "{} {} {}",
                object["kind"], metadata["name"], metadata["resourceVersion"]
            ))
        })
        .collect()
}

#[test]
fn ordinary_set_ups_are_applied_and_stay_as_they_are() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let _webhook = Webhook::installed(cluster, "webhook-corpus", 9443)?;
    let long = std::env::var_os("TAILNET_LONG_TESTS").is_some();
    let all = corpus::load()?;
    let setups: Vec<Setup> = all
        .into_iter()
        .enumerate()
        .filter(|(at, _)| long || at % 5 == 2)
        .map(|(_, setup)| setup)
        .collect();
    let count = objects(&setups).count();
    let homes: BTreeSet<&str> = objects(&setups)
        .filter_map(|object| object.pointer("/metadata/namespace")?.as_str())
        .collect();
    for name in homes {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let said = caller.create(&namespace, false)?;
        ensure!(said.status == 201 || said.status == 409, "{said:?}");
    }

    let (printed, warnings) = kubectl(cluster, &["apply"], &setups)?;
    ensure!(
        printed.len() == count && printed.iter().all(|line| line.ends_with(" created")),
        "{printed:#?}"
    );
    // What is referred to and not there yet is told of: Tailnets that this webhook has not seen, base documents, namespaces of
    // consumers, Services. This cluster has none of the latter.
    let mut expected: BTreeSet<&str> = setups
        .iter()
        .flat_map(|setup| setup.warns.iter().map(String::as_str))
        .collect();
    expected.extend(["TN001", "TN106", "TN209", "TN307"]);
    for warning in &warnings {
        let id = warning.rsplit_once('[').and_then(|(_, id)| id.strip_suffix(']'));
        // One that is cut has its id in the next.
        let cut = id.is_none() && (warning.contains('…') || warning.contains("not checked"));
        ensure!(cut || id.is_some_and(|id| expected.contains(id)), "{warning}");
    }
    let first = versions(&caller, &setups)?;

    let (printed, _) = kubectl(cluster, &["apply"], &setups)?;
    // kubectl sends what an export has of status and generation every time, and says so; the server changes nothing by it.
    let exported = |line: &str| line.contains("/exported ");
    let changed: Vec<_> = printed
        .iter()
        .filter(|line| !line.ends_with(" unchanged") && !exported(line))
        .collect();
    ensure!(changed.is_empty(), "{changed:#?}");
    ensure!(
        versions(&caller, &setups)? == first,
        "a second kubectl apply changed something"
    );
    if long {
        // Exit code 1 would say that something differs.
        kubectl(cluster, &["diff"], &setups)?;
    }

    // Two managers with the same manifests: no conflict, also not about what our defaults filled in.
    for manager in [
        "--field-manager=helm",
        "--field-manager=argocd-controller",
        "--field-manager=helm",
    ] {
        let (printed, _) = kubectl(cluster, &["apply", "--server-side", manager], &setups)?;
        ensure!(printed.len() == count, "{printed:#?}");
    }
    let settled = versions(&caller, &setups)?;
    kubectl(
        cluster,
        &["apply", "--server-side", "--field-manager=argocd-controller"],
        &setups,
    )?;
    let again = versions(&caller, &setups)?;
    // An explicit `creationTimestamp: null` makes the API server itself write each time.
    let quiet = objects(&setups).map(|object| object.pointer("/metadata/creationTimestamp").is_none());
    let changed: Vec<_> = again
        .iter()
        .zip(quiet)
        .filter(|(version, quiet)| *quiet && !settled.contains(version))
        .collect();
    ensure!(changed.is_empty(), "applying what is there changed {changed:#?}");
    for object in objects(&setups).filter(|object| object["kind"] == "TailnetEgress") {
        let live = caller.get(object)?.body;
        let tag = live["spec"]["tag"].as_str().context("tag")?;
        let own = object.pointer("/spec/tag").and_then(Value::as_str);
        ensure!(own.map_or(tag.contains("egress-"), |own| own == tag), "{tag}");
    }
    eprintln!(
        "{count} objects of {} set-ups, {} warnings",
        setups.len(),
        warnings.len()
    );
    clear(cluster)
}
