//! The rules of volumes.

use std::collections::BTreeSet;

use proto::object::quantity::Quantity;
use proto::value::Value;

use super::{Faults, list, names, text};

/// The sources in the order in which a real server looks at them; the first that is set is the volume's.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flexVolume",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "flocker",
    "downwardAPI",
    "fc",
    "azureFile",
    "configMap",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "storageos",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "projected",
    "csi",
    "ephemeral",
    "image",
];

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// Checks all volumes and returns their names.
pub(super) fn all<'p>(volumes: &'p [Value], field: &str, faults: &mut Faults) -> BTreeSet<&'p str> {
    let mut seen = BTreeSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let name = text(volume, "name");
        if name.is_empty() {
            faults.required(format_args!("{field}.name"), "");
        } else {
            faults.invalid_texts(format_args!("{field}.name"), name, names::label(name));
        }
        if seen.contains(name) {
            faults.duplicate(format_args!("{field}.name"), &Value::from(name));
        }
        source(volume, &field, faults);
        if !name.is_empty() {
            seen.insert(name);
        }
    }
    seen
}

fn source(volume: &Value, field: &str, faults: &mut Faults) {
    let mut set = 0;
    for name in SOURCES {
        let Some(source) = volume.get(name) else { continue };
        let field = format!("{field}.{name}");
        set += 1;
        if set > 1 {
            faults.forbidden(field, "may not specify more than 1 volume type");
            continue;
        }
        match name {
            "emptyDir" => {
                let limit: Option<Quantity> = source.text_at(&["sizeLimit"]).and_then(|limit| limit.parse().ok());
                if limit.is_some_and(Quantity::is_negative) {
                    let words = "SizeLimit field must be a valid resource quantity";
                    faults.forbidden(format_args!("{field}.sizeLimit"), words);
                }
            }
            "hostPath" => host_path(source, &field, faults),
            "secret" => {
                if text(source, "secretName").is_empty() {
                    faults.required(format_args!("{field}.secretName"), "");
                }
                files(source, &field, faults);
            }
            "configMap" => {
                if text(source, "name").is_empty() {
                    faults.required(format_args!("{field}.name"), "");
                }
                files(source, &field, faults);
            }
            "downwardAPI" => downward(source, &field, faults),
            "persistentVolumeClaim" if text(source, "claimName").is_empty() => {
                faults.required(format_args!("{field}.claimName"), "");
            }
            "nfs" => {
                for part in ["server", "path"] {
                    if text(source, part).is_empty() {
                        faults.required(format_args!("{field}.{part}"), "");
                    }
                }
            }
            "projected" => projected(source, &field, faults),
            _ => {}
        }
    }
    if set == 0 {
        faults.required(field, "must specify a volume type");
    }
}

fn host_path(source: &Value, field: &str, faults: &mut Faults) {
    let path = text(source, "path");
    if path.is_empty() {
        faults.required(format_args!("{field}.path"), "");
    } else if path.split('/').any(|step| step == "..") {
        faults.invalid_text(format_args!("{field}.path"), path, "must not contain '..'");
    }
    let kind = text(source, "type");
    if !HOST_PATH_TYPES.contains(&kind) {
        faults.not_supported(format_args!("{field}.type"), kind, &HOST_PATH_TYPES);
    }
}

fn mode(source: &Value, part: &str, field: &str, faults: &mut Faults) {
    if let Some(value) = source.get(part)
        && value.as_i64().is_some_and(|mode| !(0..=0o777).contains(&mode))
    {
        let words = "must be a number between 0 and 0777 (octal), both inclusive";
        faults.invalid(format_args!("{field}.{part}"), value, words);
    }
}

/// Keys that become files.
fn files(source: &Value, field: &str, faults: &mut Faults) {
    mode(source, "defaultMode", field, faults);
    for (index, item) in list(source, "items").iter().enumerate() {
        let field = format!("{field}.items[{index}]");
        if text(item, "key").is_empty() {
            faults.required(format_args!("{field}.key"), "");
        }
        file_path(item, &field, faults);
        mode(item, "mode", &field, faults);
    }
}

fn file_path(item: &Value, field: &str, faults: &mut Faults) {
    let path = text(item, "path");
    let field = format!("{field}.path");
    if path.is_empty() {
        faults.required(field, "");
        return;
    }
    if path.starts_with('/') {
        faults.invalid_text(&field, path, "must be a relative path");
    }
    if path.split('/').any(|step| step == "..") {
        faults.invalid_text(&field, path, "must not contain '..'");
    } else if path.starts_with("..") {
        faults.invalid_text(&field, path, "must not start with '..'");
    }
}

fn downward(source: &Value, field: &str, faults: &mut Faults) {
    mode(source, "defaultMode", field, faults);
    for (index, item) in list(source, "items").iter().enumerate() {
        let field = format!("{field}.items[{index}]");
        file_path(item, &field, faults);
        match (item.get("fieldRef"), item.get("resourceFieldRef")) {
            (None, None) => {
                faults.required(&field, "one of fieldRef and resourceFieldRef is required");
            }
            (Some(_), Some(_)) => {
                faults.invalid_text(
                    &field,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
            _ => {}
        }
        mode(item, "mode", &field, faults);
    }
}

fn projected(source: &Value, field: &str, faults: &mut Faults) {
    mode(source, "defaultMode", field, faults);
    for (index, source) in list(source, "sources").iter().enumerate() {
        let field = format!("{field}.sources[{index}]");
        let mut set = 0;
        for (name, part) in source.as_map().into_iter().flatten() {
            let inner = format!("{field}.{name}");
            set += 1;
            if set > 1 {
                faults.forbidden(&inner, "may not specify more than 1 volume type");
                continue;
            }
            match name {
                "secret" | "configMap" => {
                    if text(part, "name").is_empty() {
                        faults.required(format_args!("{inner}.name"), "");
                    }
                    files(part, &inner, faults);
                }
                "downwardAPI" => downward(part, &inner, faults),
                "serviceAccountToken" => {
                    if part.int_at(&["expirationSeconds"]).is_some_and(|seconds| seconds < 600) {
                        let seconds = part.get("expirationSeconds").cloned().unwrap_or_default();
                        let words = "may not specify a duration less than 10 minutes";
                        faults.invalid(format_args!("{inner}.expirationSeconds"), &seconds, words);
                    }
                    file_path(part, &inner, faults);
                }
                _ => {}
            }
        }
    }
}
