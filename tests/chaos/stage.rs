//! The servers of all runs, and what one run has of its own: a database, a virtual host, relays behind proxies.

use std::sync::{Mutex as PlainMutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use lapin::ExchangeKind;
use tokio::sync::Mutex;
use walrelay_testbed::{
    Database, Postgres, PostgresOptions, QueueOptions, RabbitMq, RabbitMqOptions, Relay, RelayBuilder,
    TcpProxy, Vhost, eventually, eventually_some, patience,
};

use crate::journal::{Journal, touch};
use crate::schedule::Settings;

/// What the relays publish to.
pub(crate) const EXCHANGE: &str = "outbox";

/// What everything from [`EXCHANGE`] goes to, by [`KEYS`], so that all queues lose and regain a key at once.
pub(crate) const FANOUT: &str = "all";

/// The bindings: events of an aggregate have one key or the other.
pub(crate) const KEYS: [&str; 2] = ["*.Happened", "*.Changed"];

/// The stream whose order is the truth.
pub(crate) const STREAM: &str = "stream";

/// The queue beside the stream.
pub(crate) const QUEUE: &str = "queue";

/// Longer than anything takes that gets there at all.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How long a stop of a relay waits for outstanding confirms.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// Servers that are killed, starved and restarted, by one run at a time.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) postgres: Postgres,
    pub(crate) broker: RabbitMq,
}

impl Servers {
    pub(crate) async fn start() -> Result<Servers> {
        let (postgres, broker) = tokio::join!(
            Postgres::start(PostgresOptions::default()),
            RabbitMq::start(RabbitMqOptions::default())
        );
        Ok(Servers {
            postgres: postgres?,
            broker: broker?,
        })
    }
}

/// A relay and its ways to the servers.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) relay: Mutex<Relay>,
    pub(crate) to_broker: Mutex<TcpProxy>,
    pub(crate) to_database: Mutex<TcpProxy>,
}

/// Where one run takes place.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) settings: Settings,
    pub(crate) postgres: Mutex<&'a mut Postgres>,
    pub(crate) broker: Mutex<&'a mut RabbitMq>,
    /// In front of the broker, behind the relays' own ways to it (see [`let_in`](Stage::let_in)).
    pub(crate) door: Mutex<TcpProxy>,
    pub(crate) database: Database,
    pub(crate) vhost: Vhost,
    pub(crate) instances: Vec<Instance>,
    pub(crate) start: Instant,
    complaints: PlainMutex<Vec<String>>,
    peaks: PlainMutex<Vec<u64>>,
}

