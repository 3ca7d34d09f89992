//! Two that ask for the same at once, through two replicas of the webhook and past a real operator: exactly one gets it, the
//! other is told who has it, and nothing of the other is ever made. `TAILNET_LONG_TESTS` makes 500 rounds of it.

#[path = "../installed/mod.rs"]
mod installed;
#[path = "../operating/mod.rs"]
mod operating;

mod bed;
mod pairs;
mod restore;
mod simultaneous;
mod succession;

use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os("TAILNET_LONG_TESTS").is_some() {
        long
    } else {
        short
    }
}
