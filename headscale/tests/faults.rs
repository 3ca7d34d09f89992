//! Faults that a real Headscale cannot be made to show: cut and slow answers, connections closed at the wrong moment, rate
//! limits and redirects of a proxy. A socket answers with exactly the bytes that a test gives it.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as the test may")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailnet_headscale::{ApiKey, Class, Client, Endpoint, Error, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const KEY: &str = "hskey-api-abcdefghijkl-TOPSECRETTOPSECRETTOPSECRETTOPSECRETTOPSECRETTOPSECRETTOPS";

/// What the server does with one request.
#[derive(Clone)]
enum Act {
    /// Sends these bytes and keeps the connection.
    Send(String),
    /// Sends these bytes and closes.
    SendAndClose(String),
    /// Closes without a byte.
    Close,
    /// Waits, then closes.
    Wait(Duration),
}

fn json(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

struct Script {
    client: Client,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A server that answers the n-th request, over all connections, with the n-th act, and a client for it.
async fn script(acts: Vec<Act>, limits: Limits) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (acts, seen) = (Arc::new(acts), Arc::clone(&requests));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (acts, seen) = (Arc::clone(&acts), Arc::clone(&seen));
            tokio::spawn(async move {
                let mut buffer = Vec::new();
                loop {
                    let mut chunk = [0; 4096];
                    let Ok(n @ 1..) = stream.read(&mut chunk).await else {
                        return;
                    };
                    buffer.extend_from_slice(&chunk[..n]);
                    let text = String::from_utf8_lossy(&buffer).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else {
                        continue;
                    };
                    let length = head
                        .lines()
                        .find_map(|l| {
                            l.to_lowercase()
                                .strip_prefix("content-length: ")
                                .map(|n| n.parse::<usize>().unwrap())
                        })
                        .unwrap_or(0);
                    if body.len() < length {
                        continue;
                    }
                    let number = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(text.clone());
                        seen.len() - 1
                    };
                    buffer.clear();
                    match acts.get(number).cloned().unwrap_or(Act::Close) {
                        Act::Send(bytes) => stream.write_all(bytes.as_bytes()).await.unwrap(),
                        Act::SendAndClose(bytes) => {
                            let _ = stream.write_all(bytes.as_bytes()).await;
                            return;
                        }
                        Act::Close => return,
                        Act::Wait(time) => {
                            tokio::time::sleep(time).await;
                            return;
                        }
                    }
                }
            });
        }
    });
    let endpoint = Endpoint::parse(&format!("http://{address}")).unwrap();
    let client = Client::new(endpoint, &[], Some(ApiKey::parse(KEY).unwrap()), limits).unwrap();
    Script { client, requests }
}

fn quick() -> Limits {
    Limits {
        connect: Duration::from_secs(2),
        total: Duration::from_millis(600),
        reply: 1000,
    }
}

fn check(error: &Error, class: Class) {
    assert_eq!(error.class(), class, "{error:?}");
    assert!(!format!("{error} {error:?}").contains("TOPSECRET"), "{error:?}");
}

