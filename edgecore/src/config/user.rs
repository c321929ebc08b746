//! Where an edge core that is not root's keeps things: the folders that a user has for that.
//!
//! The run folder is below the data folder and named after the boot, not in `$XDG_RUNTIME_DIR`: that one goes when the
//! user's last session ends, under pods that run on, and then nobody would find them again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use proto::time::BootId;

/// A user's own places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    pub config: PathBuf,
    pub data: PathBuf,
    pub logs: PathBuf,
    pub run: PathBuf,
}

/// As the accounts of this machine have it: a service may be started without the variable.
fn home() -> Option<OsString> {
    let uid = rustix::process::getuid().as_raw();
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    home_of(&accounts, uid)
}

fn home_of(accounts: &str, uid: u32) -> Option<OsString> {
    let mut lines = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let account = lines.find(|fields| fields.get(2) == Some(&uid.to_string().as_str()))?;
    account
        .get(5)
        .filter(|home| !home.is_empty())
        .map(|home| (*home).into())
}

impl Places {
    /// Those of whoever runs this; `None` for root, and for who has no home.
    pub fn own() -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let variable = |name: &str| {
            let found = std::env::var_os(name).filter(|value| !value.is_empty());
            found.or_else(|| (name == "HOME").then(home)?)
        };
        (!is_root).then(|| Self::of(variable, daemon::clock::boot_id()))?
    }

    /// As the environment has it.
    fn of(variable: impl Fn(&str) -> Option<OsString>, boot: BootId) -> Option<Self> {
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let base = |name: &str, below_home: &str| absolute(name).or_else(|| Some(home.as_ref()?.join(below_home)));
        let data = base("XDG_DATA_HOME", ".local/share")?.join("edgehold");
        Some(Self {
            config: base("XDG_CONFIG_HOME", ".config")?.join("edgehold/edgecore.toml"),
            logs: base("XDG_STATE_HOME", ".local/state")?.join("edgehold/pods"),
            run: data.join(RUN).join(boot_name(boot)),
            data: data.join("edge"),
        })
    }

    /// The folders by their keys in a configuration. What is no text cannot stand in one.
    pub(super) fn table(&self) -> toml::Table {
        let folders = [("data", &self.data), ("logs", &self.logs), ("run", &self.run)];
        let texts = folders
            .into_iter()
            .filter_map(|(key, path)| Some((key, path.to_str()?)));
        texts.map(|(key, path)| (key.to_owned(), path.into())).collect()
    }
}

/// Where the run folders of all boots are.
const RUN: &str = "run";

fn boot_name(boot: BootId) -> String {
    boot.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes away what earlier boots left beside this one's run folder, where that is named after the boot.
pub fn forget_other_boots(run: &Path) {
    let own = boot_name(daemon::clock::boot_id());
    let Some(all) = run
        .parent()
        .filter(|_| run.file_name().is_some_and(|name| *name == *own))
    else {
        return;
    };
    let is_boots = |name: &str| name.len() == own.len() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name != *own && name.to_str().is_some_and(is_boots) {
            // What stays is tried again by the next start, and in nobody's way.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Places> {
        let known = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Places::of(|name| Some(known(name)?.1.into()), BootId([0xab; 16]))
    }

    #[test]
    fn places_are_those_of_the_desktop_specification() {
        let boot = "ab".repeat(16);
        let places = of(&[("HOME", "/home/u")]).unwrap();
        assert_eq!(places.config, Path::new("/home/u/.config/edgehold/edgecore.toml"));
        assert_eq!(places.data, Path::new("/home/u/.local/share/edgehold/edge"));
        assert_eq!(places.logs, Path::new("/home/u/.local/state/edgehold/pods"));
        assert_eq!(
            places.run,
            Path::new(&format!("/home/u/.local/share/edgehold/run/{boot}"))
        );
        let moved = of(&[
            ("HOME", "/home/u"),
            ("XDG_DATA_HOME", "/d"),
            ("XDG_STATE_HOME", "relative"),
        ])
        .unwrap();
        assert_eq!(moved.data, Path::new("/d/edgehold/edge"));
        // One that is not absolute is to be ignored.
        assert_eq!(moved.logs, places.logs);
        assert_eq!(of(&[]), None);
        assert_eq!(places.table()["data"].as_str(), places.data.to_str());
        assert_eq!(places.table().len(), 3);
    }

    #[test]
    fn a_home_is_found_without_its_variable() {
        let accounts = "root:x:0:0:root:/root:/bin/bash\nbroken:x:7\nu:x:1000:1000::/home/u:/bin/sh\nnone:x:8:8::: \n";
        assert_eq!(home_of(accounts, 1000), Some("/home/u".into()));
        for nobody in [7, 8, 9] {
            assert_eq!(home_of(accounts, nobody), None, "{nobody}");
        }
    }

    #[test]
    fn only_run_folders_of_other_boots_go() {
        let folder = tempfile::tempdir().unwrap();
        let own = boot_name(daemon::clock::boot_id());
        for name in [own.as_str(), &"0".repeat(32), "edge", &"z".repeat(32)] {
            std::fs::create_dir_all(folder.path().join(name).join("shims")).unwrap();
        }
        // Somebody's own run folder has no others beside it.
        forget_other_boots(&folder.path().join("edge"));
        assert!(folder.path().join("0".repeat(32)).exists());
        forget_other_boots(&folder.path().join(&own));
        let mut left: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected = [own, "edge".to_owned(), "z".repeat(32)];
        expected.sort();
        assert_eq!(left, expected);
    }
}
