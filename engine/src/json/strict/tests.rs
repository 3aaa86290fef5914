use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;

/// The object's keys and values, as they are written.
fn read(text: &str) -> Result<Vec<(&str, &str)>, JsonFault> {
    let mut cursor = Cursor::new(text);
    let mut found = Vec::new();
    cursor.object(Depth::MESSAGE, |key, value| found.push((key, &text[value])))?;
    cursor.end()?;
    Ok(found)
}

#[test]
fn values_are_found_as_they_are_written() {
    let text = " {\"a\" : [ 1,{\"b\":[]} ] ,\"\\u0062\":-0.50e+03\n,\"\":\"x\\\"}\", \"c\":{ } } ";
    let found = [
        ("a", "[ 1,{\"b\":[]} ]"),
        ("\\u0062", "-0.50e+03"),
        ("", "\"x\\\"}\""),
        ("c", "{ }"),
    ];
    assert_eq!(read(text), Ok(found.to_vec()));
    assert_eq!(read("{}"), Ok(Vec::new()));
}

#[test]
fn a_fault_is_named_with_its_place() {
    for (text, expected, at) in [
        ("", "an object", 0),
        (" [1]", "an object", 1),
        ("{\"a\" 1}", "`:`", 5),
        ("{\"a\":1,}", "a key in quotes", 7),
        ("{a:1}", "a key in quotes", 1),
        ("{\"a\":}", "a value", 5),
        ("{\"a\":tru}", "a value", 5),
        ("{\"a\":[1 2]}", "`,` or `]`", 8),
        ("{\"a\":{\"b\":1]}", "`,` or `}`", 11),
        ("{\"a\":01}", "`,` or `}`", 6),
        ("{\"a\":1.}", "a digit", 7),
        ("{\"a\":\"x\\q\"}", "an escape of JSON", 7),
        ("{\"a\":\"x\ny\"}", "an escape in place of a control character", 7),
        ("{\"a\":\"ü", "the end of a string", 8),
        ("{\"a\":1} x", "the end", 8),
    ] {
        assert_eq!(read(text), Err(JsonFault { expected, at }), "{text}");
    }
}

#[test]
fn brackets_may_stand_within_one_another_up_to_a_bound() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    let Depth { most, expected } = Depth::MESSAGE;
    assert!(read(&nested(most)).is_ok());
    let at = 5 + most;
    assert_eq!(read(&nested(most + 1)), Err(JsonFault { expected, at }));
    for Depth { most, expected } in [Depth::MESSAGE, Depth::DOCUMENT] {
        assert!(expected.contains(&format!(" {most} ")), "{expected}");
    }
}

#[test]
fn what_is_json_is_told_from_what_is_not() {
    for text in [
        "{}",
        " [ ] ",
        "null",
        "-0",
        "0.5e+7",
        "1E400",
        r#""\u00e4\ud83d\ude00\/\"""#,
        r#""\ud800""#,
        "{\"a\": [true, false, null, {\"b\": \"ü\"}]}\n",
    ] {
        assert_eq!(check(text), Ok(()), "{text}");
    }
    for (text, at) in [
        ("", 0),
        ("{", 1),
        ("{} x", 3),
        ("01", 1),
        ("1.", 2),
        (".5", 0),
        ("+1", 0),
        ("1e", 2),
        ("nul", 0),
        ("nullx", 4),
        ("[1,]", 3),
        ("{\"a\":1,}", 7),
        ("{a:1}", 1),
        ("\"a\nb\"", 2),
        (r#""\x""#, 1),
        (r#""\u00g0""#, 1),
        ("\"", 1),
        ("'a'", 0),
        ("NaN", 0),
    ] {
        assert_eq!(check(text).map_err(|fault| fault.at), Err(at), "{text}");
    }
}

#[test]
fn a_document_s_nesting_is_bounded() {
    let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(check(&nested(256)), Ok(()));
    assert_eq!(check(&nested(257)).map_err(|fault| fault.at), Err(256));
    assert!(check(&"[".repeat(1_000_000)).is_err());
}

#[test]
fn half_a_pair_of_surrogates_is_no_character() {
    for raw in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#""\ud800x""#] {
        let string = Cursor::new(raw).string().unwrap();
        assert!(string.append_to(&mut Vec::new()).is_err(), "{raw}");
    }
}

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn an_object_is_taken_where_a_parser_takes_it(
        text in prop_oneof![
            "[{}\\[\\]\",:\\\\u0-9a-f.eE+\\-truefalsn \u{e9}\n]{0,24}",
            "\\{\"a\":[{}\\[\\]\",:0-9.e\\- \\\\]{0,12}\\}",
            "\\{\"a\": ?(-?[0-9]{1,3}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?|\"(\\\\[\"\\\\/bfnrtux]|[0-9a-f\u{1}]){0,6}\")\\}",
        ],
    ) {
        let is_object = text.trim_start_matches([' ', '\n']).starts_with('{');
        let is_taken = is_object && serde_json::from_str::<IgnoredAny>(&text).is_ok();
        prop_assert_eq!(read(&text).is_ok(), is_taken, "{}", text);
    }

    #[test]
    fn it_takes_what_another_parser_takes(text in "[{}\\[\\]\",:\\\\u0-9a-fnulltrue.+\\-eE \n\u{e9}]{0,24}") {
        let theirs = serde_json::from_str::<serde_json::Value>(&text).map_err(|error| error.to_string());
        // That one wants more than the grammar does.
        let is_pickier = theirs.as_ref().is_err_and(|why| {
            ["number out of range", "surrogate", "code point"].iter().any(|more| why.contains(more))
        });
        prop_assert!(is_pickier || check(&text).is_ok() == theirs.is_ok(), "{}: {:?}", text, theirs);
    }

    #[test]
    fn a_string_stands_for_what_another_parser_reads(text in "\\PC*|[\\x00-\\x1f\u{1f600}\"\\\\]{0,9}") {
        let written = serde_json::to_string(&text).unwrap();
        let mut out = Vec::new();
        Cursor::new(&written).string().unwrap().append_to(&mut out).unwrap();
        prop_assert_eq!(out, text.as_bytes());
    }
}
