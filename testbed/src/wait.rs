//! Waiting on conditions, with a deadline that a slow machine can stretch.

use std::future::Future;
use std::time::Duration;

use crate::error::{Error, Result};

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(10);

/// Stretches a deadline by `WALRELAY_TEST_PATIENCE` (a factor such as `3` or `0.5`; 1 when unset or
/// malformed).
pub fn patience(deadline: Duration) -> Duration {
    let factor = std::env::var("WALRELAY_TEST_PATIENCE")
        .ok()
        .and_then(|text| text.parse::<f64>().ok());
    match factor {
        Some(factor) if factor.is_finite() && factor > 0.0 => deadline.mul_f64(factor),
        _ => deadline,
    }
}

/// Waits until `condition` holds, looking again every few milliseconds.
///
/// # Errors
/// [`Error::Timeout`], naming `what` was waited for, once `deadline` times the patience has passed; a
/// condition that hangs is abandoned then too. Cancel safe as far as the condition is.
pub async fn eventually<F, C>(what: &str, deadline: Duration, mut condition: C) -> Result<()>
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    eventually_some(what, deadline, || {
        let held = condition();
        async move { held.await.then_some(()) }
    })
    .await
}

/// Waits until `probe` yields something, and returns that; otherwise as [`eventually`].
///
/// # Errors
/// [`Error::Timeout`], as [`eventually`].
pub async fn eventually_some<T, F, P>(what: &str, deadline: Duration, mut probe: P) -> Result<T>
where
    P: FnMut() -> F,
    F: Future<Output = Option<T>>,
{
    let waited = patience(deadline);
    let polling = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::time::timeout(waited, polling)
        .await
        .map_err(|_elapsed| Error::Timeout {
            what: what.to_owned(),
            waited,
        })
}
