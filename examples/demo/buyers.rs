//! Clients of the order service: each keeps a key for each order, and asks until there is an answer.

use std::cell::{Cell, RefCell};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How many buy at a time.
const BUYERS: usize = 4;

/// Every so manieth request is sent twice at once; so many give up after a moment.
const TWICE: usize = 5;
const IMPATIENT: usize = 7;

const PATIENCE: Duration = Duration::from_secs(5);
const IMPATIENCE: Duration = Duration::from_millis(4);
const PAUSE: Duration = Duration::from_millis(50);

/// What the clients know.
#[derive(Default)]
pub(crate) struct Bought {
    /// The key of each order and the number that every answer named.
    pub(crate) orders: RefCell<Vec<(String, i64)>>,
    requests: Cell<usize>,
    /// From the relay's death to its being ready again.
    pub(crate) outage: Cell<Option<(SystemTime, SystemTime)>>,
}

impl Bought {
    pub(crate) fn count(&self) -> usize {
        self.orders.borrow().len()
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.get()
    }
}

/// Places orders and pays for them.
pub(crate) async fn buy(port: u16, orders: usize, bought: &Bought) -> anyhow::Result<()> {
    let buyer = |first: usize| async move {
        for number in (first..orders).step_by(BUYERS) {
            buy_one(port, number, bought).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(buyer(0), buyer(1), buyer(2), buyer(3))?;
    Ok(())
}

async fn buy_one(port: u16, number: usize, bought: &Bought) -> anyhow::Result<()> {
    let key = format!("order {number}");
    let (user, first, second) = (number % 50, number % 100 + 1, number % 7 + 1);
    let order =
        format!(r#"{{"user_id": {user}, "sku_ids": [{first}, {second}], "idempotency_key": "{key}"}}"#);
    let mut ids = Vec::new();
    if number.is_multiple_of(TWICE) {
        let twice = tokio::join!(
            insist(port, "/orders", &order, PATIENCE, bought),
            insist(port, "/orders", &order, PATIENCE, bought)
        );
        ids.extend([order_id(&twice.0?)?, order_id(&twice.1?)?]);
    } else {
        let patience = if number.is_multiple_of(IMPATIENT) {
            IMPATIENCE
        } else {
            PATIENCE
        };
        ids.push(order_id(
            &insist(port, "/orders", &order, patience, bought).await?,
        )?);
    }
    let id = ids[0];
    anyhow::ensure!(
        ids.iter().all(|other| *other == id),
        "{key} got the orders {ids:?}"
    );
    let card = if number.is_multiple_of(10) { "0002" } else { "4242" };
    let payment = format!(r#"{{"idempotency_key": "p", "card": "{card}"}}"#);
    insist(port, &format!("/orders/{id}/pay"), &payment, PATIENCE, bought).await?;
    bought.orders.borrow_mut().push((key, id));
    Ok(())
}

/// Sends a request until it is answered; what gives up once has patience the next time.
async fn insist(
    port: u16,
    path: &str,
    body: &str,
    mut patience: Duration,
    bought: &Bought,
) -> anyhow::Result<String> {
    loop {
        bought.requests.set(bought.requests.get() + 1);
        match tokio::time::timeout(patience, post(port, path, body)).await {
            Ok(Ok((200 | 201, answer))) => return Ok(answer),
            Ok(Ok((status, answer))) if status < 500 => bail!("{path} {body}: {status} {answer}"),
            // Not known whether it was done: the service is down, or failed, or this client gave up.
            Ok(Ok(_) | Err(_)) => tokio::time::sleep(PAUSE).await,
            Err(_elapsed) => patience = PATIENCE,
        }
    }
}

async fn post(port: u16, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    anyhow::ensure!(body.ends_with('}'), "the answer was cut off");
    Ok((status, body.to_owned()))
}

fn order_id(answer: &str) -> anyhow::Result<i64> {
    let answer: serde_json::Value = serde_json::from_str(answer)?;
    answer["order_id"].as_i64().context("an order's number")
}
