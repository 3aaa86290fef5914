//! The flow against a scripted PostgreSQL and a scripted broker, and against random schedules of both.

mod backfill;
mod dead_letters;
mod delivery;
mod hold;
mod isolation;
mod many_retries;
mod marking;
mod messages;
mod pace;
mod policies;
mod replay;
mod retries;
mod rig;
mod sessions;
mod simulation;
mod stream;
mod streaming;
mod strict;
mod timers;
mod world;
