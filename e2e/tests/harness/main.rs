//! The harness itself, on real servers.
// A failed assumption is a failed test, in helper functions too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod api_tier;
mod cert_manager;
mod leaves_nothing;
mod node;
mod site;
mod snapshot;

use std::sync::{Mutex, MutexGuard, PoisonError};

use tailnet_e2e::Cluster;

/// Tests that bring up clusters of their own take turns: two cores are soon busy.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints how long each step of `up` took and how much memory the cluster uses.
pub fn print_figures(cluster: &Cluster) {
    println!("{}: up in", cluster.name());
    for (step, time) in cluster.timings() {
        println!("  {:6.2} s  {step}", time.as_secs_f64());
    }
    let usage = cluster.memory().unwrap();
    let total = |of: fn(&tailnet_e2e::cluster::memory::Usage) -> u64| usage.iter().map(of).sum::<u64>() / 1024;
    println!(
        "{}: {} MiB resident, {} MiB proportional",
        cluster.name(),
        total(|one| one.resident),
        total(|one| one.proportional)
    );
    for one in &usage {
        println!("  {:6} MiB  {} x{}", one.resident / 1024, one.program, one.processes);
    }
}
