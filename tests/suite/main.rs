//! The suite: walrelay's binary against real servers that the test bed starts.

mod bad_input;
mod cli;
mod complaint;
mod dead_letters;
mod errands;
mod faults;
mod guard;
mod handshake;
mod health;
mod link;
mod load;
mod main_path;
mod marks;
mod oversized;
mod policies;
mod prefix;
mod retry;
mod security;
mod setup;
mod shutdown;
mod source;
mod standby;
mod wait;
mod world;
mod writer;
