//! The REST client against a real Headscale and real nodes: every call, and what it says when it fails.
//!
//! Each test has a Headscale of its own on loopback; it starts in a tenth of a second.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tailnet_e2e::tools::{self, Tool};
use tailnet_e2e::{wait_for, wait_for_async};
use tailnet_headscale::{ApiKey, Class, Client, Endpoint, Error, Id, Limits, NewPreAuthKey, Node};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Server {
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Running>,
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn start(program: Tool, args: &[&str], env: &[(&str, &str)], log: &Path) -> Result<Running> {
    let log = fs::File::create(log)?;
    let child = Command::new(program.built()?)
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(Running(child))
}

impl Server {
    fn start() -> Result<Self> {
        Self::with_policy_mode("database")
    }

    fn with_policy_mode(mode: &str) -> Result<Self> {
        tools::ensure(&[Tool::Headscale])?;
        let mut server = Self {
            dir: tempfile::tempdir()?,
            port: free_port()?,
            process: None,
        };
        let dir = server.dir.path().display();
        let (url, address) = (
            format!("http://127.0.0.1:{}", server.port),
            format!("127.0.0.1:{}", server.port),
        );
        let config = json!({
            "server_url": url,
            "listen_addr": address,
            "metrics_listen_addr": "",
            "grpc_listen_addr": format!("127.0.0.1:{}", free_port()?),
            "noise": {"private_key_path": format!("{dir}/noise.key")},
            "prefixes": {"v4": "100.64.0.0/10", "v6": "fd7a:115c:a1e0::/48", "allocation": "sequential"},
            "derp": {
                "server": {
                    "enabled": true, "region_id": 999, "region_code": "lab", "region_name": "lab", "verify_clients": true,
                    "stun_listen_addr": format!("127.0.0.1:{}", free_port()?), "private_key_path": format!("{dir}/derp.key"),
                    "automatically_add_embedded_derp_region": true, "ipv4": "127.0.0.1",
                },
                "urls": [], "paths": [], "auto_update_enabled": false,
            },
            "disable_check_updates": true,
            "node": {"ephemeral": {"inactivity_timeout": "70s"}},
            "database": {"type": "sqlite", "sqlite": {"path": format!("{dir}/db.sqlite")}},
            "policy": {"mode": mode, "path": format!("{dir}/policy.hujson")},
            "dns": {"magic_dns": true, "base_domain": "ts.lab.test", "override_local_dns": false, "nameservers": {"global": []}},
            "logtail": {"enabled": false},
            "unix_socket": format!("{dir}/hs.sock"),
            "unix_socket_permission": "0700",
            "tuning": {"batch_change_delay": "50ms", "node_store_batch_timeout": "10ms"},
        });
        fs::write(server.dir.path().join("config.yaml"), config.to_string())?;
        fs::write(server.dir.path().join("policy.hujson"), "{}")?;
        server.serve()?;
        Ok(server)
    }

    fn serve(&mut self) -> Result<()> {
        let config = self.dir.path().join("config.yaml").display().to_string();
        let log = self.dir.path().join("headscale.log");
        self.process = Some(start(Tool::Headscale, &["-c", &config, "serve"], &[], &log)?);
        let address = format!("127.0.0.1:{}", self.port);
        wait_for("Headscale listens", Duration::from_secs(20), || {
            std::net::TcpStream::connect(&address).map(drop)
        })
        .with_context(|| fs::read_to_string(&log).unwrap_or_default())
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn cli(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(Tool::Headscale.built()?)
            .arg("-c")
            .arg(self.dir.path().join("config.yaml"))
            .args(args)
            .output()?;
        ensure!(
            output.status.success(),
            "headscale {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn client_with(&self, key: Option<&str>) -> Result<Client> {
        let key = key.map(ApiKey::parse).transpose()?;
        Ok(Client::new(Endpoint::parse(&self.url())?, &[], key, Limits::default())?)
    }

    fn client(&self) -> Result<Client> {
        self.client_with(Some(&self.cli(&["apikeys", "create", "-e", "24h"])?))
    }
}

fn in_an_hour() -> Timestamp {
    Timestamp::now() + SignedDuration::from_hours(1)
}

fn is_absent<T: std::fmt::Debug>(result: Result<T, Error>) -> Result<()> {
    match result {
        Err(error) if error.class() == Class::Absent => Ok(()),
        other => bail!("expected an absence, got {other:?}"),
    }
}

#[tokio::test]
async fn version_and_health() -> Result<()> {
    let server = Server::start()?;
    let client = server.client()?;
    let version = client.version().await?;
    assert_eq!(version.minor(), Some((0, 29)), "{version:?}");
    assert!(version.supported());
    client.health().await?;
    assert!(client.check_key().await?);
    Ok(())
}

#[tokio::test]
async fn wrong_missing_and_expired_keys() -> Result<()> {
    let server = Server::start()?;
    let wrong = server.client_with(Some("hskey-api-abcdefghijkl-nonsense"))?;
    wrong.version().await?;
    for error in [wrong.check_key().await.map(drop), wrong.nodes().await.map(drop)] {
        let error = error.expect_err("a wrong key");
        assert_eq!(error.class(), Class::Unauthorized);
        assert!(!format!("{error} {error:?}").contains("nonsense"));
    }
    assert!(matches!(
        server.client_with(None)?.nodes().await,
        Err(Error::NoKey { .. })
    ));
    let client = server.client()?;
    let dead = client
        .create_api_key(Timestamp::now() - SignedDuration::from_secs(60))
        .await?;
    let error = client.with_key(dead).check_key().await.expect_err("an expired key");
    assert_eq!(error.class(), Class::Unauthorized);
    Ok(())
}

#[tokio::test]
async fn api_keys() -> Result<()> {
    let server = Server::start()?;
    let client = server.client()?;
    let end: Timestamp = "2031-02-03T04:05:06.123456Z".parse()?;
    let key = client.create_api_key(end).await?;
    let prefix = key.prefix().context("a key of today has a prefix")?.to_owned();
    let listed = client.api_keys().await?;
    let info = listed
        .iter()
        .find(|info| info.short_prefix() == prefix)
        .context("not in the list")?;
    // The exact end is how the operator knows a key again whose answer was lost.
    assert_eq!(info.expiration, Some(end));
    assert!(!info.expired(Timestamp::now()));
    let own = client.with_key(key);
    assert!(own.check_key().await?);
    own.expire_api_key(&prefix).await?;
    assert_eq!(
        own.check_key().await.expect_err("it expired itself").class(),
        Class::Unauthorized
    );
    client.delete_api_key(&prefix).await?;
    is_absent(client.delete_api_key(&prefix).await)?;
    is_absent(client.expire_api_key(&prefix).await)?;

    let other = client.create_api_key(end).await?;
    let prefix = other.prefix().context("prefix")?;
    let id = client
        .api_keys()
        .await?
        .into_iter()
        .find(|i| i.short_prefix() == prefix)
        .context("listed")?
        .id;
    client.expire_api_key_by_id(&id).await?;
    assert!(client.with_key(other.clone()).check_key().await.is_err());

    // The last call of a Tailnet that goes: the working key deletes itself.
    let last = client.create_api_key(end).await?;
    let prefix = last.prefix().context("prefix")?.to_owned();
    client.with_key(last).delete_api_key(&prefix).await?;
    assert!(
        client
            .api_keys()
            .await?
            .iter()
            .all(|info| info.short_prefix() != prefix)
    );
    Ok(())
}

#[tokio::test]
async fn preauth_keys() -> Result<()> {
    let server = Server::start()?;
    let client = server.client()?;
    let end: Timestamp = "2031-02-03T04:05:06.123456Z".parse()?;
    let new = NewPreAuthKey {
        reusable: true,
        ephemeral: true,
        expiration: end,
        tags: vec!["tag:b".into(), "tag:a".into()],
    };
    let made = client.create_preauth_key(&new).await?;
    assert!(
        made.secret
            .expose()
            .starts_with(&format!("hskey-auth-{}-", made.info.prefix()))
    );
    assert_eq!(made.info.acl_tags, ["tag:a", "tag:b"]);
    let listed = client.preauth_keys().await?;
    let info = listed
        .iter()
        .find(|info| info.id == made.info.id)
        .context("not in the list")?;
    assert_eq!(
        (info.expiration, info.reusable, info.ephemeral, info.used),
        (Some(end), true, true, false)
    );
    assert_eq!(info.prefix(), made.info.prefix());
    client.expire_preauth_key(&made.info.id).await?;
    let expired = client
        .preauth_keys()
        .await?
        .into_iter()
        .find(|i| i.id == made.info.id)
        .context("still listed")?;
    assert!(expired.expired(Timestamp::now()));
    client.delete_preauth_key(&made.info.id).await?;
    assert!(client.preauth_keys().await?.is_empty());
    // Headscale says yes to what it does not know.
    client.expire_preauth_key(&Id::new("999")).await?;
    client.delete_preauth_key(&Id::new("999")).await?;

    let nobody = NewPreAuthKey {
        tags: Vec::new(),
        ..new.clone()
    };
    let error = client
        .create_preauth_key(&nobody)
        .await
        .expect_err("neither tag nor user");
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    let error = client
        .create_preauth_key(&NewPreAuthKey {
            tags: vec!["a".into()],
            ..new
        })
        .await
        .expect_err("no tag:");
    assert!(matches!(error, Error::Rejected { status: 400, .. }), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn policy() -> Result<()> {
    let server = Server::start()?;
    let client = server.client()?;
    assert_eq!(client.policy().await?, None, "never set");
    let text = "// people's part\n{\n\t\"tagOwners\": {\"tag:a\": []},\n\t\"grants\": [],\n}\n";
    client.check_policy(text).await?;
    assert_eq!(client.policy().await?, None, "a check stores nothing");
    assert_eq!(client.put_policy(text).await?.text, text);
    let stored = client.policy().await?.context("set")?;
    assert_eq!((stored.text.as_str(), stored.updated_at.is_some()), (text, true));

    for bad in [
        "{\"foo\": 1}",
        "{\"grants\": [",
        "{\"grants\":[{\"src\":[\"tag:x\"],\"dst\":[\"*\"],\"ip\":[\"*\"]}]}",
    ] {
        let error = client.check_policy(bad).await.expect_err(bad);
        assert!(matches!(error, Error::Rejected { status: 400, .. }), "{error:?}");
        let error = client.put_policy(bad).await.expect_err(bad);
        assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    }
    assert!(matches!(
        client.put_policy("// nothing\n").await,
        Err(Error::BlankPolicy)
    ));
    assert_eq!(
        client.policy().await?.context("set")?.text,
        text,
        "refused writes change nothing"
    );

    let large = format!("{{\"hosts\": {{\"a\": \"192.0.2.1\"}}}} // {}", "x".repeat(5 << 20));
    assert!(matches!(
        client.put_policy(&large).await,
        Err(Error::RequestTooLarge { .. })
    ));
    Ok(())
}

/// The document reader and Headscale must agree on which keys are the same, which are unknown and what is no HuJSON.
#[tokio::test]
async fn the_document_reader_agrees_with_headscale() -> Result<()> {
    let server = Server::start()?;
    let client = server.client()?;
    for (text, good) in [
        ("{}", true),
        ("{\"TagOwners\": {\"tag:a\": []}}", true),
        ("{\"tag_owners\": {\"tag:a\": []}}", true),
        ("{\"tag-owners\": {\"tag:a\": []}}", true),
        ("{\"tagOwners\": {}, \"TagOwners\": {}}", false),
        ("{\"tagOwners\": {\"tag:a\": [], \"tag:a\": []}}", false),
        ("{\"postures\": {}}", false),
        ("{\"#x\": 1}", false),
        (
            "{\"acls\": [{\"#note\": \"x\", \"action\": \"accept\", \"src\": [\"*\"], \"dst\": [\"*:*\"]}]}",
            true,
        ),
        (
            "{\"grants\": [{\"#note\": \"x\", \"src\": [\"*\"], \"dst\": [\"*\"], \"ip\": [\"*\"]}]}",
            false,
        ),
        (
            "{\"grants\": [{\"src\": [\"*\"], \"dst\": [\"*\"], \"ip\": [\"*\"], \"srcPosture\": []}]}",
            false,
        ),
        ("{\"autoApprovers\": {\"services\": {}}}", false),
        ("{\"grants\": null, \"acls\": null}", true),
        ("{\"grants\": {}}", false),
        ("{\"hosts\": {\"a\": 7}}", false),
        ("{\"randomizeClientPort\": 1}", false),
        (
            "{\"ssh\": [{\"action\": \"accept\", \"src\": [\"tag:a\"], \"dst\": [\"tag:a\"], \"users\": [\"root\"]}], \"tagOwners\": {\"tag:a\": []}}",
            true,
        ),
        (
            "{\"nodeAttrs\": [{\"target\": [\"*\"], \"attr\": [\"randomize-client-port\"]}]}",
            true,
        ),
        ("{'hosts': {}}", false),
        ("{hosts: {}}", false),
        ("{\"hosts\": {} \"groups\": {}}", false),
        ("// c\n/* d */ {\"hosts\": {},}", true),
    ] {
        let ours = match tailnet_headscale::document::Document::parse(text) {
            Ok(document) => document.problems().first().map(ToString::to_string),
            Err(error) => Some(error.to_string()),
        };
        let theirs = client.check_policy(text).await.err().map(|error| error.to_string());
        assert_eq!(
            (ours.is_none(), theirs.is_none()),
            (good, good),
            "{text}: ours {ours:?}, Headscale's {theirs:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_from_a_file_cannot_be_written() -> Result<()> {
    let server = Server::with_policy_mode("file")?;
    let client = server.client()?;
    let stored = client.policy().await?.context("the file's")?;
    assert_eq!((stored.text.trim(), stored.updated_at), ("{}", None));
    let error = client.put_policy("{\"grants\": []}").await.expect_err("file mode");
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    assert!(error.to_string().contains("update is disabled"), "{error}");
    Ok(())
}

/// A real node in user space.
fn join(server: &Server, name: &str, key: &str, routes: &str) -> Result<Running> {
    tools::ensure(&[Tool::Tailscaled, Tool::Tailscale])?;
    let dir = server.dir.path().join(name);
    fs::create_dir(&dir)?;
    let socket = dir.join("sock").display().to_string();
    let node = start(
        Tool::Tailscaled,
        &[
            "--tun=userspace-networking",
            "--no-logs-no-support",
            "--port=0",
            "--socket",
            &socket,
            "--statedir",
            &dir.display().to_string(),
        ],
        &[("TS_NO_LOGS_NO_SUPPORT", "true")],
        &dir.join("log"),
    )?;
    wait_for("tailscaled has its socket", Duration::from_secs(20), || {
        fs::metadata(&socket).map(drop)
    })?;
    let output = Command::new(Tool::Tailscale.built()?)
        .args([
            "--socket",
            &socket,
            "up",
            "--timeout=30s",
            "--hostname",
            name,
            "--login-server",
            &server.url(),
        ])
        .args(["--authkey", key, "--advertise-routes", routes])
        .output()?;
    ensure!(
        output.status.success(),
        "tailscale up: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(node)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes() -> Result<()> {
    let server = Server::start()?;
    let client = server.client()?;
    assert_eq!(client.nodes().await?, []);
    client
        .put_policy("{\"tagOwners\": {\"tag:router\": [], \"tag:other\": []}}")
        .await?;
    let new = NewPreAuthKey {
        reusable: true,
        ephemeral: false,
        expiration: in_an_hour(),
        tags: vec!["tag:router".into()],
    };
    let key = client.create_preauth_key(&new).await?;
    let _node = join(&server, "rt1", key.secret.expose(), "192.0.2.0/24,198.51.100.0/24")?;
    let node: Node = wait_for_async("the node is listed and online", Duration::from_secs(20), || async {
        let nodes = client.nodes().await?;
        let node = nodes
            .into_iter()
            .find(|node| node.online && !node.available_routes.is_empty());
        node.context("no node online")
    })
    .await?;
    assert_eq!((node.name.as_str(), node.given_name.as_str()), ("rt1", "rt1"));
    assert_eq!(node.tags, ["tag:router"]);
    assert_eq!(node.available_routes, ["192.0.2.0/24", "198.51.100.0/24"]);
    assert_eq!(node.pre_auth_key.as_ref().map(|k| &k.id), Some(&key.info.id));
    assert_eq!((node.ip_addresses.len(), node.expiry), (2, None));
    assert!(node.approved_routes.is_empty() && node.subnet_routes.is_empty());

    client.approve_routes(&node.id, &["192.0.2.0/24".into()]).await?;
    wait_for_async("the route is served", Duration::from_secs(10), || async {
        let node = client.nodes().await?.into_iter().next().context("gone")?;
        ensure!(
            node.approved_routes == ["192.0.2.0/24"] && node.subnet_routes == ["192.0.2.0/24"],
            "{node:?}"
        );
        Ok(())
    })
    .await?;
    assert_eq!(client.node(&node.id).await?.id, node.id);

    assert_eq!(
        client
            .set_tags(&node.id, &["tag:other".into(), "tag:router".into()])
            .await?
            .tags,
        ["tag:other", "tag:router"]
    );
    let error = client
        .set_tags(&node.id, &["tag:unknown".into()])
        .await
        .expect_err("nobody owns it");
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");

    assert_eq!(client.rename_node(&node.id, "edge").await?.given_name, "edge");
    let second = client.create_preauth_key(&new).await?;
    let _other = join(&server, "rt2", second.secret.expose(), "")?;
    let other = wait_for_async("the second node is listed", Duration::from_secs(20), || async {
        client
            .nodes()
            .await?
            .into_iter()
            .find(|n| n.name == "rt2")
            .context("not yet")
    })
    .await?;
    let error = client.rename_node(&other.id, "edge").await.expect_err("taken");
    assert!(matches!(error, Error::Conflict { .. }), "{error:?}");

    client.expire_node(&node.id).await?;
    let expired = client.node(&node.id).await?;
    assert!(
        expired
            .expiry
            .is_some_and(|end| end <= Timestamp::now() + SignedDuration::from_secs(5)),
        "{expired:?}"
    );

    client.delete_node(&node.id).await?;
    let ghost = Id::new("999");
    for id in [&node.id, &ghost] {
        is_absent(client.node(id).await)?;
        is_absent(client.delete_node(id).await)?;
        is_absent(client.approve_routes(id, &[]).await)?;
        is_absent(client.set_tags(id, &["tag:router".into()]).await)?;
        is_absent(client.rename_node(id, "x").await)?;
        is_absent(client.expire_node(id).await)?;
    }
    Ok(())
}

#[tokio::test]
async fn users() -> Result<()> {
    let server = Server::start()?;
    let client = server.client()?;
    assert!(client.users().await?.is_empty());
    server.cli(&["users", "create", "ann"])?;
    assert_eq!(
        client
            .users()
            .await?
            .iter()
            .map(|user| user.name.as_str())
            .collect::<Vec<_>>(),
        ["ann"]
    );
    Ok(())
}

#[tokio::test]
async fn down_and_back_with_the_same_client() -> Result<()> {
    let mut server = Server::start()?;
    let client = server.client()?;
    client.nodes().await?;
    server.process = None;
    let error = client.nodes().await.expect_err("it is down");
    assert!(matches!(error, Error::Connect { refused: true, .. }), "{error:?}");
    server.serve()?;
    wait_for_async("it answers again", Duration::from_secs(20), || client.nodes()).await?;
    Ok(())
}

#[tokio::test]
async fn calls_that_this_headscale_does_not_know() -> Result<()> {
    let server = Server::start()?;
    let key = server.cli(&["apikeys", "create", "-e", "24h"])?;
    let elsewhere = Endpoint::parse(&format!("{}/prefix", server.url()))?;
    let client = Client::new(elsewhere, &[], Some(ApiKey::parse(&key)?), Limits::default())?;
    assert_eq!(
        client.version().await.expect_err("no such path").class(),
        Class::NotHeadscale
    );
    assert_eq!(
        client.nodes().await.expect_err("no such path").class(),
        Class::NotHeadscale
    );
    Ok(())
}
