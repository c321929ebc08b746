//! `edgectl`: the command line for people. Wiring only; every command is a module.

mod admin;
mod apply;
mod cli;
mod create;
mod delete;
mod failure;
mod get;
mod lines;
mod logs;
mod manifest;
mod near;
mod output;
mod resources;
mod server;
mod table;
mod three_way;

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::cli::{Cli, Command};
use crate::failure::{Failure, USAGE, told};
use crate::output::remark;
use crate::server::Server;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            remark(&format!("edgectl: {}", told(&error)));
            ExitCode::from(error.code())
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(cli: Cli) -> Result<(), Failure> {
    if let Command::Version { client: true } = cli.command {
        return admin::own_version();
    }
    let namespace = cli.namespace.as_deref().map(resources::checked).transpose()?;
    let server = Server::of_kubeconfig(cli.kubeconfig.as_deref(), namespace.as_deref()).await?;
    match cli.command {
        Command::Get(args) => get::run(&server, &args).await,
        Command::Apply(args) => apply::run(&server, &args).await,
        Command::Create(args) => create::run(&server, &args).await,
        Command::Delete(args) => delete::run(&server, &args).await,
        Command::Logs(args) => logs::run(&server, &args).await,
        Command::Token(command) => admin::token(&server, command).await,
        Command::Node(command) => admin::node(&server, command).await,
        Command::Version { client: _ } => admin::version(&server).await,
        Command::Backup { file } => admin::backup(&server, &file).await,
    }
}
