//! Waiting for a task of the relay's own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::task::JoinHandle;

/// The result of a task, once it is there.
///
/// # Panics
/// If the task panicked: half a relay must not live on.
pub(super) fn poll_task<T>(task: &mut JoinHandle<T>, cx: &mut Context<'_>) -> Poll<T> {
    match ready!(Pin::new(task).poll(cx)) {
        Ok(result) => Poll::Ready(result),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: by its owner, who does not ask any more, or by the runtime's end.
            Err(_) => Poll::Pending,
        },
    }
}
