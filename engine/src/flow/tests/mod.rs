//! The flow against a scripted PostgreSQL and a scripted broker.

mod delivery;
mod hold;
mod rig;
mod sessions;
mod stream;
mod timers;
