//! The flow against a scripted PostgreSQL and a scripted broker, and against random schedules of both.

mod delivery;
mod hold;
mod rig;
mod sessions;
mod simulation;
mod stream;
mod timers;
mod world;
