//! The programs of the demonstration, as child processes.

use std::path::Path;
use std::time::Duration;

use walrelay_testbed::{Database, Relay, Service, Vhost, eventually, free_port, http_get};

/// How long the order service may take to answer.
const START: Duration = Duration::from_secs(30);

/// How many of its last lines each program shows when something went wrong.
const SHOWN_LINES: usize = 10;

/// walrelay and the shop.
pub(crate) struct Programs {
    pub(crate) relay: Relay,
    /// The order service's.
    pub(crate) port: u16,
    order_service: Service,
    inventory: Service,
    others: [Service; 2],
}

impl Programs {
    /// Starts the shop beside a relay that runs.
    pub(crate) async fn start(
        shop: &Path,
        database: &Database,
        vhost: &Vhost,
        relay: Relay,
    ) -> anyhow::Result<Programs> {
        let port = free_port();
        let program = |arguments: &[&str]| {
            let name = arguments.first().copied().unwrap_or_default();
            Service::new(name, shop, arguments)
                .env("SHOP_DATABASE_URL", &database.url())
                .env("SHOP_BROKER_URI", &vhost.uri())
        };
        let mut programs = Programs {
            relay,
            port,
            order_service: program(&["order-service", "--listen", &format!("127.0.0.1:{port}")]),
            inventory: program(&["inventory"]),
            others: [program(&["coupons"]), program(&["risk"])],
        };
        for service in programs.services() {
            service.start()?;
        }
        let client = database.client().await?;
        let tables = "select count(*) = 3 from pg_tables where tablename = 'processed_events'";
        eventually("the shop to be open", START, async || {
            let answers = http_get(port, "/orders/1").await.is_ok();
            answers && client.query_one(tables, &[]).await.is_ok_and(|row| row.get(0))
        })
        .await?;
        Ok(programs)
    }

    /// Kills the order service and a consumer, and starts them again.
    pub(crate) async fn kill_shop(&mut self) -> anyhow::Result<()> {
        for service in [&mut self.order_service, &mut self.inventory] {
            service.kill().await?;
            service.start()?;
        }
        Ok(())
    }

    pub(crate) fn print_logs(&mut self) {
        let relay = self.relay.log();
        print_last("relay", &relay);
        for service in self.services() {
            print_last(service.name(), &service.log());
        }
    }

    fn services(&mut self) -> [&mut Service; 4] {
        let [coupons, risk] = &mut self.others;
        [&mut self.order_service, &mut self.inventory, coupons, risk]
    }
}

fn print_last(name: &str, lines: &[String]) {
    for line in lines.iter().skip(lines.len().saturating_sub(SHOWN_LINES)) {
        eprintln!("{name}: {line}");
    }
}
