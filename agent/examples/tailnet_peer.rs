//! A subnet router in user space: offers a route, and connects what comes for an address in it to the same port on this
//! machine. The agent's tests use it as the far side; it shows the accepting half of the crate `tsnet`.
//!
//! ```text
//! tailnet_peer <login server> <pre-auth key> <host name> <route> [own port[=host:port]]...
//! ```
//!
//! A port of its own address is connected to the same port on this machine as well, or, with `=host:port`, over the tailnet
//! to that. These pass through this process, for the sake of the example, and their clients must be known nodes.
//!
//! Prints `ready <own IPv4>` on standard output once it has joined, and leaves when standard input ends.

use std::error::Error;
use std::time::Duration;

use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::TcpStream;
use tsnet::{Incoming, Listener, Node, NodeConfig, ROUTED};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [control_url, auth_key, hostname, route, own_ports @ ..] = args.as_slice() else {
        return Err("usage: tailnet_peer <login server> <pre-auth key> <host name> <route> [port]...".into());
    };
    tsnet::set_memory_limit(512 << 20)?;
    let node = Node::new(&NodeConfig {
        hostname: hostname.clone(),
        control_url: control_url.clone(),
        auth_key: auth_key.clone(),
        accept_routes: true,
        advertise_routes: vec![route.clone()],
        ..NodeConfig::default()
    })?;
    node.up(Duration::from_secs(60)).await?;
    tokio::spawn(serve_routed(node.listen(ROUTED)?));
    for own_port in own_ports {
        let (port, onward) = own_port.split_once('=').unwrap_or((own_port, ""));
        let listener = node.listen(port.parse()?)?;
        tokio::spawn(serve_own(node.clone(), listener, onward.to_owned()));
    }
    let own = node.status(false).await?.own.ok_or("the node has no address")?;
    println!("ready {}", own.ips.first().map_or("", String::as_str));
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    node.close(Duration::from_secs(5)).await?;
    Ok(())
}

async fn serve_routed(mut listener: Listener) {
    while let Some(incoming) = listener.accept().await {
        tokio::spawn(async move { report(connect_routed(incoming).await) });
    }
}

async fn serve_own(node: Node, mut listener: Listener, onward: String) {
    while let Some(incoming) = listener.accept().await {
        let (node, onward) = (node.clone(), onward.clone());
        tokio::spawn(async move { report(connect_own(&node, incoming, &onward).await) });
    }
}

fn report(result: Result<(), Failure>) {
    if let Err(error) = result {
        eprintln!("tailnet_peer: {error}");
    }
}

/// An incoming connection that cannot be connected further is dropped, which resets it.
async fn connect_routed(incoming: Incoming) -> Result<(), Failure> {
    let server = TcpStream::connect(("127.0.0.1", port(&incoming)?)).await?;
    incoming.conn.splice(server.into_std()?.into())?.ended.await;
    Ok(())
}

async fn connect_own(node: &Node, incoming: Incoming, onward: &str) -> Result<(), Failure> {
    let who = node.whois(&incoming.source).await?;
    eprintln!("tailnet_peer: a connection from {} {:?}", who.node, who.tags);
    let port = port(&incoming)?;
    let (mut client, _) = incoming.conn.into_stream()?;
    if onward.is_empty() {
        copy_bidirectional(&mut client, &mut TcpStream::connect(("127.0.0.1", port)).await?).await?;
    } else {
        let (conn, _) = node.dial(onward, Duration::from_secs(10)).await?;
        copy_bidirectional(&mut client, &mut conn.into_stream()?.0).await?;
    }
    Ok(())
}

fn port(incoming: &Incoming) -> Result<u16, Failure> {
    let (_, port) = incoming
        .destination
        .rsplit_once(':')
        .ok_or("a destination without a port")?;
    Ok(port.parse()?)
}
