//! The texts that both cores know by number: names of fields and common values.
//!
//! Append only. A number never changes its text; the hello says how many texts an end knows and the hash of that many,
//! and both ends use the shorter dictionary. Numbers below 128 take one byte, so the first lines hold what status
//! reports and pod specs are made of.

/// The first `len` texts of the dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dictionary {
    len: u32,
}

impl Dictionary {
    /// All texts that this build knows.
    pub fn full() -> Self {
        Self {
            len: u32::try_from(TEXTS.len()).expect("the dictionary is a few hundred texts"),
        }
    }

    /// No text at all: what an end knows of which nothing is known.
    pub const fn empty() -> Self {
        Self { len: 0 }
    }

    /// The dictionary that an end with `len` texts of hash `hash` shares with this build; `None` when the texts differ.
    pub fn shared(len: u32, hash: [u8; 8]) -> Option<Self> {
        let full = Self::full();
        if len > full.len {
            // The other end is newer. What it says of its own prefix cannot be checked here; it checks ours.
            return Some(full);
        }
        let shorter = Self { len };
        (shorter.hash() == hash).then_some(shorter)
    }

    /// The first `len` texts, if this build knows as many.
    pub fn first(len: u32) -> Option<Self> {
        (len <= Self::full().len).then_some(Self { len })
    }

    pub fn len(self) -> u32 {
        self.len
    }

    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The hash of these texts, in order.
    pub fn hash(self) -> [u8; 8] {
        let mut hasher = blake3::Hasher::new();
        for text in self.texts() {
            hasher.update(&[u8::try_from(text.len()).unwrap_or(u8::MAX)]);
            hasher.update(text.as_bytes());
        }
        let mut hash = [0; 8];
        hasher.finalize_xof().fill(&mut hash);
        hash
    }

    pub(crate) fn code(self, text: &str) -> Option<u32> {
        code(text).map(u32::from).filter(|code| *code < self.len)
    }

    pub(crate) fn text(self, code: u32) -> Option<&'static str> {
        self.texts().get(usize::try_from(code).ok()?).copied()
    }

    fn texts(self) -> &'static [&'static str] {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        &TEXTS[..len.min(TEXTS.len())]
    }
}

/// The number of a text that this build knows.
pub(crate) fn code(text: &str) -> Option<u16> {
    if text.len() > LENGTH_MAX {
        return None;
    }
    let mut at = place(text.as_bytes());
    loop {
        let code = PLACES[at];
        match TEXTS.get(usize::from(code)) {
            Some(known) if *known == text => return Some(code),
            Some(_) => at = (at + 1) % PLACES.len(),
            None => return None,
        }
    }
}

/// The text of a number that [`code`] gave.
pub(crate) fn text(code: u16) -> &'static str {
    TEXTS[usize::from(code)]
}

/// Where each text is found by its hash: the number at the hash's place or at one of the places that follow it. Made by
/// the compiler, so that it is part of the program and takes no memory of a process. Twice as many places as texts.
static PLACES: [u16; (2 * TEXTS.len()).next_power_of_two()] = {
    let mut places = [FREE; (2 * TEXTS.len()).next_power_of_two()];
    let mut code: u16 = 0;
    while (code as usize) < TEXTS.len() {
        let mut at = place(TEXTS[code as usize].as_bytes());
        while places[at] != FREE {
            at = (at + 1) % places.len();
        }
        places[at] = code;
        code += 1;
    }
    places
};

/// A place of no text.
const FREE: u16 = u16::MAX;

/// The longest text's length.
const LENGTH_MAX: usize = {
    let (mut most, mut at) = (0, 0);
    while at < TEXTS.len() {
        if TEXTS[at].len() > most {
            most = TEXTS[at].len();
        }
        at += 1;
    }
    most
};

