use std::collections::HashMap;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use parking_lot::Mutex;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::NodeConfig;
use crate::conn::{Conn, Incoming, Listener};
use crate::error::{DialError, Error};
use crate::event::{self, Event};
use crate::splice::{Aborter, Dialed, Dialing, Ended, Splice, SpliceEnd, Traffic};
use crate::status::{Registration, Route, Status, WhoIs};
use crate::{ffi, log};

/// How long a node that is dropped without [`Node::close`] may take to log out.
const CLOSE_ON_DROP: Duration = Duration::from_secs(5);

/// Connections that wait to be taken from one [`Listener`]; more are reset.
const BACKLOG: usize = 256;

/// What the client last said about its control connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// `Running`, `NeedsLogin`, `Starting`, …; empty before the first word.
    pub state: String,
    /// The control server's last complaint, in its own words.
    pub error: Option<String>,
}

/// One tailnet node. Clones are the same node; it closes when [`Node::close`] is called or the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    link: watch::Receiver<LinkState>,
    closed: AtomicBool,
}

/// What the reader of events and the connections share with the node.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) handle: u64,
    last_token: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    listeners: Mutex<HashMap<u16, mpsc::Sender<Incoming>>>,
}

#[derive(Debug)]
enum Waiting {
    Splice(SpliceWaiting),
    Dial(oneshot::Sender<Result<(u64, Dialed), DialError>>),
}

#[derive(Debug)]
struct SpliceWaiting {
    /// Taken by the outcome of the dial.
    dialed: Option<oneshot::Sender<Result<Dialed, DialError>>>,
    ended: oneshot::Sender<SpliceEnd>,
    traffic: Arc<Traffic>,
}

