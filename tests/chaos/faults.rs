//! Carrying out a fault, and mending it.
//!
//! The pauses here are the schedule's own: how long something is broken is what the seed decides.

use std::time::Duration;

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use tokio::time::sleep;
use walrelay_testbed::{Direction, QueueOptions, Signal};

use crate::history::Struck;
use crate::schedule::{Fault, Kind};
use crate::stage::{EXCHANGE, FANOUT, GRACE, Instance, Stage};

/// A queue that is full for a while.
const FULL: &str = "full";

/// How long the server's fast shutdown may take with a relay connected.
const SHUTDOWN: Duration = Duration::from_secs(15);

/// What a stop may take on top of the grace.
const STOP: Duration = Duration::from_secs(6);

impl Stage<'_> {
    /// Waits for its time, does it, and mends it.
    pub(crate) async fn carry_out(&self, fault: Fault) -> Result<Struck> {
        sleep(fault.after).await;
        let from = self.now();
        match fault.kind {
            Kind::BrokerKilled | Kind::BrokerRestarted | Kind::MemoryAlarm | Kind::ConnectionsClosed => {
                self.harm_broker(fault).await?
            }
            Kind::QueueFull | Kind::BindingRemoved | Kind::ExchangeDeleted => {
                self.change_topology(fault).await?
            }
            Kind::DatabaseRestartedFast
            | Kind::DatabaseRestartedImmediate
            | Kind::DatabaseKilled
            | Kind::WalsenderTerminated => self.harm_database(fault).await?,
            Kind::RelayKilled | Kind::RelayStopped | Kind::RelayFrozen => self.harm_relay(fault).await?,
            Kind::BrokerLinkCut
            | Kind::BrokerLinkRefused
            | Kind::BrokerLinkStalled
            | Kind::BrokerLinkHalfClosed
            | Kind::BrokerLinkDelayed
            | Kind::AcksSwallowed
            | Kind::DatabaseLinkCut
            | Kind::DatabaseLinkRefused
            | Kind::DatabaseLinkStalled
            | Kind::DatabaseLinkHalfClosed
            | Kind::DatabaseLinkDelayed => harm_link(&self.instances[fault.relay], fault).await?,
        }
        Ok(Struck {
            fault,
            from,
            until: self.now(),
        })
    }

    async fn harm_broker(&self, fault: Fault) -> Result<()> {
        let mut broker = self.broker.lock().await;
        match fault.kind {
            Kind::BrokerKilled => broker.kill().await?,
            Kind::BrokerRestarted => broker.stop().await?,
            Kind::MemoryAlarm => broker.raise_memory_alarm().await?,
            _ => drop(broker.ctl(&["close_all_connections", "chaos"]).await?),
        }
        sleep(fault.lasting).await;
        if fault.kind == Kind::MemoryAlarm {
            broker.clear_memory_alarm().await?;
        }
        Ok(broker.start_again().await?)
    }

    async fn change_topology(&self, fault: Fault) -> Result<()> {
        let vhost = &self.vhost;
        match fault.kind {
            Kind::QueueFull => {
                let length = (fault.detail % 30).into();
                self.insist("a full queue", async || {
                    vhost
                        .declare_queue(QueueOptions::classic(FULL).refusing_beyond(length))
                        .await?;
                    Ok(vhost.bind(FULL, FANOUT, "").await?)
                })
                .await?;
                sleep(fault.lasting).await;
                self.insist("the full queue to go", async || {
                    Ok(vhost.delete_queue(FULL).await?)
                })
                .await
            }
            Kind::BindingRemoved => {
                self.insist("no binding", async || {
                    Ok(vhost.unbind_exchange(FANOUT, EXCHANGE, "#").await?)
                })
                .await?;
                sleep(fault.lasting).await;
                self.insist("the binding", async || {
                    Ok(vhost.bind_exchange(FANOUT, EXCHANGE, "#").await?)
                })
                .await
            }
            _ => {
                self.insist("no exchange", async || {
                    Ok(vhost.delete_exchange(EXCHANGE).await?)
                })
                .await?;
                sleep(fault.lasting).await;
                self.insist("the exchange", async || {
                    vhost.declare_exchange(EXCHANGE, ExchangeKind::Topic).await?;
                    Ok(vhost.bind_exchange(FANOUT, EXCHANGE, "#").await?)
                })
                .await
            }
        }
    }

    async fn harm_database(&self, fault: Fault) -> Result<()> {
        let mut postgres = self.postgres.lock().await;
        match fault.kind {
            Kind::DatabaseRestartedFast | Kind::DatabaseRestartedImmediate => {
                let fast = fault.kind == Kind::DatabaseRestartedFast;
                postgres.signal(if fast { Signal::Interrupt } else { Signal::Quit })?;
                if let Err(error) = postgres.wait_stopped(SHUTDOWN).await {
                    self.complain(format!("a shutdown of the database was held up: {error}"));
                    postgres.kill().await?;
                }
            }
            Kind::DatabaseKilled => postgres.kill().await?,
            _ => {
                let sql = format!(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots
                     where slot_name = '{}' and active_pid is not null",
                    self.slot()
                );
                self.insist("a walsender to end", async || {
                    Ok(self.database.execute(&sql).await?)
                })
                .await?;
            }
        }
        sleep(fault.lasting).await;
        Ok(postgres.start_again().await?)
    }

    async fn harm_relay(&self, fault: Fault) -> Result<()> {
        let mut relay = self.instances[fault.relay].relay.lock().await;
        ensure!(
            relay.exit_status()?.is_none(),
            "relay {} is gone",
            fault.relay + 1
        );
        match fault.kind {
            Kind::RelayKilled => {
                self.note_peak(&relay);
                relay.kill().await?;
                sleep(fault.lasting).await;
                relay.start()?;
            }
            Kind::RelayStopped => {
                self.note_peak(&relay);
                relay.terminate()?;
                match relay.wait_exit(GRACE + STOP).await {
                    Ok(status) if status.code() == Some(0) => {}
                    Ok(status) => self.complain(format!("stopped, a relay ended with {status}")),
                    Err(error) => {
                        self.complain(format!("a relay did not stop: {error}"));
                        relay.kill().await?;
                    }
                }
                sleep(fault.lasting).await;
                relay.start()?;
            }
            _ => {
                relay.pause()?;
                sleep(fault.lasting).await;
                relay.resume()?;
            }
        }
        Ok(())
    }
}

