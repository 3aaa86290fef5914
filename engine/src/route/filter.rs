//! Filters: what becomes of a value on its way into a text. Each rewrites the end of the buffer, so that a chain of them
//! needs no other.

/// One filter of a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Filter {
    /// `lower`
    Lower,
    /// `upper`
    Upper,
    /// `snake_case`
    Snake,
    /// `kebab_case`
    Kebab,
    /// `default:TEXT`, for a value that is null or missing.
    Default(String),
}

impl Filter {
    /// The filter of this name that takes no text.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "lower" => Self::Lower,
            "upper" => Self::Upper,
            "snake_case" | "snake" => Self::Snake,
            "kebab_case" | "kebab" => Self::Kebab,
            _ => return None,
        })
    }

    /// Whether a filter has this name, be it with a text or without.
    pub(super) fn is_name(name: &str) -> bool {
        name == "default" || Self::named(name).is_some()
    }

    /// Rewrites what stands in `out` from `start` on. `default` leaves it alone: there is a value.
    pub(super) fn apply(&self, out: &mut String, start: usize) {
        match self {
            Self::Lower => rewrite(out, start, |_, c, out| out.extend(c.to_lowercase())),
            Self::Upper => rewrite(out, start, |_, c, out| out.extend(c.to_uppercase())),
            Self::Snake => words(out, start, '_'),
            Self::Kebab => words(out, start, '-'),
            Self::Default(_) => {}
        }
    }
}

/// What lies around a character.
struct Around {
    before: Option<char>,
    after: Option<char>,
}

/// Puts what `each` makes of the characters from `start` on in their place, by way of the buffer's own end.
fn rewrite(out: &mut String, start: usize, mut each: impl FnMut(Around, char, &mut String)) {
    let end = out.len();
    let (mut at, mut before) = (start, None);
    while let Some(text) = out.get(at..end) {
        let mut characters = text.chars();
        let Some(c) = characters.next() else { break };
        let after = characters.next();
        each(Around { before, after }, c, out);
        before = Some(c);
        at += c.len_utf8();
    }
    out.replace_range(start..end, "");
}

/// Small letters, with `separator` between words: where a capital begins one, and in place of spaces, `_` and `-`. All else
/// stays and ends a word, so that `Shop.OrderCreated` becomes `shop.order_created`.
fn words(out: &mut String, start: usize, separator: char) {
    let is_separator = |c: char| matches!(c, '_' | '-') || c.is_whitespace();
    let mut is_due = false;
    let mut is_in_text = false;
    rewrite(out, start, |Around { before, after }, c, out| {
        if is_separator(c) {
            // Runs of them are one, and none stands at an end.
            is_due = is_in_text;
            return;
        }
        let begins_word = is_capital(c)
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_numeric()
                    || (is_capital(before) && after.is_some_and(char::is_lowercase))
            });
        if is_due || begins_word {
            out.push(separator);
        }
        out.extend(c.to_lowercase());
        (is_due, is_in_text) = (false, true);
    });
}

/// A capital that has a small letter: of the alphabets of mathematics those have none.
fn is_capital(c: char) -> bool {
    c.is_uppercase() && !c.to_lowercase().eq([c])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn applied(filter: &Filter, text: &str) -> String {
        let mut out = "before".to_owned();
        out.push_str(text);
        filter.apply(&mut out, "before".len());
        out.strip_prefix("before").unwrap().to_owned()
    }

    #[test]
    fn words_are_told_by_capitals_and_by_what_separates_them() {
        for (text, snake) in [
            ("OrderCreated", "order_created"),
            ("orderCreated", "order_created"),
            ("HTTPServerError", "http_server_error"),
            ("OrderV2Created", "order_v2_created"),
            ("order-created", "order_created"),
            ("  order  created ", "order_created"),
            ("__init__", "init"),
            ("Shop.OrderCreated", "shop.order_created"),
            ("ÄrgerÜber", "ärger_über"),
            ("order_created", "order_created"),
            ("A\u{1d468}", "a\u{1d468}"),
            ("", ""),
            ("-", ""),
        ] {
            assert_eq!(applied(&Filter::Snake, text), snake, "{text}");
            assert_eq!(applied(&Filter::Kebab, text), snake.replace('_', "-"), "{text}");
        }
    }

    #[test]
    fn letters_that_grow_keep_what_stands_around_them() {
        assert_eq!(applied(&Filter::Upper, "straße"), "STRASSE");
        assert_eq!(applied(&Filter::Lower, "İX"), "i\u{307}x");
        assert_eq!(applied(&Filter::Default("x".to_owned()), "Y"), "Y");
    }

    proptest! {
        #![proptest_config(crate::property::config())]

        #[test]
        fn a_filter_changes_the_end_only_and_a_second_time_nothing(text in "\\PC{0,12}|[a-cA-C0-9_ .-]{0,12}") {
            for filter in [Filter::Lower, Filter::Upper, Filter::Snake, Filter::Kebab] {
                let once = applied(&filter, &text);
                prop_assert_eq!(&applied(&filter, &once), &once, "{:?}", filter);
            }
            let snake = applied(&Filter::Snake, &text);
            prop_assert_eq!(applied(&Filter::Snake, &applied(&Filter::Kebab, &text)), snake);
            prop_assert_eq!(applied(&Filter::Lower, &text), text.chars().flat_map(char::to_lowercase).collect::<String>());
            prop_assert_eq!(applied(&Filter::Upper, &text), text.chars().flat_map(char::to_uppercase).collect::<String>());
        }
    }
}
