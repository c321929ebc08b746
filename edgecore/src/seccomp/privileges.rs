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

use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

use super::{Filter, SeccompError};
use crate::oci::{Capability, Spec};

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
        let filter = spec.linux.seccomp.as_ref().map(Filter::compile).transpose()?;
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
    let effective = &spec.process.capabilities.effective;
    let loads = spec.process.no_new_privileges || effective.contains(&Capability::SysAdmin);
    if spec.linux.seccomp.is_none() || loads {
        return Vec::new();
    }
    let needed = NEEDED.into_iter().map(|(name, _)| name);
    needed.filter(|name| !effective.contains(name)).collect()
}

fn give(spec: &mut Spec, missing: &[Capability]) {
    let sets = &mut spec.process.capabilities;
    for set in [&mut sets.bounding, &mut sets.effective, &mut sets.permitted] {
        set.extend(missing);
    }
    let names: Vec<_> = missing.iter().map(Capability::to_string).collect();
    spec.annotations.insert(ANNOTATION.to_owned(), names.join(" "));
}

fn added(spec: &Spec) -> Vec<Capability> {
    let names = spec.annotations.get(ANNOTATION);
    let words: Vec<&str> = names.iter().flat_map(|names| names.split(' ')).collect();
    let all = NEEDED.into_iter().map(|(name, _)| name);
    all.filter(|name| words.contains(&name.name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{Capabilities, Linux, Process, Sets};
    use crate::seccomp::runtime_default;

    fn spec(held: &[Capability], filtered: bool, no_new_privileges: bool) -> Spec {
        let held: Capabilities = held.iter().copied().collect();
        Spec {
            process: Process {
                capabilities: Sets {
                    bounding: held.clone(),
                    permitted: held.clone(),
                    effective: held.clone(),
                    ..Sets::default()
                },
                no_new_privileges,
                ..Process::default()
            },
            linux: Linux {
                seccomp: filtered.then(|| runtime_default(&held)),
                ..Linux::default()
            },
            annotations: [("kept".to_owned(), "as it was".to_owned())].into(),
            ..Spec::default()
        }
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
            let sets = &spec.process.capabilities;
            for set in [&sets.bounding, &sets.permitted, &sets.effective] {
                assert_eq!(*set, expected, "{held:?}");
            }
            // What a program would inherit or keep is not touched.
            for set in [&sets.inheritable, &sets.ambient] {
                assert!(set.is_empty(), "{held:?}");
            }
            assert_eq!(spec.annotations["kept"], "as it was");
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
