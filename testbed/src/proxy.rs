//! A TCP proxy that makes trouble on demand.

mod acks;
mod pump;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Attempt as _, Result};
use acks::AckFilter;
use pump::{Swallower, pump};

/// A direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// A value for each direction.
#[derive(Debug, Clone, Copy, Default)]
struct Ways<T> {
    to_server: T,
    to_client: T,
}

/// What the proxy does to its connections now.
#[derive(Debug, Clone, Copy, Default)]
struct Trouble {
    stalled: Ways<bool>,
    delay: Duration,
    swallowing_acks: bool,
    /// How often each way was closed: a connection that began before is closed by a change.
    half_closes: Ways<u64>,
}

/// A proxy on a free port of 127.0.0.1 in front of a server there. It changes no byte, and leaves out only what
/// [`swallow_acks`](Self::swallow_acks) says. It runs in the runtime that started it, and ends with its value.
#[derive(Debug)]
pub struct TcpProxy {
    port: u16,
    trouble: watch::Sender<Trouble>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
    server: Server,
    counts: Counts,
    /// `None` while connections are refused.
    accepting: Option<JoinHandle<()>>,
}

/// Where the connections go.
#[derive(Debug, Clone, Copy)]
struct Server {
    port: u16,
    is_amqp: bool,
}

#[derive(Debug, Clone, Default)]
struct Counts {
    reached: Arc<AtomicU64>,
    swallowed: Arc<AtomicU64>,
}

impl TcpProxy {
    /// Begins to pass everything on to a port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(server_port: u16) -> Result<TcpProxy> {
        TcpProxy::before(Server {
            port: server_port,
            is_amqp: false,
        })
        .await
    }

    /// As [`start`](Self::start), in front of a broker: it can [`swallow_acks`](Self::swallow_acks) too.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_amqp(broker_port: u16) -> Result<TcpProxy> {
        TcpProxy::before(Server {
            port: broker_port,
            is_amqp: true,
        })
        .await
    }

    async fn before(server: Server) -> Result<TcpProxy> {
        let (trouble, _) = watch::channel(Trouble::default());
        let mut proxy = TcpProxy {
            port: crate::ports::free_port(),
            trouble,
            connections: Arc::default(),
            server,
            counts: Counts::default(),
            accepting: None,
        };
        proxy.accept().await?;
        Ok(proxy)
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections are open through the proxy.
    pub fn connections(&self) -> usize {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| !connection.is_finished());
        connections.len()
    }

    /// How many connections have reached the server so far.
    pub fn reached(&self) -> u64 {
        self.counts.reached.load(Ordering::Relaxed)
    }

    /// How many acks were swallowed so far.
    pub fn swallowed_acks(&self) -> u64 {
        self.counts.swallowed.load(Ordering::Relaxed)
    }

    /// Back to passing everything on: accepts again after [`refuse`](Self::refuse), and as
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// When the port cannot be bound again.
    pub async fn pass(&mut self) -> Result<()> {
        self.resume();
        self.accept().await
    }

    /// Closes both sides of every connection now; new ones are accepted as before.
    pub async fn cut(&self) {
        for connection in self.abort_connections() {
            // Aborted or ended before: in both cases its sockets are closed.
            drop(connection.await);
        }
    }

    /// Refuses new connections (nobody listens); those that are open stay.
    pub async fn refuse(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            // The listening socket is closed once the task has gone.
            drop(accepting.await);
        }
    }

    /// Takes bytes in but passes none on, both ways; nothing is lost, [`resume`](Self::resume) sends them.
    pub fn stall(&self) {
        self.trouble.send_modify(|trouble| {
            trouble.stalled = Ways {
                to_server: true,
                to_client: true,
            }
        });
    }

    /// As [`stall`](Self::stall), one way only.
    pub fn stall_one_way(&self, direction: Direction) {
        self.trouble
            .send_modify(|trouble| *trouble.stalled.of_mut(direction) = true);
    }

    /// Passes bytes on so much later, both ways.
    pub fn delay(&self, by: Duration) {
        self.trouble.send_modify(|trouble| trouble.delay = by);
    }

    /// Ends every open connection one way, as if its sender had said that it has no more to send; the other way
    /// stays open.
    pub fn half_close(&self, direction: Direction) {
        self.trouble
            .send_modify(|trouble| *trouble.half_closes.of_mut(direction) += 1);
    }

    /// Leaves out every `basic.ack` from the broker to the client; only with [`start_amqp`](Self::start_amqp).
    pub fn swallow_acks(&self) {
        self.trouble.send_modify(|trouble| trouble.swallowing_acks = true);
    }

    /// Ends [`stall`](Self::stall), [`delay`](Self::delay) and [`swallow_acks`](Self::swallow_acks): sends what was
    /// held, in order.
    pub fn resume(&self) {
        self.trouble.send_modify(|trouble| {
            *trouble = Trouble {
                half_closes: trouble.half_closes,
                ..Trouble::default()
            }
        });
    }

    fn abort_connections(&self) -> Vec<JoinHandle<()>> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.iter().for_each(JoinHandle::abort);
        std::mem::take(&mut connections)
    }

    async fn accept(&mut self) -> Result<()> {
        if self.accepting.is_some() {
            return Ok(());
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port))
            .await
            .attempt("listen as a proxy")?;
        let (server, trouble) = (self.server, self.trouble.subscribe());
        let (connections, counts) = (self.connections.clone(), self.counts.clone());
        let accepting = async move {
            while let Ok((client, _)) = listener.accept().await {
                let connection = tokio::spawn(connect(client, server, trouble.clone(), counts.clone()));
                connections
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(connection);
            }
        };
        self.accepting = Some(tokio::spawn(accepting));
        Ok(())
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        if let Some(accepting) = &self.accepting {
            accepting.abort();
        }
        self.abort_connections();
    }
}

impl<T> Ways<T> {
    fn of_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

impl<T: Copy> Ways<T> {
    fn of(self, direction: Direction) -> T {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

/// Passes one connection on until both ways have ended or either has broken.
async fn connect(client: TcpStream, server: Server, trouble: watch::Receiver<Trouble>, counts: Counts) {
    // A server that is down is a connection that closes at once.
    let Ok(to_server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).await else {
        return;
    };
    counts.reached.fetch_add(1, Ordering::Relaxed);
    // Without this, small frames would wait for each other's acknowledgements.
    if client
        .set_nodelay(true)
        .and_then(|()| to_server.set_nodelay(true))
        .is_err()
    {
        return;
    }
    let swallower = server.is_amqp.then(|| Swallower {
        filter: AckFilter::default(),
        swallowed: counts.swallowed,
    });
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = to_server.into_split();
    let there = pump(from_client, to_server, Direction::ToServer, trouble.clone(), None);
    let back = pump(from_server, to_client, Direction::ToClient, trouble, swallower);
    // An error either way ends both; an orderly end waits for the other way.
    drop(tokio::try_join!(there, back));
}
