//! Who may look: everybody who can connect, or whoever knows the token of `admin.token_file`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::credential;
use crate::repeats::{Repeats, Telling};

/// The file that holds the token, where there is one.
#[derive(Debug, Clone)]
pub(super) struct Access {
    token_file: Option<PathBuf>,
    /// Anybody can ask as often as they like.
    told: Arc<Mutex<Repeats<()>>>,
}

impl Access {
    pub(super) fn new(token_file: Option<PathBuf>) -> Self {
        Self {
            token_file,
            told: Arc::default(),
        }
    }

    fn tell_unreadable(&self, error: &std::io::Error) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match told.note((), Instant::now()) {
            Telling::News => tracing::warn!(error = %error, "cannot read admin.token_file"),
            Telling::Repeated { repeated, seconds } => {
                tracing::warn!(error = %error, repeated, seconds, "still cannot read admin.token_file");
            }
            Telling::Quiet => {}
        }
    }
}

/// Lets a request pass that brings the token, as `Authorization: Bearer TOKEN` or, for browsers, as the password of
/// `Authorization: Basic`.
pub(super) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let Some(path) = access.token_file.clone() else {
        return next.run(request).await;
    };
    // Read each time, so that it can be changed while running; in a thread, since the disk may be slow.
    let read = tokio::task::spawn_blocking(move || credential::read_text(&path));
    let token = match read.await.map_err(std::io::Error::from).flatten() {
        Ok(token) => token,
        Err(error) => {
            access.tell_unreadable(&error);
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    if is_allowed(request.headers(), token.trim_end()) {
        return next.run(request).await;
    }
    let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"walrelay\"")];
    (StatusCode::UNAUTHORIZED, challenge).into_response()
}

fn is_allowed(headers: &HeaderMap, token: &str) -> bool {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '));
    match given {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("bearer") => is_same(given, token),
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("basic") => STANDARD
            .decode(given)
            .ok()
            .and_then(|pair| String::from_utf8(pair).ok())
            .and_then(|pair| pair.split_once(':').map(|(_, given)| is_same(given, token)))
            .unwrap_or(false),
        Some(_) | None => false,
    }
}

/// Compares without telling by its duration how much is right. An empty token lets nobody in.
fn is_same(given: &str, token: &str) -> bool {
    let difference = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |difference, (a, b)| difference | (a ^ b));
    !token.is_empty() && given.len() == token.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(authorization: &str, token: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        is_allowed(&headers, token)
    }

    #[test]
    fn the_token_opens_as_bearer_and_as_a_browsers_password() {
        let basic = format!("Basic {}", STANDARD.encode("anybody:s3cret"));
        assert!(allowed("Bearer s3cret", "s3cret"));
        assert!(allowed(&basic, "s3cret"));
        for (wrong, token) in [
            ("Bearer s3cre", "s3cret"),
            ("Bearer s3crets", "s3cret"),
            ("Bearer ", ""),
            ("Basic s3cret", "s3cret"),
            ("s3cret", "s3cret"),
        ] {
            assert!(!allowed(wrong, token), "{wrong}");
        }
        assert!(!is_allowed(&HeaderMap::new(), "s3cret"));
    }
}
