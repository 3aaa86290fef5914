//! `doctor --routes`: the keys of the events in the tables, and what they reach.

use anyhow::Result;
use lapin::ExchangeKind;
use walrelay_testbed::{QueueOptions, RabbitMq, RabbitMqOptions, free_port};

use super::{said, server, world};
use crate::world::World;

/// Events of three routes, and one that no route can be made of.
const EVENTS: &str = "alter table outbox_events alter column event_type drop not null;
    insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
    select gen_random_uuid(), t[1], 1, t[2], '{}' from (values (array['order', 'Created']), (array['order', 'Created']),
    (array['order', 'Paid']), (array['invoice', 'Sent']), (array['order', null])) v (t)";

/// The lines about routes.
fn routes(said: &str) -> &str {
    let from = said.find("routes of").unwrap_or_default();
    let to = said.find("admin.listen").unwrap_or(said.len());
    &said[from..to]
}

#[tokio::test]
async fn the_routes_of_the_events_are_listed() -> Result<()> {
    let world = world().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    let none = said(&world, &relay, &["--routes"]).await?;
    assert!(
        none.contains("– route: there are no rows to tell the routes by"),
        "{none}"
    );
    world.client.batch_execute(EVENTS).await?;
    insta::assert_snapshot!("routes", routes(&said(&world, &relay, &["--routes"]).await?));
    Ok(())
}

#[tokio::test]
async fn those_that_nothing_is_bound_for_are_named() -> Result<()> {
    let port = free_port().to_string();
    let options = RabbitMqOptions::default()
        .plugin("rabbitmq_management")
        .config("management.tcp.port", &port)
        .config("management.tcp.ip", "127.0.0.1");
    let broker = RabbitMq::start(options).await?;
    // The world's own exchange takes everything; this one hands on by patterns, through another exchange too.
    let world = World::on(server().await?, &broker).await?;
    let vhost = &world.vhost;
    vhost.declare_exchange("events", ExchangeKind::Topic).await?;
    vhost.declare_exchange("orders", ExchangeKind::Direct).await?;
    vhost.bind_exchange("orders", "events", "order.#").await?;
    vhost.declare_queue(QueueOptions::classic("created")).await?;
    vhost.bind("created", "orders", "order.Created").await?;
    let relay = world
        .relay()
        .text("rabbitmq.exchange", "events")
        .text("rabbitmq.management", &format!("http://127.0.0.1:{port}"))
        .build()?;
    relay.setup().await?;
    world.client.batch_execute(EVENTS).await?;
    insta::assert_snapshot!(
        "routes_bound",
        routes(&said(&world, &relay, &["--routes"]).await?)
    );
    Ok(())
}
