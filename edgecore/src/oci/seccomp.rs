//! A seccomp profile: the specification's `linux.seccomp`, which is also what a profile's file has (`Localhost`).

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    pub default_action: Action,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<Arch>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Flag>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub syscalls: Vec<Rule>,
}

/// What is done with calls of these names where all conditions hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    pub names: Vec<String>,
    pub action: Action,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Arg>,
}

/// A condition on one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arg {
    pub index: usize,
    pub value: u64,
    /// What is compared with where `value` is a mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_two: Option<u64>,
    pub op: Operator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
    #[serde(rename = "SCMP_ACT_KILL")]
    Kill,
    #[serde(rename = "SCMP_ACT_KILL_PROCESS")]
    KillProcess,
    #[serde(rename = "SCMP_ACT_KILL_THREAD")]
    KillThread,
    #[serde(rename = "SCMP_ACT_LOG")]
    Log,
    #[serde(rename = "SCMP_ACT_NOTIFY")]
    Notify,
    #[serde(rename = "SCMP_ACT_TRACE")]
    Trace,
    #[serde(rename = "SCMP_ACT_TRAP")]
    Trap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    #[serde(rename = "SCMP_CMP_EQ")]
    Eq,
    #[serde(rename = "SCMP_CMP_GE")]
    Ge,
    #[serde(rename = "SCMP_CMP_GT")]
    Gt,
    #[serde(rename = "SCMP_CMP_LE")]
    Le,
    #[serde(rename = "SCMP_CMP_LT")]
    Lt,
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEq,
    #[serde(rename = "SCMP_CMP_NE")]
    Ne,
}

/// Ways to call. Those of machines that no node is are known, so that profiles that list them are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arch {
    #[serde(rename = "SCMP_ARCH_AARCH64")]
    Aarch64,
    #[serde(rename = "SCMP_ARCH_ARM")]
    Arm,
    #[serde(rename = "SCMP_ARCH_RISCV64")]
    Riscv64,
    #[serde(rename = "SCMP_ARCH_X86")]
    X86,
    #[serde(rename = "SCMP_ARCH_X86_64")]
    X86_64,
    #[serde(rename = "SCMP_ARCH_LOONGARCH64")]
    Loongarch64,
    #[serde(rename = "SCMP_ARCH_M68K")]
    M68k,
    #[serde(rename = "SCMP_ARCH_MIPS")]
    Mips,
    #[serde(rename = "SCMP_ARCH_MIPS64")]
    Mips64,
    #[serde(rename = "SCMP_ARCH_MIPS64N32")]
    Mips64n32,
    #[serde(rename = "SCMP_ARCH_MIPSEL")]
    Mipsel,
    #[serde(rename = "SCMP_ARCH_MIPSEL64")]
    Mipsel64,
    #[serde(rename = "SCMP_ARCH_MIPSEL64N32")]
    Mipsel64n32,
    #[serde(rename = "SCMP_ARCH_PARISC")]
    Parisc,
    #[serde(rename = "SCMP_ARCH_PARISC64")]
    Parisc64,
    #[serde(rename = "SCMP_ARCH_PPC")]
    Ppc,
    #[serde(rename = "SCMP_ARCH_PPC64")]
    Ppc64,
    #[serde(rename = "SCMP_ARCH_PPC64LE")]
    Ppc64le,
    #[serde(rename = "SCMP_ARCH_S390")]
    S390,
    #[serde(rename = "SCMP_ARCH_S390X")]
    S390x,
    #[serde(rename = "SCMP_ARCH_SH")]
    Sh,
    #[serde(rename = "SCMP_ARCH_SHEB")]
    Sheb,
    #[serde(rename = "SCMP_ARCH_X32")]
    X32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flag {
    #[serde(rename = "SECCOMP_FILTER_FLAG_LOG")]
    Log,
    #[serde(rename = "SECCOMP_FILTER_FLAG_SPEC_ALLOW")]
    SpecAllow,
    #[serde(rename = "SECCOMP_FILTER_FLAG_TSYNC")]
    Tsync,
    #[serde(rename = "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV")]
    WaitKillableRecv,
}
