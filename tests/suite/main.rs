//! The suite: walrelay's binary against real servers that the test bed starts.

mod cli;
mod complaint;
mod handshake;
mod link;
mod main_path;
mod setup;
mod shutdown;
mod standby;
mod world;
