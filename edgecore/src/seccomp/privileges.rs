//! How a container's first process comes to its filter.
//!
//! Loading a filter takes CAP_SYS_ADMIN, unless the process has given up gaining privileges; that most containers have
//! neither is the point of both. Between the moment when a container's process gets its capabilities and the one when it
//! becomes the container's program, there is code of ours only. So a container's process is given the two capabilities
//! that are needed, loads the filter, and drops them for good: out of the bounding set first, so that whatever the
//! filter denies from then on, no program it becomes can get them; then out of the others.
//!
//! What was added stands in an annotation of the container's specification, so that a command that is run in it later,
//! by another version of this program, does the same.

use std::collections::HashMap;

use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities, Spec};
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

use super::{Filter, SeccompError};

/// Names what a container's process drops once its filter is loaded.
const ANNOTATION: &str = "edgehold.dev/dropped-once-filtered";

/// Loading takes the first one; taking a capability out of the bounding set the second one.
const NEEDED: [(Capability, CapabilitySet); 2] = [
    (Capability::SysAdmin, CapabilitySet::SYS_ADMIN),
    (Capability::Setpcap, CapabilitySet::SETPCAP),
];

/// What a container's process does right before it becomes the container's program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    filter: Option<Filter>,
    dropped: Vec<Capability>,
}

impl Entry {
    /// For a new container: compiles what `spec` asks for, and gives its process what it takes to load that. `spec` must
    /// be run with [`Entry::enter`] from then on. Preparing twice is preparing once.
    pub fn prepare(spec: &mut Spec) -> Result<Self, SeccompError> {
        if added(spec).is_empty() {
            let missing = missing(spec);
            if !missing.is_empty() {
                give(spec, &missing);
            }
        }
        Self::of(spec)
    }

    /// For a command in a container: `spec` is the container's, as it was prepared.
    pub fn of(spec: &Spec) -> Result<Self, SeccompError> {
        let profile = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
        let filter = profile.map(Filter::compile).transpose()?;
        Ok(Self { filter, dropped: added(spec) })
    }

    /// Loads the filter into the calling thread, and drops what that took. A process that could not must end.
    pub fn enter(&self) -> Result<(), SeccompError> {
        let Some(filter) = &self.filter else {
            return Ok(());
        };
        let dropped = || NEEDED.into_iter().filter(|(name, _)| self.dropped.contains(name));
        for (_, capability) in dropped() {
            remove_capability_from_bounding_set(capability).map_err(cannot_drop)?;
        }
        filter.load()?;
        if !self.dropped.is_empty() {
            let mut held = capabilities(None).map_err(cannot_drop)?;
            for (_, capability) in dropped() {
                held.effective.remove(capability);
                held.permitted.remove(capability);
                held.inheritable.remove(capability);
            }
            set_capabilities(None, held).map_err(cannot_drop)?;
        }
        Ok(())
    }
}

fn cannot_drop(error: rustix::io::Errno) -> SeccompError {
    SeccompError::Capabilities(error.into())
}

/// What `spec`'s process lacks to load its filter.
fn missing(spec: &Spec) -> Vec<Capability> {
    let filtered = spec.linux().as_ref().is_some_and(|linux| linux.seccomp().is_some());
    let Some(process) = spec.process().as_ref().filter(|_| filtered) else {
        return Vec::new();
    };
    if process.no_new_privileges() == Some(true) {
        return Vec::new();
    }
    let effective = process
        .capabilities()
        .as_ref()
        .and_then(|sets| sets.effective().clone());
    let effective = effective.unwrap_or_default();
    if effective.contains(&Capability::SysAdmin) {
        return Vec::new();
    }
    let needed = NEEDED.into_iter().map(|(name, _)| name);
    needed.filter(|name| !effective.contains(name)).collect()
}

fn give(spec: &mut Spec, missing: &[Capability]) {
    let mut process = spec.process().clone().unwrap_or_default();
    let mut sets = process.capabilities().clone().unwrap_or_else(none);
    let with = |set: &Option<Capabilities>| {
        let mut set = set.clone().unwrap_or_default();
        set.extend(missing.iter().copied());
        Some(set)
    };
    sets.set_bounding(with(sets.bounding()));
    sets.set_effective(with(sets.effective()));
    sets.set_permitted(with(sets.permitted()));
    process.set_capabilities(Some(sets));
    spec.set_process(Some(process));
    let names: Vec<_> = missing.iter().map(Capability::to_string).collect();
    let mut annotations: HashMap<_, _> = spec.annotations().clone().unwrap_or_default();
    annotations.insert(ANNOTATION.to_owned(), names.join(" "));
    spec.set_annotations(Some(annotations));
}

