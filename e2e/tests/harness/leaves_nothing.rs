//! `down` leaves nothing, two clusters stand side by side, and `up` works after everything was killed.

use std::time::Duration;

use tailnet_e2e::{Cluster, Options, wait_for};

use super::snapshot::Snapshot;
use super::{one_at_a_time, print_figures};

fn kill(pid: i32) {
    let done = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}

fn assert_nothing_left(before: &Snapshot) {
    let after = Snapshot::take();
    let (left, gone) = (after.added_since(before, None), before.added_since(&after, None));
    assert!(left.is_empty(), "left behind: {left:#?}");
    assert!(gone.is_empty(), "gone: {gone:#?}");
}

#[test]
fn down_leaves_nothing() {
    let _turn = one_at_a_time();
    let before = Snapshot::take();
    let cluster = Cluster::up(Options::full("harness-traces")).unwrap();
    print_figures(&cluster);
    // A Pod, so that there are shims, mounts and cgroups to leave behind; and a program on the host.
    cluster
        .kubectl(&[
            "run",
            "p",
            "--image",
            tailnet_e2e::images::TESTBOX,
            "--image-pull-policy=Never",
        ])
        .unwrap()
        .success()
        .unwrap();
    cluster
        .kubectl(&["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"])
        .unwrap()
        .success()
        .unwrap();
    let host = cluster
        .spawn_on_host("lingering", std::path::Path::new("sleep"), &["3600"], &[])
        .unwrap()
        .detach();
    let seen = Snapshot::take().added_since(&before, Some(cluster.state().n));
    assert!(seen.len() > 10, "the snapshot sees a running cluster: {seen:#?}");
    let took = cluster.down().unwrap();
    println!("harness-traces: down in {:.2} s", took.as_secs_f64());
    assert_nothing_left(&before);
    assert!(!std::path::Path::new(&format!("/proc/{}", host.pid())).exists());
}

#[test]
fn two_clusters_stand_side_by_side_with_the_same_ports() {
    let _turn = one_at_a_time();
    let one = Cluster::shared();
    let two = Cluster::up(Options::full("harness-two")).unwrap();
    assert_ne!(one.state().n, two.state().n);
    let namespace = "side-by-side";
    for (cluster, mark) in [(one, "one"), (&two, "two")] {
        cluster
            .kubectl(&["create", "namespace", namespace])
            .unwrap()
            .success()
            .unwrap();
        let (image, env) = (
            format!("--image={}", tailnet_e2e::images::TESTBOX),
            format!("--env=MARK={mark}"),
        );
        let run = ["run", "p", "-n", namespace, "--image-pull-policy=Never", &image, &env];
        wait_for("a Pod can be made", Duration::from_secs(10), || {
            cluster.kubectl(&run)?.success().map(drop)
        })
        .unwrap();
        cluster
            .headscale()
            .unwrap()
            .cli(&["users", "create", mark])
            .unwrap()
            .success()
            .unwrap();
    }
    let look = |cluster: &Cluster, mark: &str| {
        let ready = [
            "wait",
            "--for=condition=Ready",
            "pod/p",
            "-n",
            namespace,
            "--timeout=60s",
        ];
        cluster.kubectl(&ready).unwrap().success().unwrap();
        assert_eq!(
            cluster.pod_exec(namespace, "p", &["sh", "-c", "echo $MARK"]).unwrap(),
            mark
        );
        let users = cluster
            .headscale()
            .unwrap()
            .cli(&["users", "list", "-o", "json"])
            .unwrap();
        let users: serde_json::Value = serde_json::from_str(users.success().unwrap()).unwrap();
        let users: Vec<_> = users
            .as_array()
            .unwrap()
            .iter()
            .map(|user| user["name"].as_str().unwrap())
            .collect();
        assert_eq!(users, [mark]);
    };
    look(one, "one");
    look(&two, "two");
    two.down().unwrap();
    look(one, "one");
    one.kubectl(&["delete", "namespace", namespace, "--wait=false"])
        .unwrap()
        .success()
        .unwrap();
}

#[test]
fn a_detached_cluster_is_found_and_taken_down_by_name() {
    let _turn = one_at_a_time();
    let mut options = Options::api("harness-detached");
    options.detached = true;
    drop(Cluster::up(options).unwrap());
    let found = Cluster::find("harness-detached").unwrap();
    found.kubectl(&["get", "namespaces"]).unwrap().success().unwrap();
    let dir = found.dir().to_owned();
    found.down().unwrap();
    assert!(Cluster::find("harness-detached").is_err());
    assert!(!dir.exists());
}

#[test]
fn up_works_after_everything_was_killed() {
    let _turn = one_at_a_time();
    let before = Snapshot::take();
    let mut options = Options::api("harness-killed").with_headscale();
    options.detached = true;
    let first = Cluster::up(options.clone()).unwrap();
    // The supervisor first: nobody is left to clean up. The kernel takes the rest of the box.
    kill(first.state().supervisor);
    let init = format!("/proc/{}", first.state().init);
    wait_for("the box's PID 1 is gone", Duration::from_secs(10), || {
        if std::path::Path::new(&init).exists() {
            Err("it is there")
        } else {
            Ok(())
        }
    })
    .unwrap();
    assert!(Cluster::find("harness-killed").is_err(), "a dead cluster is not listed");
    let second = Cluster::up(options).unwrap();
    second.kubectl(&["get", "namespaces"]).unwrap().success().unwrap();
    second.down().unwrap();
    assert_nothing_left(&before);
}

#[test]
fn a_box_that_dies_of_itself_is_cleaned_up() {
    let _turn = one_at_a_time();
    let cluster = Cluster::up(Options::api("harness-init-killed")).unwrap();
    let (n, dir) = (cluster.state().n, cluster.dir().to_owned());
    kill(cluster.state().init);
    wait_for("the box is cleaned up", Duration::from_secs(20), || {
        if dir.exists() || tailnet_e2e::boxed::leftovers::exist(n) {
            Err("there is something left")
        } else {
            Ok(())
        }
    })
    .unwrap();
    let error = cluster.inside().run(&["true"]).unwrap_err();
    assert!(format!("{error:#}").contains("has it ended?"), "{error:#}");
}

#[test]
fn the_logs_of_a_failed_test_are_kept_under_its_name() {
    let cluster = Cluster::shared_api();
    let kept = tailnet_e2e::paths::kept_logs().join("harness--a_test_that_fails");
    let _ = std::fs::remove_dir_all(&kept);
    let failed = std::thread::Builder::new()
        .name("a_test_that_fails".to_owned())
        .spawn(|| panic!("on purpose: this panic is part of a test of the harness"))
        .unwrap()
        .join();
    assert!(failed.is_err());
    let log = std::fs::read_to_string(kept.join("kube-apiserver.log")).unwrap();
    assert!(log.contains("Version"), "the log has something in it");
    std::fs::remove_dir_all(&kept).unwrap();
    assert!(cluster.daemons().names().contains(&"kube-apiserver".to_owned()));
}
