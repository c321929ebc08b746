//! The small processes of the runtimes alone, for tests of a runtime that need no edge core.

use std::process::ExitCode;

fn main() -> ExitCode {
    edgecore::runtime::child().unwrap_or_else(|| ExitCode::from(64))
}
