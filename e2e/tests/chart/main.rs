//! The product as people have it: installed by Helm on a whole cluster, used, broken in every way that issue and night
//! bring, repaired without a person, removed.
//!
//! One story, since every part needs the ones before it; a failure names its step. TAILNET_LONG_TESTS=1 goes through the
//! faults several times. The image comes from `cargo xtask test`, or from `cargo xtask image --dev`.

mod audit_of_pods;
mod bed;
mod connection;
mod faults;
mod install;
mod load;
mod one_release;
mod operations;
mod ports;
mod session;
mod traces;
mod webhook_down;

use anyhow::{Result, ensure};
use bed::{Bed, OPERATOR, TEAM, step};
use traces::Traces;

/// Rounds of faults.
fn rounds() -> u32 {
    if is_long() { 5 } else { 1 }
}

/// Whether there is time.
fn is_long() -> bool {
    std::env::var_os("TAILNET_LONG_TESTS").is_some()
}

#[test]
fn installed_used_broken_repaired_removed() -> Result<()> {
    let bed = step(
        "a cluster, a site behind its router, access policy and approved routes",
        Bed::new,
    )?;
    let told = story(&bed);
    if told.is_err() {
        bed.cluster.keep_namespace(TEAM, "chart--team")?;
        bed.cluster.keep_namespace(OPERATOR, "chart--operator")?;
    }
    told
}

fn story(bed: &Bed) -> Result<()> {
    type Act = fn(&Bed) -> Result<()>;
    let used: [(&str, Act); 12] = [
        ("helm refuses a typo in the values", install::typos_are_refused),
        (
            "helm install into a namespace with the restricted standard",
            install::install,
        ),
        ("admission denies at once", install::wrong_is_denied),
        ("the seeds, twice", install::seeds),
        // Only a Tailnet that is there says which cluster name a default has.
        ("admission answers: a default and a denial", install::admission_answers),
        ("audit reads the logs of both webhook Pods", audit_of_pods::read),
        ("clients in two namespaces", connection::clients),
        (
            "a Pod of team-a queries the database behind the router",
            connection::query,
        ),
        ("a Pod of team-b is refused", connection::stranger_is_refused),
        (
            "our own Pods' ports are closed but for admission, DNS and monitoring",
            ports::closed,
        ),
        ("the alias over https", connection::https),
        ("a connection that stays open", session::start),
    ];
    for (name, act) in used {
        step(name, || act(bed))?;
    }
    let before = step("what there is before the faults", || {
        let traces = Traces::of(bed)?;
        traces.expect_sound()?;
        Ok(traces)
    })?;
    step("helm upgrade without a change", || install::upgrade_without_change(bed))?;

    // A fault that gets the wrong answer does not hide what the others get.
    let mut wrong = Vec::new();
    for round in 1..=rounds() {
        for (name, act) in faults::ALL {
            let name = format!("{name} (round {round})");
            if let Err(error) = step(&name, || act(bed)) {
                wrong.push(format!("{error:#}"));
                step(&format!("a sound state after: {name}"), || faults::repair(bed))
                    .map_err(|unsound| unsound.context(format!("no recovery; before that:\n{}", wrong.join("\n"))))?;
            }
        }
        let name = format!("no node, key or object is left of the faults (round {round})");
        if let Err(error) = step(&name, || before.expect_again(bed)) {
            wrong.push(format!("{error:#}"));
        }
    }
    let after: [(&str, Act); 4] = [
        ("helm uninstall, and install again", install::uninstall_and_again),
        ("no key is told anywhere", traces::no_key_is_told),
        ("everything is removed as docs/install.md says", install::remove_all),
        ("one release with CRDs, operator and connections", one_release::story),
    ];
    for (name, act) in after {
        if let Err(error) = step(name, || act(bed)) {
            wrong.push(format!("{error:#}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} steps went wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}
