//! `edgecore`: the command line; wiring only.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use edgecore::check::{self, State};
use edgecore::clock::NodeClock;
use edgecore::config::Config;
use edgecore::identity::{Wish, join};
use edgecore::runtime::containerd::Containerd;
use edgecore::runtime::{Runtime as _, log_shim};
use edgecore::{run, status};
use proto::enrol::JoinToken;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code for a configuration that cannot be used, as sysexits has it.
const CONFIG: u8 = 78;

/// Threads for what blocks: volumes and log reads.
const BLOCKING_THREADS_MAX: usize = 2;

/// Runs what the cloud wants on this node, link or no link.
#[derive(Debug, Parser)]
#[command(name = "edgecore", version)]
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
    /// Says what this machine needs, one line each with its fix. Fails when something is missing.
    Check,
    /// Joins this machine to a cloud core as a node.
    Join {
        /// The cloud core's API, as https://host:port.
        url: String,
        /// The file that holds the join token; without it the token is read from standard input.
        #[arg(long)]
        token_file: Option<PathBuf>,
        /// The name the node would like; without it the token's, or the host's.
        #[arg(long)]
        name: Option<String>,
        /// A label the node would like, KEY=VALUE; may be repeated. The token says which it may have.
        #[arg(long)]
        label: Vec<String>,
    },
    /// Runs the edge core.
    Run,
    /// Says how the edge core on this machine is, also with no cloud.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Container images.
    #[command(subcommand)]
    Image(Image),
}

#[derive(Debug, Subcommand)]
enum Image {
    /// Brings in the images of an OCI archive (a tar of an OCI layout).
    Import { archive: PathBuf },
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == log_shim::WORD) {
        // One for each container: small, and before anything else of this program.
        return log_shim::main(words);
    }
    let args = Args::parse();
    let (config, unknown) = match load(&args) {
        Ok(loaded) => loaded,
        Err(error) => return fail(&error, CONFIG),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .context("starting the runtime");
    let ended = runtime.and_then(|runtime| runtime.block_on(carry_out(args.command, config, &unknown)));
    ended.unwrap_or_else(|error| fail(&error, 1))
}

#[expect(clippy::print_stderr, reason = "the command line speaks to people")]
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("edgecore: {error:#}");
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
async fn carry_out(command: Command, config: Config, unknown: &[String]) -> anyhow::Result<ExitCode> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS provider is installed twice"))?;
    match command {
        Command::Check => {
            let lines = check::check(&config, unknown).await;
            lines.iter().for_each(|line| println!("{}", line.text()));
            let missing = lines.iter().any(|line| line.state == State::Missing);
            return Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Command::Join { url, token_file, name, label } => {
            let token = token(token_file)?;
            let labels = label
                .iter()
                .map(|label| key_value(label))
                .collect::<anyhow::Result<BTreeMap<_, _>>>()?;
            std::fs::create_dir_all(&config.data)
                .with_context(|| format!("making the data folder {}", config.data.display()))?;
            let time = NodeClock::new(0).node_time();
            let identity = join(&url, &token, Wish { name, labels }, &config.data, time)
                .await
                .context("joining")?;
            println!("joined as {}", identity.node());
        }
        Command::Run => {
            daemon::logging::init(config.level()?)?;
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
            run::run(config, shutdown).await?;
        }
        Command::Status { json } => {
            let status = status::ask(&config.data).await?;
            if json {
                println!("{}", serde_json::to_string(&status)?);
            } else {
                print!("{}", status.text());
            }
        }
        Command::Image(Image::Import { archive }) => {
            let containerd = Containerd::new(run::containerd_config(&config), Arc::new(daemon::clock::wall))?;
            for name in containerd.import(&archive).await? {
                println!("{name}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn token(file: Option<PathBuf>) -> anyhow::Result<JoinToken> {
    let text = match file {
        Some(file) => {
            std::fs::read_to_string(&file).with_context(|| format!("reading the token from {}", file.display()))?
        }
        None => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("reading the token from standard input")?;
            text
        }
    };
    Ok(text.parse::<JoinToken>()?)
}

fn key_value(label: &str) -> anyhow::Result<(String, String)> {
    let (key, value) = label
        .split_once('=')
        .with_context(|| format!("--label {label}: not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}
