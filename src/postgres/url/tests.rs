use std::path::PathBuf;

use super::*;
use proptest::prelude::*;
use secrecy::ExposeSecret;

fn target(text: &str) -> ConnectTarget {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> UrlError {
    text.parse::<ConnectTarget>().expect_err(text)
}

fn password(target: &ConnectTarget) -> Option<&str> {
    target.password.as_ref().map(ExposeSecret::expose_secret)
}

#[test]
fn a_full_url_is_read() {
    let target = target(
        "postgres://wal%40relay:p%2Fw%25@db.example:6000/shop%20db?sslmode=verify-full&sslrootcert=/etc/ca.pem\
         &connect_timeout=3&application_name=x",
    );
    let server = Server {
        host: Host::Tcp("db.example".to_owned()),
        port: 6000,
    };
    assert_eq!(target.servers, [server]);
    assert_eq!(
        (target.user.as_str(), target.dbname.as_str()),
        ("wal@relay", "shop db")
    );
    assert_eq!(password(&target), Some("p/w%"));
    let roots = RootSource::File(PathBuf::from("/etc/ca.pem"));
    assert_eq!(
        target.tls().map(|tls| tls.verification),
        Some(TlsVerification::Full(roots))
    );
    assert_eq!(target.connect_timeout, Duration::from_secs(3));
    assert_eq!(target.application_name.as_deref(), Some("x"));
}

#[test]
fn what_a_url_leaves_out_has_defaults() {
    let target = target("postgresql://walrelay@");
    assert_eq!(target.to_string(), "walrelay@localhost:5432/walrelay");
    assert_eq!(target.sslmode, SslMode::Prefer);
    assert_eq!(target.connect_timeout, DEFAULT_CONNECT_TIMEOUT);
    assert_eq!(password(&target), None);
}

/// Where the servers are, joined by spaces.
fn endpoints(text: &str) -> String {
    let endpoints: Vec<_> = target(text).servers.iter().map(Server::endpoint).collect();
    endpoints.join(" ")
}

#[test]
fn ipv6_addresses_and_unix_sockets_are_hosts() {
    assert_eq!(endpoints("postgres://u@[::1]:7/d"), "[::1]:7");
    assert_eq!(endpoints("postgres://u@[::1]"), "[::1]:5432");
    for text in [
        "postgres://u@/d?host=/run/pg&port=7",
        "postgres://u@%2Frun%2Fpg:7/d",
        "host=/run/pg port=7 user=u dbname=d",
    ] {
        assert_eq!(endpoints(text), "/run/pg/.s.PGSQL.7", "{text}");
    }
}

#[test]
fn several_hosts_keep_their_order_and_each_its_port() {
    for (text, expected) in [
        ("postgres://u@a:1,b:2/d", "a:1 b:2"),
        (
            "postgres://u@a,b:2,[::1]:3,/d",
            "a:5432 b:2 [::1]:3 localhost:5432",
        ),
        ("postgres://u@a,%2Frun%2Fpg:7/d", "a:5432 /run/pg/.s.PGSQL.7"),
        ("postgres://u@/d?host=a,b&port=1,2", "a:1 b:2"),
        ("postgres://u@/d?host=a,b&port=7", "a:7 b:7"),
        ("host=a,b,c port=1,,3 user=u", "a:1 b:5432 c:3"),
        ("host=a,b port=7 user=u", "a:7 b:7"),
        ("host=a,b user=u", "a:5432 b:5432"),
    ] {
        assert_eq!(endpoints(text), expected, "{text}");
    }
    assert_eq!(target("postgres://u@a:1,b:2/d").to_string(), "u@a:1,b:2/d");
    for (text, ports, hosts) in [
        ("host=a,b,c port=1,2 user=u", 2, 3),
        ("host=a port=1,2 user=u", 2, 1),
        ("postgres://u@a:1,b:2/d?host=c", 2, 1),
    ] {
        assert_eq!(error(text), UrlError::PortCount { ports, hosts }, "{text}");
    }
    assert_eq!(
        error("host=a,b,c port=1,2 user=u").to_string(),
        "2 ports for 3 hosts: name one port, or one for each host"
    );
}

#[test]
fn only_a_server_that_takes_writes_can_be_asked_for() {
    for (value, expected) in [
        ("any", SessionAttrs::Any),
        ("read-write", SessionAttrs::ReadWrite),
        ("primary", SessionAttrs::Primary),
        ("", SessionAttrs::Any),
    ] {
        let text = format!("postgres://u@a,b/d?target_session_attrs={value}");
        assert_eq!(target(&text).session_attrs, expected, "{text}");
    }
    for value in ["read-only", "standby", "prefer-standby", "writable"] {
        assert_eq!(
            error(&format!("host=a,b user=u target_session_attrs={value}")).to_string(),
            "`target_session_attrs` must be any, read-write or primary (a standby has nothing to relay)"
        );
    }
}

#[test]
fn pairs_follow_libpqs_quoting() {
    let target =
        target(r"host = db user='a user' password='it\'s \\ ok' dbname=a\ b  port=  6000 sslmode=require");
    assert_eq!(
        (
            target.user.as_str(),
            target.dbname.as_str(),
            target.servers[0].port
        ),
        ("a user", "a b", 6000)
    );
    assert_eq!(password(&target), Some(r"it's \ ok"));
    assert_eq!(
        target.tls().map(|tls| tls.verification),
        Some(TlsVerification::None)
    );
}

#[test]
fn require_with_a_root_checks_the_chain() {
    let roots = RootSource::File(PathBuf::from("ca"));
    assert_eq!(
        target("user=u sslmode=require sslrootcert=ca")
            .tls()
            .map(|tls| tls.verification),
        Some(TlsVerification::Chain(roots))
    );
    assert_eq!(
        target("user=u sslrootcert=system")
            .tls()
            .map(|tls| tls.verification),
        Some(TlsVerification::Full(RootSource::System))
    );
    assert_eq!(
        error("user=u sslmode=require sslrootcert=system"),
        UrlError::WeakSystemRoots
    );
    assert_eq!(
        target("user=u sslmode=disable").tls().map(|tls| tls.verification),
        None
    );
}

#[test]
fn an_unknown_parameter_is_named_with_the_nearest_known_one() {
    assert_eq!(
        error("postgres://u@h/d?sslmod=require").to_string(),
        "unknown parameter `sslmod`: did you mean `sslmode`?"
    );
    assert_eq!(error("user=u zzz=1").to_string(), "unknown parameter `zzz`");
    assert_eq!(
        error("user=u sslmode=allow").to_string(),
        "`sslmode` must be disable, prefer, require, verify-ca or verify-full"
    );
}

#[test]
fn malformed_targets_are_refused() {
    for (text, expected) in [
        ("", UrlError::Form),
        ("mysql://u@h", UrlError::Form),
        ("postgres:/u@h?user=u", UrlError::Form),
        ("postgres://h/d", UrlError::NoUser),
        ("host=h", UrlError::NoUser),
        ("postgres://u@h:0/d", UrlError::Port),
        ("postgres://u@h:65536/d", UrlError::Port),
        ("postgres://u@h1,h2:x/d", UrlError::Port),
        ("postgres://u@a,b%00/d", UrlError::ZeroByte { part: "host" }),
        ("postgres://u@[::1/d", UrlError::Brackets),
        ("postgres://u@[::1]x/d", UrlError::Brackets),
        ("postgres://u:%zz@h/d", UrlError::Encoding { part: "password" }),
        ("postgres://u@h/%ff", UrlError::Encoding { part: "database" }),
        ("postgres://u@h/d?user", UrlError::NoEquals { number: 1 }),
        ("postgres://u%00@h/d", UrlError::ZeroByte { part: "user" }),
        ("user='u", UrlError::OpenQuote { number: 1 }),
        ("user=u host", UrlError::NoEquals { number: 2 }),
        ("user=u =x", UrlError::NoEquals { number: 2 }),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn no_error_text_holds_a_piece_of_the_password() {
    for text in [
        "postgres://u:se/cret@h/d",
        "postgres://u:se@cret@h/d",
        "postgres://u:se?cret@h/d",
        "postgres://u:se?cret=1@h/d",
        "postgres://u:12?cret=1@h/d",
        "postgres://u:se%cret@h/d",
        "postgres://u:se:cret?h=d",
        "postgres://u:se,cret?h=d",
        "postgres://u:se@h1,cret@h2/d",
        "user=u password=se cret",
        "user=u password=se cret=1",
        "user=u password='se cret",
        "postgres://u:se%00cret@h/d",
    ] {
        let shown = format!("{0} {0:?}", error(text));
        assert!(!shown.contains("cret"), "{text}: {shown}");
    }
    let shown = format!("{0:?} {0}", target("postgres://u:secret@h/d"));
    assert!(!shown.contains("secret"), "{shown}");
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "(postgres://)?.{0,60}") {
        drop(text.parse::<ConnectTarget>());
    }

    #[test]
    fn any_password_survives_encoding(secret in "[^\\x00]{1,20}") {
        let encoded: String = secret.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let url = target(&format!("postgres://u:{encoded}@h/d"));
        prop_assert_eq!(password(&url), Some(secret.as_str()));
        let quoted = secret.replace('\\', "\\\\").replace('\'', "\\'");
        let pairs = target(&format!("user=u password='{quoted}' port=1"));
        prop_assert_eq!(password(&pairs), Some(secret.as_str()));
    }
}
