//! What a Service does for the webhook's replicas: connections go to them in turn.

use std::fs::File;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use tailnet_e2e::Cluster;

/// Listens on `127.0.0.1:port` inside the box and hands connections to the backends' ports there in turn, until this process
/// ends. The API server keeps one connection for each request that is under way, so that two at once have two backends.
pub fn start(cluster: &Cluster, port: u16, backends: Vec<u16>) -> Result<()> {
    let namespace = File::open(format!("/proc/{}/ns/net", cluster.state().init)).context("network of the box")?;
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Only this thread is in the box; what it opens belongs there, whoever uses it.
        let listener = setns(&namespace, CloneFlags::CLONE_NEWNET)
            .map_err(io::Error::from)
            .and_then(|()| TcpListener::bind(("127.0.0.1", port)));
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => return tell.send(Err(error)),
        };
        let sent = tell.send(Ok(()));
        for (client, backend) in listener.incoming().zip(backends.iter().cycle()) {
            if let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", *backend))) {
                carry(&client, &server);
                carry(&server, &client);
            }
        }
        sent
    });
    told.recv().context("the balancer ended")?.context("balancer")
}

fn carry(from: &TcpStream, to: &TcpStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else {
        return;
    };
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}
