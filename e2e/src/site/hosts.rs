//! The hosts of a site: PostgreSQL, HTTPS, echo.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{ECHO, HTTPS, HTTPS_NAME, POSTGRES, Site, postgres};
use crate::boxed::protocol::Spawn;
use crate::pki::{Authority, Subject};
use crate::{binaries, wait};

impl Site<'_> {
    fn start_program(&mut self, program: &str, argv: Vec<String>) -> Result<()> {
        self.start_program_as(program, argv, None)
    }

    pub(super) fn start_program_as(
        &mut self,
        program: &str,
        argv: Vec<String>,
        user: Option<(u32, u32)>,
    ) -> Result<()> {
        let name = format!("site-{}-{program}", self.spec.name);
        let spawn = Spawn {
            name: name.clone(),
            argv,
            netns: Some(self.lan()),
            user,
            ..Spawn::default()
        };
        self.cluster.daemons().start_with(spawn)?;
        self.programs.push(name);
        Ok(())
    }

    /// Starts what the site is to have and returns the addresses to wait for.
    pub(super) fn start_hosts(&mut self) -> Result<Vec<(String, &'static str)>> {
        let mut started = Vec::new();
        let tailnet_box = binaries::tailnet_box()?.display().to_string();
        let name = self.spec.name.clone();
        if self.spec.echo {
            self.start_program(
                "echo",
                vec![tailnet_box.clone(), "echo".into(), "--listen".into(), ECHO.into()],
            )?;
            started.push((format!("site-{name}-echo"), ECHO));
        }
        if self.spec.https {
            let authority = Authority::create(&self.dir, "site-ca")?;
            let subject = Subject {
                common_name: HTTPS_NAME,
                names: vec![HTTPS_NAME.to_owned()],
                ..Subject::default()
            };
            let pair = authority.issue("https", &subject)?;
            let mut argv = vec![tailnet_box, "https".into(), "--listen".into(), HTTPS.into()];
            argv.extend([
                "--certificate".to_owned(),
                pair.certificate.display().to_string(),
                "--key".to_owned(),
                pair.key.display().to_string(),
            ]);
            self.start_program("https", argv)?;
            started.push((format!("site-{name}-https"), HTTPS));
        }
        if self.spec.postgres {
            self.start_postgres()?;
            started.push((format!("site-{name}-postgres"), POSTGRES));
        }
        Ok(started)
    }

    /// Waits until every started host accepts connections, and fills the database.
    pub(super) fn wait_hosts(&self, started: &[(String, &'static str)]) -> Result<()> {
        let inside = self.cluster.inside();
        for (daemon, address) in started {
            let (host, port) = address.split_once(':').context("an address has a port")?;
            let script = format!("exec 3<>/dev/tcp/{host}/{port}");
            wait::wait_for(
                &format!("{daemon} listens at {address}"),
                Duration::from_secs(30),
                || inside.check(Some(&self.lan()), &["bash", "-c", &script]).map(drop),
            )
            .with_context(|| {
                self.cluster
                    .daemons()
                    .process(daemon)
                    .map(|process| process.log_tail(15))
                    .unwrap_or_default()
            })?;
        }
        if self.spec.postgres {
            postgres::fill(self)
        } else {
            Ok(())
        }
    }
}