/// The builder's idea of a default is a set of its own.
fn none() -> LinuxCapabilities {
    let mut sets = LinuxCapabilities::default();
    sets.set_bounding(None)
        .set_effective(None)
        .set_permitted(None)
        .set_inheritable(None)
        .set_ambient(None);
    sets
}

fn added(spec: &Spec) -> Vec<Capability> {
    let names = spec.annotations().as_ref().and_then(|all| all.get(ANNOTATION));
    let words: Vec<&str> = names.iter().flat_map(|names| names.split(' ')).collect();
    let all = NEEDED.into_iter().map(|(name, _)| name);
    all.filter(|name| words.contains(&name.to_string().as_str())).collect()
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxBuilder, LinuxCapabilitiesBuilder, ProcessBuilder, SpecBuilder};

    use super::*;
    use crate::seccomp::runtime_default;

    fn spec(held: &[Capability], filtered: bool, no_new_privileges: bool) -> Spec {
        let held: Capabilities = held.iter().copied().collect();
        let sets = LinuxCapabilitiesBuilder::default()
            .bounding(held.clone())
            .permitted(held.clone())
            .effective(held.clone())
            .inheritable(Capabilities::new())
            .ambient(Capabilities::new());
        let process = ProcessBuilder::default()
            .capabilities(sets.build().unwrap())
            .no_new_privileges(no_new_privileges);
        let mut linux = LinuxBuilder::default().build().unwrap();
        linux.set_seccomp(filtered.then(|| runtime_default(&held)));
        let spec = SpecBuilder::default().process(process.build().unwrap()).linux(linux);
        spec.annotations([("kept".to_owned(), "as it was".to_owned())])
            .build()
            .unwrap()
    }

    fn sets(spec: &Spec) -> LinuxCapabilities {
        spec.process().as_ref().unwrap().capabilities().clone().unwrap()
    }

    #[test]
    fn a_process_is_given_what_it_lacks_and_no_more() {
        use Capability::{Chown, Setpcap, SysAdmin};
        let check = |held: &[Capability], given: &[Capability]| {
            let mut spec = spec(held, true, false);
            let entry = Entry::prepare(&mut spec).unwrap();
            assert_eq!(entry.dropped, given, "{held:?}");
            assert!(entry.filter.is_some());
            let expected: Capabilities = held.iter().chain(given).copied().collect();
            for set in [sets(&spec).bounding(), sets(&spec).permitted(), sets(&spec).effective()] {
                assert_eq!(set.as_ref(), Some(&expected), "{held:?}");
            }
            // What a program would inherit or keep is not touched.
            for set in [sets(&spec).inheritable(), sets(&spec).ambient()] {
                assert_eq!(set.as_ref(), Some(&Capabilities::new()), "{held:?}");
            }
            assert_eq!(spec.annotations().as_ref().unwrap()["kept"], "as it was");
            // Prepared again, or read for a command in it, it is the same.
            assert_eq!(Entry::of(&spec).unwrap(), entry);
            let before = spec.clone();
            assert_eq!(Entry::prepare(&mut spec).unwrap(), entry);
            assert_eq!(spec, before);
        };
        check(&[], &[SysAdmin, Setpcap]);
        check(&[Chown, Setpcap], &[SysAdmin]);
        check(&[Chown], &[SysAdmin, Setpcap]);
        check(&[SysAdmin], &[]);
    }

    #[test]
    fn who_needs_nothing_is_left_alone() {
        for (filtered, no_new_privileges) in [(false, false), (false, true), (true, true)] {
            let mut spec = spec(&[Capability::Chown], filtered, no_new_privileges);
            let before = spec.clone();
            let entry = Entry::prepare(&mut spec).unwrap();
            assert_eq!(spec, before);
            assert_eq!((entry.filter.is_some(), entry.dropped.len()), (filtered, 0));
        }
        // Without a filter there is nothing to do, and nothing is done.
        Entry::default().enter().unwrap();
    }
}
