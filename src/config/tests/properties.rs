//! Whatever is written, nothing panics and no password is shown.

use std::path::Path;

use proptest::prelude::*;

use super::*;

/// Pieces of which a file may consist, in any order.
fn pieces() -> impl Strategy<Value = String> {
    let names: Vec<_> = KEYS
        .iter()
        .flat_map(|key| [key.path, key.name(), key.section()])
        .collect();
    let marks = vec![
        "=",
        "\n",
        "[",
        "]",
        "[[",
        "]]",
        ".",
        ",",
        "{",
        "}",
        "'",
        "\"",
        "\"\"\"",
        "'''",
        "#",
        "\\",
        " ",
        "\r\n",
        "é",
        "true",
        "1",
        "-9",
        "0x_",
        "1e5",
        "1979-05-27",
        "\"10s\"",
        "\"32MiB\"",
        "'x'",
        "\u{feff}",
        "inf",
    ];
    let piece = prop_oneof![
        prop::sample::select(names).prop_map(str::to_owned),
        prop::sample::select(marks).prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_of_a_file_panics(text in pieces()) {
        if let Err(error) = resolve(Some((Path::new("f"), &text)), &Sources::default()) {
            prop_assert!(error.to_string().lines().count() <= 21);
            prop_assert!(error.problems().iter().all(|problem| !problem.to_string().contains('\n')));
        }
    }

    #[test]
    fn no_value_of_a_key_panics(index in 0..KEYS.len(), value in "\\PC{0,20}|[0-9.]{1,30}( ?[a-zA-Zµ]{0,4})") {
        let path = KEYS[index].path;
        let of_flag = resolve(None, &set(&[&format!("{path}={value}")]));
        let of_file = resolve(Some((Path::new("f"), &format!("{path} = {value}"))), &Sources::default());
        prop_assert!(of_flag.is_err() && of_file.is_err(), "neither has both URLs");
    }

    #[test]
    fn a_mask_hides_any_password(password in "[a-z0-9/@:?#%&= '\\\\]{0,8}hunter2[a-z0-9/@:?#%&= '\\\\]{0,8}") {
        for text in [
            format!("postgres://u:{password}@db/shop?sslmode=prefer"),
            format!("postgres://u@db/shop?password={password}"),
            format!("host=db password='{password}' user=u"),
        ] {
            let masked = mask::masked(&text);
            prop_assert!(!masked.contains("hunter2"), "{text} -> {masked}");
        }
    }
}
