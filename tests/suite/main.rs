//! The suite: walrelay's binary against real servers that the test bed starts.

mod cli;
mod main_path;
mod oversized;
mod world;
