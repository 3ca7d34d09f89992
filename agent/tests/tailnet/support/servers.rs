//! What is behind the router.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const ECHO: u16 = 7001;
/// Reads to the end, then sends [`BIG`] bytes and closes.
pub const AFTER_END: u16 = 7002;
/// Sends one byte and closes at once.
pub const CLOSES_FIRST: u16 = 7003;
/// Sends until it cannot.
pub const SOURCE: u16 = 7004;
/// Reads and drops.
pub const SINK: u16 = 7005;
/// Nothing listens here.
pub const NOBODY: u16 = 7099;

pub const BIG: usize = 10 * 1024 * 1024;

/// Byte `at` of what [`AFTER_END`] sends.
pub fn pattern(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

/// Starts all of them on loopback.
pub async fn start_servers() {
    serve(ECHO, |mut socket| async move {
        let (mut read, mut write) = socket.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    serve(AFTER_END, |mut socket| async move {
        let mut request = Vec::new();
        if socket.read_to_end(&mut request).await.is_ok() {
            let answer: Vec<u8> = (0..BIG).map(pattern).collect();
            let _ = socket.write_all(&answer).await;
        }
    })
    .await;
    serve(CLOSES_FIRST, |mut socket| async move {
        let _ = socket.write_all(b"x").await;
    })
    .await;
    serve(SOURCE, |mut socket| async move {
        let chunk = vec![7; 256 << 10];
        while socket.write_all(&chunk).await.is_ok() {}
    })
    .await;
    serve(SINK, |mut socket| async move {
        let _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
    })
    .await;
}

pub async fn serve<F>(port: u16, handle: impl Fn(TcpStream) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(handle(socket));
        }
    });
}

/// Connects to a listen port of the agent.
pub async fn connect(port: u16) -> TcpStream {
    within(TcpStream::connect(("127.0.0.1", port)))
        .await
        .unwrap_or_else(|e| panic!("connecting to port {port}: {e}"))
}

/// What a client of `port` gets that only reads: the bytes until the end, or the error. A reset can come before the
/// connecting is done, and is the same then.
pub async fn outcome_at(port: u16) -> Result<usize, ErrorKind> {
    match within(TcpStream::connect(("127.0.0.1", port))).await {
        Ok(mut socket) => outcome(&mut socket).await,
        Err(error) => Err(error.kind()),
    }
}

/// Reads until something other than bytes comes.
pub async fn outcome(socket: &mut TcpStream) -> Result<usize, ErrorKind> {
    let mut rest = Vec::new();
    within(socket.read_to_end(&mut rest)).await.map_err(|e| e.kind())
}

/// Sends `text` and reads as much back.
pub async fn echo(socket: &mut TcpStream, text: &[u8]) -> std::io::Result<()> {
    socket.write_all(text).await?;
    let mut back = vec![0; text.len()];
    socket.read_exact(&mut back).await?;
    assert_eq!(back, text);
    Ok(())
}

/// Panics, at the place of the call, when `f` takes longer than 30 s.
#[track_caller]
pub fn within<T>(f: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move {
        tokio::time::timeout(Duration::from_secs(30), f)
            .await
            .unwrap_or_else(|_| panic!("not within 30 s: {place}"))
    }
}
