//! The shop of `examples/shop`: a retried request comes to one order, one event for each change, one effect at each consumer.

mod account;
mod actions;
mod buyer;
mod client;
mod consumers;
mod orders;
mod service;
mod snippets;
mod story;
