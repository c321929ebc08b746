//! What every runtime that starts OCI containers needs, whoever starts them: the specification, the namespaces and the
//! network that a pod's containers share, who they run as, what this machine offers.

pub(super) mod accounts;
pub(crate) mod cgroup;
pub(super) mod cni;
pub(crate) mod inside;
pub(super) mod limits;
pub(super) mod machine;
pub(super) mod names;
pub(super) mod oom;
pub(super) mod passwd;
pub(super) mod sandbox;
pub(super) mod signal;
pub(super) mod spec;
