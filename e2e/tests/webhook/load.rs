//! Writers that never stop, and callers that always connect anew: what they are refused while certificates change.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use nix::sched::{CloneFlags, setns};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tailnet_e2e::{Cluster, wait_for};

use super::installed::{Caller, Said, Webhook, balancer, item, site};

/// Where the API server finds the webhook; behind it two replicas answer in turn.
const BALANCED: u16 = 9445;
/// Ports of the two replicas.
pub const REPLICAS: [u16; 2] = [9443, 9444];
const WRITERS: usize = 4;

/// Both configurations call the two replicas in turn; returns when both are ready and the API server calls them.
pub fn install_balanced(cluster: &Cluster, webhooks: [&mut Webhook; 2]) -> Result<()> {
    static BALANCER: OnceLock<Result<(), String>> = OnceLock::new();
    BALANCER
        .get_or_init(|| balancer::start(cluster, BALANCED, REPLICAS.to_vec()).map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let [one, two] = webhooks;
    let own = std::mem::replace(&mut one.port, BALANCED);
    let installed = one.install(cluster, |_| {});
    one.port = own;
    installed?;
    one.wait_ready()?;
    two.wait_ready()?;
    one.wait_called(cluster)
}

#[derive(Default)]
struct Counts {
    writes: AtomicUsize,
    handshakes: AtomicUsize,
    failures: Mutex<Vec<String>>,
    leaves: Mutex<BTreeSet<(u16, Vec<u8>)>>,
}

impl Counts {
    fn failed(&self, text: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// What happens until [`Load::end`].
pub struct Load {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Load {
    /// Starts writers, each of which creates, changes and deletes sites through the API server, and callers of each replica
    /// that trust what the configuration says at that moment and shake hands anew each time, as another API server would.
    pub fn start(cluster: &'static Cluster) -> Result<Self> {
        tailnet_e2e::tls::install_provider();
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let mut load = Self {
            stop: Arc::clone(&stop),
            counts: Arc::clone(&counts),
            threads: Vec::new(),
        };
        for writer in 0..WRITERS {
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            load.threads.push(std::thread::spawn(move || {
                let caller = Caller::new(cluster)?;
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    write(&caller, writer, number, &counts);
                }
                Ok(())
            }));
        }
        let namespace = File::open(format!("/proc/{}/ns/net", cluster.state().init)).context("network of the box")?;
        load.threads.push(std::thread::spawn(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)?;
            let caller = Caller::new(cluster)?;
            while !stop.load(Ordering::Relaxed) {
                for port in REPLICAS {
                    match shown(&caller, port) {
                        Ok(leaf) => {
                            counts.handshakes.fetch_add(1, Ordering::Relaxed);
                            let mut leaves = counts.leaves.lock().unwrap_or_else(PoisonError::into_inner);
                            leaves.insert((port, leaf));
                        }
                        Err(error) => counts.failed(format!("a new connection to port {port}: {error:#}")),
                    }
                }
                std::thread::sleep(Duration::from_millis(40));
            }
            Ok(())
        }));
        Ok(load)
    }

    /// Waits until `writes` more writes and some handshakes with each replica are through, or something failed.
    pub fn wait_for_more(&self, writes: usize) -> Result<()> {
        let begun = [&self.counts.writes, &self.counts.handshakes].map(|count| count.load(Ordering::Relaxed));
        let wanted = [begun[0] + writes, begun[1] + 2 * REPLICAS.len()];
        wait_for("the load goes on", Duration::from_secs(120), || {
            let now = [&self.counts.writes, &self.counts.handshakes].map(|count| count.load(Ordering::Relaxed));
            let failed = !self
                .counts
                .failures
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty();
            ensure!(
                failed || now.iter().zip(wanted).all(|(now, wanted)| *now >= wanted),
                "{now:?} of {wanted:?} writes and handshakes"
            );
            Ok(())
        })
    }

    /// How many different leaves each replica has shown so far.
    pub fn leaves(&self) -> [usize; 2] {
        let leaves = self.counts.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        REPLICAS.map(|port| leaves.iter().filter(|(of, _)| *of == port).count())
    }

    /// Stops, and fails unless every single write and handshake was right; says how many there were.
    pub fn end(mut self, what: &str) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        let failures = self.counts.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let [writes, handshakes] =
            [&self.counts.writes, &self.counts.handshakes].map(|count| count.load(Ordering::Relaxed));
        println!(
            "{what}: {writes} writes, {handshakes} new connections, {} leaves, {} failures",
            self.leaves().iter().sum::<usize>(),
            failures.len()
        );
        ensure!(
            failures.is_empty(),
            "{what}: {} of {writes} writes and {handshakes} new connections failed, the first: {:#?}",
            failures.len(),
            &failures[..failures.len().min(5)]
        );
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One object's life. Create and change are decided by the webhook: its warning shows it.
fn write(caller: &Caller, writer: usize, number: usize, counts: &Counts) {
    let prefix = |third: usize| format!("10.{}.{third}.0/24", 70 + writer);
    let object = site(&format!("load-{writer}-{number}"), &[&prefix(number % 120)], "not-yet");
    let judge = |what: &str, said: Result<Said>, status: StatusCode| match said {
        Ok(said) if said.status == status && said.warnings.iter().any(|text| text.contains("[TN001]")) => {
            counts.writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(said) => counts.failed(format!(
            "{what}: {} {:?} {}",
            said.status,
            said.warnings,
            said.message()
        )),
        Err(error) => counts.failed(format!("{what}: {error:#}")),
    };
    judge("create", caller.create(&object, false), StatusCode::CREATED);
    let change = json!({"spec": {"prefixes": [prefix(120 + number % 120)]}});
    let changed = item(&object).and_then(|path| caller.ask(Method::PATCH, &path, Some(&change), None));
    judge("change", changed, StatusCode::OK);
    match caller.delete(&object) {
        Ok(said) if said.status.is_success() => {}
        other => counts.failed(format!("delete: {other:?}")),
    }
}

/// The leaf that the replica on `port` shows to a caller that trusts what the configuration says now.
fn shown(caller: &Caller, port: u16) -> Result<Vec<u8>> {
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/tailnet-webhook";
    let said = caller.ask(Method::GET, path, None, None)?;
    let bundle = said.body.pointer("/webhooks/0/clientConfig/caBundle");
    let bundle = STANDARD.decode(bundle.and_then(|text| text.as_str()).context("no caBundle")?)?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bundle) {
        roots.add(certificate?)?;
    }
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), ServerName::try_from("127.0.0.1")?)?;
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    let leaf = connection
        .peer_certificates()
        .and_then(<[_]>::first)
        .context("no leaf")?;
    Ok(leaf.to_vec())
}
