//! Templates and rules against rows.

mod rules;
mod templates;

use super::*;
use crate::pgoutput::sample::{Cell, Sample};
use crate::pgoutput::{Insert, Message, Tuple};

fn with_row<T>(new: Vec<Cell>, check: impl FnOnce(&Tuple<'_>) -> T) -> T {
    let frame = Sample::Insert { oid: 1, new }.encode();
    let Ok(Message::Insert(Insert { new, .. })) = Message::decode(&frame) else {
        panic!("not an insert")
    };
    check(&new)
}

fn text(value: &str) -> Cell {
    Cell::Text(value.as_bytes().to_vec())
}
