//! The log process alone, for tests of the runtime that need no edge core.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(word) if word == edgecore::runtime::log_shim::WORD => edgecore::runtime::log_shim::main(args),
        _ => ExitCode::from(64),
    }
}
