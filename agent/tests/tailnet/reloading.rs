//! A changed configuration: connections that are still allowed stay, the others end, and only what changed is bound anew.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpStream;

use crate::support::*;

const A: Target = Target {
    name: "a",
    listen_port: 10001,
    address: ROUTED,
    port: ECHO,
};
const B: Target = Target {
    name: "b",
    listen_port: 10002,
    address: ROUTED,
    port: SINK,
};

#[test]
fn connections_outlive_every_reload_that_allows_them() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[A, B]).await;
        let mut open = connect(10001).await;
        echo(&mut open, b"before").await.unwrap();
        let mut readdressed = connect(10002).await;

        // Another target joins, and b goes elsewhere on the same port.
        let before = agent.status().await;
        agent.configure(&[
            A,
            Target { port: ECHO, ..B },
            Target {
                name: "c",
                listen_port: 10003,
                ..A
            },
        ]);
        agent.reloaded(&before).await;
        echo(&mut open, b"target added").await.unwrap();
        for port in [10002, 10003] {
            echo(&mut connect(port).await, b"new").await.unwrap();
        }
        let still = agent.target("a").await;
        assert_eq!(
            (&still["openConnections"], &still["totalConnections"]),
            (&json!(1), &json!(1))
        );

        // The connection of b as it was is no longer allowed.
        assert_eq!(outcome(&mut readdressed).await, Err(ErrorKind::ConnectionReset));

        // Its name is not what a connection was allowed for.
        let before = agent.status().await;
        agent.configure(&[Target { name: "renamed", ..A }, Target { port: ECHO, ..B }]);
        agent.reloaded(&before).await;
        echo(&mut open, b"target renamed").await.unwrap();

        // a is removed, and its port passes to b in the same step.
        let before = agent.status().await;
        agent.configure(&[Target {
            listen_port: 10001,
            port: CLOSES_FIRST,
            ..B
        }]);
        agent.reloaded(&before).await;
        assert_eq!(outcome(&mut open).await, Err(ErrorKind::ConnectionReset));
        wait_for("its end is told and counted", Duration::from_secs(10), async || {
            let lines = agent.process.log_json();
            let told = lines
                .iter()
                .any(|line| line["message"] == "connection ended" && line["error_class"] == "aborted");
            told.then_some(())
        })
        .await;
        wait_for("b answers on a's old port", Duration::from_secs(10), async || {
            (outcome_at(10001).await == Ok(1)).then_some(())
        })
        .await;
        assert!(
            TcpStream::connect("127.0.0.1:10002").await.is_err(),
            "b's old port is free"
        );
        assert_eq!(http_get("/readyz").await.unwrap().0, 200);
    });
}

#[test]
fn a_broken_file_changes_nothing() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[A]).await;
        let good = agent.status().await["configSha256"].clone();
        let text = std::fs::read_to_string(agent.dir.join("config.json")).unwrap();
        for (broken, reason) in [
            (&text[..text.len() / 2], "not valid"),
            (&text.replace("\"version\":1", "\"version\":2"), "format version 2"),
            (&text.replace("10001", "9402"), "health endpoint"),
        ] {
            std::fs::write(agent.dir.join("config.json"), broken).unwrap();
            wait_for(reason, Duration::from_secs(5), async || {
                agent.status().await["configError"]
                    .as_str()
                    .filter(|e| e.contains(reason))
                    .map(drop)
            })
            .await;
            assert_eq!(agent.status().await["configSha256"], good);
            echo(&mut connect(10001).await, b"still here").await.unwrap();
            assert_eq!(http_get("/readyz").await.unwrap().0, 200, "the last good one serves");
        }
        agent.configure(&[A]);
        wait_for("the good one is back", Duration::from_secs(5), async || {
            (agent.status().await["configError"] == json!(null)).then_some(())
        })
        .await;
        assert!(agent.metric("tailnet_agent_configurations{result=\"refused\"}").await >= 3.0);
    });
}

/// A port that something else holds: unready with the reason, and bound as soon as it is free.
#[test]
fn a_port_that_is_taken() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[A]).await;
        let squatter = tokio::net::TcpListener::bind("[::]:10003").await.unwrap();
        let before = agent.status().await;
        agent.configure(&[
            A,
            Target {
                name: "c",
                listen_port: 10003,
                ..A
            },
        ]);
        agent.reloaded(&before).await;
        wait_for("unready", Duration::from_secs(5), async || {
            http_get("/readyz")
                .await
                .filter(|(code, text)| *code == 503 && text.contains("c (port 10003)"))
        })
        .await;
        echo(&mut connect(10001).await, b"the other target serves")
            .await
            .unwrap();
        drop(squatter);
        wait_for("bound", Duration::from_secs(10), async || {
            http_get("/readyz").await.filter(|(code, _)| *code == 200)
        })
        .await;
        echo(&mut connect(10003).await, b"c serves").await.unwrap();
    });
}
