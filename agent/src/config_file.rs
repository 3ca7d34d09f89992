//! `config.json`: reading, checking, and watching it. What cannot be used changes nothing: the last good one stays in force.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tailnet_crds::agent::{AgentConfig, FORMAT_VERSION, IngressExpose};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::Mode;

/// How often the file is looked at. It is small, and kubelet replaces it by swapping a link, which no watch of the file sees.
const POLL: Duration = Duration::from_secs(1);
/// A ConfigMap holds at most 1 MiB.
const MAX_SIZE: u64 = 1 << 20;

/// A configuration that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The parsed file.
    pub config: AgentConfig,
    /// sha256 of its text, hex.
    pub sha256: String,
}

/// What is in force, and why the newest file is not, if it is not.
#[derive(Clone, Debug, Default)]
pub struct ConfigState {
    /// The last good configuration.
    pub loaded: Option<Arc<Loaded>>,
    /// Why the newest file was not taken.
    pub error: Option<String>,
    /// Files taken, and files refused, since start.
    pub taken: u64,
    /// See `taken`.
    pub refused: u64,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path} cannot be read: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// It is larger than any ConfigMap.
    #[error("{path} is larger than {MAX_SIZE} bytes", path = .0.display())]
    TooLarge(PathBuf),
    /// It is not JSON of the right shape, for instance because it is still being written.
    #[error("the configuration is not valid: {0}")]
    Parse(#[from] serde_json::Error),
    /// It is of another time.
    #[error(
        "the configuration has format version {found}, this agent reads {FORMAT_VERSION}: operator and agent must be of one release"
    )]
    Version {
        /// The version in the file.
        found: u64,
    },
    /// The login server is none.
    #[error("controlUrl {url:?} is not an http(s) URL")]
    ControlUrl {
        /// What is there.
        url: String,
    },
    /// The host name is empty.
    #[error("hostname is empty")]
    Hostname,
    /// It is an agent's of the other mode.
    #[error("it has {0}, which an agent in the mode {1} has none of")]
    OtherMode(&'static str, &'static str),
    /// An expose cannot be used.
    #[error("expose {name:?}: {reason}")]
    Expose {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A target cannot be used.
    #[error("target {name:?}: {reason}")]
    Target {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
}

/// Reads and checks the text of a configuration. `health_port` may not be a listen port.
///
/// # Errors
/// See [`ConfigError`].
pub fn parse(text: &[u8], mode: Mode, health_port: u16) -> Result<Loaded, ConfigError> {
    // The version first: a later format may have fields that this one does not know.
    let value: serde_json::Value = serde_json::from_slice(text)?;
    let found = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
    if found != u64::from(FORMAT_VERSION) {
        return Err(ConfigError::Version { found });
    }
    let config: AgentConfig = serde_json::from_slice(text)?;
    match mode {
        Mode::Egress if !config.exposes.is_empty() => return Err(ConfigError::OtherMode("exposes", "egress")),
        Mode::Ingress if !config.targets.is_empty() => return Err(ConfigError::OtherMode("targets", "ingress")),
        Mode::Egress | Mode::Ingress => {}
    }
    check(&config, health_port)?;
    check_exposes(&config.exposes)?;
    let sha256 = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Loaded { config, sha256 })
}

