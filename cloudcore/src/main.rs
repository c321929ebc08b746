//! `cloudcore`: the command line; wiring only.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cloudcore::allocator::Allocator;
use cloudcore::config::Config;
use cloudcore::{admin, serve};
use daemon::command_line::{self, CONFIG, Files, asked_to_end};
use daemon::config::Loaded;
use proto::admin::{Answer, Request, label, seconds};

const NAME: &str = "cloudcore";

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Holds what should be and tells the nodes.
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Args {
    #[command(flatten)]
    files: Files,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the cloud core.
    Serve,
    /// Checks the configuration and says what is wrong with it.
    Check,
    /// Join tokens, of the cloud core that runs on this data folder.
    #[command(subcommand)]
    Token(Token),
    /// Copies the store to a file, while the cloud core runs or not. The sealing key is not in it.
    Backup { file: PathBuf },
}

#[derive(Debug, Subcommand)]
enum Token {
    /// Makes a token and prints it: `edgecore join` wants it. It is shown only once.
    Create {
        /// How long it can be used: 90s, 30m, 1h, 7d.
        #[arg(long, default_value = "1h", value_parser = seconds)]
        ttl: u64,
        /// How many nodes may join with it.
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// The one node name that it gives.
        #[arg(long)]
        name: Option<String>,
        /// A label that it gives; may be repeated. `*` as the value lets the node choose.
        #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
        /// The node of this name loses its place to whoever comes with the token.
        #[arg(long, value_name = "NAME", conflicts_with = "name")]
        replace: Option<String>,
    },
    /// Lists the tokens, without their secrets.
    List,
    /// Makes a token useless.
    Delete { id: String },
}

fn main() -> ExitCode {
    let args: Args = match command_line::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let loaded = match args.files.load() {
        Ok(loaded) => loaded,
        Err(error) => return command_line::failed(NAME, &error.into(), CONFIG),
    };
    match run(args.command, loaded) {
        Ok(code) => code,
        Err(error) => command_line::failed(NAME, &error, 1),
    }
}

#[expect(clippy::print_stdout, reason = "the command line speaks to people")]
#[tokio::main(worker_threads = 2)]
async fn run(command: Command, loaded: Loaded<Config>) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve => {
            daemon::logging::init(loaded.config.log)?;
            rustls::crypto::ring::default_provider()
                .install_default()
                .map_err(|_| anyhow::anyhow!("the TLS provider is installed twice"))?;
            loaded.warn();
            serve::serve(loaded.config, asked_to_end()?).await?;
        }
        Command::Check => {
            for key in &loaded.unknown {
                println!("{key}: no such key");
            }
            return Ok(if loaded.unknown.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(CONFIG)
            });
        }
        Command::Token(token) => {
            let request = request(token);
            print(&admin::ask(&loaded.config.data, &request).await?);
        }
        Command::Backup { file } => {
            let revision = serve::backup(&loaded.config.data, &file)?;
            println!("backed up at revision {revision} to {}", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn request(token: Token) -> Request {
    match token {
        Token::Create { ttl, uses, name, label, replace } => Request::CreateToken {
            ttl_s: ttl,
            uses,
            name: name.or_else(|| replace.clone()),
            labels: label.into_iter().collect(),
            replace: replace.is_some(),
        },
        Token::List => Request::Tokens,
        Token::Delete { id } => Request::DeleteToken { id },
    }
}

#[expect(clippy::print_stdout, reason = "the command line speaks to people")]
fn print(answer: &Answer) {
    match answer {
        Answer::Token(token) => println!("{token}"),
        Answer::Tokens(tokens) => {
            println!("{:<18}{:<22}{:<6}{:<9}NAME", "ID", "ENDS", "USES", "REPLACE");
            for token in tokens {
                let ends = proto::time::rfc3339(token.ends_ms.div_euclid(1000));
                let name = token.name.as_deref().unwrap_or("-");
                println!(
                    "{:<18}{ends:<22}{:<6}{:<9}{name}",
                    token.id, token.uses_left, token.replace
                );
            }
        }
        Answer::Done(_) | Answer::Nodes(_) | Answer::Revision(_) | Answer::Error(_) => {}
    }
}
