//! `lint --explain TN403`.

use std::process::ExitCode;

use tailnet_policies::table::{RULES, rule};

/// Prints what the reference says of a rule.
pub fn run(id: &str) -> ExitCode {
    let Some(rule) = rule(id) else {
        let known: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
        eprintln!(
            "kubectl tailnet: there is no rule {id:?}; there are {}",
            known.join(" ")
        );
        return ExitCode::from(2);
    };
    println!("{}", tailnet_policies::table::explanation(rule));
    ExitCode::SUCCESS
}