/// FNV-1a, and from it the first place to look at.
const fn place(text: &[u8]) -> usize {
    let mut hash: u32 = 0x811c_9dc5;
    let mut at = 0;
    while at < text.len() {
        hash = (hash ^ text[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    // The lowest bits of FNV alone spread short texts badly.
    (hash ^ (hash >> 15)) as usize % (2 * TEXTS.len()).next_power_of_two()
}

#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "True", "False", "conditions", "lastTransitionTime", "status", "ready", "type", "reason", "message", "state",
    "running", "startedAt", "containerStatuses", "Ready", "ContainersReady", "restartCount", "waiting", "terminated",
    "exitCode", "finishedAt", "lastState", "started", "phase", "Running", "Pending", "Unknown", "podIP", "podIPs",
    "ip", "hostIP", "hostIPs", "startTime", "observedGeneration", "Initialized", "PodReadyToStartContainers",
    "PodScheduled", "containerID", "image", "imageID", "name", "metadata", "spec", "apiVersion", "kind", "v1", "Pod",
    "namespace", "uid", "labels", "annotations", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "ownerReferences", "generateName", "controller", "blockOwnerDeletion", "apps/v1",
    "ReplicaSet", "DaemonSet", "pod-template-hash", "controller-revision-hash", "app", "containers",
    "imagePullPolicy", "IfNotPresent", "Always", "resources", "terminationMessagePath", "/dev/termination-log",
    "terminationMessagePolicy", "File", "restartPolicy", "terminationGracePeriodSeconds", "dnsPolicy", "ClusterFirst",
    "securityContext", "schedulerName", "default-scheduler", "nodeName", "serviceAccountName", "serviceAccount",
    "default", "enableServiceLinks", "preemptionPolicy", "PreemptLowerPriority", "priority", "tolerations", "key",
    "operator", "Exists", "effect", "NoExecute", "NoSchedule", "tolerationSeconds", "value",
    "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure", "node.kubernetes.io/pid-pressure", "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/network-unavailable", "env", "args", "command", "ports", "containerPort", "protocol", "TCP",
    "limits", "requests", "cpu", "memory", "ContainersNotReady", "Error", "Completed", "OOMKilled",
    "CrashLoopBackOff", "ContainerCreating", "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError",
    "PodInitializing", "Succeeded", "Failed", "qosClass", "BestEffort", "Burstable", "Guaranteed", "UnsupportedField",
    "NodeLost", "signal", "initContainers", "initContainerStatuses", "ephemeralContainers", "volumes", "volumeMounts",
    "mountPath", "readOnly", "subPath", "configMap", "secret", "emptyDir", "hostPath", "path", "medium", "sizeLimit",
    "items", "mode", "defaultMode", "optional", "secretName", "projected", "sources", "downwardAPI", "fieldRef",
    "fieldPath", "resourceFieldRef", "resource", "containerName", "divisor", "valueFrom", "configMapKeyRef",
    "secretKeyRef", "envFrom", "configMapRef", "secretRef", "prefix", "metadata.name", "metadata.namespace",
    "metadata.uid", "spec.nodeName", "status.podIP", "status.hostIP", "spec.serviceAccountName", "livenessProbe",
    "readinessProbe", "startupProbe", "httpGet", "tcpSocket", "exec", "grpc", "port", "host", "scheme", "HTTP",
    "HTTPS", "httpHeaders", "initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold",
    "failureThreshold", "lifecycle", "preStop", "postStart", "privileged", "runAsUser", "runAsGroup", "runAsNonRoot",
    "fsGroup", "supplementalGroups", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities", "add",
    "drop", "ALL", "NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "SYS_ADMIN", "SYS_TIME", "seccompProfile",
    "RuntimeDefault", "Unconfined", "Localhost", "sysctls", "hostNetwork", "hostPID", "hostIPC", "hostPort",
    "hostname", "subdomain", "hostAliases", "hostnames", "dnsConfig", "nameservers", "searches", "options",
    "imagePullSecrets", "automountServiceAccountToken", "nodeSelector", "affinity", "nodeAffinity", "podAffinity",
    "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchExpressions", "matchFields",
    "values", "In", "NotIn", "DoesNotExist", "Gt", "Lt", "weight", "preference", "topologyKey",
    "topologySpreadConstraints", "labelSelector", "matchLabels", "OnFailure", "Never", "None",
    "ClusterFirstWithHostNet", "Default", "Equal", "PreferNoSchedule", "UDP", "SCTP", "workingDir", "stdin",
    "stdinOnce", "tty", "shareProcessNamespace", "activeDeadlineSeconds", "priorityClassName", "runtimeClassName",
    "overhead", "readinessGates", "conditionType", "tcp", "http", "https", "volumeDevices", "devicePath",
    "mountPropagation", "subPathExpr", "FallbackToLogsOnError", "Memory", "Directory", "DirectoryOrCreate",
    "FileOrCreate", "Socket", "CharDevice", "BlockDevice", "Node", "ConfigMap", "Secret", "ServiceAccount", "Service",
    "EndpointSlice", "Device", "DeviceModel", "discovery.k8s.io/v1", "devices.kubeedge.io/v1beta1", "data",
    "stringData", "binaryData", "immutable", "Opaque", "kubernetes.io/dockerconfigjson", ".dockerconfigjson",
    "kubernetes.io/tls", "tls.crt", "tls.key", "ca.crt", "kube-root-ca.crt", "username", "password", "taints",
    "unschedulable", "podCIDR", "podCIDRs", "providerID", "timeAdded", "node.edgehold.dev/unreachable",
    "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os", "linux", "amd64", "arm64", "arm", "riscv64",
    "node-role.kubernetes.io/edge", "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "capacity",
    "allocatable", "pods", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi", "110", "addresses", "address",
    "InternalIP", "ExternalIP", "Hostname", "InternalDNS", "nodeInfo", "machineID", "systemUUID", "bootID",
    "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion", "operatingSystem",
    "architecture", "images", "names", "sizeBytes", "daemonEndpoints", "kubeletEndpoint", "Port", "volumesInUse",
    "volumesAttached", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "RuntimeReady",
    "ClockSynchronized", "lastHeartbeatTime", "EdgeReady", "EdgeHasNoDiskPressure", "KubeletReady", "KubeletNotReady",
    "RuntimeUnavailable", "DiskFull", "selector", "clusterIP", "clusterIPs", "ClusterIP", "NodePort", "LoadBalancer",
    "ExternalName", "externalName", "externalIPs", "sessionAffinity", "internalTrafficPolicy",
    "externalTrafficPolicy", "Cluster", "Local", "ipFamilies", "ipFamilyPolicy", "IPv4", "IPv6", "SingleStack",
    "targetPort", "nodePort", "appProtocol", "publishNotReadyAddresses", "loadBalancer", "addressType", "endpoints",
    "targetRef", "serving", "terminating", "zone", "hints", "forZones", "kubernetes.io/service-name",
    "endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io", "deviceModelRef", "protocolName",
    "configData", "properties", "propertyName", "desired", "reported", "observedDesired", "twins", "timestamp",
    "collectCycle", "reportCycle", "reportToCloud", "visitors", "accessMode", "ReadWrite", "ReadOnly", "minimum",
    "maximum", "unit", "description", "int", "string", "double", "float", "boolean", "modbus", "opcua", "mqtt",
    "Event", "involvedObject", "regarding", "note", "count", "firstTimestamp", "lastTimestamp", "eventTime", "series",
    "source", "component", "reportingComponent", "reportingInstance", "action", "Normal", "Warning", "Pulling",
    "Pulled", "Created", "Started", "Killing", "BackOff", "Unhealthy", "FailedScheduling", "Scheduled", "FailedMount",
    "FailedCreate", "edgecore", "finalizers", "foregroundDeletion", "orphan", "fsGroupChangePolicy", "OnRootMismatch",
    "supplementalGroupsPolicy", "Strict", "Merge", "observedReadyReplicas", "allocatedResources", "resize",
    "restartPolicyRules", "setHostnameAsFQDN", "nominatedNodeName", "ephemeralContainerStatuses", "DisruptionTarget",
    "user", "group", "gid", "root", "0s", "1", "2", "50m", "100m", "250m", "500m", "32Mi", "64Mi", "128Mi", "256Mi",
    "512Mi", "1Gi", "8Mi", "16Mi", "10m", "80", "443", "8080", "1883", "web", "main", "app.kubernetes.io/name",
    "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/component",
    "app.kubernetes.io/part-of", "app.kubernetes.io/managed-by", "kubernetes.io/metadata.name", "kube-system",
    "kube-public", "k8s-app", "tier",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_text_stands_twice() {
        let codes: BTreeMap<_, _> = TEXTS.iter().copied().zip(0..).collect();
        let twice: Vec<_> = TEXTS
            .iter()
            .zip(0..)
            .filter(|(text, code)| codes[*text] != *code)
            .collect();
        assert_eq!(twice, []);
    }

    #[test]
    fn every_text_is_found_and_no_other() {
        for (known, number) in TEXTS.iter().zip(0..) {
            assert_eq!(code(known), Some(number), "{known}");
            assert_eq!(text(number), *known);
            assert_eq!(code(&format!("{known}?")), None);
        }
        assert_eq!(code(""), None);
        assert_eq!(code(&"x".repeat(LENGTH_MAX)), None);
        assert_eq!(code(&"x".repeat(LENGTH_MAX + 1)), None);
    }

    #[test]
    fn both_ends_use_the_shorter_one() {
        let full = Dictionary::full();
        let older = Dictionary { len: 40 };
        assert_eq!(Dictionary::shared(older.len(), older.hash()), Some(older));
        assert_eq!(Dictionary::shared(full.len() + 5, [0; 8]), Some(full));
        assert_eq!(Dictionary::shared(older.len(), [0; 8]), None);
        assert_eq!(
            older.code("Ready").is_some(),
            Dictionary::full().code("Ready").is_some()
        );
        assert_eq!(older.code("tier"), None);
    }
}