async fn harm_link(instance: &Instance, fault: Fault) -> Result<()> {
    let link = match fault.kind {
        Kind::BrokerLinkCut
        | Kind::BrokerLinkRefused
        | Kind::BrokerLinkStalled
        | Kind::BrokerLinkHalfClosed
        | Kind::BrokerLinkDelayed
        | Kind::AcksSwallowed => &instance.to_broker,
        _ => &instance.to_database,
    };
    let mut link = link.lock().await;
    let direction = if fault.detail.is_multiple_of(2) {
        Direction::ToServer
    } else {
        Direction::ToClient
    };
    match fault.kind {
        Kind::BrokerLinkCut | Kind::DatabaseLinkCut => link.cut().await,
        Kind::BrokerLinkRefused | Kind::DatabaseLinkRefused => {
            link.refuse().await;
            link.cut().await;
        }
        Kind::BrokerLinkStalled | Kind::DatabaseLinkStalled => match fault.detail % 3 {
            0 => link.stall(),
            1 => link.stall_one_way(Direction::ToServer),
            _ => link.stall_one_way(Direction::ToClient),
        },
        Kind::BrokerLinkHalfClosed | Kind::DatabaseLinkHalfClosed => link.half_close(direction),
        Kind::BrokerLinkDelayed | Kind::DatabaseLinkDelayed => {
            link.delay(Duration::from_millis(u64::from(5 + fault.detail % 300)));
        }
        _ => link.swallow_acks(),
    }
    sleep(fault.lasting).await;
    Ok(link.pass().await?)
}
