//! The suite: walrelay's binary against real servers that the test bed starts.

mod bad_input;
mod cli;
mod complaint;
mod dead_letters;
mod faults;
mod guard;
mod halts;
mod handshake;
mod health;
mod kills;
mod link;
mod load;
mod main_path;
mod oversized;
mod policies;
mod resources;
mod retry;
mod security;
mod setup;
mod shutdown;
mod source;
mod standby;
mod stop;
mod wait;
mod world;
mod writer;
