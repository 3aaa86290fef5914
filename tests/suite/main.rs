//! The suite: walrelay's binary against real servers that the test bed starts.

mod cli;
mod dead_letters;
mod guard;
mod main_path;
mod source;
mod wait;
mod world;