impl Node {
    /// Makes a node; nothing is sent yet. Must be called on a tokio runtime, which then reads the node's events.
    ///
    /// # Errors
    /// [`Error::Client`] when the configuration is not usable, [`Error::Socket`].
    pub fn new(config: &NodeConfig) -> Result<Node, Error> {
        let text = serde_json::to_vec(config)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).map_err(|e| Error::Socket(e.into()))?;
        // A seqpacket socket, but what is needed of it, one message per receive, is what the datagram type does.
        let events = UnixDatagram::from_std(StdDatagram::from(ours)).map_err(Error::Socket)?;
        let logs = log::pipe().map_err(Error::Socket)?;
        let handle = ffi::new(&text, theirs.into_raw_fd(), logs.into_raw_fd())?;
        let shared = Arc::new(Shared {
            handle,
            last_token: AtomicU64::new(0),
            waiting: Mutex::default(),
            listeners: Mutex::default(),
        });
        let (link_sender, link) = watch::channel(LinkState::default());
        tokio::spawn(read_events(events, shared.clone(), link_sender));
        Ok(Node(Arc::new(Inner {
            shared,
            link,
            closed: AtomicBool::new(false),
        })))
    }

    /// Starts the node and waits until it has joined. After an error the node can only be closed.
    ///
    /// # Errors
    /// [`Error::Deadline`] after `limit` with what the client finds wrong; [`Error::Client`] with the control server's words.
    pub async fn up(&self, limit: Duration) -> Result<(), Error> {
        self.blocking(move |handle| ffi::up(handle, ms(limit))).await
    }

    /// Resets every connection, logs out and stops. Ends by `limit`; what is left then goes on in the background.
    ///
    /// # Errors
    /// [`Error::Deadline`] when the client did not stop in time, [`Error::Closed`] when the node was closed before.
    pub async fn close(&self, limit: Duration) -> Result<(), Error> {
        if self.0.closed.swap(true, Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        self.blocking(move |handle| ffi::close(handle, ms(limit))).await
    }

    /// Dials `target` (`host:port`, the host an address or a name) and carries bytes between it and `socket`, a connected
    /// stream socket, until both directions have ended. `prefix` is sent first. When the dial fails, the socket is reset.
    ///
    /// # Errors
    /// When the socket is none or the node is closed; the socket is then reset too. A failing dial is in [`Splice::dialed`].
    pub fn splice_dial(&self, socket: OwnedFd, target: &str, prefix: &[u8], limit: Duration) -> Result<Splice, Error> {
        let (dialed_sender, dialed) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let traffic = Arc::new(Traffic::default());
        let token = self.shared().wait(Waiting::Splice(SpliceWaiting {
            dialed: Some(dialed_sender),
            ended: ended_sender,
            traffic: traffic.clone(),
        }));
        let result = ffi::splice_dial(
            self.shared().handle,
            token,
            socket.into_raw_fd(),
            target,
            prefix,
            ms(limit),
        );
        if let Err(error) = result {
            self.shared().waiting.lock().remove(&token);
            return Err(error);
        }
        Ok(Splice {
            dialed: Dialing(dialed),
            ended: Ended(ended),
            traffic,
            abort: Aborter::new(self.shared().clone(), token),
        })
    }

    /// Dials `target` and gives the connection.
    ///
    /// # Errors
    /// The dial's failure, with its class.
    pub async fn dial(&self, target: &str, limit: Duration) -> Result<(Conn, Dialed), DialError> {
        let (sender, receiver) = oneshot::channel();
        let token = self.shared().wait(Waiting::Dial(sender));
        if ffi::dial(self.shared().handle, token, target, ms(limit)).is_err() {
            self.shared().waiting.lock().remove(&token);
            return Err(DialError::closed());
        }
        let (conn, dialed) = receiver.await.unwrap_or_else(|_| Err(DialError::closed()))?;
        Ok((Conn::new(self.shared().clone(), conn), dialed))
    }

    /// Accepts connections to `port` of the node's own addresses, or with [`crate::ROUTED`] to every address of the
    /// advertised routes. The node must have been started by [`Node::up`].
    ///
    /// # Errors
    /// When the port is taken, or the node is not up or closed.
    pub fn listen(&self, port: u16) -> Result<Listener, Error> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        // Locked until the sender is there: a connection that comes at once waits for it.
        let mut listeners = self.shared().listeners.lock();
        ffi::listen(self.shared().handle, port)?;
        listeners.insert(port, sender);
        drop(listeners);
        Ok(Listener::new(self.shared().clone(), port, receiver))
    }

    /// What the client last said about its control connection; changes wake the receiver.
    pub fn link(&self) -> watch::Receiver<LinkState> {
        self.0.link.clone()
    }

    /// The node's view of itself and, if wanted, of its peers.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn status(&self, peers: bool) -> Result<Status, Error> {
        Ok(serde_json::from_str(
            &self.blocking(move |handle| ffi::status(handle, peers)).await?,
        )?)
    }

    /// Which peer would serve a dial to `host`, an address or a name.
    ///
    /// # Errors
    /// [`Error::Closed`]. That nobody serves it, or that the name does not resolve within `limit`, is in the answer.
    pub async fn route(&self, host: &str, limit: Duration) -> Result<Route, Error> {
        let host = host.to_owned();
        Ok(serde_json::from_str(
            &self
                .blocking(move |handle| ffi::route(handle, &host, ms(limit)))
                .await?,
        )?)
    }

    /// Who has the tailnet address `address` (`ip:port`).
    ///
    /// # Errors
    /// [`Error::Client`] when nobody has it.
    pub async fn whois(&self, address: &str) -> Result<WhoIs, Error> {
        let address = address.to_owned();
        Ok(serde_json::from_str(
            &self.blocking(move |handle| ffi::whois(handle, &address)).await?,
        )?)
    }

    /// Asks the control server whether it still has this node: it does not say so by itself when it deletes one.
    ///
    /// # Errors
    /// When it could not be asked, which says nothing about the node.
    pub async fn probe(&self, limit: Duration) -> Result<Registration, Error> {
        #[derive(serde::Deserialize)]
        struct Answer {
            known: bool,
            why: String,
        }
        let answer: Answer = serde_json::from_str(&self.blocking(move |handle| ffi::probe(handle, ms(limit))).await?)?;
        Ok(if answer.known {
            Registration::Known
        } else {
            Registration::Lost(answer.why)
        })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    async fn blocking<T: Send + 'static>(
        &self,
        f: impl FnOnce(u64) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let handle = self.shared().handle;
        // A join error is a runtime that shuts down.
        tokio::task::spawn_blocking(move || f(handle))
            .await
            .unwrap_or(Err(Error::Closed))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            let handle = self.shared.handle;
            // Not on the runtime: it may be shutting down, and logging out takes a while.
            std::thread::spawn(move || ffi::close(handle, ms(CLOSE_ON_DROP)));
        }
    }
}

impl Shared {
    fn wait(&self, waiting: Waiting) -> u64 {
        let token = self.last_token.fetch_add(1, Ordering::Relaxed) + 1;
        self.waiting.lock().insert(token, waiting);
        token
    }

