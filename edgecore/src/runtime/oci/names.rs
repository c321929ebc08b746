//! What a container is called by the runtime that runs it. Pure.

use proto::object::Uid;

use crate::runtime::Labels;

/// The runtime's name of a container: the pod, so that an event tells it without a look-up, and a hash of the rest,
/// because names are longer than containerd allows.
pub(in crate::runtime) fn id(labels: &Labels) -> String {
    let rest = format!("{}\0{}", labels.container, labels.attempt);
    let digest = ring::digest::digest(&ring::digest::SHA256, rest.as_bytes());
    let mut id = labels.pod.to_string();
    id.push('-');
    for byte in &digest.as_ref()[..8] {
        id.push_str(&format!("{byte:02x}"));
    }
    id
}

/// The pod a container's name belongs to.
pub(in crate::runtime) fn pod_of(id: &str) -> Option<Uid> {
    id.rsplit_once('-')?.0.parse().ok()
}

/// A pod's cgroup; none without a parent.
pub(in crate::runtime) fn pod_cgroup(parent: &str, pod: Uid) -> String {
    if parent.is_empty() {
        return String::new();
    }
    format!("{parent}/pod{pod}")
}

/// A container's cgroup. With the attempt: an old one's clean-up must not meet the new one's processes.
pub(in crate::runtime) fn cgroup(parent: &str, labels: &Labels) -> String {
    let pod = pod_cgroup(parent, labels.pod);
    if pod.is_empty() {
        return pod;
    }
    format!("{pod}/{}-{}", labels.container, labels.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_parent_there_are_no_cgroups() {
        let pod = Uid::random([7; 16]);
        let labels = Labels {
            pod,
            namespace: String::new(),
            pod_name: String::new(),
            container: "c".into(),
            attempt: 0,
            hash: 0,
        };
        assert_eq!(
            (pod_cgroup("", pod), cgroup("", &labels)),
            (String::new(), String::new())
        );
        assert_eq!(cgroup("/a", &labels), format!("/a/pod{pod}/c-0"));
    }

    #[test]
    fn an_id_is_short_names_its_pod_and_differs_per_attempt() {
        let labels = Labels {
            pod: Uid::random([7; 16]),
            namespace: "default".into(),
            pod_name: "web-0".into(),
            container: "c".repeat(63),
            attempt: 3,
            hash: u64::MAX,
        };
        let name = id(&labels);
        assert!(name.len() <= 76, "{name}");
        assert_eq!(pod_of(&name), Some(labels.pod));
        assert_ne!(name, id(&Labels { attempt: 4, ..labels.clone() }));
        assert_ne!(name, id(&Labels { container: "d".into(), ..labels.clone() }));
        for other in ["", "-", "web-1", &labels.pod.to_string()] {
            assert_eq!(pod_of(other), None, "{other}");
        }
    }
}
