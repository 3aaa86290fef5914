//! A look over the sources: what log lines say is static, so that a machine can count it, and begins in lower case.

use std::fs;
use std::path::{Path, PathBuf};

/// Every call of one of tracing's macros in the code itself, as `file: arguments`.
fn calls() -> Vec<String> {
    let mut calls = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "engine/src"] {
        for file in sources(&root.join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (place, _) in code.match_indices("tracing::") {
                let rest = &code[place + "tracing::".len()..];
                let name = rest.trim_start_matches(|c: char| c.is_ascii_lowercase() || c == '$');
                if let Some(arguments) = name.strip_prefix("!(") {
                    calls.push(format!("{}: {}", file.display(), up_to_the_bracket(arguments)));
                }
            }
        }
    }
    calls
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "messages.rs" {
            found.push(path);
        }
    }
    found
}

/// The arguments of a macro, to the bracket that closes it.
fn up_to_the_bracket(text: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (place, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted && depth == 0 => return &text[..place],
            ')' if !quoted => depth -= 1,
            _ => {}
        }
    }
    text
}

/// The message: the last argument, if it is a literal.
fn message(call: &str) -> Option<&str> {
    let literal = call.trim_end().trim_end_matches(',').strip_suffix('"')?;
    literal.rsplit_once('"').map(|(_, message)| message)
}

#[test]
fn messages_are_static_and_begin_in_lower_case() {
    let calls = calls();
    assert!(calls.len() > 50, "only {} found", calls.len());
    for call in &calls {
        let message = message(call).unwrap_or_else(|| panic!("no literal message: {call}"));
        let begins_well = message.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        assert!(
            begins_well && !message.contains('{') && !message.ends_with('.'),
            "{message:?} in {call}"
        );
    }
}
