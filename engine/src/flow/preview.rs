//! What a row would become, told without servers: through the very mapping and encoding that every row goes through.

use super::Scratch;
use super::delivery::unfit;
use super::prepare::{Stamp, encode};
use crate::Lsn;
use crate::PgTimestamp;
use crate::amqp::{Message, Origin};
use crate::decode::DecodeError;
use crate::event::{InvalidRow, Mapping, MappingError, OutboxTable};
use crate::pgoutput::{TextValue, insert_of, read_insert, read_relation, relation_of};
use crate::route::Destination;

/// A column of a row that somebody wrote down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenColumn {
    /// Its name.
    pub name: String,
    /// The oid of its type.
    pub type_oid: u32,
    /// The text of its value as PostgreSQL would send it; none for NULL.
    pub text: Option<String>,
}

/// The settings of a relay that decide what a row becomes, beside those of its table.
#[derive(Debug, Clone, Copy)]
pub struct PreviewConfig<'a> {
    /// The `app_id` of every message.
    pub app_id: &'a str,
    /// The largest body in bytes, where it is known.
    pub max_message_bytes: Option<usize>,
    /// The largest frame of the broker, in bytes.
    pub frame_max: u32,
}

/// What a row would become.
#[derive(Debug)]
pub struct Preview {
    /// Where it would go.
    pub destination: Destination,
    /// The message, with position and timestamp zero: only the stream knows them.
    pub message: Message,
}

/// Why a row would become nothing.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// No row of such columns could become a message.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// This one could not.
    #[error(transparent)]
    Row(#[from] InvalidRow),
    /// The columns are nothing that PostgreSQL could have sent.
    #[error("these are no columns of PostgreSQL")]
    Columns(#[from] DecodeError),
}

/// Makes the message of a row.
///
/// # Errors
/// What would keep the relay from doing so.
pub fn preview(
    table: &OutboxTable,
    columns: &[GivenColumn],
    config: PreviewConfig<'_>,
) -> Result<Preview, PreviewError> {
    let types = columns
        .iter()
        .map(|column| (column.name.as_str(), column.type_oid));
    let relation = relation_of(&table.schema, &table.name, types);
    let values = columns
        .iter()
        .map(|column| column.text.as_deref().map_or(TextValue::Null, TextValue::Text));
    let insert = insert_of(values);
    let (relation, insert) = (read_relation(&relation)?, read_insert(&insert)?);
    let mapping = Mapping::bind(&relation, table)?;
    let stamp = Stamp {
        time: PgTimestamp::new(0),
        origin: Origin::Stream {
            commit_lsn: Lsn::INVALID,
            tx_seq: 0,
            backfill: false,
        },
    };
    let mut scratch = Scratch::default();
    let message = encode(
        &mapping,
        &insert.new,
        stamp,
        config.app_id,
        &mut scratch,
        &mut Vec::new(),
    )?;
    let largest = config.max_message_bytes.unwrap_or(usize::MAX);
    if let Some(reason) = unfit(&message, config.frame_max, largest) {
        return Err(reason.into());
    }
    Ok(Preview {
        destination: scratch.destination,
        message,
    })
}
