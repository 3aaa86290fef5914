//! Which file is read.

use super::*;
use crate::config::file;

#[test]
fn the_file_is_the_named_one_or_the_first_that_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("b.toml"), "b").expect("written");
    std::fs::write(path("c.toml"), "c").expect("written");
    let search = [path("a.toml"), path("b.toml"), path("c.toml")];
    let found = |sources: &Sources<'_>| find_file(sources, &search).map(|found| found.map(|(_, text)| text));

    assert_eq!(
        found(&Sources::default()).expect("readable").as_deref(),
        Some("b")
    );
    let by_variable = environment(&[(CONFIG_VARIABLE, &path("c.toml").to_string_lossy())]);
    assert_eq!(found(&by_variable).expect("readable").as_deref(), Some("c"));
    let by_flag = Sources {
        file: Some(path("b.toml")),
        ..by_variable
    };
    assert_eq!(found(&by_flag).expect("readable").as_deref(), Some("b"));
    assert_eq!(
        find_file(&Sources::default(), &search[..1]).expect("none is no error"),
        None
    );

    let missing = Sources {
        file: Some(path("a.toml")),
        ..Sources::default()
    };
    let error = found(&missing).expect_err("a named file must exist").to_string();
    assert_eq!(
        error,
        format!(
            "--config: cannot read {}: No such file or directory (os error 2)",
            path("a.toml").display()
        )
    );
}

#[test]
fn what_is_no_configuration_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("walrelay.toml");
    std::fs::write(&path, vec![b'#'; 2 * 1024 * 1024]).expect("written");
    assert!(matches!(file::read(&path), Err(ProblemKind::TooLarge { .. })));
    std::fs::write(&path, [b'#', 0xff]).expect("written");
    assert!(matches!(file::read(&path), Err(ProblemKind::Unreadable { .. })));
    assert!(matches!(
        file::read(folder.path()),
        Err(ProblemKind::Unreadable { .. })
    ));
}
