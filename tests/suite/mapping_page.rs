//! docs/mapping.md: what it says of templates and of `walrelay route` is what the command prints.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};

const PAGE: &str = include_str!("../../docs/mapping.md");

/// What every configuration needs, though nobody connects here.
const URLS: [(&str, &str); 2] = [
    ("WALRELAY_POSTGRES_URL", "postgres://u@localhost/shop"),
    ("WALRELAY_RABBITMQ_URI", "amqp://u@localhost"),
];

/// Runs `walrelay route` with this configuration and this row on stdin.
fn routed(toml: &str, row: &str, arguments: &[&str]) -> Result<Output> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("walrelay.toml");
    std::fs::write(&file, toml)?;
    let mut child = Command::new(env!("CARGO_BIN_EXE_walrelay"))
        .args(["route", "--json", "-", "--config"])
        .arg(&file)
        .args(arguments)
        .env_clear()
        .envs(URLS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    stdin.write_all(row.as_bytes())?;
    drop(stdin);
    Ok(child.wait_with_output()?)
}

/// The text between the first code fence behind `mark` and its end.
fn fenced(mark: &str) -> Result<&'static str> {
    let (_, rest) = PAGE.split_once(mark).context("the mark is there")?;
    let (_, rest) = rest.split_once("```").context("a fence")?;
    let (_, rest) = rest.split_once('\n').context("a line")?;
    let (text, _) = rest.split_once("```").context("its end")?;
    Ok(text)
}

/// The cells of the table behind `mark`, without its heading.
fn cells(mark: &str) -> Result<Vec<(String, String)>> {
    let (_, rest) = PAGE.split_once(mark).context("the mark is there")?;
    let lines = rest.lines().skip_while(|line| !line.starts_with('|'));
    let lines = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = lines.map(|line| {
        // A bar inside a cell is written with a backslash.
        let line = line.replace("\\|", "\u{1}");
        let mut cells = line.trim_matches('|').split('|').map(|cell| {
            let cell = cell.trim().replace('`', "");
            cell.replace('\u{1}', "|")
        });
        Some((cells.next()?, cells.next()?))
    });
    cells.collect::<Option<_>>().context("two cells in each line")
}

#[test]
fn the_templates_of_the_page_become_what_it_says() -> Result<()> {
    let configuration = fenced("<!-- configuration: rendered by a test -->")?;
    let payload = fenced("<!-- payload: rendered by a test -->")?.trim();
    let row = format!(
        r#"{{"id": "7", "aggregate_type": "ShopOrder", "aggregate_id": "42", "event_type": "OrderCreated",
            "payload": {payload}}}"#
    );
    let examples = cells("<!-- examples: rendered by a test -->")?;
    assert!(examples.len() > 10, "{examples:?}");
    for (template, becomes) in examples {
        let toml = configuration.replace(
            "routing_key = \"{aggregate_type}.{event_type}\"",
            &format!("routing_key = '{template}'"),
        );
        let output = routed(&toml, &row, &["--output", "json"])?;
        let said = String::from_utf8(output.stderr)?;
        if let Some(reason) = becomes.strip_prefix("invalid: ") {
            assert_eq!(said, format!("walrelay: the row is invalid: {reason}\n"));
            assert_eq!(output.status.code(), Some(1), "{template}");
            continue;
        }
        ensure!(output.status.success(), "{template}: {said}");
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(shown["routing_key"], becomes, "{template}");
        assert_eq!(shown["exchange"], "events");
        assert_eq!(shown["body_bytes"], payload.len(), "byte for byte");
    }
    Ok(())
}

#[test]
fn the_session_of_the_page_is_what_the_command_prints() -> Result<()> {
    let session = fenced("### Trying it out")?;
    let (command, printed) = session
        .split_once("walrelay route --json -\n")
        .context("a command")?;
    let (_, row) = command.split_once("echo '").context("a row")?;
    let (row, _) = row.split_once('\'').context("its end")?;
    let output = routed(fenced("### Rules")?, row, &[])?;
    assert_eq!(String::from_utf8(output.stdout)?, printed);
    Ok(())
}

