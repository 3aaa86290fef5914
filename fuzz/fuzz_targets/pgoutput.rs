//! Any bytes as a pgoutput message: no panic, and what decodes can be iterated to its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay_engine::pgoutput::{Message, OldTuple, Tuple};

fuzz_target!(|data: &[u8]| {
    let Ok(message) = Message::decode(data) else {
        return;
    };
    match message {
        Message::Relation(relation) => {
            assert_eq!(relation.columns().count(), usize::from(relation.column_count()));
        }
        Message::Insert(insert) => walk(insert.new),
        Message::Update(update) => {
            if let Some(OldTuple::Key(old) | OldTuple::Row(old)) = update.old {
                walk(old);
            }
            walk(update.new);
        }
        Message::Delete(delete) => {
            let (OldTuple::Key(old) | OldTuple::Row(old)) = delete.old;
            walk(old);
        }
        Message::Truncate(truncate) => assert_eq!(truncate.oids().count(), truncate.oids().len()),
        Message::Begin(_)
        | Message::Commit(_)
        | Message::Origin(_)
        | Message::Type(_)
        | Message::Logical(_) => {}
    }
});

fn walk(tuple: Tuple<'_>) {
    assert_eq!(tuple.values().count(), tuple.len());
    assert_eq!(tuple.value(tuple.len()), None);
}
