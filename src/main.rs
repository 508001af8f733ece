//! Maps subcommands to their files and errors to exit codes.

mod cli;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs reasoning models for coding agents under a fixed KV-cache budget, and remembers.
#[derive(Parser)]
#[command(name = "attar", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(cli::serve::ServeCommand),
    Demo(cli::demo::DemoCommand),
    Chat(cli::chat::ChatCommand),
    Replay(cli::replay::ReplayCommand),
    Condense(cli::condense::CondenseCommand),
    Bench(cli::bench::BenchCommand),
    Eval(cli::eval::EvalCommand),
    Sessions(cli::sessions::SessionsCommand),
    Model(cli::model::ModelCommand),
    Status(cli::status::StatusCommand),
    Doctor(cli::doctor::DoctorCommand),
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("ATTAR_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,attar=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    let result = match Cli::parse().command {
        Command::Serve(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Chat(command) => command.run(),
        Command::Replay(command) => command.run(),
        Command::Condense(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Eval(command) => command.run(),
        Command::Sessions(command) => command.run(),
        Command::Model(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Doctor(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Who reads our output, such as `head`, has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(is_broken)
}
