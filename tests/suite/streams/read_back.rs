//! R26: the end of the stream is read back, or given up in time.

use std::future::poll_fn;
use std::time::Duration;

use anyhow::{Context as _, Result};
use walrelay::rabbitmq::{
    BrokerUri, Connector, LinkEvent, Mechanism, StreamLink, StreamProducer, StreamTarget,
};
use walrelay_engine::Lsn;
use walrelay_engine::amqp::{Message, MessageParts, Origin};
use walrelay_engine::dedup::{Anew, Dedup, Resume, Verdict};
use walrelay_engine::flow::{LogIdentity, ProducerLog};
use walrelay_engine::key::{EventKey, TransactionKey};
use walrelay_engine::timestamp::PgTimestamp;

use super::deduplication::{STREAM, Stage};
use crate::world::LONG;

fn connector(stage: &Stage, read_back_timeout: Duration) -> Result<Connector> {
    Ok(Connector {
        uri: BrokerUri::parse(&stage.vhost.uri())?,
        password_file: None,
        tls: None,
        mechanisms: vec![Mechanism::Plain],
        name: "walrelay test".to_owned(),
        heartbeat: LONG,
        exchanges: Vec::new(),
        has_open_exchanges: false,
        timeout: LONG,
        stream: Some(StreamTarget {
            name: STREAM.to_owned(),
            port: stage.stream_port,
            producer: StreamProducer {
                slot: "slot".to_owned(),
                fingerprint: 1,
            },
            read_back_timeout,
        }),
    })
}

/// A link of one that could not read back in time. Where this process stands still meanwhile, all answers are there when it
/// looks for them, and reading takes no time at all.
async fn too_late(hasty: &Connector, log: &ProducerLog) -> Result<(StreamLink, Resume)> {
    let target = hasty.stream.as_ref().context("a stream")?;
    loop {
        let (link, resume) = hasty.connect_stream(target, log).await?;
        if resume.found.is_none() {
            return Ok((link, resume));
        }
        link.close(LONG).await?;
    }
}

/// The log of which nothing was published yet.
fn new_log() -> ProducerLog {
    ProducerLog {
        identity: LogIdentity {
            system_id: 1,
            timeline: 1,
        },
        producer: None,
        is_spent: false,
    }
}

fn event(number: u64) -> EventKey {
    EventKey {
        transaction: TransactionKey {
            commit_lsn: Lsn::new(1000 + number),
            xid: 1,
            commit_time: PgTimestamp::new(1),
        },
        tx_seq: 0,
    }
}

fn message() -> Result<Message> {
    let parts = MessageParts {
        mandatory: false,
        message_id: "id",
        ..MessageParts::empty(Origin::Replay { seq: 0 })
    };
    Message::encode(&mut Vec::new(), &parts, b"{}").context("a message")
}

