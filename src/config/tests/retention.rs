//! What is deleted after a while.

use super::*;

#[test]
fn each_outbox_has_a_retention_of_its_own() {
    let text = format!(
        "{URLS}[[outbox]]\ntable = 'a.b'\n[outbox.retention]\nkeep_sent = '7d'\n[[outbox]]\ntable = 'c.d'\n"
    );
    let kept = |loaded: &Loaded| -> Vec<_> {
        let outbox = loaded.config.outbox.iter();
        outbox
            .map(|outbox| outbox.keep_sent.map(|keep| keep.as_secs()))
            .collect()
    };
    let loaded_file = loaded(&text, &Sources::default());
    assert_eq!(kept(&loaded_file), [Some(7 * 86_400), None]);
    let shown = loaded_file.settings.to_toml();
    let place = |text: &str| shown.find(text).expect(text);
    let order = [
        place("table = \"a.b\""),
        place("[outbox.retention]\nkeep_sent = \"7days\"  # walrelay.toml:6"),
        place("table = \"c.d\""),
        place("[outbox.retention]\n# keep_sent is not set"),
    ];
    assert!(order.is_sorted(), "{shown}");
    let one = loaded(
        URLS,
        &environment(&[("WALRELAY_OUTBOX_RETENTION_KEEP_SENT", "30d")]),
    );
    assert_eq!(kept(&one), [Some(30 * 86_400)]);
    assert_eq!(
        error_of("[[outbox]]\ntable = 'a.b'\n[outbox.retention]\nkeep_sent = '0s'\n"),
        "walrelay.toml:6: outbox.retention.keep_sent must be from 1s to 10years, not \"0s\""
    );
}

/// Whatever needs marked rows contradicts the two settings with which there are none: `settings`, of a table with this
/// `after_publish`, are refused in line 7 with `complaint`, and what there is instead of marks.
fn contradicts_rows_without_marks(settings: &str, complaint: &str) {
    let with = |after_publish: &str| {
        format!("{URLS}[[outbox]]\ntable = 'a.b'\nafter_publish = '{after_publish}'\n{settings}\n")
    };
    loaded(&with("mark"), &Sources::default());
    for (after_publish, instead) in [
        ("keep", "marks none"),
        ("delete", "deletes each as soon as it is published"),
    ] {
        assert_eq!(
            refused_with(&with(after_publish), &Sources::default()),
            format!(
                "walrelay.toml:7: {complaint}, but the table's after_publish = \"{after_publish}\" {instead}"
            )
        );
    }
}

#[test]
fn a_retention_contradicts_rows_that_are_never_marked() {
    contradicts_rows_without_marks(
        "[outbox.retention]\nkeep_sent = '7d'",
        "outbox.retention.keep_sent deletes rows that are marked as sent",
    );
}

#[test]
fn marks_of_ones_own_contradict_rows_that_are_never_marked() {
    contradicts_rows_without_marks(
        "unsent = 'done is null'\nmark_set = 'done = true'",
        "outbox.unsent and outbox.mark_set mark published rows",
    );
}
