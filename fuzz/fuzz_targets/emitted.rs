//! Any bytes as what a logical message says: no panic, and a payload stands in the message as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay_engine::emitted::{Reader, SCHEMA, table_name};
use walrelay_engine::event::{OutboxTable, Route};
use walrelay_engine::pgoutput::Value;
use walrelay_engine::route::Template;

fuzz_target!(|data: &[u8]| {
    let template = |text| Template::parse(text).expect("a template");
    let table = OutboxTable {
        schema: SCHEMA.to_owned(),
        name: table_name("outbox"),
        route: Route {
            exchange: template("{tenant}"),
            routing_key: template("{event_type}"),
        },
        after_publish: None,
    };
    let mut reader = Reader::new(&table);
    if let Ok(row) = reader.read(data) {
        assert_eq!(row.values().count(), row.len());
        if let Some(Value::Text(payload)) = row.value(4) {
            assert!(data.windows(payload.len()).any(|found| found == payload));
        }
    }
    assert_eq!(reader.unreadable(data).len(), 1);
});