#[tokio::test]
async fn a_pooled_connection_that_was_closed_is_tried_once_more() {
    let nodes = json("200 OK", r#"{"nodes":[]}"#);
    let s = script(vec![Act::Send(nodes.clone()), Act::Close, Act::Send(nodes)], quick()).await;
    s.client.nodes().await.unwrap();
    s.client.nodes().await.unwrap();
    assert_eq!(s.requests.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_connection_that_breaks_twice_is_an_error() {
    let s = script(vec![Act::Close, Act::Close], quick()).await;
    check(&s.client.nodes().await.unwrap_err(), Class::Transient);
    assert_eq!(s.requests.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn what_makes_a_key_is_never_sent_twice() {
    let s = script(vec![Act::Close, Act::Close], quick()).await;
    let error = s
        .client
        .create_api_key("2027-01-01T00:00:00Z".parse().unwrap())
        .await
        .unwrap_err();
    check(&error, Class::Transient);
    assert!(error.may_have_happened());
    assert_eq!(s.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn cut_answers() {
    let whole = json("200 OK", r#"{"nodes":[{"id":"1"}]}"#);
    let s = script(vec![Act::SendAndClose(whole[..whole.len() - 5].into())], quick()).await;
    check(&s.client.nodes().await.unwrap_err(), Class::Transient);
    // With the right length, yet half of the JSON.
    let s = script(vec![Act::Send(json("200 OK", r#"{"nodes":[{"id":"#))], quick()).await;
    check(&s.client.nodes().await.unwrap_err(), Class::Transient);
    // An error whose body is cut still counts by its status.
    let cut = json("401 Unauthorized", "Unauthorized");
    let s = script(vec![Act::SendAndClose(cut[..cut.len() - 5].into())], quick()).await;
    check(&s.client.nodes().await.unwrap_err(), Class::Unauthorized);
}

#[tokio::test]
async fn slow_answers_end_at_the_deadline() {
    let started = Instant::now();
    let s = script(vec![Act::Wait(Duration::from_secs(20))], quick()).await;
    let error = s.client.nodes().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    // Headers at once, the body never.
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_owned();
    let s = script(vec![Act::Send(head)], quick()).await;
    assert!(matches!(s.client.nodes().await.unwrap_err(), Error::Timeout { .. }));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn large_answers_are_not_read() {
    let large = "x".repeat(2000);
    let s = script(vec![Act::Send(json("200 OK", &large))], quick()).await;
    assert!(matches!(
        s.client.nodes().await.unwrap_err(),
        Error::ReplyTooLarge { limit: 1000, .. }
    ));
    // Without a length.
    let chunked = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n{large}\r\n0\r\n\r\n");
    let s = script(vec![Act::Send(chunked)], quick()).await;
    assert!(matches!(
        s.client.nodes().await.unwrap_err(),
        Error::ReplyTooLarge { .. }
    ));
}

#[tokio::test]
async fn a_redirect_is_told_and_not_followed() {
    let redirect =
        "HTTP/1.1 302 Found\r\nlocation: https://login.example.net/?next=1\r\ncontent-length: 0\r\n\r\n".to_owned();
    let s = script(vec![Act::Send(redirect)], quick()).await;
    let error = s.client.nodes().await.unwrap_err();
    check(&error, Class::NotHeadscale);
    assert!(error.to_string().contains("to https://login.example.net/;"), "{error}");
    assert_eq!(s.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_proxy_in_front() {
    let html = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<h1>");
    for (answer, class) in [
        (html("502 Bad Gateway"), Class::Transient),
        (html("503 Service Unavailable"), Class::Transient),
        (html("403 Forbidden"), Class::NotHeadscale),
        (html("404 Not Found"), Class::NotHeadscale),
        (html("200 OK"), Class::NotHeadscale),
        (json("200 OK", r#"{"hello":"world","nodes":7}"#), Class::NotHeadscale),
        ("SSH-2.0-OpenSSH_9.6\r\n".to_owned(), Class::NotHeadscale),
    ] {
        let s = script(
            vec![Act::SendAndClose(answer.clone()), Act::SendAndClose(answer.clone())],
            quick(),
        )
        .await;
        let error = s.client.nodes().await.unwrap_err();
        assert_eq!(error.class(), class, "{answer:?}: {error:?}");
    }
    let limited = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n".to_owned();
    let s = script(vec![Act::Send(limited)], quick()).await;
    let error = s.client.nodes().await.unwrap_err();
    assert!(
        matches!(error, Error::RateLimited { retry_after: Some(d), .. } if d == Duration::from_secs(3)),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_blip_of_401_is_one_error_and_then_gone() {
    let denied =
        "HTTP/1.1 401 Unauthorized\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\nUnauthorized".to_owned();
    let s = script(
        vec![
            Act::Send(denied),
            Act::Send(json("200 OK", r#"{"databaseConnectivity":true}"#)),
        ],
        quick(),
    )
    .await;
    check(&s.client.check_key().await.unwrap_err(), Class::Unauthorized);
    assert!(s.client.check_key().await.unwrap());
}

#[tokio::test]
async fn a_key_in_an_answer_is_not_told() {
    let body = format!(r#"{{"code":2,"message":"cannot parse {KEY}"}}"#);
    let s = script(vec![Act::Send(json("500 Internal Server Error", &body))], quick()).await;
    check(&s.client.nodes().await.unwrap_err(), Class::Transient);
    let s = script(
        vec![Act::Send(json("200 OK", &format!(r#"{{"apiKey":["{KEY}"]}}"#)))],
        quick(),
    )
    .await;
    check(
        &s.client
            .create_api_key("2027-01-01T00:00:00Z".parse().unwrap())
            .await
            .unwrap_err(),
        Class::NotHeadscale,
    );
}

#[tokio::test]
async fn nobody_listens_and_nobody_knows_the_name() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = |url: &str| {
        Client::new(
            Endpoint::parse(url).unwrap(),
            &[],
            Some(ApiKey::parse(KEY).unwrap()),
            quick(),
        )
        .unwrap()
    };
    let error = client(&format!("http://{free}")).version().await.unwrap_err();
    assert!(matches!(error, Error::Connect { refused: true, .. }), "{error:?}");
    check(&error, Class::Unreachable);
    assert!(error.to_string().contains("Connection refused"), "{error}");
    let error = client("http://no-such-host.invalid").version().await.unwrap_err();
    // Without any resolver the answer is an error or none at all.
    assert!(matches!(error.class(), Class::Dns | Class::Transient), "{error:?}");
}

#[tokio::test]
async fn requests_are_what_headscale_expects() {
    let nodes = json("200 OK", r#"{"nodes":[]}"#);
    let s = script(vec![Act::Send(nodes), Act::Send(json("200 OK", "{}"))], quick()).await;
    s.client.nodes().await.unwrap();
    s.client
        .delete_preauth_key(&tailnet_headscale::Id::new("2"))
        .await
        .unwrap();
    let requests = s.requests.lock().unwrap().clone();
    assert!(
        requests[0].starts_with("GET /api/v1/node HTTP/1.1\r\n"),
        "{}",
        requests[0]
    );
    assert!(requests[0].contains(&format!("authorization: Bearer {KEY}\r\n")));
    assert!(
        requests[1].starts_with("DELETE /api/v1/preauthkey?id=2 HTTP/1.1\r\n"),
        "{}",
        requests[1]
    );
}
