//! A container's cgroups and what they limit, in both versions. Making them twice is making them once.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::during;
use crate::oci::{Resources, Spec};
use crate::runtime::oci::cgroup;

const PROCESSES: &str = "cgroup.procs";

pub(super) struct Cgroups {
    path: Option<String>,
    /// Its folder in the one tree (version 2), or in each (version 1).
    folders: Vec<PathBuf>,
    pub(super) is_unified: bool,
}

impl Cgroups {
    /// Those that a container has.
    pub(super) fn of(spec: &Spec) -> Self {
        let path = Some(spec.linux.cgroups_path.clone()).filter(|path| !path.is_empty());
        let roots = if path.is_some() { cgroup::roots() } else { Vec::new() };
        let below = |root: &PathBuf| root.join(path.as_deref().unwrap_or_default().trim_start_matches('/'));
        Self {
            folders: roots.iter().map(below).collect(),
            is_unified: cgroup::is_unified(),
            path,
        }
    }

    /// Makes them, with their limits.
    pub(super) fn make(spec: &Spec) -> Result<Self, String> {
        let cgroups = Self::of(spec);
        for folder in &cgroups.folders {
            cgroups
                .make_folder(folder)
                .map_err(during(&format!("making the cgroup {}", folder.display())))?;
        }
        for (name, value) in limits(&spec.linux.resources, cgroups.is_unified) {
            cgroups
                .write(name, &value)
                .map_err(during(&format!("setting {name} to {value}")))?;
        }
        Ok(cgroups)
    }

    pub(super) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// The folder that has this file.
    pub(super) fn with(&self, name: &str) -> Option<&Path> {
        let mut folders = self.folders.iter();
        folders.find(|folder| folder.join(name).exists()).map(PathBuf::as_path)
    }

    pub(super) fn write(&self, name: &str, value: &str) -> io::Result<()> {
        let folder = self.with(name).ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(folder.join(name), value)
    }

    pub(super) fn add(&self, pid: Pid) -> Result<(), String> {
        self.folders.iter().try_for_each(|folder| put(folder, pid))
    }

    /// Puts a process beside the container's first one. A container that divides its cgroup itself (version 2) has no
    /// process there any more, and the kernel takes none: they are further down.
    pub(super) fn add_beside(&self, pid: Pid, first: u32) -> Result<(), String> {
        let divided = |own: &PathBuf| {
            let handed_on = std::fs::read_to_string(own.join("cgroup.subtree_control"));
            self.is_unified && handed_on.is_ok_and(|controllers| !controllers.trim().is_empty())
        };
        match self.folders.first().filter(|own| divided(own)) {
            Some(own) => put(&cgroup::below(own, first).map_err(during("finding its cgroup"))?, pid),
            None => self.add(pid),
        }
    }

    /// Every level down to it: a controller counts where each level above hands it on, and a set of processors has some
    /// only where it was given some.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        let depth = self
            .path
            .as_deref()
            .map_or(0, |path| path.trim_matches('/').split('/').count());
        let mut levels: Vec<&Path> = folder.ancestors().take(depth).collect();
        levels.reverse();
        for level in levels {
            let Some(above) = level.parent() else { continue };
            if self.is_unified {
                cgroup::hand_on(above);
            }
            match std::fs::create_dir(level) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
            for set in ["cpuset.cpus", "cpuset.mems"] {
                let has_none =
                    |folder: &Path| std::fs::read_to_string(folder.join(set)).map(|text| text.trim().is_empty());
                if !self.is_unified && has_none(level).unwrap_or(false) {
                    std::fs::write(level.join(set), std::fs::read(above.join(set))?)?;
                }
            }
        }
        Ok(())
    }
}

fn put(folder: &Path, pid: Pid) -> Result<(), String> {
    std::fs::write(folder.join(PROCESSES), pid.as_raw_nonzero().to_string())
        .map_err(during(&format!("putting its process into {}", folder.display())))
}

/// What to write to which file.
fn limits(resources: &Resources, is_unified: bool) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let mut set = |in_first: &'static str, in_second: &'static str, value: Option<String>| {
        all.extend(value.map(|value| (if is_unified { in_second } else { in_first }, value)));
    };
    if let Some(cpu) = &resources.cpu {
        let weight = cpu
            .shares
            .map(|shares| if is_unified { weight(shares) } else { shares });
        set("cpu.shares", "cpu.weight", weight.map(|weight| weight.to_string()));
        let (quota, period) = (cpu.quota, cpu.period);
        if is_unified {
            let both = quota.zip(period).map(|(quota, period)| format!("{quota} {period}"));
            set("", "cpu.max", both);
        } else {
            set("cpu.cfs_period_us", "", period.map(|period| period.to_string()));
            set("cpu.cfs_quota_us", "", quota.map(|quota| quota.to_string()));
        }
    }
    let memory = resources.memory.map(|memory| memory.limit);
    set(
        "memory.limit_in_bytes",
        "memory.max",
        memory.map(|limit| limit.to_string()),
    );
    let pids = resources.pids.map(|pids| pids.limit);
    set("pids.max", "pids.max", pids.map(|limit| limit.to_string()));
    all
}

/// 2 to 262144 shares are 1 to 10000 of version 2, as every runtime has it.
fn weight(shares: u64) -> u64 {
    1 + shares.clamp(2, 262_144).saturating_sub(2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{Cpu, Memory, Pids};

    #[test]
    fn limits_are_written_as_each_version_has_them() {
        let resources = Resources {
            cpu: Some(Cpu {
                shares: Some(512),
                quota: Some(50_000),
                period: Some(100_000),
            }),
            memory: Some(Memory { limit: 1 << 20 }),
            pids: Some(Pids { limit: 7 }),
            ..Resources::default()
        };
        let text = |is_unified| {
            let all = limits(&resources, is_unified).into_iter();
            all.map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join("; ")
        };
        assert_eq!(
            text(false),
            "cpu.shares=512; cpu.cfs_period_us=100000; cpu.cfs_quota_us=50000; memory.limit_in_bytes=1048576; pids.max=7"
        );
        assert_eq!(
            text(true),
            "cpu.weight=20; cpu.max=50000 100000; memory.max=1048576; pids.max=7"
        );
        assert!(limits(&Resources::default(), true).is_empty());
    }

    #[test]
    fn shares_and_weights_have_the_same_ends() {
        for (shares, expected) in [(0, 1), (2, 1), (1024, 39), (262_144, 10_000), (u64::MAX, 10_000)] {
            assert_eq!(weight(shares), expected, "{shares}");
        }
    }
}
