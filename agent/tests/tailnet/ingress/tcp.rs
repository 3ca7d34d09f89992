//! tcp exposes.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::bed::*;
use crate::support::*;

#[test]
fn tcp_exposes_carry_bytes_ends_and_resets() {
    in_namespace(async || {
        start_servers().await;
        let bed = Bed::new(
            json!([tcp("echo", TCP, ECHO), tcp("after-end", OTHER_TCP, AFTER_END)]),
            &[],
            &[("AGENT_MAX_CONNECTIONS_PER_TARGET", "3")],
        )
        .await;
        wait_for("the first byte", Duration::from_secs(30), async || {
            let mut socket = TcpStream::connect(("127.0.0.1", TCP)).await.ok()?;
            echo(&mut socket, b"hello").await.ok()
        })
        .await;

        // The client ends its direction; the answer comes whole after that.
        let mut socket = connect(OTHER_TCP).await;
        socket.write_all(&[1; 100_000]).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut answer = Vec::new();
        within(socket.read_to_end(&mut answer)).await.unwrap();
        assert_eq!(answer.len(), BIG);
        assert!(answer.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));

        logs_status_and_metrics(&bed).await;
        one_that_stalls_holds_up_no_other(&bed).await;
        limit_per_expose(&bed).await;
        reloads(&bed).await;
    });
}

async fn logs_status_and_metrics(bed: &Bed) {
    let line = bed
        .line("a line for after-end", |line| {
            line["message"] == "connection ended" && line["target_name"] == "after-end"
        })
        .await;
    assert_eq!(line["bytes_to_tailnet"], json!(BIG));
    assert_eq!(line["bytes_from_tailnet"], json!(100_000));
    assert_eq!(line["error_class"], json!("none"));
    assert_eq!(line["node"], json!("egress"), "{line}");
    assert!(line["peer"].as_str().unwrap().starts_with("100.64."), "{line}");
    assert_eq!(line["backend"], json!("127.0.0.1:7002"));

    let status = bed.status().await;
    assert_eq!(status["mode"], json!("ingress"));
    assert_eq!(
        status["certificate"],
        json!(null),
        "no http expose, no certificate: {status}"
    );
    let echo = bed.expose("echo").await;
    assert_eq!(
        (&echo["listening"], &echo["lastDial"]["ok"]),
        (&json!(true), &json!(true))
    );
    let bytes = "tailnet_agent_bytes_total{target=\"after-end\",direction=\"to_tailnet\"}";
    assert_eq!(bed.metric(bytes).await, BIG as f64);
}

/// A backend that accepts and reads nothing, with as much sent to it as goes.
async fn one_that_stalls_holds_up_no_other(bed: &Bed) {
    const STALLS: u16 = 7011;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", STALLS)).await.unwrap();
    let before = bed.status().await;
    bed.configure(&json!([tcp("echo", TCP, ECHO), tcp("stalls", OTHER_TCP, STALLS)]));
    bed.until("the new configuration", |status| {
        status["configSha256"] != before["configSha256"]
    })
    .await;
    let mut stalled = connect(OTHER_TCP).await;
    let (_held, _) = within(listener.accept()).await.unwrap();
    let chunk = vec![7; 256 << 10];
    // Full when a write has waited for a second; how much fits does not matter.
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(1), stalled.write_all(&chunk)).await {
        written.unwrap();
    }
    for _ in 0..20 {
        within(echo(&mut connect(TCP).await, b"not held up")).await.unwrap();
    }
    drop(stalled);
    let before = bed.status().await;
    bed.configure(&json!([tcp("echo", TCP, ECHO), tcp("after-end", OTHER_TCP, AFTER_END)]));
    bed.until("the old configuration", |status| {
        status["configSha256"] != before["configSha256"]
    })
    .await;
}

async fn limit_per_expose(bed: &Bed) {
    wait_for("nothing is open", Duration::from_secs(20), async || {
        (bed.expose("echo").await["openConnections"] == json!(0)).then_some(())
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut socket = connect(TCP).await;
        within(echo(&mut socket, b"one of three")).await.unwrap();
        open.push(socket);
    }
    assert_eq!(
        outcome_at(TCP).await,
        Err(ErrorKind::ConnectionReset),
        "the fourth is one too many"
    );
    let line = bed
        .line("a line for the fourth", |line| line["error_class"] == "target-limit")
        .await;
    assert_eq!(line["target_name"], json!("echo"));
    let rejected = "tailnet_agent_connections_rejected_total{target=\"echo\",class=\"target-limit\"}";
    assert_eq!(bed.metric(rejected).await, 1.0);
    // Another expose is not concerned.
    let mut other = connect(OTHER_TCP).await;
    other.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within(other.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer.len(), BIG);
}

async fn reloads(bed: &Bed) {
    wait_for("there is room again", Duration::from_secs(20), async || {
        (bed.expose("echo").await["openConnections"] == json!(0)).then_some(())
    })
    .await;
    let mut open = connect(TCP).await;
    within(echo(&mut open, b"before")).await.unwrap();
    let mut other = connect(OTHER_TCP).await;
    other.write_all(b"half a request").await.unwrap();

    // `after-end` goes, a new expose takes its port, `echo` gets another name: its connection stays.
    let before = bed.status().await;
    bed.configure(&json!([
        tcp("renamed", TCP, ECHO),
        tcp("first", OTHER_TCP, CLOSES_FIRST)
    ]));
    bed.until("the new configuration", |status| {
        status["configSha256"] != before["configSha256"]
    })
    .await;
    within(echo(&mut open, b"after")).await.unwrap();
    assert_eq!(outcome(&mut other).await, Err(ErrorKind::ConnectionReset));
    bed.line("the removed expose's connection", |line| {
        line["message"] == "connection ended" && line["error_class"] == "aborted"
    })
    .await;
    wait_for("the port's new expose", Duration::from_secs(20), async || {
        (outcome_at(OTHER_TCP).await == Ok(1)).then_some(())
    })
    .await;

    // A Service without an address, and one that refuses: each its own word, and no other expose is concerned.
    let nowhere = json!({"name": "nowhere", "port": OTHER_TCP});
    bed.configure(&json!([tcp("renamed", TCP, ECHO), nowhere]));
    wait_for("no backend", Duration::from_secs(20), async || {
        (outcome_at(OTHER_TCP).await == Err(ErrorKind::ConnectionReset)).then_some(())
    })
    .await;
    bed.line("why", |line| line["error_class"] == "no-backend").await;
    bed.configure(&json!([tcp("renamed", TCP, ECHO), tcp("nobody", OTHER_TCP, NOBODY)]));
    let refused = |status: &Value| {
        let exposes = status["exposes"].as_array().unwrap();
        exposes
            .iter()
            .any(|expose| expose["lastDial"]["errorClass"] == "refused")
    };
    wait_for("the refused dial is told", Duration::from_secs(20), async || {
        assert_ne!(outcome_at(OTHER_TCP).await, Ok(1));
        refused(&bed.status().await).then_some(())
    })
    .await;
    within(echo(&mut open, b"still")).await.unwrap();
    bed.ready().await;

    // A broken file changes nothing.
    replace(&bed.dir().join("config.json"), "{\"version\":1,");
    bed.until("the error", |status| status["configError"].is_string()).await;
    within(echo(&mut open, b"and still")).await.unwrap();
    within(echo(&mut connect(TCP).await, b"new ones too")).await.unwrap();
}
