//! Whether a binding takes a routing key, as the built-in types of exchange decide it.
//!
//! <https://www.rabbitmq.com/tutorials/amqp-concepts#exchanges>

/// Whether an exchange of this type hands a message with the routing key on by a binding; `None` where the routing key
/// does not decide, as with headers.
pub(super) fn takes(exchange_type: &str, binding_key: &str, routing_key: &str) -> Option<bool> {
    match exchange_type {
        "fanout" => Some(true),
        "direct" => Some(binding_key == routing_key),
        "topic" => {
            let pattern: Vec<_> = binding_key.split('.').collect();
            let words: Vec<_> = routing_key.split('.').collect();
            Some(matches(&pattern, &words))
        }
        _ => None,
    }
}

/// `*` stands for one word, `#` for any number of words. Keys have 255 bytes at most; `reachable` holds, for the part of
/// the pattern so far, which numbers of words it can have taken, so that many `#` cost no more than one.
fn matches(pattern: &[&str], words: &[&str]) -> bool {
    let mut reachable = vec![false; words.len() + 1];
    if let Some(first) = reachable.first_mut() {
        *first = true;
    }
    for part in pattern {
        let mut next = vec![false; words.len() + 1];
        let mut before = false;
        for (taken, (slot, was)) in next.iter_mut().zip(&reachable).enumerate() {
            let word = taken.checked_sub(1).and_then(|at| words.get(at));
            *slot = match *part {
                // As many as before, or one more.
                "#" => {
                    before |= *was;
                    before
                }
                part => {
                    let was_one_less = taken
                        .checked_sub(1)
                        .and_then(|at| reachable.get(at))
                        .copied()
                        .unwrap_or(false);
                    was_one_less && word.is_some_and(|word| part == "*" || part == *word)
                }
            };
        }
        reachable = next;
    }
    reachable.last().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_s_patterns_match_as_rabbitmq_s() {
        for (pattern, key, expected) in [
            ("#", "", true),
            ("#", "a.b.c", true),
            ("order.*", "order.created", true),
            ("order.*", "order", false),
            ("order.*", "order.created.eu", false),
            ("order.#", "order", true),
            ("order.#", "order.created.eu", true),
            ("*.created", "order.created", true),
            ("#.created", "a.b.created", true),
            ("#.b.#", "a.b.c", true),
            ("#.#.b", "b", true),
            ("a.#.z", "a.z", true),
            ("a.#.z", "a.b", false),
            ("order.created", "order.created", true),
            ("order.created", "order.Created", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(takes("topic", pattern, key), Some(expected), "{pattern} {key}");
        }
    }

    #[test]
    fn other_types_have_their_own_ways() {
        assert_eq!(takes("direct", "a", "a"), Some(true));
        assert_eq!(takes("direct", "a", "b"), Some(false));
        assert_eq!(takes("fanout", "a", "b"), Some(true));
        assert_eq!(takes("headers", "a", "a"), None);
        assert_eq!(takes("x-consistent-hash", "1", "a"), None);
    }

    #[test]
    fn many_hashes_cost_no_more_than_one() {
        let (pattern, key) = (["#"; 127].join(".") + ".z", ["a"; 127].join("."));
        assert_eq!(takes("topic", &pattern, &key), Some(false));
    }
}
