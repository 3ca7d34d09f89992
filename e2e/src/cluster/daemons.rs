//! The long-running programs of a cluster: started in the box, remembered on disk, so that another process finds, stops and restarts them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::boxed::client::{Process, Starter};
use crate::boxed::protocol::Spawn;
use crate::boxed::slot::write_whole;

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    spawn: Spawn,
    pid: i32,
}

/// The daemons of one box.
#[derive(Debug, Clone)]
pub struct Daemons {
    inside: Starter,
    folder: PathBuf,
}

impl Daemons {
    pub(crate) fn new(inside: Starter, folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { inside, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    fn record(&self, name: &str) -> Result<Record> {
        let text = fs::read_to_string(self.path(name))
            .with_context(|| format!("the cluster has no {name}; it has: {}", self.names().join(" ")))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Names of all daemons.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let mut names: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
            .collect();
        names.sort_unstable();
        names
    }

    /// Starts a program as the daemon called `name`; its log is `logs/NAME.log`.
    pub(crate) fn start(&self, name: &str, argv: Vec<String>, env: &[(&str, &str)]) -> Result<()> {
        let env = env
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        self.start_with(Spawn {
            name: name.to_owned(),
            argv,
            env,
            ..Spawn::default()
        })
    }

    pub(crate) fn start_with(&self, spawn: Spawn) -> Result<()> {
        let process = self.inside.spawn_with(spawn.clone())?.detach();
        let name = spawn.name.clone();
        write_whole(
            &self.path(&name),
            &serde_json::to_string_pretty(&Record {
                spawn,
                pid: process.pid(),
            })?,
        )
    }

    /// The process of a daemon.
    ///
    /// # Errors
    /// When there is no such daemon.
    pub fn process(&self, name: &str) -> Result<Process> {
        Ok(Process::attach(self.inside.clone(), name, self.record(name)?.pid))
    }

    /// Ends a daemon with SIGTERM, with SIGKILL after 15 seconds.
    ///
    /// # Errors
    /// When there is no such daemon, or it survives.
    pub fn stop(&self, name: &str) -> Result<()> {
        self.process(name)?.terminate(Duration::from_secs(15)).map(drop)
    }

    /// Ends a daemon with SIGKILL.
    ///
    /// # Errors
    /// When there is no such daemon, or it survives.
    pub fn kill(&self, name: &str) -> Result<()> {
        self.process(name)?.kill().map(drop)
    }

    /// Starts a daemon that was stopped, with its old command line; does nothing when it runs.
    ///
    /// # Errors
    /// When there is no such daemon, or it does not start.
    pub fn start_again(&self, name: &str) -> Result<()> {
        let record = self.record(name)?;
        if self.process(name)?.is_running() {
            return Ok(());
        }
        self.start_with(record.spawn)
    }

    /// Forgets a daemon that is not wanted any more, after killing it.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.kill(name)?;
        fs::remove_file(self.path(name))?;
        Ok(())
    }
}
