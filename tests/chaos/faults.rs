//! Carrying out a fault, and mending it.
//!
//! The pauses here are the schedule's own: how long something is broken is what the seed decides.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lapin::ExchangeKind;
use tokio::sync::Mutex;
use tokio::time::sleep;
use walrelay_testbed::{Direction, QueueOptions, Signal, TcpProxy, eventually};

use crate::history::Struck;
use crate::journal::Journal;
use crate::schedule::{Fault, Kind, Target};
use crate::stage::{EXCHANGE, FANOUT, GRACE, KEYS, LONG, Stage};

/// A queue that is full for a while.
const FULL: &str = "full";

/// How long a relay may keep a server from shutting down.
const SHUTDOWN: Duration = Duration::from_secs(15);

/// What a stop may take on top of the grace.
const STOP: Duration = Duration::from_secs(6);

impl Stage<'_> {
    /// Waits for its time, does it, and mends it.
    pub(crate) async fn carry_out(&self, fault: Fault, journal: &Journal) -> Result<Struck> {
        sleep(fault.after).await;
        let from = self.now();
        let name = fault.kind.name();
        self.strike(fault)
            .await
            .with_context(|| format!("strike: {name}"))?;
        sleep(fault.lasting).await;
        self.mend(fault, journal)
            .await
            .with_context(|| format!("mend: {name}"))?;
        Ok(Struck {
            fault,
            from,
            until: self.now(),
        })
    }

    async fn strike(&self, fault: Fault) -> Result<()> {
        let broker = &self.broker;
        match fault.kind {
            Kind::BrokerKilled => {
                self.door.lock().await.refuse().await;
                broker.lock().await.kill().await?;
            }
            Kind::BrokerRestarted => {
                self.door.lock().await.refuse().await;
                broker.lock().await.stop().await?;
            }
            Kind::MemoryAlarm => broker.lock().await.raise_memory_alarm().await?,
            Kind::ConnectionsClosed => {
                let arguments = ["close_all_connections", "chaos"];
                drop(broker.lock().await.ctl(&arguments).await?);
            }
            Kind::QueueFull => self.fill_queue(fault.detail % 30).await?,
            Kind::BindingRemoved => {
                // All keys, or one: then what fails has successors that do not.
                let unbind = async || {
                    for key in KEYS.iter().skip(fault.detail as usize % 2) {
                        self.vhost.unbind_exchange(FANOUT, EXCHANGE, key).await?;
                    }
                    Ok(())
                };
                self.insist("no binding", unbind).await?;
            }
            Kind::ExchangeDeleted => {
                let delete = async || Ok(self.vhost.delete_exchange(EXCHANGE).await?);
                self.insist("no exchange", delete).await?;
            }
            Kind::DatabaseRestartedFast => self.shut_down(Signal::Interrupt).await?,
            Kind::DatabaseRestartedImmediate => self.shut_down(Signal::Quit).await?,
            Kind::DatabaseKilled => self.postgres.lock().await.kill().await?,
            Kind::WalsenderTerminated => self.terminate_walsender().await?,
            Kind::RelayKilled => self.kill_relay(fault.relay).await?,
            Kind::RelayStopped => self.stop_relay(fault.relay).await?,
            Kind::RelayFrozen => self.instances[fault.relay].relay.lock().await.pause()?,
            Kind::BrokerLinkCut | Kind::DatabaseLinkCut => self.link(fault).lock().await.cut().await,
            Kind::BrokerLinkRefused | Kind::DatabaseLinkRefused => {
                let mut link = self.link(fault).lock().await;
                link.refuse().await;
                link.cut().await;
            }
            Kind::BrokerLinkStalled | Kind::DatabaseLinkStalled => {
                let link = self.link(fault).lock().await;
                match fault.detail % 3 {
                    0 => link.stall(),
                    1 => link.stall_one_way(Direction::ToServer),
                    _ => link.stall_one_way(Direction::ToClient),
                }
            }
            Kind::BrokerLinkHalfClosed | Kind::DatabaseLinkHalfClosed => {
                let [first, _] = directions(fault);
                self.link(fault).lock().await.half_close(first);
            }
            Kind::BrokerLinkDelayed | Kind::DatabaseLinkDelayed => {
                let by = Duration::from_millis(u64::from(5 + fault.detail % 300));
                self.link(fault).lock().await.delay(by);
            }
            Kind::AcksSwallowed => self.link(fault).lock().await.swallow_acks(),
        }
        Ok(())
    }

    async fn mend(&self, fault: Fault, journal: &Journal) -> Result<()> {
        match fault.kind {
            Kind::BrokerKilled | Kind::BrokerRestarted => {
                self.broker.lock().await.start_again().await?;
                // Its future is large, and there are three at a time.
                Box::pin(self.let_in(journal)).await?;
            }
            Kind::MemoryAlarm => self.broker.lock().await.clear_memory_alarm().await?,
            Kind::QueueFull => {
                let delete = async || Ok(self.vhost.delete_queue(FULL).await?);
                self.insist("the full queue to go", delete).await?;
            }
            Kind::BindingRemoved => self.bind().await?,
            Kind::ExchangeDeleted => {
                let declare = async || {
                    let kind = ExchangeKind::Topic;
                    Ok(self.vhost.declare_exchange(EXCHANGE, kind).await?)
                };
                self.insist("the exchange", declare).await?;
                self.bind().await?;
            }
            Kind::DatabaseRestartedFast | Kind::DatabaseRestartedImmediate | Kind::DatabaseKilled => {
                self.postgres.lock().await.start_again().await?;
            }
            Kind::RelayKilled | Kind::RelayStopped => {
                self.instances[fault.relay].relay.lock().await.start()?;
            }
            Kind::RelayFrozen => self.instances[fault.relay].relay.lock().await.resume()?,
            Kind::BrokerLinkRefused
            | Kind::BrokerLinkStalled
            | Kind::BrokerLinkDelayed
            | Kind::AcksSwallowed
            | Kind::DatabaseLinkRefused
            | Kind::DatabaseLinkStalled
            | Kind::DatabaseLinkDelayed => self.link(fault).lock().await.pass().await?,
            // Once more: the next connection may just have begun to work.
            Kind::BrokerLinkCut | Kind::DatabaseLinkCut => self.link(fault).lock().await.cut().await,
            Kind::BrokerLinkHalfClosed | Kind::DatabaseLinkHalfClosed => {
                let [_, second] = directions(fault);
                self.link(fault).lock().await.half_close(second);
            }
            // Over as soon as done.
            Kind::ConnectionsClosed | Kind::WalsenderTerminated => {}
        }
        Ok(())
    }

    /// A relay's way to the server that the fault is about.
    fn link(&self, fault: Fault) -> &Mutex<TcpProxy> {
        let instance = &self.instances[fault.relay];
        if fault.kind.target() == Target::DatabaseLink {
            &instance.to_database
        } else {
            &instance.to_broker
        }
    }

    async fn bind(&self) -> Result<()> {
        let bind = async || {
            for key in KEYS {
                self.vhost.bind_exchange(FANOUT, EXCHANGE, key).await?;
            }
            Ok(())
        };
        self.insist("the binding", bind).await
    }

    /// Adds a queue that soon takes no more, beside those that do.
    async fn fill_queue(&self, length: u32) -> Result<()> {
        let declare = async || {
            let queue = QueueOptions::classic(FULL).refusing_beyond(length.into());
            self.vhost.declare_queue(queue).await?;
            Ok(self.vhost.bind(FULL, FANOUT, "").await?)
        };
        self.insist("a full queue", declare).await
    }

    async fn shut_down(&self, signal: Signal) -> Result<()> {
        let mut postgres = self.postgres.lock().await;
        postgres.signal(signal)?;
        let released = async || !postgres.has_walsender();
        let mut ended = eventually("the walsenders to end", SHUTDOWN, released).await;
        if ended.is_ok() {
            // The rest is the server's own, and the machine's.
            ended = postgres.wait_stopped(4 * LONG).await;
        }
        if let Err(error) = ended {
            self.complain(format!("a shutdown of the database was held up: {error}"));
            postgres.kill().await?;
        }
        Ok(())
    }

    async fn terminate_walsender(&self) -> Result<()> {
        let sql = format!(
            "select pg_terminate_backend(active_pid) from pg_replication_slots
             where slot_name = '{}' and active_pid is not null",
            self.slot()
        );
        let terminate = async || Ok(self.database.execute(&sql).await?);
        self.insist("a walsender to end", terminate).await
    }

    async fn kill_relay(&self, number: usize) -> Result<()> {
        let mut relay = self.instances[number].relay.lock().await;
        self.note_end(&mut relay)?;
        relay.kill().await?;
        Ok(())
    }

    async fn stop_relay(&self, number: usize) -> Result<()> {
        let mut relay = self.instances[number].relay.lock().await;
        self.note_end(&mut relay)?;
        relay.terminate()?;
        match relay.wait_exit(GRACE + STOP).await {
            Ok(status) if status.code() == Some(0) => {}
            Ok(status) => self.complain(format!("stopped, a relay ended with {status}")),
            Err(error) => {
                self.complain(format!("a relay did not stop: {error}"));
                relay.kill().await?;
            }
        }
        Ok(())
    }
}

/// Which way is closed first, and which way the second time.
fn directions(fault: Fault) -> [Direction; 2] {
    let way = |bit: u32| match fault.detail >> bit & 1 {
        0 => Direction::ToServer,
        _ => Direction::ToClient,
    };
    [way(0), way(1)]
}
