//! Whole paths through the real code, on real sockets, processes and daemons.

#[cfg(test)]
mod api;
#[cfg(test)]
mod command_lines;
#[cfg(test)]
mod corpus;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod edgectl;
#[cfg(test)]
mod edgectl_nodes;
#[cfg(test)]
mod edgectl_trust;
#[cfg(test)]
mod enrolment;
#[cfg(test)]
mod kubectl;
#[cfg(test)]
mod kubectl_process;
#[cfg(test)]
mod links;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod network;
#[cfg(test)]
mod old_copies;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod seccomp;
#[cfg(test)]
mod service;
#[cfg(test)]
mod site;
#[cfg(test)]
mod strangers;
