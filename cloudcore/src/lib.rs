//! Edgehold's cloud core: desired state, the Kubernetes-compatible API, the hub that nodes connect to.

pub mod api;
pub mod store;
