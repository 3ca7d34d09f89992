//! The site's PostgreSQL server: Debian's, as the user `postgres`, without TLS, with one table.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::{Group, User};

use super::{POSTGRES, Site};
use crate::boxed::protocol::Spawn;

/// Database.
pub const DATABASE: &str = "orders";
/// User who owns it.
pub const USER: &str = "app";
/// That user's password (SCRAM).
pub const PASSWORD: &str = "orders-of-the-site";
/// A query and what `psql -At` prints for it.
pub const QUERY: (&str, &str) = ("SELECT count(*), min(item), max(item) FROM orders", "3|bolt|washer");

const TABLE: &str = "CREATE TABLE orders (id integer PRIMARY KEY, item text NOT NULL); INSERT INTO orders VALUES (1, 'bolt'), (2, 'nut'), (3, 'washer');";

/// Folder of Debian's newest PostgreSQL programs; the `psql` in `PATH` is a wrapper.
///
/// # Errors
/// When PostgreSQL is not installed.
pub fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("PostgreSQL is not installed")?;
    let newest = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").is_file())
        .max();
    newest.context("no PostgreSQL server below /usr/lib/postgresql")
}

fn account() -> Result<(u32, u32)> {
    let user = User::from_name("postgres")?.context("no user postgres: is PostgreSQL installed?")?;
    let group = Group::from_name("postgres")?.map_or(user.gid, |group| group.gid);
    Ok((user.uid.as_raw(), group.as_raw()))
}

impl Site<'_> {
    fn postgres_dir(&self) -> PathBuf {
        self.dir.join("postgres")
    }

    fn run_as_postgres(&self, argv: Vec<String>) -> Result<String> {
        let spawn = Spawn {
            name: format!("site-{}-postgres-setup", self.spec.name),
            argv,
            user: Some(account()?),
            netns: Some(self.lan()),
            cwd: Some(self.postgres_dir()),
            ..Spawn::default()
        };
        let done = self.cluster.inside().run_with(spawn, Duration::from_secs(120))?;
        done.success().map(str::to_owned)
    }

    pub(super) fn start_postgres(&mut self) -> Result<()> {
        let (uid, gid) = account()?;
        let (bin, dir) = (programs()?, self.postgres_dir());
        std::fs::create_dir_all(&dir)?;
        nix::unistd::chown(&dir, Some(uid.into()), Some(gid.into()))?;
        let data = dir.join("data").display().to_string();
        let mut initdb = vec![bin.join("initdb").display().to_string(), "-D".into(), data.clone()];
        initdb.extend(
            [
                "--username=postgres",
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--no-sync",
                "--locale=C.UTF-8",
            ]
            .map(str::to_owned),
        );
        self.run_as_postgres(initdb).context("initdb")?;
        std::fs::write(
            dir.join("data/pg_hba.conf"),
            "local all postgres trust\nhostnossl all all 0.0.0.0/0 scram-sha-256\n",
        )?;
        let address = POSTGRES.split(':').next().unwrap_or_default();
        let mut server = vec![bin.join("postgres").display().to_string(), "-D".into(), data];
        for setting in [
            format!("listen_addresses={address}"),
            format!("unix_socket_directories={}", dir.display()),
            "ssl=off".to_owned(),
            "fsync=off".to_owned(),
            "log_connections=on".to_owned(),
            "log_disconnections=on".to_owned(),
        ] {
            server.extend(["-c".to_owned(), setting]);
        }
        self.start_program_as("postgres", server, Some((uid, gid)))
    }
}

/// Makes user, database and table.
///
/// # Errors
/// When the server refuses.
pub fn fill(site: &Site<'_>) -> Result<()> {
    let psql = programs()?.join("psql").display().to_string();
    let socket = site.postgres_dir().display().to_string();
    let run = |user: &str, database: &str, sql: &str| {
        let argv = [
            &psql,
            "-h",
            &socket,
            "-U",
            user,
            "-d",
            database,
            "-v",
            "ON_ERROR_STOP=1",
            "-Atqc",
            sql,
        ]
        .map(str::to_owned);
        site.run_as_postgres(argv.to_vec()).with_context(|| sql.to_owned())
    };
    run(
        "postgres",
        "postgres",
        &format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"),
    )?;
    run(
        "postgres",
        "postgres",
        &format!("CREATE DATABASE {DATABASE} OWNER {USER}"),
    )?;
    run("postgres", DATABASE, &format!("SET ROLE {USER}; {TABLE}"))?;
    let seen = run("postgres", DATABASE, QUERY.0)?;
    ensure!(seen == QUERY.1, "the database was filled wrongly: {seen}");
    Ok(())
}
