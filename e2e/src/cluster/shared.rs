//! One cluster per test binary.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Cluster, Options};
use crate::{kept_logs, paths};

/// A shared cluster, or why it could not be brought up: every test of the binary then fails with the same text.
type Slot = OnceLock<Result<Cluster, String>>;

static FULL: Slot = OnceLock::new();
static API: Slot = OnceLock::new();

/// Ends the shared clusters when the process ends: statics are not dropped.
extern "C" fn at_exit() {
    for slot in [&FULL, &API] {
        if let Some(Ok(cluster)) = slot.get() {
            let mut owners = lock(&OWNERS);
            let Some(index) = owners.iter().position(|(n, _)| *n == cluster.state().n) else {
                continue;
            };
            let (_, mut owner) = owners.remove(index);
            drop(owners);
            if let Err(error) = owner.end() {
                eprintln!("taking cluster {} down: {error:#}", cluster.name());
            }
        }
    }
}

static OWNERS: Mutex<Vec<(u8, super::owner::Owner)>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn get(slot: &'static Slot, options: fn(&str) -> Options, suffix: &str) -> &'static Cluster {
    let made = slot.get_or_init(|| {
        let mut cluster = Cluster::up(options(&format!("{}{suffix}", paths::program_name())))
            .map_err(|error| format!("{error:#}"))?;
        if let Some(owner) = cluster.owner.take() {
            lock(&OWNERS).push((cluster.state.n, owner));
        }
        static AT_EXIT: std::sync::Once = std::sync::Once::new();
        // SAFETY: a plain function that does not unwind.
        AT_EXIT.call_once(|| unsafe {
            libc::atexit(at_exit);
        });
        kept_logs::keep_on_panic(cluster.dir());
        Ok(cluster)
    });
    match made {
        Ok(cluster) => cluster,
        #[allow(clippy::panic)] // The one place where a test has no Result to return the failure in.
        Err(error) => panic!("the shared cluster could not be brought up: {error}"),
    }
}

impl Cluster {
    /// The whole cluster with Headscale that all tests of this binary share; brought up at the first call, taken down when the process ends.
    /// Separate tests by namespace: [`Cluster::namespace`].
    ///
    /// # Panics
    /// When it cannot be brought up.
    pub fn shared() -> &'static Self {
        get(&FULL, Options::full, "")
    }

    /// [`Cluster::shared_api`] on which `prepare` ran once. A test binary has one such function.
    ///
    /// # Panics
    /// When the cluster cannot be brought up or prepared.
    pub fn shared_api_prepared(prepare: fn(&Self) -> anyhow::Result<()>) -> &'static Self {
        static PREPARED: OnceLock<Result<(), String>> = OnceLock::new();
        let cluster = Self::shared_api();
        match PREPARED.get_or_init(|| prepare(cluster).map_err(|error| format!("{error:#}"))) {
            Ok(()) => cluster,
            #[allow(clippy::panic)] // As above.
            Err(error) => panic!("the shared cluster could not be prepared: {error}"),
        }
    }

    /// The API-only cluster (with controller manager and Headscale) that all tests of this binary share.
    ///
    /// # Panics
    /// When it cannot be brought up.
    pub fn shared_api() -> &'static Self {
        get(&API, |name| Options::api(name).with_headscale(), "-api")
    }
}
