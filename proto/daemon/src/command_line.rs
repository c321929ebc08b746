//! What the command lines of both daemons share: which files they go by, how they end, and what ends them.
//!
//! Exit codes are those of sysexits: [`USAGE`] for a command line that means nothing, [`CONFIG`] for a configuration
//! that cannot be used, 1 for the rest. Help and the version are no failures.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{ConfigError, Configuration, Loaded, load};

/// Exit code for a command line that means nothing.
pub const USAGE: u8 = 64;

/// Exit code for a configuration that cannot be used.
pub const CONFIG: u8 = 78;

/// The files a daemon goes by.
#[derive(Debug, Args)]
pub struct Files {
    /// Configuration file, instead of the usual one, which is in /etc/edgehold (that of an edge core without root is below ~/.config). Where there is none, every key has its default.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// Data folder, instead of the configuration's.
    #[arg(long, global = true)]
    data: Option<PathBuf>,
}

impl Files {
    /// The configuration as the file and the command line have it.
    pub fn load<C: Configuration>(self) -> Result<Loaded<C>, ConfigError> {
        let usual = C::file();
        let file = self.config.or_else(|| usual.exists().then_some(usual));
        let mut loaded: Loaded<C> = load(file.as_deref())?;
        if let Some(data) = self.data {
            *loaded.config.data() = data;
        }
        for (key, folder) in loaded.config.folders() {
            let absolute = std::path::absolute(&*folder);
            *folder = absolute.map_err(|source| ConfigError::Folder { key, value: folder.clone(), source })?;
        }
        Ok(loaded)
    }
}

/// What was typed; otherwise the code to end with, when what there is to say about it has been said.
pub fn parse<T: Parser>() -> Result<T, ExitCode> {
    T::try_parse().map_err(|error| {
        // With nobody there to read it, there is nobody to tell either.
        let _ = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            _ => ExitCode::from(USAGE),
        }
    })
}

/// Says what a program could not do, with its causes, and ends with a code.
pub fn failed(program: &str, error: &anyhow::Error, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{program}: {error:#}");
    ExitCode::from(code)
}

/// Comes true when the process is asked to end, by a service manager or from the keyboard.
pub fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Keys {
        data: PathBuf,
    }

    impl Configuration for Keys {
        const FILE: &'static str = "/nowhere/some.toml";

        fn every_key() -> Self {
            Self::default()
        }

        fn data(&mut self) -> &mut PathBuf {
            &mut self.data
        }

        fn check(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn a_folder_means_the_same_wherever_a_process_is() {
        let load = |data: &str| Files { config: None, data: Some(data.into()) }.load::<Keys>();
        let here = std::env::current_dir().unwrap();
        assert_eq!(load("d").unwrap().config.data, here.join("d"));
        assert_eq!(load("/d").unwrap().config.data, Path::new("/d"));
        let error = load("").unwrap_err();
        assert_eq!(error.to_string(), "data: \"\" is no folder; name one, best from / on");
    }
}
