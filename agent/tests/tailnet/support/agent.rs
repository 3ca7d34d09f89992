use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::process::Kept;
use super::{Headscale, World, wait_for};

/// A target in `config.json`.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    pub listen_port: u16,
    pub address: &'static str,
    pub port: u16,
}

/// A real agent, as a process.
pub struct Agent {
    pub process: Kept,
    pub dir: PathBuf,
}

impl Agent {
    /// The command with everything but its wrapping: files written, environment set, short times.
    pub fn command(world: &World, targets: &[Target], key: &str) -> (Command, PathBuf) {
        let dir = world.dir.path().join("agent");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("authkey"), format!("{key}\n")).unwrap();
        write_config(&dir, "egress", targets);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailnet-agent"));
        command
            .env_clear()
            .env("AGENT_MODE", "egress")
            .env("AGENT_CONFIG", dir.join("config.json"))
            .env("AGENT_AUTHKEY_FILE", dir.join("authkey"))
            .env("AGENT_PROBE_SECONDS", "2")
            .env("AGENT_ACCEPT_GRACE_SECONDS", "1")
            .env("AGENT_DIAL_TIMEOUT_SECONDS", "10")
            .env("LOG_FORMAT", "json")
            .env(
                "LOG_LEVEL",
                std::env::var("LOG_LEVEL").unwrap_or_else(|_| "info".into()),
            )
            .envs(world.headscale.env())
            // For hunting faults: GOGC=1 makes the client move its stacks all the time.
            .envs(std::env::vars().filter(|(name, _)| name == "GOGC" || name == "GODEBUG"));
        (command, dir)
    }

    /// Starts one with a good key and waits until it is ready.
    pub async fn start(world: &World, targets: &[Target]) -> Agent {
        Agent::start_with(world, targets, &[]).await
    }

    pub async fn start_with(world: &World, targets: &[Target], env: &[(&str, &str)]) -> Agent {
        let key = world.headscale.key("tag:egress");
        Agent::start_as(world, targets, &key, env).await
    }

    pub async fn start_as(world: &World, targets: &[Target], key: &str, env: &[(&str, &str)]) -> Agent {
        let (mut command, dir) = Agent::command(world, targets, key);
        command.envs(env.iter().copied());
        let agent = Agent {
            process: Kept::spawn("agent", world.dir.path(), command),
            dir,
        };
        agent.ready().await;
        agent
    }

    pub async fn ready(&self) {
        wait_for("the agent is ready", Duration::from_secs(40), async || {
            http_get("/readyz").await.filter(|(status, _)| *status == 200)
        })
        .await;
        // Ready means joined; the router's route comes with the next netmap.
        wait_for("the router's route is there", Duration::from_secs(20), async || {
            let status = self.status().await;
            let targets = status["targets"].as_array().unwrap().clone();
            let routed = |t: &Value| t["routed"] == json!(true);
            (targets.is_empty() || targets.iter().any(routed)).then_some(())
        })
        .await;
    }

    pub fn configure(&self, targets: &[Target]) {
        write_config(&self.dir, "egress", targets);
    }

    pub fn configure_as(&self, hostname: &str, targets: &[Target]) {
        write_config(&self.dir, hostname, targets);
    }

    pub async fn status(&self) -> Value {
        let (code, text) = http_get("/status").await.expect("the agent answers");
        assert_eq!(code, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub async fn target(&self, name: &str) -> Value {
        let status = self.status().await;
        let found = status["targets"]
            .as_array()
            .unwrap()
            .iter()
            .find(|t| t["name"] == name)
            .cloned();
        found.unwrap_or_else(|| panic!("no target {name} in {status}"))
    }

    /// Waits until the status says `sha256`'s configuration is in force, which is any other than `before`.
    pub async fn reloaded(&self, before: &Value) {
        wait_for(
            "the new configuration is in force",
            Duration::from_secs(10),
            async || {
                let status = self.status().await;
                (status["configSha256"] != before["configSha256"]).then_some(())
            },
        )
        .await;
    }

    /// The last dial of a target; a client can see its reset a moment before the agent has noted why.
    pub async fn last_dial(&self, name: &str) -> Value {
        wait_for("a dial is noted", Duration::from_secs(5), async || {
            Some(self.target(name).await["lastDial"].clone()).filter(Value::is_object)
        })
        .await
    }

    /// Waits until a metric has reached a value.
    pub async fn metric_reaches(&self, line_start: &str, value: f64) {
        wait_for(line_start, Duration::from_secs(5), async || {
            (self.metric(line_start).await >= value).then_some(())
        })
        .await;
    }

    /// One metric's value; 0 when it is not there.
    pub async fn metric(&self, line_start: &str) -> f64 {
        let (_, text) = http_get("/metrics").await.expect("the agent answers");
        let line = text.lines().find(|line| line.starts_with(line_start));
        line.and_then(|line| line.rsplit(' ').next())
            .map_or(0.0, |value| value.parse().unwrap())
    }
}

fn write_config(dir: &Path, hostname: &str, targets: &[Target]) {
    let targets: Vec<Value> = targets
        .iter()
        .map(|t| json!({"name": t.name, "listenPort": t.listen_port, "address": t.address, "port": t.port}))
        .collect();
    let config = json!({"version": 1, "hostname": hostname, "controlUrl": Headscale::URL, "targets": targets, "nextPort": 19999});
    // As kubelet does: a whole new file takes the old one's place.
    let new = dir.join("config.json.new");
    std::fs::write(&new, config.to_string()).unwrap();
    std::fs::rename(new, dir.join("config.json")).unwrap();
}

/// GET on the agent's health port; `None` when it cannot be reached.
pub async fn http_get(path: &str) -> Option<(u16, String)> {
    http_get_from("127.0.0.1:9402", path).await
}

/// GET on another agent's health port.
pub async fn http_get_from(address: &str, path: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(10), socket.read_to_string(&mut answer))
        .await
        .ok()?
        .ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        unchunk(body)
    } else {
        body.to_owned()
    };
    Some((head.split(' ').nth(1)?.parse().ok()?, body))
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}
