//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
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
    /// Deletes objects, and waits until they are gone.
    Delete(Delete),
    /// Prints what a container wrote.
    Logs(Logs),
    /// Join tokens, with which nodes enrol.
    #[command(subcommand)]
    Token(Token),
    /// Nodes as their sessions show them.
    #[command(subcommand)]
    Node(Node),
    /// The versions of this program and of the cloud core.
    Version,
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
    /// What is not there is not a failure.
    #[arg(long)]
    pub ignore_not_found: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    pub pod: String,
    /// The container; needed where the pod has more than one.
    #[arg(long, short)]
    pub container: Option<String>,
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
    /// With the time of every line.
    #[arg(long)]
    pub timestamps: bool,
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
    List,
    /// Makes a token useless.
    Delete { id: String },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// Lists the nodes: since when they are connected or silent, what waits for them, how much was sent.
    List,
    /// Bars a node's key. Its session ends within seconds; the node's containers run on.
    Revoke { name: String },
    /// Bars a node's key and deletes the node and, with it, its pods.
    Delete { name: String },
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
    }
}
