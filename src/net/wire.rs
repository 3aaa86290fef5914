//! A socket with its two buffers: what has been read but not yet understood, and what is still to be written.
//!
//! All state lives in [`Wire`], none in a future: whatever is awaited here may be dropped at any point and loses
//! no byte. Framing is the caller's business.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes asked of the socket at once. Large reads under back-pressure save system calls on a backlog.
const READ_CHUNK: usize = 64 * 1024;

/// A buffer that grew beyond this for one large frame is given back once it is empty.
const RETAINED_CAPACITY: usize = 512 * 1024;

/// A socket with an input and an output buffer.
pub struct Wire<S> {
    stream: S,
    input: BytesMut,
    output: Vec<u8>,
    /// How much of `output` the socket has taken.
    written: usize,
    /// Bytes went into a TLS session that may still keep them.
    unflushed: bool,
}

/// What one turn of [`Wire::poll_io`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// This many bytes were added to the input.
    Read(usize),
    /// The output is written out: there is room for more.
    Drained,
    /// The peer has closed its side; nothing more will be read.
    Eof,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Wraps a connected socket.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            output: Vec::new(),
            written: 0,
            unflushed: false,
        }
    }

    /// The socket, for its options.
    pub const fn stream(&self) -> &S {
        &self.stream
    }

    /// The bytes read and not yet consumed.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Drops the first `count` bytes of the input.
    ///
    /// # Panics
    /// If `count` exceeds the input's length.
    pub fn consume(&mut self, count: usize) {
        self.input.advance(count);
    }

    /// The output buffer; append whole frames to it.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Bytes of output that the socket has not yet taken.
    pub fn pending_output(&self) -> usize {
        self.output.len() - self.written
    }

    /// Writes what is pending and, if `read`, reads what has come. Pending while neither makes progress.
    ///
    /// Both are tried each time: neither a flood of input nor a slow peer starves the other direction. A read
    /// counts before a failed write, so that the peer's last words are heard.
    ///
    /// # Errors
    /// What the socket reports.
    pub fn poll_io(&mut self, cx: &mut Context<'_>, read: bool) -> Poll<io::Result<Progress>> {
        let flushed = match self.pending_output() > 0 || self.unflushed {
            true => self.poll_flush(cx),
            false => Poll::Pending,
        };
        if read && let Poll::Ready(count) = self.poll_fill(cx) {
            return Poll::Ready(count.map(|count| {
                if count == 0 {
                    Progress::Eof
                } else {
                    Progress::Read(count)
                }
            }));
        }
        flushed.map_ok(|()| Progress::Drained)
    }

    /// Reads more input; zero means that the peer has closed its side. Pending output is written meanwhile.
    ///
    /// Cancel safe: bytes read stay in the input, bytes not written stay in the output.
    ///
    /// # Errors
    /// What the socket reports.
    pub async fn fill(&mut self) -> io::Result<usize> {
        loop {
            match poll_fn(|cx| self.poll_io(cx, true)).await? {
                Progress::Read(count) => return Ok(count),
                Progress::Eof => return Ok(0),
                Progress::Drained => {}
            }
        }
    }

    /// Writes out everything pending. Cancel safe: what is not written stays in the output.
    ///
    /// # Errors
    /// What the socket reports.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Shuts the writing side down (with TLS: sends close_notify). Cancel safe.
    ///
    /// # Errors
    /// What the socket reports.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.is_empty() && self.input.capacity() > RETAINED_CAPACITY {
            self.input = BytesMut::new();
        }
        self.input.reserve(READ_CHUNK);
        pin!(self.stream.read_buf(&mut self.input)).poll(cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.output.len() {
            let Some(rest) = self.output.get(self.written..) else {
                break;
            };
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.unflushed = true;
        }
        self.output.clear();
        self.output.shrink_to(RETAINED_CAPACITY);
        self.written = 0;
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// The buffers hold passwords and payloads: only how full they are is shown.
impl<S> fmt::Debug for Wire<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("input", &self.input.len())
            .field("output", &self.output.len())
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    fn pattern(len: usize) -> Vec<u8> {
        (0..=250u8).cycle().take(len).collect()
    }

    #[tokio::test]
    async fn dropped_futures_lose_and_repeat_no_byte() {
        let (ours, theirs) = duplex(37);
        let (mut a, mut b) = (Wire::new(ours), Wire::new(theirs));
        let sent = pattern(20_000);
        a.output().extend_from_slice(&sent);
        let mut received = Vec::new();
        while received.len() < sent.len() {
            // Both are polled and dropped over and over: the winner of each turn is what it is.
            tokio::select! {
                biased;
                done = b.fill() => { done.unwrap(); }
                done = a.flush() => done.unwrap(),
            }
            received.extend_from_slice(b.input());
            let count = b.input().len();
            b.consume(count);
        }
        assert_eq!(received, sent);
        assert_eq!(a.pending_output(), 0);
    }

    #[tokio::test]
    async fn what_is_in_the_buffers_is_not_printed() {
        let (ours, _theirs) = duplex(64);
        let mut wire = Wire::new(ours);
        wire.output().extend_from_slice(b"secret");
        assert_eq!(
            format!("{wire:?}"),
            "Wire { input: 0, output: 6, written: 0, .. }"
        );
    }

    #[tokio::test]
    async fn a_closed_peer_reads_as_the_end() {
        let (ours, theirs) = duplex(64);
        drop(theirs);
        assert_eq!(Wire::new(ours).fill().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_buffer_grown_for_one_large_frame_is_given_back() {
        let (ours, theirs) = duplex(RETAINED_CAPACITY * 4);
        let (mut a, mut b) = (Wire::new(ours), Wire::new(theirs));
        a.output().extend_from_slice(&pattern(RETAINED_CAPACITY * 3));
        a.flush().await.unwrap();
        assert!(a.output.capacity() <= RETAINED_CAPACITY);
        while b.input().len() < RETAINED_CAPACITY * 3 {
            b.fill().await.unwrap();
        }
        b.consume(RETAINED_CAPACITY * 3);
        a.output().push(1);
        a.flush().await.unwrap();
        assert_eq!(b.fill().await.unwrap(), 1);
        assert!(b.input.capacity() <= RETAINED_CAPACITY);
    }
}
