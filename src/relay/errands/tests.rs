use std::future::poll_fn;

use super::*;
use crate::postgres::{Connector, Error, Step};

/// An errand that fails at once, having run against the server of a stream.
fn failing() -> Errands {
    let mut errands = Errands::new();
    let connector = Connector::new("postgres://u@h".parse().unwrap());
    let kept = KeptSession::new(connector, "slot".parse().unwrap());
    let running = tokio::spawn(async {
        let error = Error::Closed {
            step: Step::Query("look"),
        };
        (kept, Err(error))
    });
    errands.running = Some((ErrandKind::Guard, running));
    errands
}

#[tokio::test]
async fn what_fails_is_tried_again_after_a_pause() {
    let mut errands = failing();
    let start = Instant::now();
    let ended = poll_fn(|cx| errands.poll(cx)).await;
    assert!(ended.result.is_err() && !ended.is_outdated);
    assert!(!errands.is_free(start) && errands.is_free(Instant::now() + RETRY));
}

/// It tells nothing of the server that streams now, and keeps nothing back there.
#[tokio::test]
async fn an_errand_of_a_lost_stream_ends_as_outdated() {
    let mut errands = failing();
    errands.stream_lost();
    let ended = poll_fn(|cx| errands.poll(cx)).await;
    assert!(ended.result.is_err() && ended.is_outdated);
    assert!(errands.is_free(Instant::now()) && errands.session.is_none());
}
