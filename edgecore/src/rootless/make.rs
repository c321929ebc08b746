//! Making the namespaces, and saying which users there are in them.
//!
//! A process may bring its own user alone into a namespace that it makes. For more there are two setuid programs
//! (`newuidmap`, `newgidmap`, Debian's package uidmap), which look into `/etc/subuid` and `/etc/subgid`; they have to be
//! started from outside, by a copy of this process that waits until the namespace is there.

use std::fs::{File, read_to_string};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::process::{Pid, WaitOptions, getgid, getpid, getuid, waitpid};

use super::ids::{free, map, ranges};
use super::{Refusal, RootlessError, own_mounts};
use crate::sys;

/// Who runs this.
struct User {
    uid: u32,
    gid: u32,
    name: String,
}

impl User {
    fn own() -> Self {
        let uid = getuid().as_raw();
        let accounts = read_to_string("/etc/passwd").unwrap_or_default();
        let account = accounts
            .lines()
            .find(|line| line.split(':').nth(2) == Some(&uid.to_string()));
        let name = account.and_then(|line| line.split(':').next()).unwrap_or_default();
        // One that no file knows is known by its number.
        let name = if name.is_empty() {
            uid.to_string()
        } else {
            name.to_owned()
        };
        Self { uid, gid: getgid().as_raw(), name }
    }
}

/// Makes them and goes in; what is not as good as it could be.
pub(super) fn make() -> Result<Vec<String>, RootlessError> {
    sys::only_thread().map_err(RootlessError::Make)?;
    let user = User::own();
    let helper = Helper::start(&user).map_err(RootlessError::Make)?;
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).map_err(Refusal::of)?;
    let trouble = helper.map_or_else(|| Some(without_ranges(&user)), |helper| helper.map().err());
    let mut notes = Vec::new();
    if let Some(trouble) = trouble {
        alone(&user).map_err(Refusal::of)?;
        notes.push(format!(
            "{trouble}: only this user is there in containers; those that run as another one are refused, and all files of \
             images belong to it"
        ));
    }
    own_mounts().map_err(Refusal::of)?;
    Ok(notes)
}

fn without_ranges(user: &User) -> String {
    let name = &user.name;
    let known = ["/etc/subuid", "/etc/subgid"].map(|file| read_to_string(file).unwrap_or_default());
    let Range { start, end } = free(&known);
    let range = format!("{start}-{}", end - 1);
    format!(
        "{name} has no range in /etc/subuid and /etc/subgid (usermod --add-subuids {range} --add-subgids {range} {name}, and \
         start again once no pod runs)"
    )
}

/// What the programs have not mapped is this user and nobody else.
fn alone(user: &User) -> io::Result<()> {
    let is_mapped =
        |kind: &str| Ok::<_, io::Error>(!read_to_string(format!("/proc/self/{kind}_map"))?.trim().is_empty());
    let write = |name: &str, text: String| std::fs::write(format!("/proc/self/{name}"), text);
    if !is_mapped("uid")? {
        write("uid_map", format!("0 {} 1", user.uid))?;
    }
    if !is_mapped("gid")? {
        // Without it a process could leave a group that keeps it from something.
        write("setgroups", "deny".to_owned())?;
        write("gid_map", format!("0 {} 1", user.gid))?;
    }
    Ok(())
}

/// The copy of this process outside.
struct Helper {
    pid: Pid,
    go: File,
    said: File,
}

impl Helper {
    /// `None` where this user has no ranges.
    fn start(user: &User) -> io::Result<Option<Self>> {
        let of = |file: &str, own: u32| ranges(&read_to_string(file).unwrap_or_default(), &user.name, own);
        let users = of("/etc/subuid", user.uid);
        // Groups have numbers of their own; a user's line in there is found by the user's name or number.
        let groups = ranges(&read_to_string("/etc/subgid").unwrap_or_default(), &user.name, user.uid);
        if users.is_empty() || groups.is_empty() {
            return Ok(None);
        }
        let maps = [
            ("newuidmap", map(user.uid, &users)),
            ("newgidmap", map(user.gid, &groups)),
        ];
        let target = getpid();
        let (may_go, go) = io::pipe()?;
        let (said, mut say) = io::pipe()?;
        let mut ours = Some((file(go), file(said)));
        let pid = sys::fork(|| {
            // The copy is not to wait for itself.
            drop(ours.take());
            let mut may_go = file(may_go);
            if may_go.read_exact(&mut [0]).is_err() {
                return 0;
            }
            let ended = maps.iter().try_for_each(|(program, map)| run(program, target, map));
            if let Err(reason) = ended {
                let _ = say.write_all(reason.as_bytes());
            }
            0
        })?;
        let (go, said) = ours.ok_or_else(|| io::Error::other("both sides were taken"))?;
        Ok(Some(Self { pid, go, said }))
    }

    /// This process is in its namespace now.
    fn map(mut self) -> Result<(), String> {
        let mut reason = String::new();
        let told = self
            .go
            .write_all(&[0])
            .and_then(|()| self.said.read_to_string(&mut reason));
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
        match told {
            Ok(_) if reason.is_empty() => Ok(()),
            Ok(_) => Err(reason),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// `Err` is what to tell people.
fn run(program: &str, target: Pid, map: &[[u32; 3]]) -> Result<(), String> {
    let numbers = map.iter().flatten().map(u32::to_string);
    let output = Command::new(program)
        .arg(target.as_raw_nonzero().to_string())
        .args(numbers)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "there is no {program} (apt-get install uidmap, and start again once no pod runs)"
        )),
        Err(error) => Err(format!("running {program}: {error}")),
    }
}

fn file(pipe: impl Into<OwnedFd>) -> File {
    File::from(pipe.into())
}
