//! Two operators, of which one acts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::checks::{SOON, wait_complete};
use crate::operating::{NAMESPACE, Operator, apply, cluster, egress, start_over};

#[test]
fn one_leads_and_the_other_takes_over() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let first = Operator::start_with(cluster, "operator-first", 19403, &[])?;
    wait_for("the first leads", SOON, || {
        if first.leads() {
            Ok(())
        } else {
            Err(first.process.log_tail(2))
        }
    })?;
    let second = Operator::start_with(cluster, "operator-second", 19404, &[])?;
    second.wait_ready()?;
    assert!(!second.leads(), "two lead");

    // A clean stop hands over at once.
    let asked = Instant::now();
    first.stop()?;
    wait_for("the second leads", Duration::from_secs(10), || {
        if second.leads() { Ok(()) } else { Err("not yet") }
    })?;
    assert!(asked.elapsed() < Duration::from_secs(10));
    apply(cluster, &[egress("team-a", &[("remote-db", "192.0.2.10", 5432)])])?;
    wait_complete(&kube, "team-a")?;

    // After a kill, the Lease must run out first.
    let third = Operator::start_with(cluster, "operator-third", 19405, &[])?;
    third.wait_ready()?;
    second.kill()?;
    wait_for("the third leads", Duration::from_secs(30), || {
        if third.leads() { Ok(()) } else { Err("not yet") }
    })?;

    // Who finds another name in the Lease ends: two never act at once.
    cluster
        .kubectl(&[
            "patch",
            "lease",
            "tailnet-operator",
            "-n",
            NAMESPACE,
            "--type=merge",
            "-p",
            r#"{"spec":{"holderIdentity":"somebody-else"}}"#,
        ])?
        .success()?;
    let exit = third.process.wait(Duration::from_secs(15))?;
    assert_eq!(exit, tailnet_e2e::Exit::Code(1), "{}", third.process.log_tail(3));
    Ok(())
}

/// An API server that hangs for longer than the Lease lasts costs no restart: the operator stops acting, stands by, and acts
/// again as soon as the server answers.
#[test]
fn an_api_server_that_hangs_costs_no_restart() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start_with(cluster, "operator-outage", 19403, &[])?;
    wait_for("it leads", SOON, || {
        ensure!(operator.leads(), "{}", operator.process.log_tail(2));
        Ok(())
    })?;
    apply(cluster, &[egress("before", &[("before", "192.0.2.10", 5432)])])?;
    wait_complete(&kube, "before")?;

    let server = cluster.daemons().process("kube-apiserver")?;
    server.signal(Signal::SIGSTOP)?;
    let stood_by = wait_for("it stands by", SOON, || {
        ensure!(!operator.leads(), "still acts");
        Ok(())
    });
    // Whatever comes of it, the API server goes on.
    std::thread::sleep(Duration::from_secs(10));
    server.signal(Signal::SIGCONT)?;
    let back = Instant::now();
    stood_by?;
    cluster.wait_api_ready(Duration::from_secs(60))?;
    wait_for("it leads again", SOON, || {
        ensure!(operator.leads(), "{}", operator.process.log_tail(2));
        Ok(())
    })?;
    println!("leads {:?} after the API server went on", back.elapsed());
    apply(cluster, &[egress("after", &[("after", "192.0.2.11", 5432)])])?;
    wait_complete(&kube, "after")?;
    assert!(operator.process.is_running(), "{}", operator.process.log_tail(3));
    operator.wait_ready()?;
    operator.stop()
}
