//! Paying and refunding: each step once, with its event, and none that the state machine does not know.

use anyhow::Result;
use serde_json::{Value, json};
use walrelay_shop::orders::{Action, Advance, Begun, advance, begin};
use walrelay_shop::state_machine::Status;

use super::client::{Answer, post};
use super::service::Service;
use crate::world::text;

impl Service {
    async fn pay(&self, order_id: i64, key: &str, card: &str) -> Result<Answer> {
        let body = json!({ "idempotency_key": key, "card": card });
        Ok(post(self.port, &format!("/orders/{order_id}/pay"), &body).await?)
    }

    async fn refund(&self, order_id: i64, key: &str) -> Result<Answer> {
        let body = json!({ "idempotency_key": key });
        Ok(post(self.port, &format!("/orders/{order_id}/refund"), &body).await?)
    }

    async fn status(&self, order_id: i64) -> Result<Value> {
        Ok(self.get(order_id).await?.field("status"))
    }
}

const CARD: &str = "4242";
const DECLINED_CARD: &str = "0002";

/// Over all pairs, on a real server: a legal step moves the order and writes one event, any other changes nothing and says
/// where the order stands.
#[tokio::test]
async fn a_step_is_made_where_it_is_legal_and_changes_nothing_elsewhere() -> Result<()> {
    let service = Service::start().await?;
    let mut client = service.database.client().await?;
    let mut moved = 0;
    for from in Status::ALL {
        for to in Status::ALL {
            let id = service.order().await?;
            let set = "update orders set status = $2 where id = $1";
            client.execute(set, &[&id, &from.name()]).await?;
            let transaction = client.transaction().await?;
            let outcome = advance(&transaction, id, to).await?;
            transaction.commit().await?;
            let (status, events) = (service.status(id).await?, service.events(id).await?);
            if to.sources().any(|source| source == from) {
                moved += 1;
                assert_eq!(outcome, Advance::Moved, "{from} -> {to}");
                assert_eq!(status, to.name());
                assert_eq!(events, format!("OrderCreated {}", to.event_type()));
            } else {
                assert_eq!(outcome, Advance::Stays(from.name().to_owned()), "{from} -> {to}");
                assert_eq!(status, from.name());
                assert_eq!(events, "OrderCreated");
            }
        }
    }
    assert_eq!(moved, 5);
    let transaction = client.transaction().await?;
    assert_eq!(advance(&transaction, 0, Status::Paying).await?, Advance::NoOrder);
    Ok(())
}

#[tokio::test]
async fn concurrent_payments_and_refunds_are_made_once() -> Result<()> {
    const TRIES: usize = 10;
    let service = Service::start().await?;
    let (id, port) = (service.order().await?, service.port);
    let path = format!("/orders/{id}");
    for (action, body, status) in [
        ("pay", json!({ "idempotency_key": "p", "card": CARD }), "paid"),
        ("refund", json!({ "idempotency_key": "r" }), "refunded"),
    ] {
        let mut tries = tokio::task::JoinSet::new();
        for _ in 0..TRIES {
            let (path, body) = (format!("{path}/{action}"), body.clone());
            tries.spawn(async move { post(port, &path, &body).await });
        }
        while let Some(answer) = tries.join_next().await {
            let answer = answer??;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.field("status"), status);
        }
    }
    assert_eq!(
        service.events(id).await?,
        "OrderCreated OrderPaying OrderPaid OrderRefunding OrderRefunded"
    );
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_done_changes_nothing_and_says_where_the_order_stands() -> Result<()> {
    let service = Service::start().await?;
    let id = service.order().await?;
    let refused = service.refund(id, "r").await?;
    assert_eq!((refused.status, refused.field("status")), (409, "created".into()));
    assert_eq!(refused.field("error"), "cannot refund an order that is created");
    // It is as if it had never been asked for.
    assert_eq!(
        text(&service.client, "select count(*)::text from order_actions").await?,
        "0"
    );

    let failed = service.pay(id, "p", DECLINED_CARD).await?;
    assert_eq!((failed.status, failed.field("status")), (200, "failed".into()));
    let again = service.pay(id, "p", DECLINED_CARD).await?;
    assert_eq!((again.status, again.field("status")), (200, "failed".into()));
    let other_card = service.pay(id, "p", CARD).await?;
    assert_eq!(other_card.status, 422, "{other_card:?}");
    let other_key = service.pay(id, "q", CARD).await?;
    assert_eq!(
        (other_key.status, other_key.field("status")),
        (409, "failed".into())
    );
    assert_eq!(service.events(id).await?, "OrderCreated OrderPaying OrderFailed");
    assert_eq!(service.pay(id + 1, "p", CARD).await?.status, 404);
    assert_eq!(service.refund(id + 1, "r").await?.status, 404);
    Ok(())
}

/// The service dies after it has begun: whether the provider was called is not known, and the retry calls it under the same key.
#[tokio::test]
async fn a_payment_that_was_cut_short_is_brought_to_its_end_by_the_retry() -> Result<()> {
    let service = Service::start().await?;
    let id = service.order().await?;
    let mut client = service.database.client().await?;
    let begun = begin(&mut client, id, Action::Pay, "p", CARD).await?;
    assert_eq!(begun, Begun::UnderWay);
    assert_eq!(service.status(id).await?, "paying");
    let other = service.pay(id, "q", CARD).await?;
    assert_eq!((other.status, other.field("status")), (409, "paying".into()));
    let retry = service.pay(id, "p", CARD).await?;
    assert_eq!((retry.status, retry.field("status")), (200, "paid".into()));
    assert_eq!(service.events(id).await?, "OrderCreated OrderPaying OrderPaid");
    Ok(())
}
