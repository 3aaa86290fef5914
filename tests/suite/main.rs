//! The suite: walrelay's binary against real servers that the test bed starts.

mod bad_input;
mod cli;
mod complaint;
mod handshake;
mod health;
mod link;
mod main_path;
mod security;
mod setup;
mod world;
