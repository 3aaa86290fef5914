//! A slot that takes the place of another one, as when the number of shards is changed (rule 25): what is in the tables is
//! the other's to send.

use crate::postgres::backfill::Due;
use crate::postgres::catalog::{ServerFacts, TableFacts, column};
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::marks::Claims;
use crate::postgres::outbox::Outbox;
use crate::postgres::preflight::{Source, Unfit};
use crate::postgres::report::SetupReport;
use crate::postgres::shard::{Reader, is_same_cut, overlap, readers};
use crate::postgres::table_use::Use;

/// A slot that is set up, and what it may find before it.
pub(super) struct Heir<'a> {
    pub(super) session: &'a ControlSession,
    pub(super) source: &'a Source,
    server: &'a ServerFacts,
    claims: &'a Claims,
}

impl<'a> Heir<'a> {
    pub(super) const fn new(
        session: &'a ControlSession,
        source: &'a Source,
        server: &'a ServerFacts,
        claims: &'a Claims,
    ) -> Self {
        Self {
            session,
            source,
            server,
            claims,
        }
    }

    /// Which of the rows that are in a table are due, where nobody has said.
    ///
    /// None, where a slot of another cut marks them: it delivers them before this one may run. Where such a slot only reads
    /// the table, nothing tells whether this one takes its place; the wrong guess would lose the rows, or send all of them
    /// again.
    ///
    /// # Errors
    /// [`Unfit::ShardSuccession`], or a query fails.
    pub(super) async fn due(
        &self,
        outbox: &Outbox,
        asked: Option<Due>,
        report: &mut SetupReport,
    ) -> Result<Option<Due>, Error> {
        let table = &outbox.table;
        if asked.is_some() {
            return Ok(asked);
        }
        if let Some((_, owner)) = self.claims.left.iter().find(|(left, _)| left == table) {
            report.warnings.push(format!(
                "slot {owner} still sends the rows that are in table {table}, so none of them was noted: start this relay \
                 when that one has been drained and stopped (docs/scaling.md)"
            ));
            return Ok(Some(Due::None));
        }
        match self.predecessor(outbox).await? {
            Some((reader, true)) => Err(Unfit::ShardSuccession {
                table: table.clone(),
                slot: self.source.slot.clone(),
                reader: reader.slots.join(", "),
                part: reader.shard,
            }
            .into()),
            Some(_) | None => Ok(None),
        }
    }

    /// A slot of another cut that brings rows of ours, and whether the table's rows can be marked.
    async fn predecessor(&self, outbox: &Outbox) -> Result<Option<(Reader, bool)>, Error> {
        let version = self.server.version;
        let Some(facts) = TableFacts::read(self.session, outbox, None, version).await? else {
            return Ok(None);
        };
        let readers = readers(self.session, facts.oid, version, outbox.aggregate_id()).await?;
        let shard = self.source.shard;
        let has_marks = outbox.marks(|name| facts.has_column(name)).is_some();
        let found = readers.into_iter().find(|reader| {
            !reader.slots.is_empty()
                && reader.publication != self.source.publication.as_str()
                && overlap(reader.shard, shard)
                && !is_same_cut(reader.shard, shard)
        });
        Ok(found.map(|reader| (reader, has_marks)))
    }
}

/// A slot that exists must not be set up for a shard when it is another publication's: what that one has not published
/// it would never bring, and its marks would change hands.
///
/// # Errors
/// [`Unfit::ShardSlotTaken`], or the query fails.
pub(super) async fn check_slot_is_free(session: &ControlSession, source: &Source) -> Result<(), Error> {
    const LOOK: Use = Use::own("look which publication the slot is of", "select", &["state"]);
    let Some(shard) = source.shard else { return Ok(()) };
    let sql = "select publication from walrelay.state where slot = $1 and publication <> $2";
    let (slot, publication) = (source.slot.as_str(), source.publication.as_str());
    let row = LOOK
        .run(
            session.role(),
            session.client().query_opt(sql, &[&slot, &publication]),
        )
        .await?;
    let Some(row) = row else { return Ok(()) };
    Err(Unfit::ShardSlotTaken {
        slot: source.slot.clone(),
        publication: column(&row, 0, LOOK.purpose)?,
        shard,
    }
    .into())
}
