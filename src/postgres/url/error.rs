//! Why a text is no connection target.

/// Why a text is no connection target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Neither `postgres://` nor `key=value`.
    #[error("expected postgres://user@host:port/database or a key=value string")]
    Form,
    /// More or other `@` than one between the credentials and the host.
    #[error("an @ stands after the host: percent-encode the characters @ : / ? % of user and password")]
    StrayAt,
    /// A `%` without two hexadecimal digits, or encoded bytes that are no UTF-8.
    #[error("the {part} is not percent-encoded UTF-8 (write % as %25)")]
    Encoding {
        /// The part of the URL.
        part: &'static str,
    },
    /// An IPv6 address without its closing bracket, or with something behind it.
    #[error("the host's brackets do not match (expected [IPv6 address]:port)")]
    Brackets,
    /// A port that is no number from 1 to 65535. Not echoed: it may be the rest of a password.
    #[error("the port is not a number from 1 to 65535 (percent-encode @ : / ? % in user and password)")]
    Port,
    /// Neither one port for all hosts nor one for each.
    #[error("{ports} ports for {hosts} hosts: name one port, or one for each host")]
    PortCount {
        /// How many ports.
        ports: usize,
        /// How many hosts.
        hosts: usize,
    },
    /// No user.
    #[error("no user: expected postgres://user@host or user=...")]
    NoUser,
    /// A zero byte, which no startup packet can hold.
    #[error("the {part} holds a zero byte")]
    ZeroByte {
        /// The parameter.
        part: &'static str,
    },
    /// An unknown parameter.
    #[error("unknown parameter `{name}`{}", .nearest.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default())]
    UnknownParameter {
        /// Its name.
        name: String,
        /// The known one closest to it.
        nearest: Option<&'static str>,
    },
    /// A parameter whose name may be a piece of a password.
    #[error("parameter {number} is unknown (a password with spaces needs quotes: password='...')")]
    UnknownAfterPassword {
        /// Its place, counted from 1.
        number: usize,
    },
    /// A parameter without `=`.
    #[error("parameter {number} has no `=` (a value with spaces needs quotes: key='a b')")]
    NoEquals {
        /// Its place, counted from 1.
        number: usize,
    },
    /// A quoted value that does not end.
    #[error("the quote of parameter {number} is not closed")]
    OpenQuote {
        /// Its place, counted from 1.
        number: usize,
    },
    /// A value that the parameter cannot have.
    #[error("`{name}` must be {expected}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What is allowed.
        expected: &'static str,
    },
    /// `sslrootcert=system` with a mode that does not verify.
    #[error("sslrootcert=system needs sslmode=verify-full")]
    WeakSystemRoots,
    /// A certificate without its key, or the other way round.
    #[error("sslcert and sslkey belong together: {missing} is missing")]
    HalfIdentity {
        /// The one that is missing.
        missing: &'static str,
    },
    /// `channel_binding=require` without a channel to bind to.
    #[error("channel_binding=require needs TLS, which sslmode=disable forbids")]
    BindingWithoutTls,
}
