//! The look before streaming: is everything there, and does it fit? What does not is a typed error with a fault.

pub(super) mod checks;
mod fix;
mod missing;
mod risk;
mod unfit;

use super::catalog::{PublicationFacts, ServerFacts, TableFacts};
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{PublicationName, QualifiedTable, SlotName};
use super::message_prefix::MessagePrefix;
use super::outbox::Outbox;
use super::shard::Shard;
use super::slot::{self, SlotState};

use checks::check_synchronous;
pub(super) use checks::{
    check_membership, check_publication, check_server, check_sharding, check_slot, check_table,
};
pub use missing::MissingColumns;
pub use risk::Risk;
pub(super) use risk::standby_behind;
pub use unfit::Unfit;

/// What the relay reads from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The slot.
    pub slot: SlotName,
    /// The publication.
    pub publication: PublicationName,
    /// The outbox tables.
    pub outboxes: Vec<Outbox>,
    /// The prefix of the logical messages that are events too, if any are.
    pub messages: Option<MessagePrefix>,
    /// Which shard of their rows is ours; all of them without one.
    pub shard: Option<Shard>,
}

impl Source {
    /// The names of the outbox tables.
    pub fn tables(&self) -> impl Iterator<Item = &QualifiedTable> {
        self.outboxes.iter().map(|outbox| &outbox.table)
    }

    /// Whether a table is an outbox.
    #[must_use]
    pub fn has_table(&self, table: &QualifiedTable) -> bool {
        self.tables().any(|outbox| outbox == table)
    }

    /// The table with this place among them; the one that stands for messages comes behind all others.
    #[must_use]
    pub fn outbox(&self, place: usize) -> Option<QualifiedTable> {
        let messages = self.messages.as_ref().filter(|_| place == self.outboxes.len());
        let outbox = self.outboxes.get(place).map(|outbox| outbox.table.clone());
        outbox.or_else(|| messages.map(MessagePrefix::table))
    }
}

/// What was found, all of it fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preflight {
    /// The server.
    pub server: ServerFacts,
    /// The slot. It may be active: whether another relay holds it is seen when the stream starts.
    pub slot: SlotState,
    /// The publication.
    pub publication: PublicationFacts,
    /// The outbox tables, in the order of [`Source::outboxes`].
    pub tables: Vec<TableFacts>,
    /// Tables of the publication that are no outbox of ours: a row of theirs halts the relay.
    pub others: Vec<QualifiedTable>,
}

/// Checks everything that streaming needs and returns what it found.
///
/// # Errors
/// The first thing that is unfit, as [`Error::Unfit`], from the server outwards; or a query fails.
pub async fn preflight(session: &ControlSession, source: &Source) -> Result<Preflight, Error> {
    let server = ServerFacts::read(session).await?;
    check_server(&server)?;
    check_sharding(&server, source.shard)?;
    check_synchronous(&server.synchronous_standby_names, session.stream_name())?;

    let slot = SlotState::read(session, &source.slot).await?;
    let publication = PublicationFacts::read(session, &source.publication).await?;
    let slot = match check_slot(slot, &source.slot, &server.database) {
        Ok(slot) => slot,
        Err(unfit) => return Err(slot::explain_missing(session, unfit).await.into()),
    };
    let publication = check_publication(publication, &source.publication)?;

    let mut tables = Vec::with_capacity(source.outboxes.len());
    for outbox in &source.outboxes {
        let table = &outbox.table;
        let facts = TableFacts::read(session, outbox, Some(&publication), server.version).await?;
        let facts = check_table(facts, outbox)?;
        check_membership(&facts, table, &publication, &source.publication, source.shard)?;
        tables.push(facts);
    }
    let others = publication
        .tables
        .iter()
        .filter(|table| !source.has_table(table))
        .cloned()
        .collect();
    Ok(Preflight {
        server,
        slot,
        publication,
        tables,
        others,
    })
}

#[cfg(test)]
mod tests;
