//! Reading back the end of a stream: which of our messages it has (rule 26).
//!
//! Chunk by chunk, a number of them asked for ahead, since those of a quiet stream have one message each; of each message only the beginning is looked at, and no more than
//! that is kept.

use walrelay_engine::dedup::{Found, Tail};
use walrelay_engine::stream_protocol::chunk::{self, ENTRY_HEAD, EntryHead, HEAD, Head, MESSAGE_HEAD};
use walrelay_engine::stream_protocol::encode::{self, From};

use super::connect::Session;
use crate::rabbitmq::BrokerError;

/// How many messages to begin with, where the newest chunk is not enough, and by what factor to go on.
const FIRST_STEP: u64 = 1024;
const FACTOR: u64 = 8;

/// The newest message of ours is not looked for further back than so many messages. What was not found once is not found
/// later either, since a stream only grows.
const LIMIT: u64 = FIRST_STEP * FACTOR * FACTOR * FACTOR;

/// So many chunks are asked for ahead, so that reading takes no round trip for each.
const CREDIT: u16 = 256;

/// Offsets that were read: the first message, and the one behind the last.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: u64,
    end: u64,
}

/// Reads back what the stream has of a producer whose highest id it knows. None where the newest is not there any more.
///
/// # Errors
/// The connection is of no further use.
pub(super) async fn read(
    session: &mut Session,
    stream: &str,
    producer: String,
    last: u64,
) -> Result<Option<Found>, BrokerError> {
    let mut tail = Tail::new(producer, last);
    let newest = span(session, stream, From::Last, None, &mut tail).await?;
    let mut is_whole = newest.first == 0;
    let mut back = FIRST_STEP;
    while !is_whole && !tail.is_complete() && back <= LIMIT {
        let from = newest.first.saturating_sub(back);
        tail.restart();
        let read = span(session, stream, From::Offset(from), Some(newest.end), &mut tail).await?;
        // What begins later than was asked for is all there is.
        is_whole = from == 0 || read.first > from;
        back *= FACTOR;
    }
    Ok(tail.found(is_whole))
}

/// Reads from a place on, up to `end` or of one chunk.
async fn span(
    session: &mut Session,
    stream: &str,
    from: From,
    end: Option<u64>,
    tail: &mut Tail,
) -> Result<Span, BrokerError> {
    const SUBSCRIPTION: u8 = 0;
    let credit = if end.is_some() { CREDIT } else { 1 };
    session
        .ask(|out, correlation| encode::subscribe(out, correlation, SUBSCRIPTION, stream, from, credit))
        .await?;
    let (mut first, mut used) = (None, 0);
    let read = loop {
        let chunk = chunk(session, tail).await?;
        let span = Span {
            first: *first.get_or_insert(chunk.first),
            end: chunk.end,
        };
        if end.is_none_or(|end| chunk.end >= end) {
            break span;
        }
        used += 1;
        if used == CREDIT / 2 {
            encode::credit(session.wire.output(), SUBSCRIPTION, used);
            used = 0;
        }
    };
    unsubscribe(session, SUBSCRIPTION).await?;
    Ok(read)
}

/// Ends a subscription. What was asked for ahead may come before the answer, and none after it.
async fn unsubscribe(session: &mut Session, subscription: u8) -> Result<(), BrokerError> {
    let asked = session.next_correlation();
    encode::unsubscribe(session.wire.output(), asked, subscription);
    session.wire.flush().await?;
    loop {
        match chunk::is_delivery(session.wire.input()) {
            None => session.fill().await?,
            Some(true) => {
                let length = chunk::frame_len(session.wire.input()).unwrap_or_default();
                skip(session, length).await?;
            }
            Some(false) if session.is_answered(asked).await? => return Ok(()),
            Some(false) => {}
        }
    }
}

/// Reads the next delivery.
async fn chunk(session: &mut Session, tail: &mut Tail) -> Result<Span, BrokerError> {
    session.wire.flush().await?;
    loop {
        match chunk::is_delivery(session.wire.input()) {
            None => session.fill().await?,
            Some(true) => break,
            Some(false) => session.pass_over().await?,
        }
    }
    need(session, HEAD).await?;
    let head =
        Head::read(session.wire.input()).ok_or_else(|| session.unexpected("a chunk that makes no sense"))?;
    session.wire.consume(HEAD);
    let mut rest = head.rest;
    for _ in 0..head.entries {
        need(session, rest.min(ENTRY_HEAD)).await?;
        let entry = EntryHead::read(session.wire.input());
        let entry = entry
            .filter(|entry| entry.head.saturating_add(entry.length) <= rest)
            .ok_or_else(|| session.unexpected("an entry that makes no sense"))?;
        session.wire.consume(entry.head);
        if entry.is_message {
            let length = entry.length.min(MESSAGE_HEAD);
            need(session, length).await?;
            tail.message(session.wire.input().get(..length).unwrap_or_default());
        }
        skip(session, entry.length).await?;
        rest -= entry.head + entry.length;
    }
    skip(session, rest).await?;
    Ok(Span {
        first: head.first,
        end: head.first.saturating_add(head.records.into()),
    })
}

/// Reads until so many bytes are there.
async fn need(session: &mut Session, bytes: usize) -> Result<(), BrokerError> {
    while session.wire.input().len() < bytes {
        session.fill().await?;
    }
    Ok(())
}

/// Passes over so many bytes, without keeping them.
async fn skip(session: &mut Session, mut bytes: usize) -> Result<(), BrokerError> {
    loop {
        let there = bytes.min(session.wire.input().len());
        session.wire.consume(there);
        bytes -= there;
        if bytes == 0 {
            return Ok(());
        }
        session.fill().await?;
    }
}
