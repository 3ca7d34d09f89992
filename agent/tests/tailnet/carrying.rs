//! Bytes: both directions, ends, resets, and where a dial may go.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

const fn to(name: &'static str, listen_port: u16, address: &'static str, port: u16) -> Target {
    Target {
        name,
        listen_port,
        address,
        port,
    }
}

#[test]
fn bytes_ends_and_resets() {
    in_namespace(async || {
        start_servers().await;
        let mut world = World::new(&["7001", "7030=10.201.0.7:7001"]).await;
        world.peer("far-router", "10.201.0.0/24", &[]).await;
        let agent = Agent::start(
            &world,
            &[
                to("echo", 10001, ROUTED, ECHO),
                to("after-end", 10002, ROUTED, AFTER_END),
                to("nobody", 10003, ROUTED, NOBODY),
                to("source", 10004, ROUTED, SOURCE),
                to("by-name", 10005, "router", ECHO),
                to("by-full-name", 10006, "Router.ts.test.internal", ECHO),
                to("reset-watch", 10007, ROUTED, 7010),
                to("two-hops", 10008, "router", 7030),
            ],
        )
        .await;

        for port in [10001, 10005, 10006, 10008] {
            echo(&mut connect(port).await, b"hello")
                .await
                .unwrap_or_else(|e| panic!("port {port}: {e}"));
        }
        let known = r#"a connection from egress ["tag:egress"]"#;
        assert!(world.peer_log("router").contains(known), "{}", world.peer_log("router"));
        half_close().await;
        refused_is_a_reset(&agent).await;
        client_reset_reaches_the_server().await;
        server_reset_reaches_the_client().await;
        status_and_metrics(&agent).await;
        one_log_line_per_connection(&agent).await;
    });
}

/// The client ends its direction; the server answers 10 MB after that.
async fn half_close() {
    for _ in 0..3 {
        let mut socket = connect(10002).await;
        socket.write_all(&[1; 100_000]).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut answer = Vec::new();
        within(socket.read_to_end(&mut answer)).await.unwrap();
        assert_eq!(answer.len(), BIG);
        assert!(
            answer.iter().enumerate().all(|(at, byte)| *byte == pattern(at)),
            "the content has changed"
        );
    }
}

async fn refused_is_a_reset(agent: &Agent) {
    assert_eq!(
        outcome_at(10003).await,
        Err(ErrorKind::ConnectionReset),
        "a failed dial is an error, not an end"
    );
    let dial = agent.last_dial("nobody").await;
    // The router in user space accepts before it connects, so that it can only reset.
    assert!(
        dial["ok"] == json!(true) || dial["errorClass"] == json!("refused"),
        "{dial}"
    );
}

async fn client_reset_reaches_the_server() {
    let listener = TcpListener::bind("127.0.0.1:7010").await.unwrap();
    let mut client = connect(10007).await;
    client.write_all(b"half of an upload").await.unwrap();
    let (mut server, _) = within(listener.accept()).await.unwrap();
    let mut start = [0; 4];
    within(server.read_exact(&mut start)).await.unwrap();
    client.set_zero_linger().unwrap();
    drop(client);
    assert_eq!(
        outcome(&mut server).await,
        Err(ErrorKind::ConnectionReset),
        "an abandoned upload must not look complete"
    );
}

async fn server_reset_reaches_the_client() {
    let listener = TcpListener::bind("127.0.0.1:7010").await.unwrap();
    let mut client = connect(10007).await;
    client.write_all(b"a request").await.unwrap();
    let (server, _) = within(listener.accept()).await.unwrap();
    server.set_zero_linger().unwrap();
    drop(server);
    assert_eq!(
        outcome(&mut client).await,
        Err(ErrorKind::ConnectionReset),
        "half an answer must not look complete"
    );
}

async fn status_and_metrics(agent: &Agent) {
    let status = agent.status().await;
    assert_eq!(status["version"], json!(1));
    assert_eq!(status["mode"], json!("egress"));
    assert_eq!(status["node"]["name"], json!("egress"));
    assert_eq!(status["node"]["online"], json!(true));
    assert!(
        status["node"]["ipv4"].as_str().unwrap().starts_with("100.64."),
        "{status}"
    );
    assert_eq!(status["loginError"], json!(null));
    let echo = agent.target("echo").await;
    assert_eq!(
        (&echo["routed"], &echo["router"], &echo["listening"]),
        (&json!(true), &json!("router"), &json!(true))
    );
    assert_eq!(echo["lastDial"]["ok"], json!(true));

    let bytes = "tailnet_agent_bytes_total{target=\"after-end\",direction=\"from_tailnet\"}";
    agent.metric_reaches(bytes, 3.0 * BIG as f64).await;
    assert_eq!(agent.metric(bytes).await, 3.0 * BIG as f64);
    assert_eq!(
        agent.metric("tailnet_agent_connections_total{target=\"echo\"}").await,
        1.0
    );
    assert_eq!(agent.metric("tailnet_agent_node_online").await, 1.0);
    agent
        .metric_reaches("tailnet_agent_dial_duration_seconds_count{target=\"echo\"}", 1.0)
        .await;
}

async fn one_log_line_per_connection(agent: &Agent) {
    let line_of = async |name: &str| {
        wait_for(&format!("a line for {name}"), Duration::from_secs(5), async || {
            let ended = |l: &Value| l["message"] == "connection ended" && l["target_name"] == name;
            agent.process.log_json().into_iter().find(ended)
        })
        .await
    };
    let line = line_of("after-end").await;
    assert_eq!(line["bytes_from_tailnet"], json!(BIG));
    assert_eq!(line["bytes_to_tailnet"], json!(100_000));
    assert_eq!(line["error_class"], json!("none"));
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert_eq!(line["router"], json!("router"));
    assert_eq!(line_of("reset-watch").await["error_class"], json!("reset"));
}

