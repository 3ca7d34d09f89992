//! What the agent says when it cannot start, or cannot join yet.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use nix::sys::signal::Signal;

use crate::support::*;

fn fails(mode: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailnet-agent"));
    command.env_remove("AGENT_MODE");
    if let Some(mode) = mode {
        command.env("AGENT_MODE", mode);
    }
    let output = command.output().unwrap();
    assert!(!output.status.success(), "mode {mode:?} starts");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_mode_must_be_said() {
    assert!(fails(None).contains("AGENT_MODE is not set: set it, or --mode,"));
    assert!(fails(Some("both")).contains("unknown"));
}

#[test]
fn help_and_version() {
    let run = |arg| {
        Command::new(env!("CARGO_BIN_EXE_tailnet-agent"))
            .arg(arg)
            .output()
            .unwrap()
    };
    let help = String::from_utf8_lossy(&run("--help").stdout).into_owned();
    assert!(
        help.contains("AGENT_MODE") && help.contains("AGENT_DRAIN_SECONDS"),
        "{help}"
    );
    let version = String::from_utf8_lossy(&run("--version").stdout).into_owned();
    assert!(version.starts_with("tailnet-agent 0.1.0 (commit "), "{version}");
}

/// A login server that accepts connections and says nothing: the agent is alive, unready, says why, and stops in time.
#[test]
fn a_login_server_that_does_not_answer() {
    in_namespace(async || {
        let world = World::without_router().await;
        let key = world.headscale.key("tag:egress");
        world.headscale.freeze();
        let (command, _) = Agent::command(&world, &[], &key);
        let mut process = Kept::spawn("agent", world.dir.path(), command);
        wait_for("the agent is alive", Duration::from_secs(10), async || {
            http_get("/healthz").await
        })
        .await;
        let (code, text) = http_get("/readyz").await.unwrap();
        assert_eq!(code, 503);
        assert!(text.contains("tailnet"), "{text}");
        let why = wait_for("the login's deadline", Duration::from_secs(45), async || {
            let (_, status) = http_get("/status").await?;
            let status: serde_json::Value = serde_json::from_str(&status).ok()?;
            status["loginError"].as_str().map(str::to_owned)
        })
        .await;
        assert!(why.contains("deadline exceeded after 30s"), "{why}");
        let start = Instant::now();
        signal(process.pid(), Signal::SIGTERM);
        assert!(process.exit(Duration::from_secs(15)).await.success());
        println!("stopped after {:?}", start.elapsed());
    });
}

/// A bad key is told in Headscale's words, and never shown.
#[test]
fn a_bad_key_and_then_a_good_one() {
    in_namespace(async || {
        let world = World::without_router().await;
        let bad = "hskey-auth-aaaaaaaaaaaa-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
        let (mut command, dir) = Agent::command(&world, &[], bad);
        command.env("LOG_LEVEL", "debug");
        let agent = Agent {
            process: Kept::spawn("agent", world.dir.path(), command),
            dir,
        };
        let why = wait_for("the refusal", Duration::from_secs(40), async || {
            let (_, status) = http_get("/status").await?;
            let status: serde_json::Value = serde_json::from_str(&status).ok()?;
            status["loginError"].as_str().map(str::to_owned)
        })
        .await;
        assert!(why.to_lowercase().contains("auth"), "{why}");
        assert!(!why.contains(bad));
        std::fs::write(agent.dir.join("authkey"), world.headscale.key("tag:egress")).unwrap();
        agent.ready().await;
        assert_eq!(agent.status().await["loginError"], json!(null));
        assert!(!agent.process.log().contains(bad), "the key is in the log");
    });
}
