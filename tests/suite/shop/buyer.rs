//! Clients as they are: they send every request several times at once, lose patience, and try again until there is an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::client::{Answer, post};

/// The most tries at once.
const TRIES: usize = 5;

/// Between rounds without an answer, as a client would; longer with each round, and so is its patience.
const PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// How long it waits for an answer at most, in milliseconds.
const PATIENCE: u64 = 200;

/// Rounds after which a client is sure that something is wrong.
const ROUNDS: u32 = 300;

/// What has been bought so far by all.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<(AtomicUsize, AtomicBool)>);

impl Progress {
    pub(super) fn done(&self) -> usize {
        self.0.0.load(Ordering::Relaxed)
    }

    /// Whether a buyer has given up, so that nobody waits for the rest.
    pub(super) fn failed(&self) -> bool {
        self.0.1.load(Ordering::Relaxed)
    }
}

/// One request and all its answers.
#[derive(Debug)]
pub(super) struct Bought {
    pub(super) key: String,
    pub(super) sku_ids: Vec<i64>,
    pub(super) user_id: i64,
    /// By every try that was answered.
    pub(super) answers: Vec<Answer>,
    pub(super) tries: usize,
    /// What the last step said of the order.
    pub(super) status: String,
}

/// A client that places orders one after the other.
pub(super) struct Buyer {
    pub(super) port: u16,
    pub(super) orders: Vec<usize>,
    pub(super) random: fastrand::Rng,
    pub(super) progress: Progress,
}

impl Buyer {
    pub(super) async fn buy(mut self) -> Result<Vec<Bought>> {
        let mut all = Vec::new();
        for number in std::mem::take(&mut self.orders) {
            match self.buy_one(number).await {
                Ok(bought) => all.push(bought),
                Err(error) => {
                    self.progress.0.1.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            self.progress.0.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok(all)
    }

    async fn buy_one(&mut self, number: usize) -> Result<Bought> {
        let user_id = self.random.i64(1..=20);
        let sku_ids: Vec<i64> = (0..self.random.usize(1..=3))
            .map(|_| self.random.i64(1..=10))
            .collect();
        let mut bought = Bought {
            key: format!("order {number}"),
            sku_ids: sku_ids.clone(),
            user_id,
            answers: Vec::new(),
            tries: 0,
            status: "created".to_owned(),
        };
        let order = json!({ "user_id": user_id, "sku_ids": sku_ids, "idempotency_key": bought.key });
        let placed = self.insist("/orders", &order, &mut bought.tries).await?;
        let Some(id) = placed.first().and_then(Answer::order_id) else {
            bail!("no order: {placed:?}");
        };
        bought.answers = placed;
        let declined = self.random.u8(..) < 50;
        let card = if declined { "0002" } else { "4242" };
        for (action, body, wanted) in [
            (
                "pay",
                json!({ "idempotency_key": "p", "card": card }),
                self.random.u8(..) < 200,
            ),
            (
                "refund",
                json!({ "idempotency_key": "r" }),
                !declined && self.random.bool(),
            ),
        ] {
            if !wanted {
                break;
            }
            let answers = self
                .insist(&format!("/orders/{id}/{action}"), &body, &mut bought.tries)
                .await?;
            if let Some(status) = answers
                .last()
                .and_then(|answer| answer.field("status").as_str().map(str::to_owned))
            {
                bought.status = status;
            }
        }
        Ok(bought)
    }

    /// Sends a request until there is an answer; returns all that there are.
    async fn insist(&mut self, path: &str, body: &Value, tries: &mut usize) -> Result<Vec<Answer>> {
        for number in 1..=ROUNDS {
            let mut round = JoinSet::new();
            for _ in 0..self.random.usize(1..=TRIES) {
                *tries += 1;
                let patience = Duration::from_millis(self.random.u64(1..PATIENCE) * u64::from(number));
                let (port, path, body) = (self.port, path.to_owned(), body.clone());
                // One that times out hangs up.
                round.spawn(async move { tokio::time::timeout(patience, post(port, &path, &body)).await });
            }
            let mut answers = Vec::new();
            while let Some(answer) = round.join_next().await {
                match answer? {
                    Ok(Ok(answer)) if answer.status >= 500 => {}
                    Ok(Ok(answer)) if answer.status < 300 => answers.push(answer),
                    Ok(Ok(answer)) => bail!("{path} {body}: {answer:?}"),
                    // Refused, cut off, or too late.
                    Ok(Err(_)) | Err(_) => {}
                }
            }
            if !answers.is_empty() {
                return Ok(answers);
            }
            tokio::time::sleep((PAUSE * number).min(MAX_PAUSE)).await;
        }
        bail!("no answer to {path} {body}")
    }
}