/// A relay may have been away while others published, each of their messages in a chunk of its own. Reading takes its time
/// then; without an end to it there would be no link ever again.
#[tokio::test]
async fn r26_what_cannot_be_read_back_in_time_makes_the_next_generation_begin() -> Result<()> {
    const IN_ONE: usize = 1000;
    const ALONE: usize = 300;
    let stage = Stage::new().await?;
    let patient = connector(&stage, LONG)?;
    let hasty = connector(&stage, Duration::ZERO)?;
    let mut log = new_log();
    let target = patient.stream.as_ref().context("a stream")?;
    let message = message()?;
    let (mut link, resume) = patient.connect_stream(target, &log).await?;
    let first = resume.producer.clone();
    assert!(first.ends_with("/0") && resume.found.is_none(), "{resume:?}");
    let mut dedup = Dedup::default();
    dedup.link_up(resume);
    let verdict = dedup.judge(0, &event(0));
    assert_eq!(verdict, Verdict::Counted(1));
    dedup.write(verdict, Some(&event(0)), &message, link.output());
    let mut id = 0;
    for count in std::iter::once(IN_ONE).chain([1; ALONE]) {
        for _ in 0..count {
            dedup.write(Verdict::Uncounted, None, &message, link.output());
            dedup.sent(Verdict::Uncounted, 0);
            id += 1;
        }
        let mut is_stored = false;
        while !is_stored {
            while let Some(stored) = link.next_event()? {
                is_stored |= matches!(stored, LinkEvent::Stored { publisher: 1, id: stored } if stored == id);
            }
            if !is_stored {
                let io = poll_fn(|cx| link.poll_io(cx, tokio::time::Instant::now()));
                tokio::time::timeout(LONG, io).await??;
            }
        }
    }
    link.close(LONG).await?;

    let (link, resume) = patient.connect_stream(target, &log).await?;
    assert_eq!(resume.producer, first);
    assert!(resume.found.is_some_and(|found| found.has(&event(0))));
    link.close(LONG).await?;

    let (link, resume) = too_late(&hasty, &log).await?;
    assert!(resume.producer.ends_with("/1"), "{resume:?}");
    link.close(LONG).await?;

    // Nothing was stored under it yet, but there is no way back for who may have published under it.
    log.producer = Some(resume.producer.clone());
    let target = patient.stream.as_ref().context("a stream")?;
    let (link, again) = patient.connect_stream(target, &log).await?;
    assert_eq!(again, resume);
    link.close(LONG).await?;
    log.is_spent = true;
    let (link, resume) = patient.connect_stream(target, &log).await?;
    assert!(resume.producer.ends_with("/2"), "{resume:?}");
    link.close(LONG).await?;
    Ok(())
}

/// Its first event goes out alone, and the next one only when everyone can see that.
#[tokio::test]
async fn r26_the_next_generation_is_on_record_before_more_than_one_event_is_published_under_it() -> Result<()>
{
    let stage = Stage::new().await?;
    let patient = connector(&stage, LONG)?;
    let hasty = connector(&stage, Duration::ZERO)?;
    let log = new_log();
    let target = patient.stream.as_ref().context("a stream")?;
    let mut first = Dedup::default();
    let (mut link, resume) = patient.connect_stream(target, &log).await?;
    first.link_up(resume);
    assert_eq!(publish(&mut first, &mut link, 0).await?, Verdict::Counted(1));
    assert!(!first.waits());
    link.close(LONG).await?;

    let mut second = Dedup::default();
    let (mut link, resume) = too_late(&hasty, &log).await?;
    second.link_up(resume);
    assert_eq!(publish(&mut second, &mut link, 0).await?, Verdict::Counted(1));
    assert!(second.waits());
    assert_eq!(second.anew(), Some(Anew::Session));
    link.close(LONG).await?;

    second.session_lost();
    second.session_started();
    let (mut link, resume) = patient.connect_stream(target, &log).await?;
    assert_eq!(Some(resume.producer.as_str()), second.producer());
    second.link_up(resume);
    assert_eq!(second.judge(0, &event(0)), Verdict::Stored);
    assert_eq!(publish(&mut second, &mut link, 1).await?, Verdict::Counted(2));
    link.close(LONG).await?;
    Ok(())
}

/// Publishes an event as what it is judged to be, and waits until it is stored.
async fn publish(dedup: &mut Dedup, link: &mut StreamLink, number: u64) -> Result<Verdict> {
    let key = event(number);
    let verdict = dedup.judge(number, &key);
    dedup.write(verdict, Some(&key), &message()?, link.output());
    dedup.sent(verdict, 1);
    loop {
        if let Some(LinkEvent::Stored { publisher, id }) = link.next_event()? {
            dedup.confirmed(publisher, id)?;
            return Ok(verdict);
        }
        let io = poll_fn(|cx| link.poll_io(cx, tokio::time::Instant::now()));
        tokio::time::timeout(LONG, io).await??;
    }
}
