//! What an image is made of: indexes, manifests and configurations, of OCI and of Docker alike.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::ImageError;

/// An image with more layers is refused; overlayfs takes about that many.
pub const LAYERS_MAX: usize = 128;

/// The sha256 of some content, as `sha256:<64 hex digits>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

impl Digest {
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        if hex.len() == 64
            && hex
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(ImageError::Digest { digest: text.to_owned() })
        }
    }

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut text = String::from("sha256:");
        for byte in ring::digest::digest(&ring::digest::SHA256, bytes).as_ref() {
            text.push_str(&format!("{byte:02x}"));
        }
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part after `sha256:`.
    pub fn hex(&self) -> &str {
        &self.0["sha256:".len()..]
    }

    pub fn check(&self, bytes: &[u8]) -> Result<(), ImageError> {
        if Self::of(bytes) == *self {
            Ok(())
        } else {
            Err(ImageError::Mismatch { digest: self.0.clone() })
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Points at content.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default)]
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// Points at a manifest or index that was fetched by name.
    pub fn of(document: &[u8]) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Typed {
            media_type: Option<String>,
        }
        let typed: Option<Typed> = serde_json::from_slice(document).ok();
        Self {
            // OCI lets a manifest leave it out.
            media_type: typed
                .and_then(|typed| typed.media_type)
                .unwrap_or_else(|| MANIFEST_TYPES[1].to_owned()),
            digest: Digest::of(document),
            size: u64::try_from(document.len()).unwrap_or(u64::MAX),
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    /// Registries keep manifests and indexes apart from blobs.
    pub(super) fn is_manifest(&self) -> bool {
        MANIFEST_TYPES.contains(&self.media_type.as_str())
    }
}

/// The media types of manifests and indexes.
pub(super) const MANIFEST_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// What a manifest of an index is made for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub variant: Option<String>,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// What a name or an entry of an index leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

impl Document {
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        #[derive(Deserialize)]
        struct Either {
            manifests: Option<Vec<Descriptor>>,
        }
        let format = |source| ImageError::Format { what: "manifest", source };
        // Neither kind has to name its media type; what tells them apart is what they hold.
        match serde_json::from_slice::<Either>(bytes).map_err(format)?.manifests {
            Some(entries) => Ok(Self::Index(entries)),
            None => Manifest::parse(bytes).map(Self::Manifest),
        }
    }
}

/// One image for one platform.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|source| ImageError::Format { what: "manifest", source })?;
        if manifest.layers.len() > LAYERS_MAX {
            return Err(ImageError::Damaged { reason: format!("it has more than {LAYERS_MAX} layers") });
        }
        Ok(manifest)
    }

    /// What the image weighs as it was fetched.
    pub fn size_bytes(&self) -> u64 {
        self.layers
            .iter()
            .fold(self.config.size, |sum, layer| sum.saturating_add(layer.size))
    }
}

/// An image's configuration, as far as running it goes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Config {
    #[serde(default)]
    pub config: Option<Run>,
    #[serde(default)]
    rootfs: RootFs,
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

/// How a container of the image runs unless told otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Run {
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub env: Option<Vec<String>>,
    #[serde(default)]
    pub entrypoint: Option<Vec<String>>,
    #[serde(default)]
    pub cmd: Option<Vec<String>>,
    #[serde(default)]
    pub working_dir: Option<String>,
    /// What its containers are asked to end with, by name or number.
    #[serde(default)]
    pub stop_signal: Option<String>,
}

impl Config {
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        serde_json::from_slice(bytes).map_err(|source| ImageError::Format { what: "image configuration", source })
    }

    /// The digests of the unpacked layers, bottom first.
    pub fn diff_ids(&self) -> &[Digest] {
        &self.rootfs.diff_ids
    }

    /// The names of the unpacked stack after each layer, bottom first: one name for one content below and in it.
    pub fn chain_ids(&self) -> Vec<Digest> {
        let mut chain: Vec<Digest> = Vec::with_capacity(self.rootfs.diff_ids.len());
        for diff in &self.rootfs.diff_ids {
            let next = match chain.last() {
                None => diff.clone(),
                Some(below) => Digest::of(format!("{below} {diff}").as_bytes()),
            };
            chain.push(next);
        }
        chain
    }
}

