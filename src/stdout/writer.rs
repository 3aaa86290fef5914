//! The thread that writes: a reader that takes its time holds up nothing else.
//!
//! To make the descriptor non-blocking instead would do the same to everybody who shares it, such as the shell and its
//! terminal.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc as thread_mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{OwnedMutexGuard, mpsc};

/// The most that is handed to the system at once: what a pipe holds.
const PIECE: usize = 64 * 1024;

/// Writes batches of whole lines, one at a time.
#[derive(Debug)]
pub(super) struct Writer {
    batches: thread_mpsc::SyncSender<Vec<u8>>,
    written: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// Bytes that the system has taken.
    progress: Arc<AtomicU64>,
    /// To look at, without writing.
    file: File,
}

impl Writer {
    /// Starts the thread. It keeps `turn` until it ends: when the writer is dropped and its last write is over.
    pub(super) fn start(file: File, turn: OwnedMutexGuard<Vec<u8>>) -> io::Result<Self> {
        let (batches, to_write) = thread_mpsc::sync_channel::<Vec<u8>>(1);
        let (report, written) = mpsc::channel(1);
        let progress = Arc::new(AtomicU64::new(0));
        let mut output = Output {
            file: file.try_clone()?,
            torn: turn,
            progress: Arc::clone(&progress),
        };
        thread::Builder::new().name("stdout".to_owned()).spawn(move || {
            for batch in to_write {
                let result = output.write(&batch).map(|()| batch);
                let is_over = result.is_err();
                if report.blocking_send(result).is_err() || is_over {
                    return;
                }
            }
        })?;
        Ok(Self {
            batches,
            written,
            progress,
            file,
        })
    }

    /// Hands whole lines over. The last batch must have been [written](Self::poll_written).
    pub(super) fn write(&self, batch: Vec<u8>) -> io::Result<()> {
        self.batches.try_send(batch).map_err(|_| ended())
    }

    /// The batch that was handed over, once it is written and flushed.
    pub(super) fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        self.written
            .poll_recv(cx)
            .map(|batch| batch.unwrap_or_else(|| Err(ended())))
    }

    /// Bytes that the system has taken so far.
    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Whether it is known that nobody will read any more, without a write that shows it.
    pub(super) fn is_closed(&self) -> bool {
        // Hang-ups and errors are told of whether asked for or not (poll(2)).
        let found = look(self.file.as_fd(), PollFlags::empty(), Duration::ZERO);
        found.is_ok_and(|found| found.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL))
    }
}

/// What the thread has.
struct Output {
    file: File,
    /// What is left of a line that a failed write has torn.
    torn: OwnedMutexGuard<Vec<u8>>,
    progress: Arc<AtomicU64>,
}

impl Output {
    fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        let (torn, result) = self.write_out(&self.torn);
        self.torn.drain(..torn);
        result?;
        let (count, result) = self.write_out(batch);
        if result.is_err() {
            *self.torn = rest_of_line(batch, count).to_vec();
        }
        result
    }

    /// Writes all of it, or says how much was written before the error.
    fn write_out(&self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut file = &self.file;
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match file.write(rest.get(..PIECE).unwrap_or(rest)) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    written += count;
                    let count = u64::try_from(count).unwrap_or(u64::MAX);
                    self.progress.fetch_add(count, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Somebody else who has the descriptor made it non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = look(self.file.as_fd(), PollFlags::OUT, Duration::from_secs(1)) {
                        return (written, Err(error));
                    }
                }
                Err(error) => return (written, Err(error)),
            }
        }
        (written, file.flush())
    }
}

/// What is left of the line in which a write of `bytes` ended; nothing where it ended between two.
fn rest_of_line(bytes: &[u8], written: usize) -> &[u8] {
    let (done, rest) = bytes.split_at_checked(written).unwrap_or_default();
    match done.last() {
        None | Some(b'\n') => &[],
        Some(_) => rest
            .split_inclusive(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default(),
    }
}

/// Waits at most so long for one of these conditions, or for an end.
fn look(fd: BorrowedFd<'_>, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    };
    let mut looked = [PollFd::from_borrowed_fd(fd, wanted)];
    match poll(&mut looked, Some(&limit)) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(PollFlags::empty()),
        Err(errno) => return Err(errno.into()),
    }
    let [looked] = looked;
    Ok(looked.revents())
}