    /// Registers a splice whose connection is there already.
    pub(crate) fn wait_for_end(&self) -> (u64, Ended, Arc<Traffic>) {
        let (sender, receiver) = oneshot::channel();
        let traffic = Arc::new(Traffic::default());
        let token = self.wait(Waiting::Splice(SpliceWaiting {
            dialed: None,
            ended: sender,
            traffic: traffic.clone(),
        }));
        (token, Ended(receiver), traffic)
    }

    pub(crate) fn forget(&self, token: u64) {
        self.waiting.lock().remove(&token);
    }

    pub(crate) fn unlisten(&self, port: u16) {
        self.listeners.lock().remove(&port);
        // Fails only when the node is closed, which ends the listener as well.
        let _ = ffi::unlisten(self.handle, port);
    }

    fn take(self: &Arc<Self>, event: Event, link: &watch::Sender<LinkState>) {
        match event {
            Event::Dialed {
                token,
                conn,
                hedges,
                took,
                address,
                peer,
            } => {
                self.dialed(
                    token,
                    conn,
                    Dialed {
                        address,
                        peer,
                        hedges,
                        took,
                    },
                );
            }
            Event::DialFailed {
                token, class, message, ..
            } => {
                let error = DialError { class, message };
                match self.waiting.lock().remove(&token) {
                    Some(Waiting::Splice(splice)) => {
                        if let Some(sender) = splice.dialed {
                            let _ = sender.send(Err(error.clone()));
                        }
                        let _ = splice.ended.send(SpliceEnd::never_began(error));
                    }
                    Some(Waiting::Dial(sender)) => {
                        let _ = sender.send(Err(error));
                    }
                    None => {}
                }
            }
            Event::Spliced {
                token,
                error,
                up,
                down,
                took,
                message,
            } => {
                if let Some(Waiting::Splice(splice)) = self.waiting.lock().remove(&token) {
                    splice.traffic.set(up, down);
                    let error = error.map(|class| DialError { class, message });
                    let _ = splice.ended.send(SpliceEnd { up, down, took, error });
                }
            }
            Event::Progress { token, up, down } => {
                if let Some(Waiting::Splice(splice)) = self.waiting.lock().get(&token) {
                    splice.traffic.set(up, down);
                }
            }
            Event::Accepted {
                conn,
                port,
                source,
                destination,
            } => {
                let conn = Conn::new(self.clone(), conn);
                let sender = self.listeners.lock().get(&port).cloned();
                let incoming = Incoming {
                    source,
                    destination,
                    conn,
                };
                // What is not taken is dropped here, which resets it.
                if sender.is_none_or(|s| s.try_send(incoming).is_err()) {
                    tracing::warn!(
                        port,
                        "a tailnet connection was reset: nobody takes it, or too many wait"
                    );
                }
            }
            Event::State(state) => link.send_modify(|l| {
                if state == "Running" {
                    l.error = None;
                }
                l.state = state;
            }),
            Event::ControlError(error) => link.send_modify(|l| l.error = Some(error)),
        }
    }

    fn dialed(self: &Arc<Self>, token: u64, conn: u64, dialed: Dialed) {
        let mut waiting = self.waiting.lock();
        match waiting.remove(&token) {
            Some(Waiting::Splice(mut splice)) => {
                let sender = splice.dialed.take();
                waiting.insert(token, Waiting::Splice(splice));
                drop(waiting);
                if let Some(sender) = sender {
                    let _ = sender.send(Ok(dialed));
                }
            }
            Some(Waiting::Dial(sender)) => {
                drop(waiting);
                if sender.send(Ok((conn, dialed))).is_err() {
                    drop(Conn::new(self.clone(), conn));
                }
            }
            None => {}
        }
    }
}

async fn read_events(events: UnixDatagram, shared: Arc<Shared>, link: watch::Sender<LinkState>) {
    let mut message = [0_u8; event::MAX_MESSAGE];
    loop {
        let read = events.recv(&mut message).await;
        match read {
            Ok(length) if length > 0 => match message.get(..length).and_then(event::decode) {
                Some(event) => shared.take(event, &link),
                None => tracing::warn!(length, "the tailnet client sent an event that is not understood"),
            },
            // The client has closed its end: whoever still waits is told by the senders going away.
            Ok(_) => break,
            Err(error) => {
                tracing::error!(%error, "reading the tailnet client's events");
                break;
            }
        }
    }
    shared.waiting.lock().clear();
    shared.listeners.lock().clear();
}

fn ms(limit: Duration) -> i64 {
    i64::try_from(limit.as_millis()).unwrap_or(i64::MAX)
}
