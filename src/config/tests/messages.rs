//! Events without a table, and what that makes of the tables.

use super::*;

fn tables(text: &str, sources: &Sources<'_>) -> (Option<String>, Vec<String>) {
    let config = loaded(&format!("{URLS}\n{text}"), sources).config;
    let tables = config.outbox.into_iter().map(|outbox| outbox.table);
    (config.messages_prefix, tables.collect())
}

#[test]
fn a_prefix_makes_outbox_tables_optional() {
    let none = Sources::default();
    let default = || "public.outbox_events".to_owned();
    assert_eq!(tables("", &none), (None, vec![default()]));
    let prefix = || Some("shop".to_owned());
    let text = "[source.messages]\nprefix = \"shop\"\n";
    assert_eq!(tables(text, &none), (prefix(), vec![]));
    let both = format!("{text}[[outbox]]\ntable = \"a.b\"");
    assert_eq!(tables(&both, &none), (prefix(), vec!["a.b".to_owned()]));
    let by_variable = environment(&[("WALRELAY_SOURCE_MESSAGES_PREFIX", "shop")]);
    assert_eq!(tables("", &by_variable), (prefix(), vec![]));
}

#[test]
fn a_table_without_its_prefix_is_an_error() {
    assert_eq!(
        error_of("[source.messages]\n"),
        "walrelay.toml:3: [source.messages] has no prefix; write prefix = \"outbox\" below it"
    );
}
