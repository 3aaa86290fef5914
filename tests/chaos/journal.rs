//! The stream that takes every message, read as it grows, and the marks in it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Connection};
use tokio::task::AbortHandle;
use tokio_postgres::Client;
use uuid::Uuid;
use walrelay_testbed::{Database, Stored, StreamReader, Vhost};

use crate::history::{Delivery, Entry, Mark, digest};

/// The property `type` of a mark.
const MARK: &str = "mark";

/// The pause between marks.
const BETWEEN_MARKS: Duration = Duration::from_millis(100);

/// How long a query, a connection or a confirm may take before another way is tried.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was read so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Read>>);

#[derive(Debug, Default)]
struct Read {
    entries: Vec<Entry>,
    ids: HashSet<Uuid>,
    /// When the newest mark was known.
    known: Duration,
    /// What nobody here can have sent.
    strange: Vec<String>,
}

impl Journal {
    /// Begins to read; the reader must be kept.
    pub(crate) fn start(vhost: &Vhost, stream: &str, start: Instant) -> (Journal, StreamReader) {
        let journal = Journal::default();
        let written = journal.clone();
        let reader = StreamReader::start(vhost, stream, move |stored| {
            let entry = entry(&stored, start.elapsed());
            written.with(|read| match entry {
                Ok(entry) => {
                    match &entry {
                        Entry::Delivery(delivery) => drop(read.ids.insert(delivery.id)),
                        Entry::Mark(mark) => read.known = read.known.max(mark.known),
                    }
                    read.entries.push(entry);
                }
                Err(error) => read.strange.push(format!("message {}: {error:#}", stored.offset)),
            });
        });
        (journal, reader)
    }

    /// How many different events have come.
    pub(crate) fn distinct(&self) -> u64 {
        self.with(|read| read.ids.len() as u64)
    }

    /// Whether a mark that was known then, or a later one, has been read.
    pub(crate) fn has_mark(&self, known: Duration) -> bool {
        self.with(|read| read.known >= known)
    }

    /// What has not come of these.
    pub(crate) fn missing<'a>(&self, ids: impl Iterator<Item = &'a Uuid>) -> HashSet<Uuid> {
        self.with(|read| ids.filter(|id| !read.ids.contains(id)).copied().collect())
    }

    /// All of it, and what it should not hold.
    pub(crate) fn take(&self) -> (Vec<Entry>, Vec<String>) {
        self.with(|read| {
            (
                std::mem::take(&mut read.entries),
                std::mem::take(&mut read.strange),
            )
        })
    }

    fn with<T>(&self, look: impl FnOnce(&mut Read) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) fn entry(stored: &Stored, read: Duration) -> Result<Entry> {
    let properties = &stored.properties;
    if properties
        .kind()
        .as_ref()
        .is_some_and(|kind| kind.as_str() == MARK)
    {
        let text = std::str::from_utf8(&stored.body)?;
        let (flushed, known) = text.split_once(' ').context("not a mark")?;
        let known = Duration::from_micros(known.parse()?);
        return Ok(Entry::Mark(Mark {
            flushed: flushed.parse()?,
            known,
        }));
    }
    let id = properties.message_id().as_ref().context("no message id")?;
    let headers = properties.headers().as_ref().context("no headers")?.inner();
    let lsn = headers.get("commit_lsn").and_then(|lsn| lsn.as_long_string());
    let lsn = std::str::from_utf8(lsn.context("no commit LSN")?.as_bytes())?;
    let (high, low) = lsn.split_once('/').context("not an LSN")?;
    let seq = headers.get("tx_seq").and_then(|seq| seq.as_long_long_int());
    Ok(Entry::Delivery(Delivery {
        id: id.as_str().parse()?,
        digest: digest(&stored.body),
        commit_lsn: u64::from_str_radix(high, 16)? << 32 | u64::from_str_radix(low, 16)?,
        tx_seq: seq.context("no sequence number")?.try_into()?,
        read,
    }))
}

/// Sends marks until it is dropped.
#[derive(Debug)]
pub(crate) struct Marker(AbortHandle);

impl Marker {
    pub(crate) fn start(
        database: &Database,
        vhost: &Vhost,
        slot: &str,
        stream: &str,
        start: Instant,
    ) -> Marker {
        let (database, vhost) = (database.clone(), vhost.clone());
        let (slot, stream) = (slot.to_owned(), stream.to_owned());
        let marking = async move {
            let mut way = Way::default();
            loop {
                // While a server is down there are no marks: the checks are weaker there.
                if way.mark(&database, &vhost, &slot, &stream, start).await.is_err() {
                    way = Way::default();
                }
                tokio::time::sleep(BETWEEN_MARKS).await;
            }
        };
        Marker(tokio::spawn(marking).abort_handle())
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The connections by which marks are made, as long as they hold.
#[derive(Default)]
struct Way {
    client: Option<Client>,
    link: Option<(Connection, Channel)>,
}

impl Way {
    async fn mark(
        &mut self,
        database: &Database,
        vhost: &Vhost,
        slot: &str,
        stream: &str,
        start: Instant,
    ) -> Result<()> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(database.client().await?),
        };
        let flushed = tokio::time::timeout(PATIENCE, flushed(client, slot)).await??;
        let known = start.elapsed();
        let (_, channel) = match &mut self.link {
            Some(link) => link,
            none => none.insert(open(vhost).await?),
        };
        let (properties, body) = message(flushed, known);
        let publishing = async {
            let confirm = channel
                .basic_publish(
                    "".into(),
                    stream.into(),
                    BasicPublishOptions::default(),
                    body.as_bytes(),
                    properties,
                )
                .await?;
            anyhow::Ok(confirm.await?)
        };
        let confirmation = tokio::time::timeout(PATIENCE, publishing).await??;
        ensure!(confirmation.is_ack(), "the mark was not stored");
        Ok(())
    }
}

/// A mark as it is sent.
fn message(flushed: u64, known: Duration) -> (BasicProperties, String) {
    let properties = BasicProperties::default()
        .with_type(MARK.into())
        .with_delivery_mode(2);
    (properties, format!("{flushed} {}", known.as_micros()))
}

/// Sends a mark that says nothing; whether the stream has it.
pub(crate) async fn touch(vhost: &Vhost, stream: &str, known: Duration) -> bool {
    let (properties, body) = message(0, known);
    let storing = vhost.store(stream, properties, body.as_bytes());
    // Until it works: a broker that has just started refuses in several ways.
    matches!(tokio::time::timeout(PATIENCE, storing).await, Ok(Ok(true)))
}

async fn open(vhost: &Vhost) -> Result<(Connection, Channel)> {
    let connection = vhost.connect().await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

/// The slot's acknowledged position.
pub(crate) async fn flushed(client: &Client, slot: &str) -> Result<u64> {
    let sql = "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = $1";
    let Some(row) = client.query_opt(sql, &[&slot]).await? else {
        bail!("there is no slot {slot}");
    };
    Ok(row.try_get::<_, i64>(0)?.try_into()?)
}
