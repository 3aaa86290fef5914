//! A scripted OpenTelemetry collector: takes OTLP over HTTP/1.1 and keeps the bodies.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::error::{Attempt as _, Result};

/// The longest head of a request.
const MAX_HEAD: usize = 16 * 1024;

/// A collector on a free port of 127.0.0.1, ended on drop.
#[derive(Debug)]
pub struct Collector {
    port: u16,
    requests: Arc<Mutex<Vec<ExportRequest>>>,
    task: JoinHandle<()>,
}

/// What was sent to a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportRequest {
    /// The request line and the headers.
    pub head: String,
    /// The body: protobuf.
    pub body: Vec<u8>,
}

impl ExportRequest {
    /// Whether these bytes are in the body: texts and ids stand in protobuf as they are.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        self.body.windows(bytes.len()).any(|window| window == bytes)
    }
}

impl Collector {
    /// Starts one that takes everything.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Collector> {
        Collector::answering(true).await
    }

    /// Starts one that accepts connections and never answers.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn silent() -> Result<Collector> {
        Collector::answering(false).await
    }

    async fn answering(answers: bool) -> Result<Collector> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .attempt("listen as a collector")?;
        let port = listener
            .local_addr()
            .attempt("look at the collector's port")?
            .port();
        let requests = Arc::<Mutex<Vec<ExportRequest>>>::default();
        let kept = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&kept), answers));
            }
        });
        Ok(Collector { port, requests, task })
    }

    /// What `otel.endpoint` is set to.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What has come so far.
    pub fn requests(&self) -> Vec<ExportRequest> {
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut socket: TcpStream, requests: Arc<Mutex<Vec<ExportRequest>>>, answers: bool) {
    let mut input = Vec::new();
    // A connection that breaks has nothing more to say.
    while let Ok(Some(request)) = read_request(&mut socket, &mut input).await {
        if !answers {
            std::future::pending::<()>().await;
        }
        requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        if socket.write_all(answer).await.is_err() {
            return;
        }
    }
}

async fn read_request(socket: &mut TcpStream, input: &mut Vec<u8>) -> std::io::Result<Option<ExportRequest>> {
    loop {
        let end = input.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(input.get(..end).unwrap_or_default()).into_owned();
            let length = head
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .and_then(|(_, value)| value.trim().parse::<usize>().ok())
                .unwrap_or_default();
            let whole = end + 4 + length;
            if let Some(body) = input.get(end + 4..whole) {
                let request = ExportRequest {
                    head,
                    body: body.to_vec(),
                };
                input.drain(..whole);
                return Ok(Some(request));
            }
        } else if input.len() > MAX_HEAD {
            return Ok(None);
        }
        if socket.read_buf(input).await? == 0 {
            return Ok(None);
        }
    }
}
