//! The Python of docs/producers.md and docs/consumers.md, run against a real server beside the shop's own programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use walrelay_testbed::Folder;

use super::service::Service;
use crate::world::text;

const PRODUCERS: &str = include_str!("../../../docs/producers.md");
const CONSUMERS: &str = include_str!("../../../docs/consumers.md");

const PSYCOPG: &str = "psycopg[binary]==3.2.13";

/// Takes an order, again, and with another body; then handles its event three times.
const DRIVER: &str = r#"
import sys
import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    first, is_new = place_order(connection, 7, [1, 2, 2], "a")
    assert is_new
    assert place_order(connection, 7, [1, 2, 2], "a") == (first, False)
    try:
        place_order(connection, 7, [1], "a")
        raise SystemExit("another body passed")
    except ValueError:
        pass
    [(message_id, body)] = connection.execute("select id::text, payload::text from outbox_events").fetchall()
    assert handle(connection, message_id, body)
    assert not handle(connection, message_id, body)
    try:
        handle(connection, "b4f1f1c4-6f0e-4c79-9d3f-000000000001", '{"status": "created", "sku_ids": ["x"]}')
        raise SystemExit("poison passed")
    except psycopg.Error:
        pass
    print(first)
"#;

#[tokio::test]
#[ignore = "fetches psycopg by pip where python3 does not have it: for scripts/test --full"]
async fn the_python_snippets_do_what_the_shop_does() -> Result<()> {
    let service = Service::start().await?;
    service
        .client
        .batch_execute(&format!(
            "{}; create table stock (sku_id bigint primary key, on_hand bigint not null);
             insert into stock values (1, 10), (2, 10)",
            walrelay_outbox::Inbox::SCHEMA
        ))
        .await?;
    let folder = Folder::new("snippets-")?;
    let script = [python(PRODUCERS)?, python(CONSUMERS)?, DRIVER].join("\n");
    let script = folder.write("snippets.py", &script, 0o600)?;
    let interpreter = interpreter()?;
    let url = service.database.url();
    let running =
        tokio::task::spawn_blocking(move || Command::new(interpreter).arg(script).arg(url).output());
    let output = running.await??;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let order_id = String::from_utf8(output.stdout)?.trim().to_owned();

    // The service knows the order by the very fingerprint that the snippet stored.
    let order = json!({ "user_id": 7, "sku_ids": [1, 2, 2], "idempotency_key": "a" });
    let answer = service.place(&order).await?;
    assert_eq!(
        (answer.status, answer.field("order_id").to_string()),
        (200, order_id)
    );
    let left = "select string_agg(on_hand::text, ' ' order by sku_id) from stock";
    assert_eq!(text(&service.client, left).await?, "9 8");
    let noted = "select count(*)::text from processed_events";
    assert_eq!(text(&service.client, noted).await?, "1");
    Ok(())
}

/// The page's Python.
fn python(page: &'static str) -> Result<&'static str> {
    let (_, rest) = page.split_once("```python\n").context("Python in the page")?;
    let (code, _) = rest.split_once("```").context("its end")?;
    Ok(code)
}

/// A Python with psycopg: the installed one, or one in an environment of its own under `target`.
fn interpreter() -> Result<PathBuf> {
    let has_psycopg = |python: &Path| {
        let asked = Command::new(python).args(["-c", "import psycopg"]).output();
        asked.is_ok_and(|output| output.status.success())
    };
    let installed = PathBuf::from("python3");
    if has_psycopg(&installed) {
        return Ok(installed);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let own = folder.join("bin/python3");
    if !has_psycopg(&own) {
        let run = |program: &Path, arguments: &[&str]| -> Result<()> {
            let output = Command::new(program).args(arguments).output()?;
            ensure!(output.status.success(), "{program:?} {arguments:?}: {output:?}");
            Ok(())
        };
        run(&installed, &["-m", "venv", folder.to_str().context("a path")?])?;
        run(&own, &["-m", "pip", "install", "--quiet", PSYCOPG])?;
    }
    Ok(own)
}
