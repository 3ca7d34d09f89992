//! `kubectl tailnet why` and `doctor` on a whole cluster with the chart installed: broken set-ups, each with the sentence that
//! names its first broken link, whose turn it is and the next command; all of them can be put right.

mod bed;
mod connection;
mod headscale;
mod slipped_in;

use anyhow::{Result, ensure};
use bed::{Bed, TAG, fits};

#[test]
fn broken_set_ups_are_named() -> Result<()> {
    let mut bed = Bed::new()?;
    nothing_is_installed(&bed)?;
    bed.install()?;
    installed(&bed)?;
    headscale::set_ups(&bed)?;
    bed.policy(&[TAG, "tag:router"], &[])?;
    bed.add_site()?;
    connection::set_ups(&bed)?;
    slipped_in::set_ups(&bed)?;
    bed.verdict()
}

/// Before the installation everything is missing, and each part is named.
fn nothing_is_installed(bed: &Bed) -> Result<()> {
    bed.expect_doctor("CRDs", "fail", "tailnetegresses.tsunaro.io is not installed");
    bed.expect_doctor("operator", "fail", "there is no Deployment network/tailnet-operator");
    bed.expect_doctor(
        "operator acts",
        "fail",
        "nobody has ever acted: there is no Lease network/tailnet-operator",
    );
    bed.expect_doctor(
        "validating webhook",
        "fail",
        "there is no ValidatingWebhookConfiguration *",
    );
    let asked = bed.plugin(&["why", "tailnet/demo"])?;
    let said = asked.failure()?;
    ensure!(said.contains("the CRDs are not installed"), "{said}");
    ensure!(asked.status.code() == Some(2), "{}", asked.status);
    Ok(())
}

/// A fresh installation is healthy, and what it lacks is told as not known.
fn installed(bed: &Bed) -> Result<()> {
    bed.expect_doctor("admission refuses", "ok", "a wrong object is refused [TN201] *");
    bed.expect_doctor("CRDs", "ok", "all five are there, *");
    bed.expect_doctor("operator acts", "ok", "tailnet-operator-* holds the Lease");
    bed.expect_doctor("Tailnets", "unknown", "there is none yet: *");
    bed.expect_doctor("cert-manager", "ok", "not installed, and no object needs it");
    let (code, checks) = bed.doctor()?;
    ensure!(code == 0, "{checks:#?}");
    // The table for people says the same.
    let table = bed.plugin(&["doctor"])?;
    let table = table.success()?;
    ensure!(table.contains("0 failing"), "{table}");
    // What it tried was not stored.
    let left = bed.kubectl(&["get", "tailnetegresses", "-A", "-o", "name"])?;
    ensure!(left.is_empty(), "doctor left {left}");
    // Asked with another namespace it says where the installation is.
    let elsewhere = bed
        .cluster
        .kubectl(&["get", "validatingwebhookconfigurations", "-o", "name"])?;
    ensure!(elsewhere.success()?.contains("tailnet-webhook"), "{}", elsewhere.stdout);
    Ok(())
}

#[test]
fn patterns() {
    assert!(fits("a*c", "abc") && fits("*", "") && fits("a*b*", "a-b-") && fits("abc", "abc"));
    assert!(!fits("a*c", "abd") && !fits("ab", "abc") && !fits("a*b*c", "ac"));
}
