//! A small shop: how one request, however often it is sent, comes to one order, one event for each change, and one effect at
//! each consumer.
//!
//! [`order_service`] takes requests over HTTP and writes orders with their events. walrelay publishes the events.
//! [`inventory`], [`coupons`] and [`risk`] consume them. What they rely on is plain SQL, in [`orders`] and in the crate
//! [`walrelay_outbox`], to be copied into any language. `README.md` beside this file walks through it.

pub mod consumer;
pub mod coupons;
pub mod database;
pub mod inventory;
pub mod order_service;
pub mod orders;
pub mod payment;
pub mod program;
pub mod risk;
pub mod state_machine;
mod topology;
