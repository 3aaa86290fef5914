//! The conversation about who we are, of a walsender session: passwords, SCRAM, and its binding to the TLS channel.
//!
//! <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>,
//! <https://www.postgresql.org/docs/current/sasl-authentication.html>

use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;
use secrecy::{ExposeSecret, SecretString};

use super::error::{Error, Step};
use super::startup::send;
use super::url::{ChannelBinding, ConnectTarget};
use crate::net::{Stream, Wire};

/// Codes of the Authentication message.
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-AUTHENTICATIONOK>
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const KERBEROS_V5: u32 = 2;
    pub(super) const CLEARTEXT_PASSWORD: u32 = 3;
    pub(super) const MD5_PASSWORD: u32 = 5;
    pub(super) const GSS: u32 = 7;
    pub(super) const SSPI: u32 = 9;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_CONTINUE: u32 = 11;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// How far SCRAM has come. The server must prove itself before its "ok" counts.
enum Scram {
    None,
    Asked(sasl::ScramSha256),
    Proven,
}

/// The conversation, as far as it has come.
pub(super) struct Exchange<'a> {
    user: &'a str,
    password: Option<SecretString>,
    channel_binding: ChannelBinding,
    /// `tls-server-end-point` of the session's channel, where it has one.
    end_point: Option<Vec<u8>>,
    encrypted: bool,
    scram: Scram,
    bound: bool,
}

impl<'a> Exchange<'a> {
    /// Nothing has been said yet.
    pub(super) fn new(target: &'a ConnectTarget, password: Option<SecretString>, stream: &Stream) -> Self {
        Self {
            user: &target.user,
            password,
            channel_binding: target.channel_binding,
            end_point: stream.server_end_point(),
            encrypted: stream.is_encrypted(),
            scram: Scram::None,
            bound: false,
        }
    }

    /// Answers one Authentication message; true once the server is satisfied.
    pub(super) fn answer(&mut self, wire: &mut Wire<Stream>, body: &[u8]) -> Result<bool, Error> {
        let malformed = || Error::Protocol {
            step: Step::OpenReplication,
            what: "a malformed authentication message",
        };
        let (number, data) = body.split_first_chunk::<4>().ok_or_else(malformed)?;
        match (u32::from_be_bytes(*number), &mut self.scram) {
            (code::OK, Scram::None | Scram::Proven) => {
                self.refuse_unbound()?;
                return Ok(true);
            }
            (code::CLEARTEXT_PASSWORD, Scram::None) => {
                self.refuse_unbound()?;
                let password = self.password()?.expose_secret().as_bytes();
                send(wire, |buffer| frontend::password_message(password, buffer))?;
            }
            (code::MD5_PASSWORD, Scram::None) => {
                self.refuse_unbound()?;
                let salt = <[u8; 4]>::try_from(data).map_err(|_| malformed())?;
                let password = self.password()?.expose_secret().as_bytes();
                let hash = md5_hash(self.user.as_bytes(), password, salt);
                send(wire, |buffer| frontend::password_message(hash.as_bytes(), buffer))?;
            }
            (code::SASL, Scram::None) => {
                let (mechanism, binding) = self.mechanism(data)?;
                let password = self.password()?.expose_secret().as_bytes();
                let scram = sasl::ScramSha256::new(password, binding);
                send(wire, |buffer| {
                    frontend::sasl_initial_response(mechanism, scram.message(), buffer)
                })?;
                self.scram = Scram::Asked(scram);
            }
            (code::SASL_CONTINUE, Scram::Asked(scram)) => {
                if iterations(data).is_some_and(|count| count > MAX_SCRAM_ITERATIONS) {
                    return Err(Error::ScramIterations);
                }
                scram.update(data).map_err(Error::Scram)?;
                send(wire, |buffer| frontend::sasl_response(scram.message(), buffer))?;
            }
            (code::SASL_FINAL, Scram::Asked(scram)) => {
                scram.finish(data).map_err(Error::Scram)?;
                self.scram = Scram::Proven;
            }
            (code::GSS, _) => return Err(Error::AuthenticationMethod { method: "GSSAPI" }),
            (code::SSPI, _) => return Err(Error::AuthenticationMethod { method: "SSPI" }),
            (code::KERBEROS_V5, _) => return Err(Error::AuthenticationMethod { method: "Kerberos 5" }),
            _ => return Err(malformed()),
        }
        Ok(false)
    }