#[test]
fn the_mistake_of_the_page_is_shown_as_it_says() -> Result<()> {
    let (_, said) = fenced("A mistake in a template")?
        .split_once("walrelay.toml:14: ")
        .context("a problem")?;
    let toml = "[[outbox]]\ntable = 'a.b'\nrouting_key = '{aggregate_type}.{event_type|snak}'\n";
    let output = routed(toml, "{}", &[])?;
    let problem = String::from_utf8(output.stderr)?;
    let (place, problem) = problem.split_once(": ").context("a place")?;
    assert!(place.ends_with("walrelay.toml:3"), "{place}");
    assert_eq!((problem, output.status.code()), (said, Some(78)));
    Ok(())
}

#[test]
fn a_row_is_read_as_its_json_tells() -> Result<()> {
    let row = |payload: &str| {
        format!(
            r#"{{"id": 7, "aggregate_type": "a", "aggregate_id": "1", "event_type": "x", "payload": {payload},
                "flag": true, "size": 1.50, "gone": null}}"#
        )
    };
    let key = "rabbitmq.routing_key = '{flag}.{size}.{gone|default:none}'\n";
    for (payload, content_type, bytes) in [
        (r#"{"a":   [1]}"#, "application/json", 12),
        (r#""text \u00e9""#, "text/plain", 7),
        (r#""\\x00ff""#, "application/octet-stream", 2),
    ] {
        let output = routed(key, &row(payload), &["--output", "json"])?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(shown["properties"]["content_type"], content_type);
        assert_eq!(shown["body_bytes"], bytes);
        assert_eq!(shown["routing_key"], "t.1.50.none");
        assert_eq!(shown["properties"]["message_id"], "7");
        assert_eq!(shown["headers"]["commit_lsn"], serde_json::Value::Null);
    }
    Ok(())
}

#[test]
fn what_is_no_row_is_told_in_one_line() -> Result<()> {
    let two = "[[outbox]]\ntable = 'a.b'\n[[outbox]]\ntable = 'c.d'\n";
    for (toml, row, arguments, code, error) in [
        (
            "",
            "[]",
            [].as_slice(),
            1,
            "-: it is no JSON object of columns and values: invalid type: sequence, expected a map at line 1 column 0",
        ),
        (
            "",
            r#"{"id": "7"}"#,
            &[],
            1,
            "table public.outbox_events has no column \"aggregate_type\"; the row has to have it, if only as null",
        ),
        (
            two,
            "{}",
            &[],
            2,
            "--table is needed: the configuration has a.b, c.d",
        ),
        (
            two,
            "{}",
            &["--table", "e.f"],
            1,
            "e.f is not among the outbox tables of the configuration",
        ),
        (
            "delivery.max_message_bytes = 1",
            r#"{"id": "7", "aggregate_type": "a", "aggregate_id": "1", "event_type": "x", "payload": "xx"}"#,
            &[],
            1,
            "the row is invalid: the body has 2 bytes; the limit is 1 (delivery.max_message_bytes)",
        ),
        (
            "",
            r#"{"id": "7", "aggregate_type": "a", "aggregate_id": "1", "event_type": "", "payload": "xx"}"#,
            &[],
            1,
            "the row is invalid: column \"event_type\" is empty",
        ),
    ] {
        let output = routed(toml, row, arguments)?;
        assert_eq!(
            (String::from_utf8(output.stderr)?, output.status.code()),
            (format!("walrelay: {error}\n"), Some(code))
        );
        assert!(output.stdout.is_empty());
    }
    Ok(())
}

/// Their keys are the columns of a row, and they go where `[rabbitmq]` says.
#[test]
fn events_without_a_table_are_routed_as_a_row_of_their_keys() -> Result<()> {
    let toml = "[source.messages]\nprefix = 'outbox'\n[rabbitmq]\nrouting_key = '{event_type|lower}'\n";
    let row =
        r#"{"id": "7", "aggregate_type": "order", "aggregate_id": 42, "event_type": "Paid", "payload": {}}"#;
    let output = routed(toml, row, &["--output", "json"])?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(shown["exchange"], "outbox");
    assert_eq!(shown["routing_key"], "paid");
    assert_eq!(shown["headers"]["aggregate_id"], "42");
    Ok(())
}
