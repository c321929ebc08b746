//! The image store alone: what it starts to unpack, and an import that tests can kill.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use edgecore::images::store::{ImageStore, RootKind, unpack};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(word) if word == unpack::WORD => unpack::main(args),
        Some(word) if word == "import" => {
            let words: Option<[String; 3]> = args
                .map(|arg| arg.into_string().ok())
                .collect::<Option<Vec<String>>>()
                .and_then(|words| words.try_into().ok());
            match words {
                Some([folder, archive, kind]) => import(&folder, &archive, &kind),
                None => ExitCode::from(64),
            }
        }
        _ => ExitCode::from(64),
    }
}

fn import(folder: &str, archive: &str, kind: &str) -> ExitCode {
    let kind = if kind == "copy" {
        RootKind::Copy
    } else {
        RootKind::Overlay
    };
    let imported = || -> anyhow::Result<()> {
        let store = ImageStore::open_as(folder.into(), std::env::current_exe()?, kind)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(store.import(Path::new(archive)))?;
        Ok(())
    };
    match imported() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}