/// The thread ends by itself only after an error, which has been told then.
fn ended() -> io::Error {
    io::Error::other("the thread that writes has ended")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use tokio::sync::Mutex;

    use super::*;

    #[test]
    fn only_a_line_that_was_begun_is_torn() {
        let lines = b"one\ntwo\n";
        for (written, rest) in [(0, ""), (1, "ne\n"), (3, "\n"), (4, ""), (6, "o\n"), (8, "")] {
            assert_eq!(rest_of_line(lines, written), rest.as_bytes(), "{written}");
        }
    }

    #[tokio::test]
    async fn the_next_writer_ends_the_line_that_a_failed_write_has_torn() {
        let turn = Arc::new(Mutex::new(b"o\n".to_vec()));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let file = File::from(OwnedFd::from(ours));
        let guard = Arc::clone(&turn).lock_owned().await;
        let mut writer = Writer::start(file, guard).unwrap();
        for line in ["three\n", "four\n"] {
            writer.write(line.as_bytes().to_vec()).unwrap();
            let written = std::future::poll_fn(|cx| writer.poll_written(cx)).await;
            assert_eq!(written.unwrap(), line.as_bytes());
        }
        assert_eq!(writer.progress(), 13);
        drop(writer);
        // The thread has ended once it gives the turn back.
        assert!(turn.lock().await.is_empty());
        let mut read = String::new();
        theirs.read_to_string(&mut read).unwrap();
        assert_eq!(read, "o\nthree\nfour\n");
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_shows_without_a_write_and_in_one() {
        let (reader, writer) = io::pipe().unwrap();
        let turn = Arc::new(Mutex::new(Vec::new())).lock_owned().await;
        let mut writer = Writer::start(File::from(OwnedFd::from(writer)), turn).unwrap();
        assert!(!writer.is_closed());
        drop(reader);
        assert!(writer.is_closed());
        writer.write(b"line\n".to_vec()).unwrap();
        let error = std::future::poll_fn(|cx| writer.poll_written(cx)).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn what_is_left_of_a_torn_line_is_kept_for_the_next_writer() {
        let turn = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, writer) = io::pipe().unwrap();
        let guard = Arc::clone(&turn).lock_owned().await;
        let mut writer = Writer::start(File::from(OwnedFd::from(writer)), guard).unwrap();
        let line = [&b"x".repeat(3 * PIECE)[..], b"\n"].concat();
        let batch = [&b"first\n"[..], &line, b"last\n"].concat();
        writer.write(batch.clone()).unwrap();
        // Part of the line is read, and more of it is in the pipe.
        let mut read = vec![0; PIECE];
        reader.read_exact(&mut read).unwrap();
        drop(reader);
        let failed = std::future::poll_fn(|cx| writer.poll_written(cx)).await;
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let progress = usize::try_from(writer.progress()).unwrap();
        let torn = turn.lock().await;
        assert_eq!(*torn, batch[progress..batch.len() - 5]);
    }

    /// Another process that shares the descriptor may have made it so.
    #[tokio::test]
    async fn a_descriptor_that_does_not_block_is_waited_for() {
        let turn = Arc::new(Mutex::new(Vec::new())).lock_owned().await;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut writer = Writer::start(File::from(OwnedFd::from(ours)), turn).unwrap();
        let batch = b"0123456789abcde\n".repeat(PIECE);
        writer.write(batch.clone()).unwrap();
        let reading = thread::spawn(move || {
            let mut read = vec![0; 16 * PIECE];
            theirs.read_exact(&mut read).map(|()| read)
        });
        let written = std::future::poll_fn(|cx| writer.poll_written(cx)).await;
        assert_eq!(written.unwrap(), batch);
        assert_eq!(reading.join().unwrap().unwrap(), batch);
    }
}