fn check(config: &AgentConfig, health_port: u16) -> Result<(), ConfigError> {
    if config.hostname.is_empty() {
        return Err(ConfigError::Hostname);
    }
    let is_web =
        url::Url::parse(&config.control_url).is_ok_and(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
    if !is_web {
        return Err(ConfigError::ControlUrl {
            url: config.control_url.clone(),
        });
    }
    let (mut names, mut ports) = (HashSet::new(), HashSet::new());
    for target in &config.targets {
        let reason = if target.name.is_empty() {
            "its name is empty"
        } else if !names.insert(&target.name) {
            "another target has the same name"
        } else if target.listen_port == 0 {
            "listenPort is 0"
        } else if target.listen_port == health_port {
            "listenPort is the port of the health endpoint"
        } else if !ports.insert(target.listen_port) {
            "another target has the same listenPort"
        } else if target.port == 0 {
            "port is 0"
        } else if target.address.is_empty() {
            "address is empty"
        } else {
            continue;
        };
        return Err(ConfigError::Target {
            name: target.name.clone(),
            reason,
        });
    }
    Ok(())
}

fn check_exposes(exposes: &[IngressExpose]) -> Result<(), ConfigError> {
    let (mut names, mut hosts) = (HashSet::new(), HashSet::new());
    let (mut tcp, mut http) = (HashSet::new(), HashSet::new());
    for expose in exposes {
        let taken = match &expose.http {
            None => http.contains(&expose.port) || !tcp.insert(expose.port),
            Some(_) => {
                http.insert(expose.port);
                tcp.contains(&expose.port)
            }
        };
        let host_names = expose.http.iter().flat_map(|http| &http.names);
        let canonical = |name: &String| {
            !name.is_empty()
                && !name.ends_with('.')
                && name.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase())
        };
        let reason = if expose.name.is_empty() {
            "its name is empty"
        } else if !names.insert(&expose.name) {
            "another expose has the same name"
        } else if expose.port == 0 {
            "port is 0"
        } else if taken {
            "a tcp expose shares its port with another expose"
        } else if expose.http.as_ref().is_some_and(|http| http.names.is_empty()) {
            "an http expose without a name"
        } else if !host_names.clone().all(canonical) {
            "a name is not in canonical form"
        } else if !host_names.clone().all(|name| hosts.insert((expose.port, name))) {
            "another expose of the same port has one of its names"
        } else if expose
            .backend
            .as_ref()
            .is_some_and(|backend| backend.port == 0 || backend.address.parse::<IpAddr>().is_err())
        {
            "its backend is not an IP address with a port"
        } else {
            continue;
        };
        return Err(ConfigError::Expose {
            name: expose.name.clone(),
            reason,
        });
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = Vec::new();
    File::open(path)
        .map_err(failed)?
        .take(MAX_SIZE + 1)
        .read_to_end(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > MAX_SIZE {
        return Err(ConfigError::TooLarge(path.to_owned()));
    }
    Ok(text)
}

/// One look at the file: what follows from `state`, or `None` when nothing has changed.
struct Reader {
    path: PathBuf,
    mode: Mode,
    health_port: u16,
    /// What the last look found, good or not.
    seen: Option<Result<Vec<u8>, String>>,
}

impl Reader {
    fn look(&mut self, state: &ConfigState) -> Option<ConfigState> {
        let found = read(&self.path).map_err(|e| e.to_string());
        if self.seen.as_ref() == Some(&found) {
            return None;
        }
        let parsed = match &found {
            Ok(text) => parse(text, self.mode, self.health_port).map_err(|e| e.to_string()),
            Err(error) => Err(error.clone()),
        };
        self.seen = Some(found);
        let mut next = state.clone();
        match parsed {
            Ok(loaded) => {
                next.taken += 1;
                next.error = None;
                next.loaded = Some(Arc::new(loaded));
            }
            Err(error) => {
                next.refused += 1;
                next.error = Some(error);
            }
        }
        Some(next)
    }
}

/// Reads the file now and whenever it changes, until `stop`. The task ends with `stop`.
pub fn watch(
    path: PathBuf,
    mode: Mode,
    health_port: u16,
    stop: CancellationToken,
) -> (watch::Receiver<ConfigState>, tokio::task::JoinHandle<()>) {
    let mut reader = Reader {
        path,
        mode,
        health_port,
        seen: None,
    };
    let first = reader.look(&ConfigState::default()).unwrap_or_default();
    tell(&first);
    let (sender, receiver) = watch::channel(first);
    let task = tokio::spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(POLL) => {}
            }
            let current = sender.borrow().clone();
            // A file of a ConfigMap volume is in memory: reading it does not block.
            if let Some(next) = reader.look(&current) {
                tell(&next);
                sender.send_replace(next);
            }
        }
    });
    (receiver, task)
}