/// A dial goes where the netmap says, or nowhere: never to the network of the machine.
#[test]
fn a_dial_without_a_route_goes_nowhere() {
    in_namespace(async || {
        let hits = Arc::new(AtomicUsize::new(0));
        for address in ["127.0.0.1", MACHINE, "::1"] {
            let listener = TcpListener::bind((address, 7020)).await.unwrap();
            let hits = hits.clone();
            tokio::spawn(async move {
                loop {
                    let _ = listener.accept().await.unwrap();
                    hits.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let world = World::new(&[]).await;
        let targets = [
            to("loopback", 10001, "127.0.0.1", 7020),
            to("machine", 10002, MACHINE, 7020),
            to("loopback-v6", 10003, "::1", 7020),
            to("localhost", 10004, "localhost", 7020),
            to("unspecified", 10005, "0.0.0.0", 7020),
            to("mapped", 10006, "::ffff:127.0.0.1", 7020),
            to("link-local", 10007, "169.254.1.1", 7020),
            to("no-such-name", 10008, "nowhere.test.internal", 7020),
            to("routed", 10009, ROUTED, 7020),
        ];
        let agent = Agent::start(&world, &targets).await;
        for target in &targets[..8] {
            let start = Instant::now();
            let result = outcome_at(target.listen_port).await;
            assert_eq!(result, Err(ErrorKind::ConnectionReset), "{}", target.name);
            assert!(
                start.elapsed() < Duration::from_secs(6),
                "{} is refused at once, not by the deadline",
                target.name
            );
            let dial = agent.last_dial(target.name).await;
            let class = if target.name == "no-such-name" {
                "resolve"
            } else {
                "no-route"
            };
            assert_eq!(dial["errorClass"], json!(class), "{dial}");
            let state = agent.target(target.name).await;
            assert_eq!(state["routed"], json!(false), "{state}");
        }
        assert_eq!(
            hits.load(Ordering::SeqCst),
            0,
            "a dial fell through to the machine's own network"
        );
        agent
            .metric_reaches(
                "tailnet_agent_dial_errors_total{target=\"machine\",class=\"no-route\"}",
                1.0,
            )
            .await;
        // The same port by the tailnet does arrive, so that the silence above means something.
        let _open = connect(10009).await;
        wait_for("the routed dial arrives", Duration::from_secs(12), async || {
            (hits.load(Ordering::SeqCst) == 1).then_some(())
        })
        .await;
    });
}

/// A router that is there in the netmap but does not answer: an error after the deadline, and no harm once it is back.
#[test]
fn a_router_that_does_not_answer() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let targets = [to("echo", 10001, ROUTED, ECHO)];
        let agent = Agent::start_with(&world, &targets, &[("AGENT_DIAL_TIMEOUT_SECONDS", "2")]).await;
        // The first handshake can get lost, and is repeated after five seconds, which is longer than this deadline.
        let mut open = wait_for("the path", Duration::from_secs(20), async || {
            let mut socket = TcpStream::connect("127.0.0.1:10001").await.ok()?;
            echo(&mut socket, b"before").await.ok().map(|()| socket)
        })
        .await;
        world.freeze_peer(0).await;
        let start = Instant::now();
        assert_eq!(outcome_at(10001).await, Err(ErrorKind::ConnectionReset));
        let took = start.elapsed();
        assert!(
            took >= Duration::from_secs(2) && took < Duration::from_secs(5),
            "{took:?}"
        );
        let dial = wait_for("the failed dial is noted", Duration::from_secs(5), async || {
            Some(agent.last_dial("echo").await).filter(|dial| dial["ok"] == json!(false))
        })
        .await;
        assert_eq!(dial["errorClass"], json!("timeout"), "{dial}");
        assert!(
            dial["message"]
                .as_str()
                .unwrap()
                .contains("by way of peer router (10.200.0.0/24)"),
            "{dial}"
        );
        agent
            .metric_reaches(
                "tailnet_agent_dial_errors_total{target=\"echo\",class=\"timeout\"}",
                1.0,
            )
            .await;
        world.thaw_peer(0);
        within(echo(&mut open, b"after"))
            .await
            .expect("an open connection survives the pause");
        wait_for("new connections", Duration::from_secs(20), async || {
            let mut socket = TcpStream::connect("127.0.0.1:10001").await.ok()?;
            echo(&mut socket, b"new").await.ok()
        })
        .await;
    });
}

/// When the server closes first, the router keeps the port pair for a minute and swallows a SYN that meets it.
#[test]
fn servers_that_close_first() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[to("closes-first", 10001, ROUTED, CLOSES_FIRST)]).await;
        let count = if long() { 3000 } else { 800 };
        let left = Arc::new(AtomicUsize::new(count));
        let clients = (0..32).map(|_| {
            let left = left.clone();
            tokio::spawn(async move {
                let (mut failed, mut slowest) = (0, Duration::ZERO);
                while left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                    .is_ok()
                {
                    let start = Instant::now();
                    failed += usize::from(outcome_at(10001).await != Ok(1));
                    slowest = slowest.max(start.elapsed());
                }
                (failed, slowest)
            })
        });
        let (mut failed, mut slowest) = (0, Duration::ZERO);
        for client in clients.collect::<Vec<_>>() {
            let (f, s) = client.await.unwrap();
            (failed, slowest) = (failed + f, slowest.max(s));
        }
        assert_eq!(failed, 0, "of {count}");
        assert!(slowest < Duration::from_secs(8), "the slowest took {slowest:?}");
        let hedges = agent.metric("tailnet_agent_dial_hedges_total").await;
        println!("{count} connections, slowest {slowest:?}, {hedges} hedges");
    });
}
