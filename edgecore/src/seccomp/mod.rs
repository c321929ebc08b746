//! Seccomp: which system calls a container may make.
//!
//! A profile is an OCI `linux.seccomp` section, wherever it comes from: `RuntimeDefault` is made here (`profile`),
//! `Localhost` is a file ([`local`]).
//! containerd's runc gets the section as it is. Where we start the container ourselves, it is compiled here to a program
//! for the kernel, for every way in which that machine's programs can make system calls, and loaded by the container's
//! first process as the last thing before it becomes the container's program.
//!
//! A filter that cannot be made or loaded keeps the container from starting; nothing runs without one that it asked for.

mod bpf;
mod compile;
pub mod local;
pub mod privileges;
mod profile;
mod table;

#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod tests;

use std::io;

use crate::oci::Capabilities;
use crate::oci::seccomp::{Flag, Profile};
use crate::sys;

pub(crate) use bpf::Instruction;
use table::Family;

/// Why a container's filter cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("compiling the seccomp profile: {reason}")]
    Profile { reason: String },
    #[error(
        "compiling the seccomp profile: {length} instructions are more than the {} that the kernel takes; \
        use fewer conditions",
        bpf::INSTRUCTIONS_MAX
    )]
    TooLong { length: usize },
    #[error(
        "compiling the seccomp profile: there is no table of system calls for {}; use Unconfined",
        std::env::consts::ARCH
    )]
    Architecture,
    #[error("loading the seccomp filter")]
    Load(#[source] io::Error),
    #[error("dropping the capabilities that loading the seccomp filter took")]
    Capabilities(#[source] io::Error),
}

impl SeccompError {
    fn profile(reason: String) -> Self {
        Self::Profile { reason }
    }
}

/// A compiled profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    program: Vec<Instruction>,
    /// `SECCOMP_FILTER_FLAG_*`.
    flags: u32,
}

impl Filter {
    /// For this machine.
    pub fn compile(profile: &Profile) -> Result<Self, SeccompError> {
        let family = Family::here().ok_or(SeccompError::Architecture)?;
        Ok(Self {
            program: compile::compile(profile, family, compile::Endian::HERE)?,
            flags: flags(profile)?,
        })
    }

    /// From now on the calling thread, and what it starts, can make no other calls. There is no way back. The thread
    /// must hold CAP_SYS_ADMIN or have given up new privileges; [`privileges`] is the way of a container's process.
    pub fn load(&self) -> Result<(), SeccompError> {
        sys::load_filter(&self.program, self.flags).map_err(SeccompError::Load)
    }
}

/// Those that say something of a program for one thread.
fn flags(profile: &Profile) -> Result<u32, SeccompError> {
    let mut bits = 0;
    for flag in &profile.flags {
        bits |= match flag {
            Flag::Tsync => 0,
            Flag::Log => 1 << 1,
            Flag::SpecAllow => 1 << 2,
            Flag::WaitKillableRecv => {
                return Err(SeccompError::profile(
                    "flags: SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV is for SCMP_ACT_NOTIFY, which needs an agent; take it out"
                        .to_owned(),
                ));
            }
        };
    }
    Ok(bits)
}

/// `RuntimeDefault` on this machine, for a container with these capabilities in its bounding set.
pub fn runtime_default(capabilities: &Capabilities) -> Profile {
    profile::runtime_default(capabilities, Family::here())
}

/// Whether the kernel takes filters at all (`CONFIG_SECCOMP_FILTER`).
pub fn is_supported() -> bool {
    sys::takes_filters()
}
