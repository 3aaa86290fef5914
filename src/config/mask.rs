//! Masks the password of a URL for `config show`.

use std::ops::Range;

use url::Url;

pub(super) const MASK: &str = "********";

/// Parameters that carry no secret; any other hides the whole query.
const HARMLESS: &[&str] = &[
    "target_session_attrs",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "application_name",
    "connect_timeout",
    "connection_timeout",
    "heartbeat",
    "channel_max",
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
    "auth_mechanism",
];

/// The URL with its password masked; everything masked where it is not plain what the password is.
pub(super) fn masked(text: &str) -> String {
    let Some(list) = server_list(text) else {
        return masked_url(text);
    };
    // A URL has one host: one stands for the list meanwhile.
    let (before, after) = (text.get(..list.start), text.get(list.end..));
    let single = [before, Some(STAND_IN), after]
        .map(Option::unwrap_or_default)
        .concat();
    let servers = text.get(list).unwrap_or_default();
    masked_url(&single).replacen(&format!("@{STAND_IN}"), &format!("@{servers}"), 1)
}

/// Stands for a list of servers.
const STAND_IN: &str = "list-of-servers";

/// Where the list `host:port,host:port` of a URL stands; `None` for a single server, and for what may be a part of a
/// password.
fn server_list(text: &str) -> Option<Range<usize>> {
    let (scheme, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (_, servers) = authority.split_once('@')?;
    let end = scheme.len() + "://".len() + authority.len();
    let is_server = |server: &str| {
        let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
        let of_host = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        host.chars().all(of_host) && port.chars().all(|c| c.is_ascii_digit())
    };
    (servers.contains(',') && servers.split(',').all(is_server)).then(|| end - servers.len()..end)
}

fn masked_url(text: &str) -> String {
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
        for servers in ["db1:5432,db2:5433", "db1,db2", "10.0.0.1:1,db-2.example:2,"] {
            assert_eq!(
                masked(&format!(
                    "postgres://walrelay:hunter2@{servers}/shop?target_session_attrs=primary"
                )),
                format!("postgres://walrelay:********@{servers}/shop?target_session_attrs=primary")
            );
        }
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
            "postgres://u:x@y,hunter2@db/shop",
            "postgres://u:hunter2@db1,db2/shop?password=hunter2",
            "postgres://u:x,hunter2@db1,db2/shop",
            "postgres://u:12,hunter2",
            "postgres://u:12/hunter2@db1,db2/shop",
            "postgres://u:list-of-servers-hunter2@db1,db2/shop",
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
