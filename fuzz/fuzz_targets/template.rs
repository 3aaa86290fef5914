//! Any text as a template: no panic, a fault lies within the text, and a constant template has no columns.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay_engine::route::{Bound, Template};

fuzz_target!(|text: &str| {
    match Template::parse(text) {
        Ok(template) => {
            assert_eq!(template.as_constant().is_some(), template.columns().count() == 0);
            assert!(template.bind(|_| Some(Bound::Column(0))).is_ok());
        }
        Err(error) => assert!((1..=text.chars().count()).contains(&(error.position + error.length - 1))),
    }
});
