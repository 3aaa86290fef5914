//! `synchronous_standby_names`: would it take our stream for a synchronous standby?
//!
//! <https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES>

/// The server cuts `application_name` off after so many bytes (`NAMEDATALEN - 1`).
const MAX_NAME: usize = 63;

/// Whether the setting names a standby of this `application_name`, or any. The server has checked its grammar:
/// names alone, or `[FIRST | ANY] number (names)`; it compares without regard to the case of ASCII letters.
pub(super) fn names_standby(setting: &str, application_name: &str) -> bool {
    let mut end = application_name.len().min(MAX_NAME);
    while !application_name.is_char_boundary(end) {
        end -= 1;
    }
    let ours = application_name.get(..end).unwrap_or(application_name);
    names(setting)
        .iter()
        .any(|name| name == "*" || name.eq_ignore_ascii_case(ours))
}

/// The names in the setting, without quotes.
fn names(setting: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut current = String::new();
    let mut characters = setting.chars().peekable();
    let mut quoted = false;
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                current.push('"');
            }
            '"' => quoted = !quoted,
            _ if quoted => current.push(character),
            // What stands before the parenthesis is the method and the number.
            '(' => current.clear(),
            ',' | ')' => names.push(std::mem::take(&mut current)),
            _ if character.is_ascii_whitespace() => {}
            _ => current.push(character),
        }
    }
    names.push(current);
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_read_as_the_server_does() {
        for (setting, expected) in [
            ("", vec![]),
            ("*", vec!["*"]),
            ("s1", vec!["s1"]),
            ("s1, s2", vec!["s1", "s2"]),
            ("2 (s1, s2, s3)", vec!["s1", "s2", "s3"]),
            ("FIRST 1 (s1, *)", vec!["s1", "*"]),
            (
                "any 1(\"walrelay shop\",\"a\"\"b,(c)\")",
                vec!["walrelay shop", "a\"b,(c)"],
            ),
        ] {
            assert_eq!(names(setting), expected, "{setting}");
        }
    }

    #[test]
    fn a_name_is_matched_whatever_its_case() {
        assert!(names_standby("ANY 1 (\"Walrelay Shop\")", "walrelay shop"));
        assert!(names_standby("s1, *", "walrelay shop"));
        assert!(!names_standby("s1, walrelay", "walrelay shop"));
        assert!(!names_standby("FIRST 1 (first)", "any"));
        assert!(!names_standby("", ""));
    }

    #[test]
    fn a_long_name_is_matched_as_the_server_cuts_it_off() {
        let ours = format!("walrelay {}", "s".repeat(63));
        assert!(names_standby(&format!("\"{}\"", &ours[..63]), &ours));
        assert!(!names_standby(&format!("\"{ours}\""), &ours));
    }
}
