//! Between operator and Headscale: everything is passed on, but the answer to a write of the policy may be swallowed. A real
//! Headscale cannot be made to lose it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use tailnet_e2e::pki::{Authority, Subject};

use crate::bed::Bed;

const WRITE: &[u8] = b"PUT /api/v1/policy ";
const PATIENCE: Duration = Duration::from_secs(20);
/// How long further writes come to nothing after the one whose answer got lost: the client tries a lost request once more.
const CUT: Duration = Duration::from_secs(2);

/// Runs until the test's process ends, or until it is dropped.
pub struct CutAnswers {
    /// Where the operator finds Headscale.
    pub url: String,
    state: Arc<State>,
}

struct State {
    server: ServerConfig,
    client: Arc<ClientConfig>,
    headscale: SocketAddr,
    name: ServerName<'static>,
    cut_next: AtomicBool,
    /// When answers got lost.
    cut: Mutex<Vec<Instant>>,
    writes: AtomicUsize,
    over: AtomicBool,
}

impl CutAnswers {
    pub fn start(bed: &Bed) -> Result<Self> {
        let node: IpAddr = bed.cluster.node_address().parse()?;
        let own: IpAddr = bed.cluster.host_address().parse()?;
        let ca = bed.headscale.ca_file();
        let name = ca.file_stem().and_then(|name| name.to_str()).context("a CA's name")?;
        let pair = Authority::load(bed.headscale.dir(), name)?.issue(
            "cut-answers",
            &Subject {
                common_name: "cut-answers",
                organisation: None,
                names: Vec::new(),
                addresses: vec![own],
            },
        )?;
        let chain: Vec<_> = CertificateDer::pem_file_iter(&pair.certificate)?.collect::<Result<_, _>>()?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&ca)?)?;
        let listener = TcpListener::bind((own, 0))?;
        let url = format!("https://{}", listener.local_addr()?);
        let state = Arc::new(State {
            server: ServerConfig::builder()
                .with_no_client_auth()
                .with_single_cert(chain, PrivateKeyDer::from_pem_file(&pair.key)?)?,
            client: Arc::new(
                ClientConfig::builder()
                    .with_root_certificates(roots)
                    .with_no_client_auth(),
            ),
            headscale: SocketAddr::new(node, 443),
            name: ServerName::IpAddress(node.into()),
            cut_next: AtomicBool::new(false),
            cut: Mutex::default(),
            writes: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                let state = Arc::clone(&shared);
                // Whoever gets no answer tries again.
                std::thread::spawn(move || state.pass_on(stream));
            }
        });
        Ok(Self { url, state })
    }

    /// The answer to the next write of the policy gets lost.
    pub fn cut_next_write(&self) {
        self.state.cut_next.store(true, Ordering::SeqCst);
    }

    /// How many answers got lost.
    pub fn cut(&self) -> usize {
        self.state.cut().len()
    }

    /// How often Headscale was asked to write the policy.
    pub fn writes(&self) -> usize {
        self.state.writes.load(Ordering::SeqCst)
    }
}

impl Drop for CutAnswers {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // The listener wakes up and sees it.
        let _ = TcpStream::connect(self.url.trim_start_matches("https://"));
    }
}

impl State {
    fn cut(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request and its answer.
    fn pass_on(&self, stream: TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let server = ServerConnection::new(Arc::new(self.server.clone()))?;
        let mut operator = StreamOwned::new(server, stream);
        let request = read_request(&mut operator)?;
        let writes = request.starts_with(WRITE);
        if writes && self.cut().last().is_some_and(|at| at.elapsed() < CUT) {
            return Ok(());
        }
        let upstream = TcpStream::connect_timeout(&self.headscale, PATIENCE)?;
        upstream.set_read_timeout(Some(PATIENCE))?;
        let client = ClientConnection::new(Arc::clone(&self.client), self.name.clone())?;
        let mut headscale = StreamOwned::new(client, upstream);
        headscale.write_all(&request)?;
        let mut answer = Vec::new();
        match headscale.read_to_end(&mut answer) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => {}
        }
        if writes {
            self.writes.fetch_add(1, Ordering::SeqCst);
            if self.cut_next.swap(false, Ordering::SeqCst) {
                self.cut().push(Instant::now());
                return Ok(());
            }
        }
        operator.write_all(&answer)?;
        operator.conn.send_close_notify();
        operator.flush()?;
        Ok(())
    }
}

/// A request as it came, but for one header: the connection ends with the answer.
fn read_request(stream: &mut impl Read) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut chunk = [0; 16 * 1024];
    let end = loop {
        let n = stream.read(&mut chunk)?;
        ensure!(n > 0, "closed");
        request.extend_from_slice(&chunk[..n]);
        if let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
    };
    let head = String::from_utf8(request[..end].to_vec())?.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(Ok(0), str::parse)?;
    while request.len() < end + 4 + length {
        let n = stream.read(&mut chunk)?;
        ensure!(n > 0, "closed");
        request.extend_from_slice(&chunk[..n]);
    }
    request.splice(end..end, *b"\r\nconnection: close");
    Ok(request)
}
