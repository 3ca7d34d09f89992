//! Being a node again after Headscale has lost it, and staying one without Headscale.

use std::time::Duration;

use serde_json::json;

use crate::support::*;

const A: Target = Target {
    name: "a",
    listen_port: 10001,
    address: ROUTED,
    port: ECHO,
};

async fn rejoined(agent: &Agent, old_id: &str) {
    wait_for("a new node is online", Duration::from_secs(60), async || {
        let node = agent.status().await["node"].clone();
        (node["id"] != json!(old_id) && node["online"] == json!(true)).then_some(())
    })
    .await;
    agent.ready().await;
    let mut socket = connect(10001).await;
    echo(&mut socket, b"carried again").await.unwrap();
}

/// Deleted while its session is open: neither Headscale nor the client notices by itself. The old key no longer counts.
#[test]
fn a_deleted_node_logs_in_again_with_the_new_key() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[A]).await;
        let id = agent.status().await["node"]["id"].as_str().unwrap().to_owned();
        let new_key = world.headscale.key("tag:egress");
        std::fs::write(agent.dir.join("authkey"), &new_key).unwrap();
        world.headscale.delete_node(&id);
        rejoined(&agent, &id).await;
        assert_eq!(agent.status().await["node"]["name"], json!("egress"));
        assert_eq!(
            world.headscale.ids("egress").len(),
            1,
            "one node, and the old one is gone"
        );
        assert_eq!(agent.metric("tailnet_agent_nodes_lost_total").await, 1.0);
        assert!(!agent.process.log().contains(&new_key));
    });
}

#[test]
fn an_expired_node_logs_in_again() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[A]).await;
        let id = agent.status().await["node"]["id"].as_str().unwrap().to_owned();
        world.headscale.expire_node(&id);
        rejoined(&agent, &id).await;
    });
}

/// Another host name is another login; the targets stay.
#[test]
fn a_new_host_name_is_taken() {
    in_namespace(async || {
        start_servers().await;
        let world = World::new(&[]).await;
        let agent = Agent::start(&world, &[A]).await;
        let id = agent.status().await["node"]["id"].as_str().unwrap().to_owned();
        agent.configure_as("renamed", &[A]);
        rejoined(&agent, &id).await;
        assert_eq!(agent.status().await["node"]["name"], json!("renamed"));
        assert!(world.headscale.ids("egress").is_empty(), "the old node is gone");
    });
}

/// Headscale dies under load and comes back: no connection ends, new ones work, and the node stays the same.
#[test]
fn headscale_is_not_needed_for_bytes() {
    in_namespace(async || {
        start_servers().await;
        let mut world = World::new(&[]).await;
        let agent = Agent::start(&world, &[A]).await;
        let id = agent.status().await["node"]["id"].clone();
        let mut open = connect(10001).await;
        echo(&mut open, b"before").await.unwrap();
        world.headscale.kill();
        for _ in 0..20 {
            echo(&mut open, &[5; 100_000]).await.unwrap();
            echo(&mut connect(10001).await, b"a new one").await.unwrap();
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        wait_for("offline is told", Duration::from_secs(20), async || {
            let status = agent.status().await;
            (status["node"]["online"] == json!(false) && status["loginError"].is_string()).then_some(())
        })
        .await;
        assert_eq!(
            http_get("/readyz").await.unwrap().0,
            200,
            "an agent without Headscale still serves"
        );
        world.headscale.resume().await;
        wait_for("online again", Duration::from_secs(60), async || {
            (agent.status().await["node"]["online"] == json!(true)).then_some(())
        })
        .await;
        echo(&mut open, b"after").await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await; // two more questions to the new server
        assert_eq!(agent.status().await["node"]["id"], id, "the same node");
        assert_eq!(agent.metric("tailnet_agent_nodes_lost_total").await, 0.0);
        echo(&mut open, b"still").await.unwrap();
    });
}
