//! `cloudcore`: the command line; wiring only.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use cloudcore::config::Config;
use cloudcore::{admin, serve};
use proto::admin::{Answer, Request, seconds};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code for a configuration that cannot be used, as sysexits has it.
const CONFIG: u8 = 78;

/// Holds what should be and tells the nodes.
#[derive(Debug, Parser)]
#[command(name = "cloudcore", version)]
struct Args {
    /// Configuration file. Without it every key has its default.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// Data folder, instead of the configuration's.
    #[arg(long, global = true)]
    data: Option<PathBuf>,
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
        #[arg(long, default_value = "1h")]
        ttl: String,
        /// How many nodes may join with it.
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// The one node name that it gives.
        #[arg(long)]
        name: Option<String>,
        /// A label that it gives, KEY=VALUE; may be repeated. `*` as the value lets the node choose.
        #[arg(long)]
        label: Vec<String>,
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
    let args = Args::parse();
    let (config, unknown) = match load(&args) {
        Ok(loaded) => loaded,
        Err(error) => return fail(&error, CONFIG),
    };
    match run(args.command, config, &unknown) {
        Ok(code) => code,
        Err(error) => fail(&error, 1),
    }
}

#[expect(clippy::print_stderr, reason = "the command line speaks to people")]
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("cloudcore: {error:#}");
    ExitCode::from(code)
}

fn load(args: &Args) -> anyhow::Result<(Config, Vec<String>)> {
    let (mut config, unknown) = match &args.config {
        Some(path) => Config::load(path)?,
        None => (Config::default(), Vec::new()),
    };
    if let Some(data) = &args.data {
        config.data.clone_from(data);
    }
    Ok((config, unknown))
}

#[expect(clippy::print_stdout, reason = "the command line speaks to people")]
#[tokio::main(worker_threads = 2)]
async fn run(command: Command, config: Config, unknown: &[String]) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve => {
            daemon::logging::init(config.level()?)?;
            rustls::crypto::ring::default_provider()
                .install_default()
                .map_err(|_| anyhow::anyhow!("the TLS provider is installed twice"))?;
            for key in unknown {
                tracing::warn!(key, "the configuration has a key that means nothing here");
            }
            let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            let shutdown = async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            };
            serve::serve(config, shutdown).await?;
        }
        Command::Check => {
            for key in unknown {
                println!("{key}: no such key");
            }
            return Ok(if unknown.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(CONFIG)
            });
        }
        Command::Token(token) => {
            let request = request(token)?;
            print(&admin::ask(&config.data, &request).await?);
        }
        Command::Backup { file } => {
            let revision = serve::backup(&config.data, &file)?;
            println!("backed up at revision {revision} to {}", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn request(token: Token) -> anyhow::Result<Request> {
    Ok(match token {
        Token::Create { ttl, uses, name, label, replace } => Request::CreateToken {
            ttl_s: seconds(&ttl).with_context(|| format!("--ttl {ttl}: neither of 90s, 30m, 1h, 7d"))?,
            uses,
            name: name.or_else(|| replace.clone()),
            labels: label
                .iter()
                .map(|label| key_value(label))
                .collect::<anyhow::Result<BTreeMap<_, _>>>()?,
            replace: replace.is_some(),
        },
        Token::List => Request::Tokens,
        Token::Delete { id } => Request::DeleteToken { id },
    })
}

fn key_value(label: &str) -> anyhow::Result<(String, String)> {
    let (key, value) = label
        .split_once('=')
        .with_context(|| format!("--label {label}: not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_a_key_and_a_value() {
        assert!(key_value("a").is_err());
        assert_eq!(key_value("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
    }
}
