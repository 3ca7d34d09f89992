//! Certificates change under open connections, over a real socket.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use support::tls_client::Connection;
use support::{Harness, question, snapshot};
use tailnet_webhook::server::{Ending, serve};
use tailnet_webhook::tls::authority::{Authority, Step};
use tailnet_webhook::tls::source::{Source, server_config};
use tokio::net::TcpListener;

fn names() -> Vec<String> {
    vec!["tailnet-webhook.tailnet-system.svc".to_owned(), "127.0.0.1".to_owned()]
}

async fn start(source: Source) -> (SocketAddr, Ending) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let ending = Ending::default();
    let harness = Harness::new(snapshot());
    let tls = Arc::new(server_config(source).expect("TLS settings"));
    tokio::spawn(serve(listener, tls, harness.router, Default::default(), ending.clone()));
    (address, ending)
}

#[tokio::test]
async fn a_new_leaf_is_shown_to_new_connections_and_old_ones_stay() {
    let authority = Authority::generate(Timestamp::now()).expect("CA");
    let source = Source::default();
    let (address, _ending) = start(source.clone()).await;
    assert!(
        Connection::open(address, &authority.bundle()).await.is_err(),
        "no certificate yet"
    );

    source.set(authority.current.issue(&names(), Timestamp::now()).expect("leaf"));
    let mut first = Connection::open(address, &authority.bundle()).await.expect("connects");
    assert_eq!(first.call("/validate", question()).await.expect("answer").status, 200);

    source.set(authority.current.issue(&names(), Timestamp::now()).expect("leaf"));
    let mut second = Connection::open(address, &authority.bundle()).await.expect("connects");
    assert_ne!(first.shown, second.shown, "the new leaf is shown");
    assert_eq!(
        first.call("/validate", question()).await.expect("answer").status,
        200,
        "the open connection lives on"
    );
    assert_eq!(second.call("/validate", question()).await.expect("answer").status, 200);
}

#[tokio::test]
async fn a_caller_that_trusts_the_bundle_is_served_in_every_step_of_a_rotation() {
    let now = Timestamp::now();
    let first = Authority::generate(now).expect("CA");
    let source = Source::default();
    let (address, _ending) = start(source.clone()).await;
    let announced = first.after(Step::Announce, now).expect("announced");
    let promoted = announced.after(Step::Promote, now).expect("promoted");

    source.set(first.current.issue(&names(), now).expect("leaf"));
    // Before, while and after the API server learns of the new CA.
    for bundle in [first.bundle(), announced.bundle(), promoted.bundle()] {
        let mut connection = Connection::open(address, &bundle).await.expect("connects");
        assert_eq!(
            connection.call("/validate", question()).await.expect("answer").status,
            200
        );
    }
    source.set(promoted.current.issue(&names(), now).expect("leaf"));
    for bundle in [
        announced.bundle(),
        promoted.bundle(),
        promoted.after(Step::DropOld, now).expect("dropped").bundle(),
    ] {
        let mut connection = Connection::open(address, &bundle).await.expect("connects");
        assert_eq!(
            connection.call("/validate", question()).await.expect("answer").status,
            200
        );
    }
    assert!(
        Connection::open(address, &first.bundle()).await.is_err(),
        "who trusts only the old CA is not served by the new one"
    );
}

#[tokio::test]
async fn a_leaf_of_the_past_is_refused_by_the_caller() {
    let authority = Authority::generate(Timestamp::now()).expect("CA");
    let source = Source::default();
    let (address, _ending) = start(source.clone()).await;
    let past = Timestamp::now() - SignedDuration::from_hours(24 * 30);
    source.set(authority.current.issue(&names(), past).expect("leaf"));
    assert!(
        source.seconds_left(Timestamp::now()).is_some_and(|seconds| seconds < 0),
        "readiness sees it too"
    );
    assert!(Connection::open(address, &authority.bundle()).await.is_err());
}
