//! walrelay from the outside.

mod cli;
