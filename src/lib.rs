//! walrelay relays a PostgreSQL outbox table to RabbitMQ from the write-ahead log.

pub mod admin;
pub mod caution;
pub mod cli;
pub mod commands;
pub mod config;
pub mod credential;
pub mod fault;
pub mod finding;
pub mod net;
#[cfg(feature = "otel")]
pub mod otel;
pub mod postgres;
pub mod rabbitmq;
#[cfg(test)]
mod reference;
pub mod relay;
pub mod repeats;
pub mod stdout;
pub mod systemd;
pub mod telemetry;
