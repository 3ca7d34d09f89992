//! Stop signals.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

const A: Target = Target {
    name: "a",
    listen_port: 10001,
    address: ROUTED,
    port: ECHO,
};

#[test]
fn open_connections_may_end_and_the_node_is_gone_at_once() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let mut agent = Agent::start(&world, &[A]).await;
        let mut open = connect(10001).await;
        echo(&mut open, b"before").await.unwrap();
        assert_eq!(world.headscale.ids("egress").len(), 1);
        signal(agent.process.pid(), Signal::SIGTERM);
        wait_for("unready", Duration::from_secs(2), async || {
            http_get("/readyz")
                .await
                .filter(|(code, text)| *code == 503 && text.contains("stopping"))
        })
        .await;
        echo(&mut connect(10001).await, b"in the grace")
            .await
            .expect("a new connection in the grace");
        wait_for("no longer accepting", Duration::from_secs(5), async || {
            TcpStream::connect("127.0.0.1:10001").await.is_err().then_some(())
        })
        .await;
        for _ in 0..10 {
            echo(&mut open, b"while draining").await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(agent.process.running(), "it waits for the open connection");
        open.shutdown().await.unwrap();
        let mut rest = Vec::new();
        within(open.read_to_end(&mut rest)).await.expect("an orderly end");
        assert!(agent.process.exit(Duration::from_secs(8)).await.success());
        assert!(world.headscale.ids("egress").is_empty(), "the node has logged out");
    });
}

#[test]
fn the_drain_has_an_end() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let mut agent = Agent::start_with(&world, &[A], &[("AGENT_DRAIN_SECONDS", "3")]).await;
        let mut open = connect(10001).await;
        echo(&mut open, b"before").await.unwrap();
        let start = Instant::now();
        signal(agent.process.pid(), Signal::SIGTERM);
        let mut rest = Vec::new();
        let error = within(open.read_to_end(&mut rest))
            .await
            .expect_err("an abandoned connection is no orderly end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(
            start.elapsed() >= Duration::from_secs(3),
            "not before the drain is over: {:?}",
            start.elapsed()
        );
        assert!(agent.process.exit(Duration::from_secs(10)).await.success());
        assert!(world.headscale.ids("egress").is_empty(), "the node has logged out");
        let lines = agent.process.log_json();
        assert!(
            lines
                .iter()
                .any(|l| l["message"] == "connection ended" && l["error_class"] == "shutdown")
        );
    });
}

/// Headscale does not answer the logout: the agent ends all the same.
#[test]
fn a_stop_without_headscale() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let mut agent = Agent::start(&world, &[A]).await;
        world.headscale.freeze();
        signal(agent.process.pid(), Signal::SIGTERM);
        assert!(agent.process.exit(Duration::from_secs(12)).await.success());
    });
}
