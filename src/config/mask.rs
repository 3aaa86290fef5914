//! Masks the password of a URL for `config show`.

use url::Url;

const MASK: &str = "********";

/// Parameters that carry no secret; any other hides the whole query.
const HARMLESS: &[&str] = &[
    "sslmode",
    "sslrootcert",
    "application_name",
    "connect_timeout",
    "connection_timeout",
    "heartbeat",
    "channel_max",
];

/// The URL with its password masked; everything masked where it is not plain what the password is.
pub(super) fn masked(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else {
        return MASK.to_owned();
    };
    // A `/`, `?` or `#` inside a password that is not percent-encoded moves its rest out of its place.
    let astray = |part: &str| part.contains('@') || part.contains("%40");
    let rest = [
        url.path(),
        url.query().unwrap_or_default(),
        url.fragment().unwrap_or_default(),
    ];
    if !url.has_host() || rest.into_iter().any(astray) || url.fragment().is_some() {
        return MASK.to_owned();
    }
    let hides = url.password().is_some() && url.set_password(Some(MASK)).is_err();
    if hides {
        return MASK.to_owned();
    }
    if url.query_pairs().any(|(name, _)| !HARMLESS.contains(&&*name)) {
        url.set_query(Some(MASK));
    }
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_all_but_its_password() {
        assert_eq!(
            masked("postgres://walrelay:hunter2@db:5432/shop?sslmode=require"),
            "postgres://walrelay:********@db:5432/shop?sslmode=require"
        );
        assert_eq!(
            masked("amqp://guest@localhost:5672/%2f"),
            "amqp://guest@localhost:5672/%2f"
        );
    }

    #[test]
    fn no_form_of_a_password_survives() {
        for text in [
            "postgres://u:hunter2@db/shop",
            "postgres://u:hunter2@db/shop?password=hunter2",
            "postgres://u@db/shop?PassWord=hunter2&sslmode=disable",
            "postgres://u@db/shop?p%61ssword=hunter2",
            "postgres://u:12/hunter2@db/shop",
            "postgres://u:12?hunter2@db/shop",
            "postgres://u:12#hunter2@db/shop",
            "postgres://u:x@y:hunter2@db/shop",
            "postgres:///shop?user=u&password=hunter2",
            "host=db user=u password=hunter2",
            "host=db user=u password = 'hunter2'",
            "amqp:guest:hunter2",
            "amqp://guest:hunter2",
            "hunter2",
        ] {
            let masked = masked(text);
            assert!(!masked.contains("hunter2"), "{text} -> {masked}");
        }
    }
}
