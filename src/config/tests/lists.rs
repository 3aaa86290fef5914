//! Keys that take one text or several.

use secrecy::ExposeSecret as _;

use super::*;

const DATABASE: &str = "postgres.url = 'postgres://u@db/shop'\n";

fn uris(loaded: &Loaded) -> Vec<&str> {
    let uris = loaded.config.rabbitmq.uris.iter();
    uris.map(|uri| uri.expose_secret()).collect()
}

#[test]
fn one_text_of_a_file_is_taken_whole_and_a_list_in_its_order() {
    let one = loaded(
        &format!("{DATABASE}rabbitmq.uri = 'amqp://u:a,b@mq'"),
        &Sources::default(),
    );
    assert_eq!(uris(&one), ["amqp://u:a,b@mq"]);
    let text = format!("{DATABASE}rabbitmq.uri = ['amqp://b',\n 'amqp://a']");
    assert_eq!(
        uris(&loaded(&text, &Sources::default())),
        ["amqp://b", "amqp://a"]
    );
}

#[test]
fn a_variable_and_a_flag_hold_a_list_between_commas() {
    let sources = environment(&[("WALRELAY_RABBITMQ_URI", "amqp://b, amqp://a")]);
    assert_eq!(uris(&loaded(URLS, &sources)), ["amqp://b", "amqp://a"]);
    let flag = set(&["rabbitmq.uri=amqp://c,amqp://d"]);
    assert_eq!(uris(&loaded(URLS, &flag)), ["amqp://c", "amqp://d"]);
}

#[test]
fn tables_to_ignore_are_none_unless_they_are_listed() {
    let ignored = |text: &str, sources: &Sources<'_>| {
        loaded(&format!("{URLS}{text}"), sources)
            .config
            .postgres
            .ignore_tables
    };
    assert_eq!(ignored("", &Sources::default()), Vec::<String>::new());
    let file = r#"postgres.ignore_tables = ["audit.log", '"Odd, one"."x.y"']"#;
    assert_eq!(
        ignored(file, &Sources::default()),
        ["audit.log", r#""Odd, one"."x.y""#]
    );
    let flag = set(&[r#"postgres.ignore_tables=audit.log, "Odd, one"."x.y""#]);
    assert_eq!(ignored("", &flag), ["audit.log", r#""Odd, one"."x.y""#]);
    assert_eq!(
        ignored(file, &set(&["postgres.ignore_tables="])),
        Vec::<String>::new()
    );
}

#[test]
fn what_is_wrong_with_an_item_names_its_place_and_no_secret() {
    fn amqp(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        match text.starts_with("amqp://") {
            true => Ok(()),
            false => Err("it is not for a broker".into()),
        }
    }
    let refused = |text: &str| {
        let sources = Sources {
            validators: &[("rabbitmq.uri", amqp)],
            ..Sources::default()
        };
        refused_with(&format!("{DATABASE}{text}"), &sources)
    };
    assert_eq!(
        refused("rabbitmq.uri = ['amqp://a', 'http://u:hunter2@b', 'amqp://c', 'hunter2']"),
        "walrelay.toml:2: rabbitmq.uri (item 2) is not valid: it is not for a broker\n\
         walrelay.toml:2: rabbitmq.uri (item 4) is not valid: it is not for a broker"
    );
    assert_eq!(
        refused("rabbitmq.uri = 'hunter2'"),
        "walrelay.toml:2: rabbitmq.uri is not valid: it is not for a broker"
    );
    for (text, error) in [
        (
            "rabbitmq.uri = ['amqp://u:hunter2@a', 5]",
            "rabbitmq.uri must be a text in quotes or a list of such; item 2 is no text",
        ),
        (
            "rabbitmq.uri = 5",
            "rabbitmq.uri must be a text in quotes or a list of such",
        ),
        ("rabbitmq.uri = []", "rabbitmq.uri must be not empty"),
        (
            "rabbitmq.uri = ['amqp://u:hunter2@a', '']",
            "rabbitmq.uri must be not empty",
        ),
    ] {
        assert_eq!(refused(text), format!("walrelay.toml:2: {error}"));
    }
    assert_eq!(
        error_of("postgres.ignore_tables = [1]"),
        "walrelay.toml:3: postgres.ignore_tables must be a text in quotes or a list of such, not an array; item 1 is \
         no text"
    );
}

#[test]
fn a_table_is_not_both_an_outbox_and_ignored() {
    assert_eq!(
        error_of("postgres.ignore_tables = ['a.b']\n[[outbox]]\ntable = 'a.b'\n"),
        "walrelay.toml:3: postgres.ignore_tables names \"a.b\", which is an outbox.table"
    );
}

#[test]
fn a_list_is_shown_as_one_with_each_password_masked() {
    let sources = set(&["rabbitmq.uri=amqp://u:hunter2@a,amqp://u:hunter2@b/v,hunter2"]);
    let shown = loaded(&format!("{DATABASE}postgres.ignore_tables = 'a.b'"), &sources)
        .settings
        .to_toml();
    for line in [
        "uri = [\"amqp://u:********@a\", \"amqp://u:********@b/v\", \"********\"]  # --set",
        "ignore_tables = \"a.b\"  # walrelay.toml:2",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} is not in\n{shown}"
        );
    }
}
