//! Whoever reaches the port: what they send takes neither the memory nor the connections that an API server needs.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::json;
use support::tls_client::{Connection, client_config};
use support::{Harness, question, review, site, snapshot};
use tailnet_crds::Kind;
use tailnet_webhook::connections::OF_ONE_SOURCE;
use tailnet_webhook::router::MAX_BODY;
use tailnet_webhook::server::{Ending, serve};
use tailnet_webhook::tls::authority::Authority;
use tailnet_webhook::tls::source::{Source, server_config};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

/// Both tests need the machine's connections and memory for themselves.
static TURN: Mutex<()> = Mutex::const_new(());

struct Webhook {
    address: SocketAddr,
    config: Arc<rustls::ClientConfig>,
    ending: Ending,
}

impl Webhook {
    async fn start() -> Self {
        let authority = Authority::generate(Timestamp::now()).expect("CA");
        let source = Source::default();
        let names = ["127.0.0.1".to_owned()];
        source.set(authority.current.issue(&names, Timestamp::now()).expect("leaf"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let ending = Ending::default();
        let tls = Arc::new(server_config(source).expect("TLS settings"));
        let router = Harness::new(snapshot()).router;
        tokio::spawn(serve(listener, tls, router, Default::default(), ending.clone()));
        Self {
            address,
            config: client_config(&authority.bundle()),
            ending,
        }
    }

    async fn connect(&self, source: IpAddr) -> std::io::Result<Connection> {
        Connection::open_from(source, self.address, Arc::clone(&self.config)).await
    }

    /// A review from `source` over a new connection is let in; how long it took.
    async fn answers(&self, source: IpAddr) -> Result<Duration, String> {
        let started = Instant::now();
        let mut connection = self
            .connect(source)
            .await
            .map_err(|error| format!("connect: {error}"))?;
        let reply = connection
            .call("/validate", question())
            .await
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        if reply.status == 200 && text.contains("\"allowed\":true") {
            Ok(started.elapsed())
        } else {
            Err(format!("{}: {text}", reply.status))
        }
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.ending.stop.cancel();
    }
}

fn loopback(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_one_address_keep_no_other_out_and_end() {
    let _turn = TURN.lock().await;
    let webhook = Webhook::start().await;
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..1200 {
        match webhook.connect(loopback(1)).await {
            Ok(connection) => held.push(connection),
            Err(_) => refused += 1,
        }
    }
    assert_eq!(held.len(), OF_ONE_SOURCE, "{refused} refused");
    webhook.answers(loopback(2)).await.expect("another address is answered");
    // Its own way is free again soon, though it holds on to all that it has.
    let freed = async {
        while let Err(error) = webhook.answers(loopback(1)).await {
            eprintln!("not yet: {error}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), freed)
        .await
        .expect("connections that ask nothing are ended");
    drop(held);
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    let kib = line
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<u64>()
        .expect("a number");
    kib / 1024
}

/// The largest body, which says `field` of a site's spec.
fn large(field: &str, piece: &str) -> Bytes {
    let marker = "\"FILL\"";
    let mut object = site("lab", &["198.51.100.0/24"]);
    object["spec"][field] = json!("FILL");
    let text = review("CREATE", Kind::TailnetSite, Some(&object), None).to_string();
    let (before, after) = text.split_once(marker).expect("the marker");
    let room = MAX_BODY - before.len() - after.len() - 16;
    let fill = piece.repeat(room / piece.len());
    let value = if piece == "x" {
        format!("\"{fill}\"")
    } else {
        format!("[{}0]", fill)
    };
    Bytes::from(format!("{before}{value}{after}"))
}

/// Sends `body` 40 times at once, from `sources` addresses, and small reviews from another meanwhile; the memory that it took,
/// in MiB.
async fn flood(webhook: &Arc<Webhook>, body: &Bytes, sources: u8) -> u64 {
    let before = resident();
    let (most, done) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
    let watcher = {
        let (most, done) = (Arc::clone(&most), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                most.fetch_max(resident(), Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let senders: Vec<_> = (0..40)
        .map(|number| {
            let (webhook, body) = (Arc::clone(webhook), body.clone());
            tokio::spawn(async move {
                let mut connection = webhook
                    .connect(loopback(10 + number % sources))
                    .await
                    .expect("connects");
                let reply = connection.call("/validate", body).await;
                reply.map(|reply| reply.status).unwrap_or_default()
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    while !senders.iter().all(tokio::task::JoinHandle::is_finished) {
        slowest = slowest.max(
            webhook
                .answers(loopback(2))
                .await
                .expect("a small review is decided meanwhile"),
        );
    }
    let mut answered = 0;
    for sender in senders {
        answered += usize::from(sender.await.expect("task") == 200);
    }
    done.store(true, Ordering::SeqCst);
    watcher.join().expect("watcher");
    let took = most.load(Ordering::SeqCst) - before;
    println!("{took} MiB, {answered} of 40 answered with a review, the slowest small one after {slowest:?}");
    assert!(answered > 0, "large bodies are decided too");
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_take_a_bounded_memory() {
    let _turn = TURN.lock().await;
    let webhook = Arc::new(Webhook::start().await);
    webhook.answers(loopback(2)).await.expect("works");
    for (field, piece, sources) in [
        ("prefixes", "0,", 8),
        ("prefixes", "{},", 1),
        ("x", "x", 8),
        ("x", "x", 1),
    ] {
        let body = large(field, piece);
        let took = flood(&webhook, &body, sources).await;
        // The limit of the chart is 256Mi for everything; 40 bodies alone are 280 MiB.
        assert!(
            took < 128,
            "{took} MiB for 40 bodies of {piece:?} from {sources} addresses"
        );
    }
}
