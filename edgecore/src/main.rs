//! `edgecore`: the command line; wiring only.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use daemon::command_line::{self, CONFIG, Files, asked_to_end};
use daemon::config::Loaded;
use daemon::files;
use daemon::logging::Level;
use edgecore::check::{self, State};
use edgecore::clock::NodeClock;
use edgecore::config::Config;
use edgecore::identity::{Wish, join};
use edgecore::rootless::probe::{self, Found};
use edgecore::runtime::{self, Runtime as _, choice};
use edgecore::{rootless, run, shelf, status};
use proto::admin::label;
use proto::enrol::JoinToken;

const NAME: &str = "edgecore";

/// Threads for what blocks: volumes and log reads.
const BLOCKING_THREADS_MAX: usize = 2;

/// Runs what the cloud wants on this node, link or no link.
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
        /// A label the node would like; may be repeated. The token says which it may have.
        #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
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
    /// Shows the images on this node, their size as they came, and the pods that use them.
    List,
    /// Removes images by their names. One that a pod uses stays; what is still wanted is pulled again when it is.
    Remove {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

fn main() -> ExitCode {
    if let Some(ended) = runtime::child() {
        return ended;
    }
    let args: Args = match command_line::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let mut loaded: Loaded<Config> = match args.files.load() {
        Ok(loaded) => loaded,
        Err(error) => return command_line::failed(NAME, &error.into(), CONFIG),
    };
    // Before there is a second thread.
    let keys_left = rootless::leave_keys();
    let found = match args.command {
        Command::Run | Command::Image(_) => match rootless::enter(&mut loaded.config) {
            Ok(()) => None,
            Err(error) => return command_line::failed(NAME, &error.into(), 1),
        },
        Command::Check => probe::look(&loaded.config),
        Command::Join { .. } | Command::Status { .. } => None,
    };
    let reactor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .context("starting the runtime");
    let ended = reactor.and_then(|reactor| reactor.block_on(carry_out(args.command, loaded, found, keys_left)));
    ended.unwrap_or_else(|error| command_line::failed(NAME, &error, 1))
}

#[expect(clippy::print_stdout, reason = "the command line speaks to people")]
async fn carry_out(
    command: Command,
    loaded: Loaded<Config>,
    found: Option<Found>,
    keys_left: io::Result<()>,
) -> anyhow::Result<ExitCode> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS provider is installed twice"))?;
    match command {
        Command::Check => {
            let lines = check::check(&loaded.config, &loaded.unknown, found.as_ref()).await;
            lines.iter().for_each(|line| println!("{}", line.text()));
            let missing = lines.iter().any(|line| line.state == State::Missing);
            return Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Command::Join { url, token_file, name, label } => {
            let token = token(token_file)?;
            let labels = label.into_iter().collect();
            files::private_folder(&loaded.config.data)
                .with_context(|| format!("making the data folder {}", loaded.config.data.display()))?;
            let time = NodeClock::new(0).node_time();
            let identity = join(&url, &token, Wish { name, labels }, &loaded.config.data, time)
                .await
                .context("joining")?;
            println!("joined as {}", identity.node());
        }
        Command::Run => {
            daemon::logging::init(loaded.config.log)?;
            loaded.warn();
            if let Err(error) = keys_left {
                tracing::warn!(%error, "containers can reach the keys of the session that the edge core was started in");
            }
            run::run(loaded.config, asked_to_end()?).await?;
        }
        Command::Status { json } => {
            let status = status::ask(&loaded.config.data).await?;
            if json {
                println!("{}", serde_json::to_string(&status)?);
            } else {
                print!("{}", status.text());
            }
        }
        Command::Image(command) => {
            // An image for another machine is told of.
            daemon::logging::init(Level::Warn)?;
            let data = &loaded.config.data;
            if matches!(command, Image::Import { .. }) {
                files::private_folder(data).with_context(|| format!("making the data folder {}", data.display()))?;
            }
            let there = data.exists();
            anyhow::ensure!(
                there,
                "there is no {}: is this the data folder (--data)?",
                data.display()
            );
            let runtime = choice::runtime(&loaded.config, Arc::new(daemon::clock::wall)).await?;
            match command {
                Image::Import { archive } => {
                    // Who unpacks it is in another folder.
                    let archive = std::path::absolute(archive).context("finding the archive")?;
                    for name in runtime.import(&archive).await? {
                        println!("{name}");
                    }
                }
                Image::List => print!("{}", shelf::list(&runtime.images().await?)),
                Image::Remove { names } => {
                    for name in shelf::removable(&runtime.images().await?, &names)? {
                        runtime.remove_image(&name).await?;
                        println!("{name}");
                    }
                }
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
            io::stdin()
                .read_to_string(&mut text)
                .context("reading the token from standard input")?;
            text
        }
    };
    Ok(text.parse::<JoinToken>()?)
}