fn tell(state: &ConfigState) {
    match (&state.error, &state.loaded) {
        (None, Some(loaded)) => {
            tracing::info!(
                sha256 = loaded.sha256,
                targets = loaded.config.targets.len(),
                exposes = loaded.config.exposes.len(),
                "configuration taken"
            );
        }
        (Some(error), Some(loaded)) => {
            tracing::error!(
                error,
                in_force = loaded.sha256,
                "configuration refused; the last good one stays in force"
            );
        }
        (Some(error), None) => tracing::error!(error, "configuration refused; there is none yet"),
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":1,"hostname":"egress","controlUrl":"https://control.example.net",
        "targets":[{"name":"db","listenPort":10000,"address":"192.0.2.10","port":5432}],"nextPort":10001}"#;

    fn error(text: &str) -> String {
        parse(text.as_bytes(), Mode::Egress, 9402).unwrap_err().to_string()
    }

    #[test]
    fn takes_a_good_one() {
        let loaded = parse(GOOD.as_bytes(), Mode::Egress, 9402).unwrap();
        assert_eq!(loaded.config.targets.len(), 1);
        assert_eq!(loaded.sha256.len(), 64);
    }

    #[test]
    fn says_what_is_wrong() {
        assert!(error(&GOOD[..GOOD.len() / 2]).contains("not valid"));
        assert!(error(&GOOD.replace("\"version\":1", "\"version\":2")).contains("format version 2"));
        assert!(error(&GOOD.replace("https://control", "control")).contains("controlUrl"));
        assert!(error(&GOOD.replace("10000", "9402")).contains("health endpoint"));
        assert!(error(&GOOD.replace("\"egress\"", "\"\"")).contains("hostname"));
        assert!(error(&GOOD.replace("nextPort", "nextPorts")).contains("nextPorts"));
        let twice = GOOD.replace(
            "}],",
            r#"},{"name":"b","listenPort":10000,"address":"192.0.2.11","port":1}],"#,
        );
        assert!(error(&twice).contains("same listenPort"), "{}", error(&twice));
    }

    #[test]
    fn exposes_are_checked() {
        let with = |exposes: serde_json::Value| {
            let text = serde_json::json!({"version": 1, "hostname": "i", "controlUrl": "https://control.example.net",
                "exposes": exposes, "nextPort": 0});
            parse(text.to_string().as_bytes(), Mode::Ingress, 9402)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let http = |name: &str, port: u16, host: &str| serde_json::json!({"name": name, "port": port, "http": {"names": [host], "backendRequestTimeoutMs": 60000}});
        let tcp = |name: &str, port: u16, address: &str| serde_json::json!({"name": name, "port": port, "backend": {"address": address, "port": 1}});
        let good = serde_json::json!([
            http("a", 443, "a.example"),
            http("b", 443, "b.example"),
            tcp("c", 9402, "10.96.0.1")
        ]);
        assert_eq!(with(good), Ok(()));
        for (bad, reason) in [
            (
                serde_json::json!([http("a", 443, "a.example"), http("b", 443, "a.example")]),
                "one of its names",
            ),
            (
                serde_json::json!([http("a", 443, "a.example"), tcp("b", 443, "10.96.0.1")]),
                "shares its port",
            ),
            (
                serde_json::json!([tcp("b", 443, "10.96.0.1"), http("a", 443, "a.example")]),
                "shares its port",
            ),
            (
                serde_json::json!([tcp("b", 443, "10.96.0.1"), tcp("a", 443, "10.96.0.1")]),
                "shares its port",
            ),
            (
                serde_json::json!([tcp("b", 443, "web.default.svc")]),
                "not an IP address",
            ),
            (serde_json::json!([http("a", 443, "A.example")]), "canonical"),
        ] {
            let error = with(bad).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let egress = parse(GOOD.as_bytes(), Mode::Ingress, 9402).unwrap_err().to_string();
        assert!(egress.contains("has targets"), "{egress}");
    }

    #[test]
    fn keeps_the_last_good_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let mut reader = Reader {
            path: path.clone(),
            mode: Mode::Egress,
            health_port: 9402,
            seen: None,
        };
        let none = reader.look(&ConfigState::default()).unwrap();
        assert!(none.loaded.is_none() && none.error.is_some());
        std::fs::write(&path, GOOD).unwrap();
        let good = reader.look(&none).unwrap();
        assert!(good.error.is_none());
        assert!(reader.look(&good).is_none(), "nothing changed");
        std::fs::write(&path, &GOOD[..40]).unwrap();
        let bad = reader.look(&good).unwrap();
        assert_eq!(bad.loaded, good.loaded);
        assert!(bad.error.is_some());
        assert!(reader.look(&bad).is_none(), "the same error is not told twice");
        std::fs::write(&path, GOOD).unwrap();
        let again = reader.look(&bad).unwrap();
        assert_eq!((again.error, again.taken, again.refused), (None, 2, 2));
    }
}