    /// Chooses among the mechanisms that the server offers, and says what it is told about channel binding (RFC 5802,
    /// section 6): bound (`p`); not bound because the server offers none, which one that does takes for an attack (`y`); or
    /// not supported (`n`).
    fn mechanism(&mut self, offered: &[u8]) -> Result<(&'static str, sasl::ChannelBinding), Error> {
        let offers = |name: &str| {
            offered
                .split(|byte| *byte == 0)
                .any(|mechanism| mechanism == name.as_bytes())
        };
        let offers_plus = offers(sasl::SCRAM_SHA_256_PLUS);
        if offers_plus && !self.encrypted {
            return Err(Error::BindingWithoutTls);
        }
        let end_point = match self.channel_binding {
            ChannelBinding::Disable => None,
            ChannelBinding::Prefer | ChannelBinding::Require => self.end_point.clone(),
        };
        if let Some(end_point) = &end_point
            && offers_plus
        {
            self.bound = true;
            let binding = sasl::ChannelBinding::tls_server_end_point(end_point.clone());
            return Ok((sasl::SCRAM_SHA_256_PLUS, binding));
        }
        if !offers(sasl::SCRAM_SHA_256) {
            return Err(Error::AuthenticationMethod {
                method: "an unknown SASL",
            });
        }
        self.refuse_unbound()?;
        let binding = match end_point {
            Some(_) => sasl::ChannelBinding::unrequested(),
            None => sasl::ChannelBinding::unsupported(),
        };
        Ok((sasl::SCRAM_SHA_256, binding))
    }

    /// With `channel_binding=require` nothing is told to, or taken from, a server that does not bind.
    fn refuse_unbound(&self) -> Result<(), Error> {
        if self.bound || self.channel_binding != ChannelBinding::Require {
            return Ok(());
        }
        Err(Error::NotBound {
            reason: unbound_reason(self.encrypted, self.end_point.is_some()),
        })
    }

    fn password(&self) -> Result<&SecretString, Error> {
        self.password.as_ref().ok_or_else(|| Error::PasswordMissing {
            user: self.user.to_owned(),
        })
    }
}

/// Why a session is not bound to its channel.
pub(super) const fn unbound_reason(encrypted: bool, has_end_point: bool) -> &'static str {
    match (encrypted, has_end_point) {
        (false, _) => "the connection has no TLS",
        (true, false) => "the signature of the server's certificate names no hash function to bind with",
        (true, true) => {
            "the server did not ask for scram-sha-256 (pg_hba.conf, and how the role's password is stored)"
        }
    }
}

/// What postgres-protocol 0.6.12 computes at most; it reports more only as a text.
const MAX_SCRAM_ITERATIONS: u32 = 100_000;

/// The iteration count of a server-first message, `r=...,s=...,i=4096` (RFC 5802, section 7).
fn iterations(message: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(message).ok()?;
    text.split(',')
        .find_map(|field| field.strip_prefix("i="))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLUS: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    const PLAIN: &[u8] = b"SCRAM-SHA-256\0\0";

    /// What the client's first message says of channel binding, or why there is none.
    fn first_message(
        channel_binding: ChannelBinding,
        end_point: Option<&[u8]>,
        encrypted: bool,
        offered: &[u8],
    ) -> Result<(&'static str, String), Error> {
        let mut exchange = Exchange {
            user: "u",
            password: Some(SecretString::from("secret")),
            channel_binding,
            end_point: end_point.map(<[u8]>::to_vec),
            encrypted,
            scram: Scram::None,
            bound: false,
        };
        let (mechanism, binding) = exchange.mechanism(offered)?;
        let scram = sasl::ScramSha256::new(b"secret", binding);
        let message = std::str::from_utf8(scram.message()).unwrap();
        let flag = message.split(',').next().unwrap().to_owned();
        Ok((mechanism, flag))
    }

    #[test]
    fn a_session_is_bound_where_both_sides_can() {
        use ChannelBinding::{Disable, Prefer, Require};
        let (plus, plain) = (sasl::SCRAM_SHA_256_PLUS, sasl::SCRAM_SHA_256);
        for (setting, end_point, offered, expected) in [
            (Prefer, Some(&b"hash"[..]), PLUS, (plus, "p=tls-server-end-point")),
            (Require, Some(b"hash"), PLUS, (plus, "p=tls-server-end-point")),
            // We could and the server does not offer it: one that did offer it sees that somebody took it away.
            (Prefer, Some(b"hash"), PLAIN, (plain, "y")),
            (Disable, Some(b"hash"), PLUS, (plain, "n")),
            (Disable, Some(b"hash"), PLAIN, (plain, "n")),
            (Prefer, None, PLUS, (plain, "n")),
        ] {
            let (mechanism, flag) = first_message(setting, end_point, true, offered).unwrap();
            assert_eq!((mechanism, &*flag), expected, "{setting:?} {end_point:?}");
        }
        let (_, flag) = first_message(Prefer, None, false, PLAIN).unwrap();
        assert_eq!(flag, "n");
    }

    #[test]
    fn what_is_required_and_not_to_be_had_is_refused() {
        use ChannelBinding::{Prefer, Require};
        for (end_point, encrypted, offered, words) in [
            (Some(&b"hash"[..]), true, PLAIN, "scram-sha-256"),
            (None, true, PLUS, "no hash function"),
            (None, false, PLAIN, "no TLS"),
        ] {
            let error = first_message(Require, end_point, encrypted, offered).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = first_message(Prefer, None, false, PLUS).unwrap_err();
        assert!(matches!(error, Error::BindingWithoutTls), "{error}");
    }

    #[test]
    fn the_iteration_count_is_found() {
        assert_eq!(iterations(b"r=abc,s=c2FsdA==,i=600000"), Some(600_000));
        assert_eq!(iterations(b"r=abc"), None);
        assert_eq!(iterations(b"\xff"), None);
    }
}
