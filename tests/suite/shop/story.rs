//! The whole story under faults: every request is sent many times at once by clients that give up at random, while
//! services, relay, broker and database die. In the end each order is there once, and so is each of its effects.

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinSet;
use walrelay_testbed::{
    Database, Postgres, PostgresOptions, RabbitMq, RabbitMqOptions, Relay, RelayBuilder, Service, Vhost,
    eventually, free_port, shared_postgres, shared_rabbitmq,
};

use super::account::{Ledger, violations};
use super::buyer::{Buyer, Progress};
use crate::world::{LONG, text, wait_true};

/// How many orders are under way at once.
const BUYERS: usize = 6;

const CONSUMERS: [&str; 3] = ["inventory", "coupons", "risk"];

/// What a run is like.
struct Plan {
    seed: u64,
    orders: usize,
    /// How often each kind of fault strikes.
    rounds: usize,
    /// Whether broker and database die too: they have to be the run's own then.
    with_servers: bool,
    /// SQL that takes a constraint's effect away, once the tables are there.
    sabotage: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    OrderService,
    Consumer(usize),
    Relay,
    /// An operator publishes everything again that is in the table so far.
    Replay,
    Broker,
    Database,
}

/// The servers, where they are the run's own.
type Servers = Option<(Postgres, RabbitMq)>;

struct Stage {
    servers: Servers,
    database: Database,
    vhost: Vhost,
    relay: Relay,
    /// The order service, and then the consumers.
    services: Vec<Service>,
    port: u16,
}

impl Stage {
    async fn new(plan: &Plan) -> Result<Self> {
        let servers = match plan.with_servers {
            true => Some(tokio::try_join!(
                Postgres::start(PostgresOptions::default()),
                RabbitMq::start(RabbitMqOptions::default())
            )?),
            false => None,
        };
        let (database, vhost) = match &servers {
            Some((postgres, broker)) => (postgres.database().await?, broker.vhost().await?),
            None => (
                shared_postgres().await?.database().await?,
                shared_rabbitmq().await?.vhost().await?,
            ),
        };
        vhost
            .declare_exchange("outbox", lapin::ExchangeKind::Topic)
            .await?;
        let relay = RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&database)
            .vhost(&vhost)
            .start()
            .await?;
        let port = free_port();
        let mut services = vec![program(
            &database,
            &["order-service", "--listen", &format!("127.0.0.1:{port}")],
        )?];
        for consumer in CONSUMERS {
            // Consumers die often here, and each death counts as a delivery.
            let arguments = [consumer, "--broker", &vhost.uri(), "--delivery-limit", "100"];
            services.push(program(&database, &arguments)?);
        }
        for service in &mut services {
            service.start()?;
        }
        let client = database.client().await?;
        let tables = "select (count(*) = 4)::text from pg_tables
                      where tablename = 'processed_events' or (schemaname = 'public' and tablename = 'orders')";
        wait_true(&client, "the shop's tables", tables).await?;
        client.batch_execute(plan.sabotage).await?;
        for consumer in CONSUMERS {
            // It counts deliveries: a sequence does not roll back.
            let sql = format!(
                "create sequence tries_{consumer};
                 create function {consumer}.note_try() returns trigger language plpgsql as
                   $$ begin perform nextval('public.tries_{consumer}'); return new; end $$;
                 create trigger tries before insert on {consumer}.processed_events
                   for each row execute function {consumer}.note_try()"
            );
            client.batch_execute(&sql).await?;
        }
        Ok(Self {
            servers,
            database,
            vhost,
            relay,
            services,
            port,
        })
    }

    async fn strike(&mut self, fault: Fault) -> Result<()> {
        println!("{fault:?}");
        match (fault, &mut self.servers) {
            (Fault::OrderService, _) => restart(&mut self.services[0]).await?,
            (Fault::Consumer(number), _) => restart(&mut self.services[1 + number]).await?,
            (Fault::Relay, _) => {
                self.relay.kill().await?;
                self.relay.start()?;
            }
            (Fault::Replay, _) => {
                let replay = self
                    .relay
                    .run_command(&["replay", "--event-type", "OrderCreated", "--yes"])
                    .await?;
                ensure!(replay.code() == Some(0), "{replay:?}");
            }
            (Fault::Broker, Some((_, broker))) => {
                broker.kill().await?;
                broker.start_again().await?;
            }
            (Fault::Database, Some((postgres, _))) => {
                postgres.kill().await?;
                postgres.start_again().await?;
            }
            (Fault::Broker | Fault::Database, None) => {}
        }
        Ok(())
    }

    /// Waits until every event has been processed by every consumer, and nothing is left to come.
    async fn wait_quiet(&mut self) -> Result<()> {
        self.relay.wait_ready(LONG).await?;
        let client = self.database.client().await?;
        for consumer in CONSUMERS {
            let missing = format!(
                "select count(*)::text from outbox_events where id not in (select event_id from {consumer}.processed_events)"
            );
            eventually(&format!("every event to reach {consumer}"), LONG, async || {
                text(&client, &missing).await.is_ok_and(|count| count == "0")
            })
            .await?;
        }
        // What the relay sends again after its death comes before what it sends for the first time.
        for consumer in CONSUMERS {
            let queue = format!("shop.{consumer}");
            eventually(&format!("{queue} to be empty"), LONG, async || {
                self.vhost
                    .queue_length(&queue)
                    .await
                    .is_ok_and(|length| length == 0)
            })
            .await?;
        }
        Ok(())
    }
}