impl Config {
    /// What the image was made for, where that is not this kind of machine. It may run all the same: a 64-bit kernel
    /// takes programs for 32 bits, and an emulator may be registered for others. Else its containers end with "exec
    /// format error", which tells nobody why.
    pub fn foreign_to(&self, host: &Host) -> Option<Platform> {
        let made_for = Platform {
            os: self.os.clone(),
            architecture: self.architecture.clone(),
            variant: self.variant.clone().filter(|variant| !variant.is_empty()),
        };
        let says = !made_for.os.is_empty() && !made_for.architecture.is_empty();
        (says && host.rank(&made_for).is_none()).then_some(made_for)
    }
}

/// The machine an image has to be made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    architecture: &'static str,
    /// For 32-bit ARM: the newest version of the instruction set.
    arm_version: u8,
}

impl Host {
    /// This machine.
    pub fn this() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        // A binary built for version 6 runs on 7 as well; what it can be sure of is what it was built for.
        Self {
            architecture,
            arm_version: if cfg!(target_feature = "v7") { 7 } else { 6 },
        }
    }

    /// The entry of an index for this machine.
    pub fn choose<'a>(&self, entries: &'a [Descriptor]) -> Result<&'a Descriptor, ImageError> {
        // A lone entry without a platform is what `import` of a single image makes.
        if let [only] = entries
            && only.platform.is_none()
        {
            return Ok(only);
        }
        let best = entries
            .iter()
            .filter_map(|entry| Some((self.rank(entry.platform.as_ref()?)?, entry)));
        // The first of equals, as others choose.
        best.rev()
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, entry)| entry)
            .ok_or_else(|| {
                let found: Vec<String> = entries
                    .iter()
                    .filter_map(|entry| entry.platform.as_ref())
                    .map(ToString::to_string)
                    .collect();
                ImageError::Platform {
                    wanted: format!("linux/{}", self.architecture),
                    found: found.join(", "),
                }
            })
    }

    /// How well something made for `platform` fits; `None` when it would not run.
    fn rank(&self, platform: &Platform) -> Option<u8> {
        if platform.os != "linux" || platform.architecture != self.architecture {
            return None;
        }
        let version = platform
            .variant
            .as_deref()
            .map(|variant| variant.trim_start_matches('v').parse::<u8>().ok());
        match (self.architecture, version) {
            ("arm", None) => Some(0),
            ("arm", Some(version)) => version.filter(|version| *version <= self.arm_version),
            ("arm64", None | Some(Some(8))) | (_, None) => Some(1),
            // Micro-architecture levels (amd64/v3) may not run here.
            (_, Some(version)) => version.filter(|version| *version <= 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(platform: &str) -> Descriptor {
        let mut parts = platform.split('/').map(str::to_owned);
        Descriptor {
            media_type: MANIFEST_TYPES[1].into(),
            digest: Digest::of(platform.as_bytes()),
            size: 1,
            platform: Some(Platform {
                os: parts.next().unwrap(),
                architecture: parts.next().unwrap(),
                variant: parts.next(),
            }),
            annotations: BTreeMap::new(),
        }
    }

    #[test]
    fn the_best_fitting_entry_is_chosen() {
        let host = |architecture, arm_version| Host { architecture, arm_version };
        let check = |host: &Host, platforms: &[&str], expected: Option<usize>| {
            let entries: Vec<Descriptor> = platforms.iter().map(|platform| entry(platform)).collect();
            let chosen = host.choose(&entries).ok();
            assert_eq!(chosen, expected.map(|at| &entries[at]), "{platforms:?}");
        };
        let all = [
            "unknown/unknown",
            "windows/amd64",
            "linux/amd64",
            "linux/arm/v7",
            "linux/arm/v6",
            "linux/arm64/v8",
        ];
        check(&host("amd64", 0), &all, Some(2));
        check(&host("arm64", 0), &all, Some(5));
        check(&host("arm", 7), &all, Some(3));
        check(&host("arm", 6), &all, Some(4));
        check(&host("arm", 5), &all, None);
        check(&host("riscv64", 0), &all, None);
        check(&host("amd64", 0), &["linux/amd64/v3", "linux/amd64"], Some(1));
        check(&host("amd64", 0), &["linux/amd64/v3"], None);
        check(&host("amd64", 0), &["linux/amd64", "linux/amd64"], Some(0));
        check(&host("arm64", 0), &["linux/arm64", "linux/arm64/v9"], Some(0));
    }

    #[test]
    fn the_error_says_what_there_is() {
        let host = Host { architecture: "arm64", arm_version: 0 };
        let error = host.choose(&[entry("linux/amd64"), entry("linux/s390x")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the image is not made for linux/arm64, only for linux/amd64, linux/s390x: build or save it for linux/arm64"
        );
    }

    #[test]
    fn an_image_for_another_machine_is_told() {
        let check = |config: &str, architecture, expected: Option<&str>| {
            let host = Host { architecture, arm_version: 7 };
            let made_for = Config::parse(config.as_bytes()).unwrap().foreign_to(&host);
            assert_eq!(
                made_for.map(|platform| platform.to_string()).as_deref(),
                expected,
                "{config}"
            );
        };
        check(r#"{"os":"linux","architecture":"arm64"}"#, "amd64", Some("linux/arm64"));
        check(r#"{"os":"linux","architecture":"arm64","variant":""}"#, "arm64", None);
        check(r#"{"os":"linux","architecture":"arm64","variant":"v8"}"#, "arm64", None);
        check(r#"{"os":"linux","architecture":"arm","variant":"v7"}"#, "arm", None);
        check(
            r#"{"os":"linux","architecture":"arm","variant":"v8"}"#,
            "arm",
            Some("linux/arm/v8"),
        );
        check(
            r#"{"os":"windows","architecture":"amd64"}"#,
            "amd64",
            Some("windows/amd64"),
        );
        // One that does not say.
        check("{}", "amd64", None);
    }

    #[test]
    fn chains_are_named_as_everywhere() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let config = Config {
            config: None,
            rootfs: RootFs { diff_ids: vec![a.clone(), b.clone()] },
            ..Config::default()
        };
        assert_eq!(
            config.chain_ids(),
            [a.clone(), Digest::of(format!("{a} {b}").as_bytes())]
        );
    }

    #[test]
    fn documents_are_told_apart_by_what_they_hold() {
        let digest = Digest::of(b"");
        let descriptor = format!(r#"{{"mediaType":"x","digest":"{digest}","size":0}}"#);
        let manifest = format!(r#"{{"schemaVersion":2,"config":{descriptor},"layers":[{descriptor}]}}"#);
        assert!(matches!(
            Document::parse(manifest.as_bytes()).unwrap(),
            Document::Manifest(_)
        ));
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{descriptor}]}}"#);
        assert!(matches!(Document::parse(index.as_bytes()).unwrap(), Document::Index(_)));
        for damaged in ["{}", "", r#"{"manifests":[{"digest":"md5:1","size":1}]}"#] {
            assert!(Document::parse(damaged.as_bytes()).is_err(), "{damaged}");
        }
        let layers = |count| {
            format!(
                r#"{{"config":{descriptor},"layers":[{}]}}"#,
                vec![descriptor.as_str(); count].join(",")
            )
        };
        assert!(Manifest::parse(layers(LAYERS_MAX).as_bytes()).is_ok());
        assert!(Manifest::parse(layers(LAYERS_MAX + 1).as_bytes()).is_err());
    }
}
