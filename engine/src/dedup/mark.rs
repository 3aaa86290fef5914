//! What a message in a stream tells about its publishing.

use super::Floor;
use crate::Lsn;
use crate::timestamp::PgTimestamp;

/// Commit LSN and `tx_seq`.
pub type Position = (Lsn, u64);

/// The layout below.
const VERSION: u8 = 1;

/// What is in a mark but the producer's name.
const FIXED: usize = 1 + 6 * 8 + 8;

/// The longest name of a producer, in bytes: an annotation of 255 bytes has the mark.
const MAX_PRODUCER: usize = 255 - FIXED;

/// What a message in a stream tells about its publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its publishing id; 0 where it was published without a name.
    pub id: u64,
    /// What was settled when it was sent.
    pub floor: Floor,
    /// Its event's position.
    pub position: Position,
    /// When its event was committed.
    pub commit_time: PgTimestamp,
}

impl Mark {
    /// Appends it, as a message of this producer.
    pub fn write(&self, producer: &str, out: &mut Vec<u8>) {
        let floor = self.floor.position.unwrap_or((Lsn::INVALID, 0));
        out.push(VERSION);
        for number in [
            self.id,
            self.floor.id,
            floor.0.get(),
            floor.1,
            self.position.0.get(),
            self.position.1,
        ] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.commit_time.micros().to_be_bytes());
        let producer = producer.as_bytes();
        out.extend_from_slice(producer.get(..MAX_PRODUCER).unwrap_or(producer));
    }

    /// Reads it; none where it is another producer's, or of another layout.
    #[must_use]
    pub fn read(bytes: &[u8], producer: &str) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (numbers, name) = rest.split_at_checked(FIXED - 1)?;
        if *version != VERSION || name != producer.as_bytes() {
            return None;
        }
        let mut numbers = numbers.as_chunks::<8>().0.iter();
        let mut next = || numbers.next().copied().unwrap_or_default();
        let mut number = || u64::from_be_bytes(next());
        let (id, floor_id) = (number(), number());
        let floor = (Lsn::new(number()), number());
        let position = (Lsn::new(number()), number());
        Some(Self {
            id,
            floor: Floor {
                id: floor_id,
                position: (floor.0 != Lsn::INVALID).then_some(floor),
            },
            position,
            commit_time: PgTimestamp::new(i64::from_be_bytes(next())),
        })
    }
}