/// A program of the shop, as this very program with other arguments.
fn program(database: &Database, arguments: &[&str]) -> Result<Service> {
    let name = arguments.first().context("a program's name")?;
    let this = std::env::current_exe()?;
    let test = [
        "shop::story::a_process_to_be_killed",
        "--exact",
        "--ignored",
        "--nocapture",
    ];
    let service = Service::new(name, this, &test)
        .env("SHOP_DATABASE_URL", &database.url())
        .env("SHOP_TEST_ARGUMENTS", &arguments.join(" "));
    Ok(service)
}

#[tokio::test]
#[ignore = "the program that the tests of the story start and kill"]
async fn a_process_to_be_killed() -> Result<()> {
    use clap::Parser as _;
    let arguments = std::env::var("SHOP_TEST_ARGUMENTS").context("SHOP_TEST_ARGUMENTS")?;
    let arguments = std::iter::once("shop").chain(arguments.split(' '));
    walrelay_shop::program::run(walrelay_shop::program::Arguments::try_parse_from(arguments)?).await
}

async fn restart(service: &mut Service) -> Result<()> {
    service.kill().await?;
    service.start()?;
    Ok(())
}

/// Runs the story, and returns what is wrong in the end.
async fn tell(plan: Plan) -> Result<Vec<String>> {
    println!("seed {}", plan.seed);
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut stage = Stage::new(&plan).await?;
    let mut faults: Vec<Fault> = (0..plan.rounds).flat_map(|_| FAULTS).collect();
    faults.retain(|fault| plan.with_servers || !matches!(fault, Fault::Broker | Fault::Database));
    random.shuffle(&mut faults);
    // A replay at the end for sure, so that there are duplicates of everything.
    faults.push(Fault::Replay);

    let progress = Progress::default();
    let mut buyers = JoinSet::new();
    for number in 0..BUYERS {
        let buyer = Buyer {
            port: stage.port,
            orders: (number..plan.orders).step_by(BUYERS).collect(),
            random: random.fork(),
            progress: progress.clone(),
        };
        buyers.spawn(buyer.buy());
    }
    let count = faults.len();
    for (number, fault) in faults.into_iter().enumerate() {
        let due = plan.orders * (number + 1) / (count + 1);
        let what = format!("{due} orders before {fault:?}");
        eventually(&what, LONG, || {
            std::future::ready(progress.done() >= due || progress.failed())
        })
        .await?;
        stage.strike(fault).await?;
    }
    let mut ledger = Ledger::default();
    while let Some(bought) = buyers.join_next().await {
        ledger.add(bought??);
    }
    stage.wait_quiet().await?;
    let client = stage.database.client().await?;
    let mut violations = violations(&client, &ledger, &CONSUMERS).await?;
    for consumer in CONSUMERS {
        let dead = stage.vhost.queue_length(&format!("shop.{consumer}.dead")).await?;
        if dead > 0 {
            violations.push(format!("{dead} dead letters of {consumer}"));
        }
    }
    println!("{}", ledger.summary());
    Ok(violations)
}

const FAULTS: [Fault; 8] = [
    Fault::OrderService,
    Fault::Consumer(0),
    Fault::Consumer(1),
    Fault::Consumer(2),
    Fault::Relay,
    Fault::Replay,
    Fault::Broker,
    Fault::Database,
];

fn seed(default: u64) -> Result<u64> {
    match std::env::var("WALRELAY_TEST_SEED") {
        Ok(seed) => seed.parse().context("WALRELAY_TEST_SEED"),
        Err(_) => Ok(default),
    }
}

#[tokio::test]
async fn every_order_and_each_of_its_effects_is_there_once_whatever_dies() -> Result<()> {
    let plan = Plan {
        seed: seed(1)?,
        orders: 200,
        rounds: 1,
        with_servers: true,
        sabotage: "",
    };
    assert_eq!(tell(plan).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
#[ignore = "takes minutes: for scripts/test --full"]
async fn two_thousand_orders_by_three_seeds() -> Result<()> {
    for number in 0..3 {
        let plan = Plan {
            seed: seed(2)? + number,
            orders: 2000,
            rounds: 5,
            with_servers: true,
            sabotage: "",
        };
        assert_eq!(tell(plan).await?, Vec::<String>::new());
    }
    Ok(())
}

/// The test of the test: with keys that are unique whatever the client sends, retries place more orders.
#[tokio::test]
async fn without_the_unique_constraint_it_is_seen() -> Result<()> {
    let plan = Plan {
        seed: seed(5)?,
        orders: 40,
        rounds: 0,
        with_servers: false,
        sabotage: "create function forget_key() returns trigger language plpgsql as
                     $$ begin new.idempotency_key := gen_random_uuid(); return new; end $$;
                   create trigger forget_key before insert on orders for each row execute function forget_key()",
    };
    let violations = tell(plan).await?;
    assert!(
        violations
            .iter()
            .any(|violation| violation.contains("orders of 40 keys")),
        "{violations:?}"
    );
    assert!(
        violations
            .iter()
            .any(|violation| violation.contains("answered with orders")),
        "{violations:?}"
    );
    Ok(())
}

/// The test of the test: a consumer that has forgotten what it processed does it again.
#[tokio::test]
async fn without_processed_events_it_is_seen() -> Result<()> {
    let plan = Plan {
        seed: seed(6)?,
        orders: 40,
        rounds: 0,
        with_servers: false,
        sabotage: "create function forget() returns trigger language plpgsql as
                     $$ begin delete from inventory.processed_events where event_id = new.event_id; return new; end $$;
                   create trigger forget before insert on inventory.processed_events for each row execute function forget()",
    };
    let violations = tell(plan).await?;
    assert!(!violations.is_empty());
    assert!(
        violations
            .iter()
            .all(|violation| violation.starts_with("stock of")),
        "{violations:?}"
    );
    Ok(())
}
