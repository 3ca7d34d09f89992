//! Many connections and many bytes: threads, memory, limits.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

const ECHO_TARGET: Target = Target {
    name: "echo",
    listen_port: 10001,
    address: ROUTED,
    port: ECHO,
};

/// One number of /proc/PID/status, such as Threads, or VmRSS in KiB.
fn proc_status(pid: i32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(key))
        .unwrap_or_else(|| panic!("no {key} in {text}"));
    line.trim_start_matches(':')
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn idle_connections_cost_no_threads() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[ECHO_TARGET]).await;
        let idle = proc_status(agent.process.pid(), "VmRSS");
        let count = if long() { 1000 } else { 200 };
        let mut open = Vec::new();
        for _ in 0..count {
            let mut socket = connect(10001).await;
            echo(&mut socket, b"x").await.unwrap();
            open.push(socket);
        }
        let (threads, rss) = (
            proc_status(agent.process.pid(), "Threads"),
            proc_status(agent.process.pid(), "VmRSS"),
        );
        println!("RSS idle {idle} KiB, with {count} connections {rss} KiB, {threads} threads");
        assert!(threads < 40, "{threads} threads for {count} connections");
        assert!(
            rss.saturating_sub(idle) < count * 150 + 20_000,
            "{idle} KiB grew to {rss} KiB"
        );
        for socket in &mut open {
            echo(socket, b"still").await.unwrap();
        }
    });
}

#[test]
fn memory_stays_bounded_under_load() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let targets = [
            Target {
                name: "source",
                listen_port: 10001,
                address: ROUTED,
                port: SOURCE,
            },
            Target {
                name: "sink",
                listen_port: 10002,
                address: ROUTED,
                port: SINK,
            },
        ];
        // What the agent derives from a container of 300 MiB; there is no container here.
        let agent = Agent::start_with(&world, &targets, &[("GOMEMLIMIT", "195MiB")]).await;
        let span = Duration::from_secs(if long() { 30 } else { 6 });
        let start = Instant::now();
        let downs = (0..4).map(|_| {
            tokio::spawn(async move {
                let (mut socket, mut buffer, mut bytes) = (connect(10001).await, vec![0; 256 << 10], 0);
                while start.elapsed() < span {
                    bytes += socket.read(&mut buffer).await.unwrap();
                }
                bytes
            })
        });
        let ups = (0..4).map(|_| {
            tokio::spawn(async move {
                let (mut socket, buffer, mut bytes) = (connect(10002).await, vec![0; 256 << 10], 0);
                while start.elapsed() < span {
                    bytes += socket.write(&buffer).await.unwrap();
                }
                bytes
            })
        });
        let mut bytes = 0;
        for task in downs.chain(ups).collect::<Vec<_>>() {
            bytes += task.await.unwrap();
        }
        let peak = proc_status(agent.process.pid(), "VmHWM");
        println!("{} MB in {span:?}, peak RSS {peak} KiB", bytes / 1_000_000);
        assert!(bytes > 20_000_000, "only {bytes} bytes were carried");
        assert!(peak < 300 * 1024, "peak RSS {peak} KiB");
    });
}

#[test]
fn more_connections_than_allowed_are_reset() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let targets = [
            ECHO_TARGET,
            Target {
                name: "other",
                listen_port: 10002,
                ..ECHO_TARGET
            },
        ];
        let limits = [
            ("AGENT_MAX_CONNECTIONS", "3"),
            ("AGENT_MAX_CONNECTIONS_PER_TARGET", "2"),
        ];
        let agent = Agent::start_with(&world, &targets, &limits).await;
        let mut open = Vec::new();
        for port in [10001, 10001, 10002] {
            let mut socket = connect(port).await;
            echo(&mut socket, b"x").await.unwrap();
            open.push(socket);
        }
        for (port, reason) in [(10001, "target-limit"), (10002, "total-limit")] {
            assert_eq!(outcome_at(port).await, Err(ErrorKind::ConnectionReset));
            let name = if port == 10001 { "echo" } else { "other" };
            let metric = format!("tailnet_agent_connections_rejected_total{{target=\"{name}\",class=\"{reason}\"}}");
            assert_eq!(agent.metric(&metric).await, 1.0, "{metric}");
        }
        for socket in &mut open {
            echo(socket, b"the others go on").await.unwrap();
        }
        drop(open);
        wait_for("room again", Duration::from_secs(10), async || {
            let mut socket = tokio::net::TcpStream::connect("127.0.0.1:10001").await.ok()?;
            echo(&mut socket, b"y").await.ok()
        })
        .await;
    });
}
