//! A TCP proxy that makes trouble on demand.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Attempt as _, Result};

/// How many bytes a stalled direction takes in before it stops reading.
const HELD_MAX: usize = 16 << 20;

/// A direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stalled {
    to_server: bool,
    to_client: bool,
}

/// A proxy on a free port of 127.0.0.1 in front of a server there. It never changes a byte. It runs in the
/// runtime that started it, and ends with its value.
#[derive(Debug)]
pub struct TcpProxy {
    port: u16,
    stalled: watch::Sender<Stalled>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
    server_port: u16,
    /// `None` while connections are refused.
    accepting: Option<JoinHandle<()>>,
}

impl TcpProxy {
    /// Begins to pass everything on to a port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(server_port: u16) -> Result<TcpProxy> {
        let port = crate::ports::free_port();
        let (stalled, _) = watch::channel(Stalled::default());
        let connections = Arc::default();
        let mut proxy = TcpProxy {
            port,
            stalled,
            connections,
            server_port,
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
        self.stalled.send_replace(Stalled {
            to_server: true,
            to_client: true,
        });
    }

    /// As [`stall`](Self::stall), one way only.
    pub fn stall_one_way(&self, direction: Direction) {
        self.stalled.send_modify(|stalled| match direction {
            Direction::ToServer => stalled.to_server = true,
            Direction::ToClient => stalled.to_client = true,
        });
    }

    /// Ends [`stall`](Self::stall): sends what was held, in order.
    pub fn resume(&self) {
        self.stalled.send_replace(Stalled::default());
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
        let (server_port, stalled) = (self.server_port, self.stalled.subscribe());
        let connections = self.connections.clone();
        let accepting = async move {
            while let Ok((client, _)) = listener.accept().await {
                let connection = tokio::spawn(connect(client, server_port, stalled.clone()));
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

/// Passes one connection on until both ways have ended or either has broken.
async fn connect(client: TcpStream, server_port: u16, stalled: watch::Receiver<Stalled>) {
    // A server that is down is a connection that closes at once.
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port)).await else {
        return;
    };
    // Without this, small frames would wait for each other's acknowledgements.
    if client
        .set_nodelay(true)
        .and_then(|()| server.set_nodelay(true))
        .is_err()
    {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = pump(from_client, to_server, stalled.clone(), |stalled| {
        stalled.to_server
    });
    let back = pump(from_server, to_client, stalled, |stalled| stalled.to_client);
    // An error either way ends both; an orderly end waits for the other way.
    drop(tokio::try_join!(there, back));
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut stalled: watch::Receiver<Stalled>,
    is_stalled: fn(&Stalled) -> bool,
) -> std::io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    let mut held = Vec::new();
    let mut sent = 0;
    let mut ended = false;
    loop {
        let passing = !is_stalled(&stalled.borrow_and_update());
        if ended && sent == held.len() {
            return to.shutdown().await;
        }
        // Every branch is cancel safe: a byte is either still in the socket or in `held`.
        tokio::select! {
            changed = stalled.changed() => if changed.is_err() { return Ok(()) },
            count = from.read(&mut chunk), if !ended && held.len() < HELD_MAX => {
                let read = chunk.get(..count?).unwrap_or_default();
                held.extend_from_slice(read);
                ended = read.is_empty();
            }
            count = to.write(held.get(sent..).unwrap_or_default()), if passing && sent < held.len() => {
                sent += count?;
                if sent == held.len() {
                    held.clear();
                    sent = 0;
                }
            }
        }
    }
}
