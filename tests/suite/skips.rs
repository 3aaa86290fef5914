//! Skips in the database, and their command, without a relay (rule 9).

use anyhow::Result;
use walrelay::postgres::EventPosition;
use walrelay::postgres::skips::{self, Selector};

use crate::dead_letters::key;
use crate::source::SetUp;

#[tokio::test]
async fn r9_a_skip_takes_exactly_the_event_it_names_and_only_once() -> Result<()> {
    let set_up = SetUp::new().await?;
    let slot = &set_up.source.slot;
    let output = set_up
        .run(&["skip", "event-7", "--reason", "a typing error"])
        .await?;
    assert_eq!(
        (output.code(), output.stdout),
        (
            Some(0),
            format!("recorded: event event-7 of slot {slot} is skipped when it is held\n")
        ),
        "{}",
        output.stderr
    );
    let output = set_up.run(&["skip", "event-7", "--reason", "a test"]).await?;
    assert!(output.stdout.starts_with("recorded anew"), "{}", output.stdout);

    let mut session = set_up.session().await?;
    let (first, second) = (key(0x1600, 0), key(0x1700, 0));
    assert_eq!(skips::take(&session, slot, &first, Some("event-8")).await?, None);
    assert_eq!(skips::take(&session, slot, &first, None).await?, None);
    let other = "another".parse()?;
    assert_eq!(
        skips::take(&session, &other, &first, Some("event-7")).await?,
        None
    );
    let skip = skips::take(&session, slot, &first, Some("event-7"))
        .await?
        .expect("asked for");
    assert_eq!(
        (skip.reason.as_str(), skip.requested_by.as_str()),
        ("a test", "postgres")
    );
    skips::settled(&mut session, &skip, &first).await?;

    // The same event comes again if the slot had not passed it; another one of the same id is another event.
    assert_eq!(
        skips::take(&session, slot, &first, Some("event-7")).await?,
        Some(skip)
    );
    assert_eq!(skips::take(&session, slot, &second, Some("event-7")).await?, None);
    let mut restored = first;
    restored.transaction.xid += 1;
    assert_eq!(
        skips::take(&session, slot, &restored, Some("event-7")).await?,
        None
    );

    // A row without a usable id goes by its key.
    let selector = Selector::Position(EventPosition::from(&second));
    assert!(skips::request(&session, slot, &selector, "no id").await?);
    let skip = skips::take(&session, slot, &second, None)
        .await?
        .expect("asked for");
    skips::settled(&mut session, &skip, &second).await?;
    assert!(skips::request(&session, slot, &selector, "again").await?);
    Ok(())
}
