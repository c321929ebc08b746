//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use proto::admin::{label, seconds};

use crate::output::Format;

/// Edgehold for people: what runs, what should run, and the nodes it runs on.
#[derive(Debug, Parser)]
#[command(name = "edgectl", version)]
pub(crate) struct Cli {
    /// Kubeconfig. Otherwise that of $KUBECONFIG, or the one in the cloud core's data folder.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace. Otherwise that of the kubeconfig, or `default`.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows objects: `get pods`, `get deploy web`, `get pod/a service/b`.
    Get(Get),
    /// Makes objects be as files say, and leaves alone what the files do not mention.
    Apply(Apply),
    /// Makes objects that are not there yet.
    Create(Create),
    /// Deletes objects, and waits until they are gone.
    Delete(Delete),
    /// Prints what containers wrote: `logs POD`, `logs deploy/web`, `logs -l app=web`.
    Logs(Logs),
    /// Join tokens, with which nodes enrol.
    #[command(subcommand)]
    Token(Token),
    /// Nodes as their sessions show them.
    #[command(subcommand)]
    Node(Node),
    /// The versions of this program and of the cloud core.
    Version {
        /// Of this program only.
        #[arg(long)]
        client: bool,
    },
    /// Copies the store to a file on the cloud core's host. The sealing key is not in it: keep that elsewhere.
    Backup {
        /// An absolute path on the cloud core's host.
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// A resource and names, or RESOURCE/NAME pairs.
    #[arg(required = true, value_name = "RESOURCE")]
    pub what: Vec<String>,
    /// `json`, `yaml`, `name` or `wide`.
    #[arg(long, short, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// In every namespace.
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    /// Only what these labels select: `app=web,tier!=db`.
    #[arg(long, short = 'l')]
    pub selector: Option<String>,
    /// Goes on printing what changes, until interrupted.
    #[arg(long, short)]
    pub watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// A file, a folder of files, or `-` for standard input; may be repeated.
    #[arg(long, short, required = true, value_name = "FILE")]
    pub filename: Vec<PathBuf>,
    /// Says what would be done, and does not do it.
    #[arg(long, value_name = "WHO-JUDGES")]
    pub dry_run: Option<DryRun>,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// A file, a folder of files, or `-` for standard input; may be repeated.
    #[arg(long, short, required = true, value_name = "FILE")]
    pub filename: Vec<PathBuf>,
    /// Says what would be done, and does not do it.
    #[arg(long, value_name = "WHO-JUDGES")]
    pub dry_run: Option<DryRun>,
}

/// Who judges what is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// The cloud core: it checks everything and stores nothing.
    Server,
    /// This program: what it reads and finds; nothing is sent that could change anything.
    Client,
}

impl DryRun {
    /// What a request says of it.
    pub(crate) fn query(dry_run: Option<Self>) -> Option<&'static str> {
        (dry_run == Some(Self::Server)).then_some("All")
    }

    /// What is added to what is told.
    pub(crate) fn said(dry_run: Option<Self>) -> &'static str {
        match dry_run {
            None => "",
            Some(Self::Server) => " (server dry run)",
            Some(Self::Client) => " (dry run)",
        }
    }
}

/// What becomes of the objects that an object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cascade {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay, and are nobody's.
    Orphan,
}

impl Cascade {
    pub(crate) fn policy(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// A resource and names, or RESOURCE/NAME pairs.
    #[arg(required_unless_present = "filename", value_name = "RESOURCE")]
    pub what: Vec<String>,
    /// Deletes what a file, a folder of files, or standard input (`-`) names; may be repeated.
    #[arg(long, short, value_name = "FILE", conflicts_with = "what")]
    pub filename: Vec<PathBuf>,
    /// Only what these labels select: `app=web,tier!=db`.
    #[arg(long, short = 'l', conflicts_with = "filename")]
    pub selector: Option<String>,
    /// Seconds that containers get to stop by themselves.
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
    /// Returns as soon as the deletions are accepted.
    #[arg(long)]
    pub no_wait: bool,
    /// What becomes of what the objects own.
    #[arg(long, value_name = "HOW", default_value = "background")]
    pub cascade: Cascade,
    /// Says what would be done, and does not do it.
    #[arg(long, value_name = "WHO-JUDGES")]
    pub dry_run: Option<DryRun>,
    /// What is not there is not a failure.
    #[arg(long)]
    pub ignore_not_found: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// A pod, or RESOURCE/NAME: of a deployment and the like, one of its pods.
    #[arg(value_name = "POD", required_unless_present = "selector")]
    pub what: Option<String>,
    /// Of all pods that these labels select, the last 10 lines each unless --tail says otherwise: `app=web,tier!=db`.
    #[arg(long, short = 'l', conflicts_with = "what")]
    pub selector: Option<String>,
    /// The container. Otherwise the one that the pod names as its default, or its first.
    #[arg(long, short)]
    pub container: Option<String>,
    /// Of all containers of the pod, one after the other; with --follow, all at once.
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Goes on printing, until interrupted.
    #[arg(long, short)]
    pub follow: bool,
    /// Of the run before the last restart.
    #[arg(long, short)]
    pub previous: bool,
    /// Only the last lines.
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u64>,
    /// Only what was written lately: 90s, 30m, 1h, 7d.
    #[arg(long, value_name = "AGE", value_parser = seconds)]
    pub since: Option<u64>,
    /// Only what was written after this time: 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "since")]
    pub since_time: Option<String>,
    /// With pod and container before every line.
    #[arg(long)]
    pub prefix: bool,
    /// With the time of every line.
    #[arg(long)]
    pub timestamps: bool,
}

/// How a list is printed.
#[derive(Debug, Args)]
pub(crate) struct Listing {
    /// `json`, `yaml` or `name`; `wide` is the table.
    #[arg(long, short, value_name = "FORMAT")]
    pub output: Option<Format>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
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
    List(Listing),
    /// Makes a token useless.
    Delete { id: String },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// Lists the nodes: since when they are connected or silent, what waits for them, how much was sent.
    List(Listing),
    /// Bars a node's key. Its session ends within seconds; the node's containers run on.
    Revoke { name: String },
    /// Bars a node's key and deletes the node and, with it, its pods.
    Delete { name: String },
}

#[cfg(test)]
pub(crate) fn parsed(line: &str) -> Command {
    Cli::try_parse_from(line.split_whitespace()).unwrap().command
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_words_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let check = |line: &str, accepted: bool| {
            let parsed = Cli::try_parse_from(line.split_whitespace());
            assert_eq!(parsed.is_ok(), accepted, "{line}");
        };
        check("edgectl get pods -A -o wide -l a=b -w", true);
        check("edgectl get", false);
        check("edgectl get pods -o table", false);
        check("edgectl apply", false);
        check("edgectl delete", false);
        check("edgectl delete pod a -f x", false);
        check("edgectl delete -f x -n demo --kubeconfig y", true);
        check("edgectl token create --name a --replace b", false);
        check("edgectl logs", false);
        check("edgectl logs a -l b=c", false);
        check("edgectl logs a -c b --all-containers", false);
        check("edgectl logs -l b=c --all-containers --prefix -f", true);
        check("edgectl delete pod a --cascade=later", false);
        check("edgectl apply -f x --dry-run=server", true);
        check("edgectl apply -f x --dry-run", false);
    }
}
