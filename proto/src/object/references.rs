//! What a pod refers to: the cloud sends these objects along, the edge reads them.

use std::collections::BTreeSet;

use super::Key;
use crate::value::Value;

/// Every config map, secret and service account that a pod names, optional or not, there or not.
pub fn references(namespace: &str, pod: &Value) -> BTreeSet<Key> {
    let mut keys = BTreeSet::new();
    let mut add = |kind: &str, name: Option<&str>| {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            keys.insert(Key::new(kind, namespace, name));
        }
    };
    for container in ["initContainers", "containers"]
        .iter()
        .flat_map(|list| pod.list_at(&["spec", list]))
    {
        for source in container.list_at(&["envFrom"]) {
            add("ConfigMap", source.text_at(&["configMapRef", "name"]));
            add("Secret", source.text_at(&["secretRef", "name"]));
        }
        for variable in container.list_at(&["env"]) {
            add("ConfigMap", variable.text_at(&["valueFrom", "configMapKeyRef", "name"]));
            add("Secret", variable.text_at(&["valueFrom", "secretKeyRef", "name"]));
        }
    }
    for volume in pod.list_at(&["spec", "volumes"]) {
        add("ConfigMap", volume.text_at(&["configMap", "name"]));
        add("Secret", volume.text_at(&["secret", "secretName"]));
        for source in volume.list_at(&["projected", "sources"]) {
            add("ConfigMap", source.text_at(&["configMap", "name"]));
            add("Secret", source.text_at(&["secret", "name"]));
        }
    }
    for secret in pod.list_at(&["spec", "imagePullSecrets"]) {
        add("Secret", secret.text_at(&["name"]));
    }
    add("ServiceAccount", pod.text_at(&["spec", "serviceAccountName"]));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::json;

    #[test]
    fn every_way_to_refer() {
        let pod = json::parse(
            br#"{"spec":{"serviceAccountName":"sa","imagePullSecrets":[{"name":"pull"}],
            "initContainers":[{"envFrom":[{"configMapRef":{"name":"a"}},{"secretRef":{"name":"b"}}]}],
            "containers":[{"env":[{"valueFrom":{"configMapKeyRef":{"name":"c"}}},{"valueFrom":{"secretKeyRef":{"name":"d"}}},
              {"name":"x","value":"y"},{"valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],
            "volumes":[{"configMap":{"name":"e"}},{"secret":{"secretName":"f"}},{"emptyDir":{}},
              {"projected":{"sources":[{"configMap":{"name":"g"}},{"secret":{"name":"h"}},{"downwardAPI":{}}]}}]}}"#,
        )
        .unwrap();
        let found: Vec<_> = references("n", &pod).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "ConfigMap/n/a",
                "ConfigMap/n/c",
                "ConfigMap/n/e",
                "ConfigMap/n/g",
                "Secret/n/b",
                "Secret/n/d",
                "Secret/n/f",
                "Secret/n/h",
                "Secret/n/pull",
                "ServiceAccount/n/sa",
            ]
        );
    }
}