impl<'a> Stage<'a> {
    /// Everything in place, the relays set up but not started.
    pub(crate) async fn new(settings: Settings, servers: &'a mut Servers) -> Result<Stage<'a>> {
        let database = servers.postgres.database().await?;
        let vhost = servers.broker.vhost().await?;
        for (name, kind) in [(EXCHANGE, ExchangeKind::Topic), (FANOUT, ExchangeKind::Fanout)] {
            vhost.declare_exchange(name, kind).await?;
        }
        for key in KEYS {
            vhost.bind_exchange(FANOUT, EXCHANGE, key).await?;
        }
        for queue in [
            QueueOptions::stream(STREAM),
            QueueOptions::of_kind(QUEUE, settings.queue),
        ] {
            vhost.declare_queue(queue).await?;
        }
        for name in [STREAM, QUEUE] {
            vhost.bind(name, FANOUT, "").await?;
        }
        servers.broker.write_out().await?;
        let door = TcpProxy::start(vhost.port()).await?;
        let mut instances = Vec::new();
        for _ in 0..settings.relays() {
            instances.push(Instance::new(&settings, &database, &vhost, door.port()).await?);
        }
        for instance in instances.iter().take(1) {
            instance.relay.lock().await.setup().await?;
        }
        Ok(Stage {
            settings,
            postgres: Mutex::new(&mut servers.postgres),
            broker: Mutex::new(&mut servers.broker),
            door: Mutex::new(door),
            database,
            vhost,
            instances,
            start: Instant::now(),
            complaints: PlainMutex::default(),
            peaks: PlainMutex::default(),
        })
    }

    /// The replication slot's name.
    pub(crate) fn slot(&self) -> String {
        format!("slot_{}", self.database.name())
    }

    /// The time since the beginning.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Lets the relays in to a broker that has been started, once its stream is back. RabbitMQ listens before that, and
    /// meanwhile routes a message past the stream to the queue alone, and confirms it; nor does a message that is routed
    /// nowhere else at that time count for the stream, whose deduplication then takes another one for its repetition
    /// (up to 4.0). That would be the broker's loss, not the relay's.
    pub(crate) async fn let_in(&self, journal: &Journal) -> Result<()> {
        let known = self.now();
        let is_back = async || {
            journal.has_mark(known) || touch(&self.vhost, STREAM, known).await && journal.has_mark(known)
        };
        eventually(
            "the broker's stream to take messages, and to be read, again",
            LONG,
            is_back,
        )
        .await?;
        self.broker.lock().await.write_out().await?;
        Ok(self.door.lock().await.pass().await?)
    }

    /// Tries something with a server that may be down, until it works.
    pub(crate) async fn insist<T>(&self, what: &str, work: impl AsyncFn() -> Result<T>) -> Result<T> {
        Ok(eventually_some(what, LONG, async || work().await.ok()).await?)
    }

    /// Writes down what should not have happened.
    pub(crate) fn complain(&self, text: String) {
        lock(&self.complaints).push(text);
    }

    /// Writes down how much memory a relay has needed so far.
    pub(crate) fn note_peak(&self, relay: &Relay) {
        // A process that has ended has none.
        if let Ok(kib) = relay.peak_rss_kib() {
            lock(&self.peaks).push(kib);
        }
    }

    /// Writes down what is to be known of a relay that is about to be ended: nobody else may have done that.
    pub(crate) fn note_end(&self, relay: &mut Relay) -> Result<()> {
        self.note_peak(relay);
        if let Some(status) = relay.exit_status()? {
            self.complain(format!("a relay had ended by itself: {status}"));
        }
        Ok(())
    }

    /// Asks for all dead letters to be delivered, where events become any. The relays need not run.
    pub(crate) async fn retry_dead_letters(&self) -> Result<()> {
        if !self.settings.dead_letters || self.pending_dead_letters().await? == 0 {
            return Ok(());
        }
        let relay = self.instances[0].relay.lock().await;
        let asked = relay
            .run_command(&["dead-letters", "retry", "--all", "--yes"])
            .await?;
        if asked.code() != Some(0) {
            self.complain(format!(
                "dead-letters retry: {}\n{}{}",
                asked.status, asked.stdout, asked.stderr
            ));
        }
        Ok(())
    }

    async fn pending_dead_letters(&self) -> Result<i64> {
        let sql = "select count(*) from walrelay.dead_letters where state = 'pending'";
        Ok(self.database.client().await?.query_one(sql, &[]).await?.get(0))
    }

    /// The complaints and the peaks so far.
    pub(crate) fn notes(&self) -> (Vec<String>, Vec<u64>) {
        (lock(&self.complaints).clone(), lock(&self.peaks).clone())
    }

    /// How many connections the relays have made to the broker.
    pub(crate) async fn links(&self) -> u64 {
        let mut links = 0;
        for instance in &self.instances {
            links += instance.to_broker.lock().await.reached();
        }
        links
    }
}

impl Instance {
    async fn new(settings: &Settings, database: &Database, vhost: &Vhost, door: u16) -> Result<Instance> {
        let to_broker = TcpProxy::start_amqp(door).await?;
        let to_database = TcpProxy::start(database.port()).await?;
        let relay = relay(settings)
            .database(database)
            .postgres_url(&database.url_through(to_database.port()))
            .rabbitmq_uri(&vhost.uri_through(to_broker.port()))
            .build()?;
        Ok(Instance {
            relay: Mutex::new(relay),
            to_broker: Mutex::new(to_broker),
            to_database: Mutex::new(to_database),
        })
    }
}

/// A relay's configuration: short time-outs, so that a run sees many of them pass. A setting that runs should vary
/// belongs into [`Settings`] and here.
fn relay(settings: &Settings) -> RelayBuilder {
    let seconds = |seconds| format!("{}s", patience(Duration::from_secs(seconds)).as_secs());
    let variable = |name: &str| std::env::var(name).ok();
    let level = variable("WALRELAY_CHAOS_LOG").unwrap_or_else(|| "info".to_owned());
    let binary =
        variable("WALRELAY_CHAOS_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_walrelay").to_owned());
    RelayBuilder::new(binary)
        .text("postgres.wal_sender_timeout", &seconds(3))
        .text("postgres.status_interval", "500ms")
        .text("postgres.guard_interval", "2s")
        .text("rabbitmq.heartbeat", &seconds(4))
        .text(
            "delivery.ordering",
            if settings.strict { "strict" } else { "pipelined" },
        )
        .text(
            "delivery.on_unroutable",
            if settings.dead_letters {
                "dead_letter"
            } else {
                "hold"
            },
        )
        .env("WALRELAY_OUTBOX_AFTER_PUBLISH", settings.after_publish)
        .set("delivery.max_in_flight", &settings.window.to_string())
        .text("delivery.max_in_flight_bytes", "8MiB")
        .text("delivery.confirm_timeout", &seconds(4))
        .text("delivery.shutdown_grace", &format!("{}s", GRACE.as_secs()))
        .text("log.level", &level)
}

fn lock<T>(notes: &PlainMutex<T>) -> std::sync::MutexGuard<'_, T> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}
