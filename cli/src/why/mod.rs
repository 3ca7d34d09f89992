//! `why`: the chain of a connection, link by link, up to the first that does not hold.

mod args;
mod chain;
mod egress;
mod ingress;
mod link;
mod next;
mod probe;
mod scene;

use std::io::Write;
use std::process::ExitCode;

pub use args::WhyArgs;
use args::{Output, Subject};
pub use link::{Answer, State};
use next::Next;
use scene::SceneError;
pub use scene::{Operator, Scene};

use crate::audit::printable::printable;
use crate::connect;
use crate::kubectl::Kubectl;

/// Reads, judges and prints; the exit status is described in the help.
pub fn run(args: &WhyArgs) -> ExitCode {
    let subject = match args.subject() {
        Ok(subject) => subject,
        Err(error) => {
            eprintln!("kubectl tailnet: {error}");
            return ExitCode::from(2);
        }
    };
    let scene = match read(args, &subject) {
        Ok(scene) => scene,
        Err(error) => {
            eprintln!("kubectl tailnet: {}", printable(&error.to_string()));
            return ExitCode::from(2);
        }
    };
    let answer = answer(scene, Kubectl::new(&args.cluster), &args.cluster.operator_namespace);
    let text = match args.output {
        Output::Text => text(&answer),
        Output::Json => match serde_json::to_string_pretty(&answer) {
            Ok(text) => text + "\n",
            Err(error) => {
                eprintln!("kubectl tailnet: the answer cannot be written as JSON: {error}");
                return ExitCode::from(2);
            }
        },
    };
    // A reader that has seen enough (`| head`) is no fault.
    if let Err(error) = std::io::stdout().write_all(text.as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("kubectl tailnet: cannot write the answer: {error}");
        return ExitCode::from(2);
    }
    match answer.works {
        Some(true) => ExitCode::SUCCESS,
        Some(false) | None => ExitCode::from(1),
    }
}

fn read(args: &WhyArgs, subject: &Subject) -> Result<Scene, SceneError> {
    connect::with_client(
        args.cluster.kubeconfig.as_deref(),
        args.cluster.context.as_deref(),
        args.cluster.timeout,
        async |client| scene::read(&client, args, subject).await,
    )
}

/// The answer to what was read.
pub fn answer(scene: Scene, kubectl: Kubectl, operator_namespace: &str) -> Answer {
    let next = Next {
        scene: &scene,
        kubectl,
        operator_namespace,
    };
    let links = chain::links(&scene, &next);
    Answer::new(scene.kind, scene.namespace, scene.name, links, scene.notes)
}

/// The answer for people.
fn text(answer: &Answer) -> String {
    let mut out = String::new();
    for link in &answer.links {
        let word = match link.state {
            State::Ok => "ok",
            State::Broken => "BROKEN",
            State::Unknown => "?",
            State::Note => "note",
        };
        let message = printable(&link.message);
        let said = if message.is_empty() {
            link.reason.clone()
        } else {
            format!("{}: {message}", link.reason)
        };
        out.push_str(&format!("{word:<7} {:<24} {said}\n", link.name()));
    }
    out.push('\n');
    out.push_str(&printable(&answer.sentence));
    out.push('\n');
    if let Some(broken) = &answer.broken
        && !broken.next.is_empty()
    {
        out.push_str("\nNext:\n");
        for command in &broken.next {
            out.push_str(&format!("  {}\n", printable(command)));
        }
    }
    for note in &answer.notes {
        out.push_str(&format!("\nnote: {}\n", printable(note)));
    }
    out
}

#[cfg(test)]
mod tests;
