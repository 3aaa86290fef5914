//! The gallery in `config/examples`.

use std::fs;
use std::path::PathBuf;

use super::*;

#[test]
fn every_example_is_understood_and_says_what_it_is_for() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/examples");
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("the gallery") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a text");
        assert!(
            text.starts_with("# "),
            "{} begins with its purpose",
            path.display()
        );
        if let Err(error) = resolve(Some((&path, &text)), &Sources::default()) {
            panic!("{error}");
        }
        count += 1;
    }
    assert!(count >= 5, "{count} files in {}", folder.display());
}
