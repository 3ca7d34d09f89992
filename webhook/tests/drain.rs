//! A replica goes while callers call: none of them sees a failed call.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use support::tls_client::{Connection, client_config};
use support::{Harness, question, snapshot};
use tailnet_policies::{ObjectRef, Outcome, Request, Snapshot};
use tailnet_webhook::audit::Target;
use tailnet_webhook::live::Presence;
use tailnet_webhook::server::{Ending, serve};
use tailnet_webhook::tls::authority::Authority;
use tailnet_webhook::tls::source::{Source, server_config};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

struct Replica {
    address: SocketAddr,
    ending: Ending,
    task: JoinHandle<()>,
    bundle: String,
}

async fn replica(authority: &Authority, harness: Harness) -> Replica {
    let source = Source::default();
    source.set(
        authority
            .current
            .issue(&["127.0.0.1".to_owned()], Timestamp::now())
            .expect("leaf"),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let ending = Ending::default();
    let tls = Arc::new(server_config(source).expect("TLS settings"));
    let task = tokio::spawn(serve(listener, tls, harness.router, Default::default(), ending.clone()));
    Replica {
        address,
        ending,
        task,
        bundle: authority.bundle(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_while_a_replica_stops() {
    let authority = Authority::generate(Timestamp::now()).expect("CA");
    let going = replica(&authority, Harness::new(snapshot())).await;
    let staying = replica(&authority, Harness::new(snapshot())).await;
    // What kube-proxy knows: it learns of the unready replica a while later.
    let removed = Arc::new(AtomicBool::new(false));
    let finished = Arc::new(AtomicBool::new(false));
    let told_to_close = Arc::new(AtomicUsize::new(0));
    let after_stop_began = Arc::new(AtomicUsize::new(0));
    let stopping = Arc::new(AtomicBool::new(false));
    let config = client_config(&going.bundle);
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (removed, finished, told, late, stopping, config) = (
                Arc::clone(&removed),
                Arc::clone(&finished),
                Arc::clone(&told_to_close),
                Arc::clone(&after_stop_began),
                Arc::clone(&stopping),
                Arc::clone(&config),
            );
            let (going, staying) = (going.address, staying.address);
            tokio::spawn(async move {
                let mut connection: Option<Connection> = None;
                let mut calls = 0_usize;
                while !finished.load(Ordering::SeqCst) {
                    let open = match connection.as_mut() {
                        Some(open) => open,
                        None => {
                            let address = if removed.load(Ordering::SeqCst) { staying } else { going };
                            connection.insert(
                                Connection::open_with(address, Arc::clone(&config))
                                    .await
                                    .expect("a call failed: connect"),
                            )
                        }
                    };
                    let began_late = stopping.load(Ordering::SeqCst);
                    let reply = open
                        .call("/validate", question())
                        .await
                        .expect("a call failed: no answer");
                    assert_eq!(reply.status, 200, "a call failed");
                    calls += 1;
                    late.fetch_add(usize::from(began_late), Ordering::SeqCst);
                    if reply.closes {
                        told.fetch_add(1, Ordering::SeqCst);
                        connection = None;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                calls
            })
        })
        .collect();

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        told_to_close.load(Ordering::SeqCst),
        0,
        "nobody is sent away while the replica serves"
    );
    going.ending.closing.cancel();
    stopping.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(400)).await;
    removed.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(400)).await;
    going.ending.stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), going.task)
        .await
        .expect("stops in time")
        .expect("stops cleanly");
    tokio::time::sleep(Duration::from_millis(200)).await;
    finished.store(true, Ordering::SeqCst);
    let mut calls = 0;
    for caller in callers {
        calls += caller.await.expect("no call failed");
    }
    assert!(calls > 100, "{calls} calls are too few to prove anything");
    assert!(told_to_close.load(Ordering::SeqCst) >= 8, "every caller was sent away");
    assert!(
        after_stop_began.load(Ordering::SeqCst) > 20,
        "calls went on while the replica stopped"
    );
    assert!(
        Connection::open(going.address, &staying.bundle).await.is_err(),
        "the stopped replica is gone"
    );
    staying.ending.stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), staying.task)
        .await
        .expect("stops in time")
        .expect("stops cleanly");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_flight_is_answered_and_an_idle_connection_holds_nothing_up() {
    let slow = |_: &Request, _: &Snapshot, _: &[ObjectRef]| {
        std::thread::sleep(Duration::from_millis(600));
        Outcome::default()
    };
    let harness = Harness::build(snapshot(), Presence::Present, &Target::None, |reviewer| {
        reviewer.with_rules(Box::new(slow), Duration::from_secs(4))
    });
    let authority = Authority::generate(Timestamp::now()).expect("CA");
    let replica = replica(&authority, harness).await;
    let _idle = Connection::open(replica.address, &replica.bundle)
        .await
        .expect("connects");
    let mut busy = Connection::open(replica.address, &replica.bundle)
        .await
        .expect("connects");
    let call = tokio::spawn(async move { busy.call("/validate", question()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    replica.ending.stop.cancel();
    let reply = call.await.expect("task").expect("the call in flight is answered");
    assert_eq!(reply.status, 200);
    assert!(String::from_utf8_lossy(&reply.body).contains("\"allowed\":true"));
    tokio::time::timeout(Duration::from_secs(5), replica.task)
        .await
        .expect("in time")
        .expect("cleanly");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}
