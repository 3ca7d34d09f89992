//! `cargo xtask check`: everything about the repository that needs no running server. All parts run, then all that is wrong is said.

mod licences;
mod links;
mod monitoring;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, bail};
use tailnet_e2e::tools::{self, Tool};

use crate::command::{installed, output, run};
use crate::generate;
use crate::workspace::Workspace;

/// What a part found out, for the summary; an error is a failure.
type Finding = Result<String>;

/// A part's name and what it does.
type Part = (&'static str, fn(&Workspace) -> Finding);

const PARTS: [Part; 9] = [
    ("format", format),
    ("generated files", generated),
    ("lints", lints),
    ("licences, bans, sources", licences_bans_sources),
    ("advisories", advisories),
    ("API docs", api_docs),
    ("links", links_of_pages),
    ("chart", chart),
    ("alerts, dashboard", monitoring),
];

/// Runs every part and prints what each found.
pub fn all(workspace: &Workspace) -> ExitCode {
    let findings = PARTS.map(|(name, part)| {
        eprintln!("check: {name}");
        let start = Instant::now();
        (name, part(workspace), start.elapsed().as_secs_f64())
    });
    println!();
    for (name, finding, seconds) in &findings {
        match finding {
            Ok(text) => println!("ok      {name} ({seconds:.1} s): {text}"),
            Err(error) => println!("FAILED  {name} ({seconds:.1} s):\n{error:#}\n"),
        }
    }
    let failed = findings.iter().filter(|(_, finding, _)| finding.is_err()).count();
    println!("check: {} of {} parts ok", findings.len() - failed, findings.len());
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn cargo(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = tailnet_e2e::nested_cargo::cargo();
    command.current_dir(&workspace.root).args(args);
    command
}

fn format(workspace: &Workspace) -> Finding {
    match output(&mut cargo(
        workspace,
        &["fmt", "--all", "--check", "--", "--files-with-diff"],
    )) {
        Ok(_) => Ok("rustfmt changes nothing".to_owned()),
        Err(error) => bail!("{error:#}\nrun `cargo fmt --all`"),
    }
}

fn generated(workspace: &Workspace) -> Finding {
    let differences = generate::differences(workspace)?;
    if !differences.is_empty() {
        bail!(
            "{}\nrun `cargo xtask gen` and commit the result",
            differences.join("\n\n")
        );
    }
    Ok("up to date".to_owned())
}

fn lints(workspace: &Workspace) -> Finding {
    run(&mut cargo(
        workspace,
        &[
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--keep-going",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
    ))?;
    Ok("clippy has no warning".to_owned())
}

fn licences_bans_sources(workspace: &Workspace) -> Finding {
    let (refused, looked_at) = licences::refused(&workspace.root.join("deny.toml"), &workspace.metadata()?)?;
    if !refused.is_empty() {
        bail!("{}", refused.join("\n"));
    }
    Ok(format!("{looked_at} packages, all within deny.toml"))
}

/// The advisory database is a git repository. Where cargo-deny is not installed or cannot fetch it, this part says that nothing was checked:
/// a network that is not there is no fault of the change.
fn advisories(workspace: &Workspace) -> Finding {
    if !installed("cargo-deny") {
        return Ok("NOT CHECKED: cargo-deny is not installed (cargo install --locked cargo-deny)".to_owned());
    }
    let fetched = output(&mut cargo(workspace, &["deny", "fetch", "db"]));
    if let Err(error) = fetched {
        let reason = format!("{error:#}");
        return Ok(format!(
            "NOT CHECKED: the advisory database cannot be fetched: {}",
            reason.lines().last().unwrap_or_default()
        ));
    }
    run(&mut cargo(
        workspace,
        &["deny", "--locked", "check", "--disable-fetch", "advisories"],
    ))?;
    Ok("no dependency has a known advisory".to_owned())
}

fn api_docs(workspace: &Workspace) -> Finding {
    run(cargo(
        workspace,
        &[
            "doc",
            "--locked",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--quiet",
        ],
    )
    .env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok("rustdoc has no warning".to_owned())
}

fn links_of_pages(workspace: &Workspace) -> Finding {
    let (broken, looked_at) = links::broken(&workspace.root, &workspace.target)?;
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    Ok(format!("{looked_at} links lead somewhere"))
}

fn monitoring(workspace: &Workspace) -> Finding {
    let (faults, expressions) = monitoring::faults(&workspace.root)?;
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(format!(
        "{expressions} expressions name only what is served; every alert has its section in the runbook"
    ))
}

fn chart(workspace: &Workspace) -> Finding {
    tools::ensure(&[Tool::Helm])?;
    let helm = Tool::Helm.built()?;
    let chart = workspace.root.join("chart");
    output(Command::new(&helm).args(["lint", "--strict"]).arg(&chart))?;
    let everything = chart.join("ci/everything-values.yaml");
    output(
        Command::new(&helm)
            .args(["template", "check", "--namespace", "tailnet-system"])
            .arg(&chart)
            .arg("--values")
            .arg(&everything),
    )?;
    let nameless = output(
        Command::new(&helm)
            .args(["template", "check", "--set", "webhook.certificate.source=secret"])
            .arg(&chart),
    );
    if nameless.is_ok() {
        bail!("the chart takes webhook.certificate.source=secret without the Secret's name");
    }
    let typo = output(
        Command::new(&helm)
            .args(["template", "check", "--set", "webhook.replica=3"])
            .arg(&chart),
    );
    if typo.is_ok() {
        bail!("the chart takes the misspelt value webhook.replica; values.schema.json must refuse it");
    }
    Ok("helm lint --strict, rendered with every value set, a misspelt value is refused".to_owned())
}
