//! The `walrelay` binary: parses the command line, carries the command out, exits.

use std::process::ExitCode;

use clap::Parser as _;
use walrelay::cli::Cli;
use walrelay::commands;

fn main() -> ExitCode {
    commands::dispatch(&Cli::parse()).into()
}
