//! Capabilities: what a process may do besides what its user may.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub type Capabilities = BTreeSet<Capability>;

/// What stands before a name in specifications and in manifests that have it so.
pub const PREFIX: &str = "CAP_";

macro_rules! capabilities {
    ($($variant:ident $name:literal),* $(,)?) => {
        /// In the order of the kernel, whose bit each has by its place.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Capability { $($variant),* }

        impl Capability {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Without the prefix.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

capabilities! {
    Chown "CHOWN",
    DacOverride "DAC_OVERRIDE",
    DacReadSearch "DAC_READ_SEARCH",
    Fowner "FOWNER",
    Fsetid "FSETID",
    Kill "KILL",
    Setgid "SETGID",
    Setuid "SETUID",
    Setpcap "SETPCAP",
    LinuxImmutable "LINUX_IMMUTABLE",
    NetBindService "NET_BIND_SERVICE",
    NetBroadcast "NET_BROADCAST",
    NetAdmin "NET_ADMIN",
    NetRaw "NET_RAW",
    IpcLock "IPC_LOCK",
    IpcOwner "IPC_OWNER",
    SysModule "SYS_MODULE",
    SysRawio "SYS_RAWIO",
    SysChroot "SYS_CHROOT",
    SysPtrace "SYS_PTRACE",
    SysPacct "SYS_PACCT",
    SysAdmin "SYS_ADMIN",
    SysBoot "SYS_BOOT",
    SysNice "SYS_NICE",
    SysResource "SYS_RESOURCE",
    SysTime "SYS_TIME",
    SysTtyConfig "SYS_TTY_CONFIG",
    Mknod "MKNOD",
    Lease "LEASE",
    AuditWrite "AUDIT_WRITE",
    AuditControl "AUDIT_CONTROL",
    Setfcap "SETFCAP",
    MacOverride "MAC_OVERRIDE",
    MacAdmin "MAC_ADMIN",
    Syslog "SYSLOG",
    WakeAlarm "WAKE_ALARM",
    BlockSuspend "BLOCK_SUSPEND",
    AuditRead "AUDIT_READ",
    Perfmon "PERFMON",
    Bpf "BPF",
    CheckpointRestore "CHECKPOINT_RESTORE",
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Capability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{PREFIX}{self}"))
    }
}

impl<'de> Deserialize<'de> for Capability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let name = text.strip_prefix(PREFIX).unwrap_or(&text);
        let found = Self::ALL.iter().find(|capability| capability.name() == name);
        found
            .copied()
            .ok_or_else(|| D::Error::custom(format_args!("{text} is no capability")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_one_is_read_as_it_is_written() {
        for capability in Capability::ALL {
            let text = serde_json::to_string(capability).unwrap();
            assert_eq!(text, format!("\"CAP_{capability}\""));
            assert_eq!(serde_json::from_str::<Capability>(&text).unwrap(), *capability);
        }
        assert!(serde_json::from_str::<Capability>("\"CAP_NONE\"").is_err());
    }
}
