//! What Pods of tests run. Standard library only: compiled by the harness into one static program.
//!
//! testbox pause                          sleeps until SIGTERM and reaps children (PID 1 of a Pod)
//! testbox http PORT                      answers every HTTP request with: peer address, method, path, host header
//! testbox echo PORT                      sends back every byte; passes half-close on
//! testbox tcp HOST PORT TEXT [SECONDS]   connects, sends TEXT, closes its side, prints the answer; exits 1 when it cannot within SECONDS (5)

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::process::exit;
use std::time::Duration;

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn wait(status: *mut i32) -> i32;
}

extern "C" fn stop(_: i32) {
    exit(0);
}

fn handle_stop_signals() {
    // As PID 1 a process ignores signals without a handler, and a Pod's end would wait for its grace period.
    let stop = stop as extern "C" fn(i32) as usize;
    unsafe {
        signal(2, stop);
        signal(15, stop);
    }
}

fn pause() -> ! {
    loop {
        if unsafe { wait(std::ptr::null_mut()) } < 0 {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

fn serve(port: &str, handle: fn(TcpStream) -> std::io::Result<()>) -> std::io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port.parse().expect("PORT is a number")))?;
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            let _ = handle(stream);
        });
    }
    Ok(())
}

fn http(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let peer = stream.peer_addr()?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut host) = (String::new(), String::new());
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("host:") {
            host = value.trim().to_owned();
        }
    }
    let request = first.trim().trim_end_matches(" HTTP/1.1");
    let body = format!("{peer} {request} {host}\n");
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())?;
    stream.shutdown(Shutdown::Write)
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    std::io::copy(&mut stream.try_clone()?, &mut stream)?;
    stream.shutdown(Shutdown::Write)
}

fn tcp(host: &str, port: &str, text: &str, seconds: &str) -> Result<String, String> {
    let limit = Duration::from_secs(seconds.parse().map_err(|_| "SECONDS is a number")?);
    let target = format!("{host}:{port}");
    let address = target.to_socket_addrs().map_err(|e| format!("{target}: {e}"))?.next().ok_or("no address")?;
    let mut stream = TcpStream::connect_timeout(&address, limit).map_err(|e| format!("{target}: {e}"))?;
    stream.set_read_timeout(Some(limit)).map_err(|e| e.to_string())?;
    stream.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
    stream.shutdown(Shutdown::Write).map_err(|e| e.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| format!("{target}: {e}"))?;
    Ok(answer)
}

fn main() {
    handle_stop_signals();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["pause"] | [] => pause(),
        ["http", port] => serve(port, http).map_err(|e| e.to_string()),
        ["echo", port] => serve(port, echo).map_err(|e| e.to_string()),
        ["tcp", host, port, text] => tcp(host, port, text, "5").map(|answer| print!("{answer}")),
        ["tcp", host, port, text, seconds] => tcp(host, port, text, seconds).map(|answer| print!("{answer}")),
        _ => Err("usage: testbox pause | http PORT | echo PORT | tcp HOST PORT TEXT [SECONDS]".to_owned()),
    };
    if let Err(error) = result {
        eprintln!("testbox: {error}");
        exit(1);
    }
}
