//! `edgectl logs`: what a container wrote.

use crate::cli;
use crate::failure::Failure;
use crate::output::print;
use crate::resources::checked;
use crate::server::{Server, get, with_query};

pub(crate) async fn run(server: &Server, args: &cli::Logs) -> Result<(), Failure> {
    let name = checked(
        args.pod
            .strip_prefix("pod/")
            .or_else(|| args.pod.strip_prefix("pods/"))
            .unwrap_or(&args.pod),
    )?;
    let since = args.since.map(|seconds| seconds.to_string());
    let tail = args.tail.map(|lines| lines.to_string());
    let yes = |flag: bool| flag.then_some("true");
    let parts = [
        ("container", args.container.as_deref()),
        ("follow", yes(args.follow)),
        ("previous", yes(args.previous)),
        ("timestamps", yes(args.timestamps)),
        ("tailLines", tail.as_deref()),
        ("sinceSeconds", since.as_deref()),
    ];
    let path = format!("/api/v1/namespaces/{}/pods/{name}/log", server.namespace);
    server
        .pieces(get(&with_query(&path, &parts), "*/*")?, |piece| print(piece))
        .await
}
