//! The pod network: a chain of CNI plugins, run as CNI 0.3 to 1.0 has it.
//!
//! A node has a pod network when its configuration folder holds a list; the first one by name counts, as everywhere.
//! What was added is written down before it is, with the configuration it is added with, so that it is taken away by the
//! same plugins even when the node's configuration changed or the machine was off in between.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// One plugin of one chain; a DHCP plugin waits for a server.
const PLUGIN_LIMIT: Duration = Duration::from_secs(60);
/// A longer answer is refused.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const PLUGINS_MAX: usize = 32;
const INTERFACE: &str = "eth0";

/// Where configuration and plugins are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub conf_dir: PathBuf,
    pub plugin_dirs: Vec<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            conf_dir: "/etc/cni/net.d".into(),
            // Upstream's place, then Debian's.
            plugin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
        }
    }
}

/// A chain of plugins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::runtime) struct Network {
    pub(in crate::runtime) name: String,
    #[serde(default)]
    cni_version: String,
    #[serde(default)]
    disable_check: bool,
    plugins: Vec<Map<String, Value>>,
}

/// One pod's attachment: what is needed to take it away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::runtime) struct Attachment {
    pub(in crate::runtime) network: Network,
    pub(in crate::runtime) pod: Pod,
    /// What the last plugin said; nothing until all have.
    pub(in crate::runtime) result: Option<Value>,
}

/// Whom a network is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct Pod {
    pub(in crate::runtime) uid: String,
    pub(in crate::runtime) namespace: String,
    pub(in crate::runtime) name: String,
    pub(in crate::runtime) netns: PathBuf,
}

impl Attachment {
    /// The pod's addresses, without prefix lengths.
    pub(in crate::runtime) fn addresses(&self) -> Vec<String> {
        let ips = self.result.as_ref().and_then(|result| result.get("ips")?.as_array());
        let address = |ip: &Value| Some(ip.get("address")?.as_str()?.split('/').next()?.to_owned());
        ips.into_iter().flatten().filter_map(address).collect()
    }
}

/// Why there is no pod network.
#[derive(Debug, thiserror::Error)]
pub(in crate::runtime) enum CniError {
    #[error("reading {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}: {reason}", path.display())]
    Config { path: PathBuf, reason: String },
    #[error("the plugin {plugin} is in none of the plugin folders")]
    NoPlugin { plugin: String },
    #[error("running the plugin {plugin}")]
    Run {
        plugin: String,
        #[source]
        source: io::Error,
    },
    #[error("the plugin {plugin} took longer than {PLUGIN_LIMIT:?}")]
    Late { plugin: String },
    #[error("the plugin {plugin} refused: {reason}")]
    Refused { plugin: String, reason: String },
}

impl Network {
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, CniError> {
        let config = |reason: String| CniError::Config { path: path.to_owned(), reason };
        let mut tree: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| config(error.to_string()))?;
        if !tree.contains_key("plugins") {
            // A file of one plugin is a list of one.
            let keep = |key: &str| tree.get(key).cloned().unwrap_or(Value::String(String::new()));
            let (name, version) = (keep("name"), keep("cniVersion"));
            let plugins = Value::Array(vec![Value::Object(tree)]);
            tree = Map::from_iter([
                ("name".into(), name),
                ("cniVersion".into(), version),
                ("plugins".into(), plugins),
            ]);
        }
        let network: Self = serde_json::from_value(Value::Object(tree)).map_err(|error| config(error.to_string()))?;
        if network.name.is_empty() || network.plugins.is_empty() || network.plugins.len() > PLUGINS_MAX {
            return Err(config(format!("it needs a name and one to {PLUGINS_MAX} plugins")));
        }
        if network
            .plugins
            .iter()
            .any(|plugin| !plugin_name(plugin).is_some_and(is_name))
        {
            return Err(config("a plugin has no type, or one that is no file name".into()));
        }
        Ok(network)
    }

    /// What one plugin reads: its part, with what it inherits from the list and from the plugin before it.
    fn input(&self, plugin: &Map<String, Value>, previous: Option<&Value>) -> Value {
        let mut input = plugin.clone();
        input.insert("name".into(), self.name.clone().into());
        input.insert("cniVersion".into(), self.cni_version.clone().into());
        if let Some(previous) = previous {
            input.insert("prevResult".into(), previous.clone());
        }
        Value::Object(input)
    }

    /// CHECK, and a previous result for DEL, came with 0.4.
    fn has_check(&self) -> bool {
        let mut parts = self.cni_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (0, 4)
    }
}

fn plugin_name(plugin: &Map<String, Value>) -> Option<&str> {
    plugin.get("type")?.as_str()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

impl Config {
    /// The plugins that the node's pod network wants and that are in none of the folders; `None` where it has no network.
    /// The error is why there is none although one is described.
    pub fn missing_plugins(&self) -> Result<Option<Vec<String>>, String> {
        let network = self.network().map_err(|error| crate::runtime::explain(&error))?;
        let missing = |network: Network| {
            let names = network.plugins.iter().filter_map(plugin_name);
            let missing = names.filter(|name| self.plugin(name).is_none());
            missing.map(str::to_owned).collect()
        };
        Ok(network.map(missing))
    }

    /// Where a plugin is.
    fn plugin(&self, name: &str) -> Option<PathBuf> {
        let mut paths = self.plugin_dirs.iter().map(|folder| folder.join(name));
        paths.find(|path| path.is_file())
    }

    /// The node's pod network, if it has one.
    pub(in crate::runtime) fn network(&self) -> Result<Option<Network>, CniError> {
        let read = |path: &Path, source| CniError::Read { path: path.to_owned(), source };
        let entries = match std::fs::read_dir(&self.conf_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(|source| read(&self.conf_dir, source))?,
        };
        let files = entries.flatten().map(|entry| entry.path()).filter(|path| {
            path.extension()
                .and_then(|ext| ext.to_str())
                .is_some_and(|ext| ["conf", "conflist", "json"].contains(&ext))
        });
        let Some(path) = files.min() else { return Ok(None) };
        let bytes = std::fs::read(&path).map_err(|source| read(&path, source))?;
        Network::parse(&path, &bytes).map(Some)
    }

    /// Attaches a pod; on failure nothing is attached.
    pub(in crate::runtime) async fn add(&self, attachment: &mut Attachment) -> Result<(), CniError> {
        let mut previous = None;
        for plugin in &attachment.network.plugins {
            let input = attachment.network.input(plugin, previous.as_ref());
            match self.run("ADD", plugin, &input, &attachment.pod).await {
                Ok(answer) => previous = answer.or(previous),
                Err(error) => {
                    attachment.result = previous;
                    // The first error is the one to tell; what is left over is tried again with the next attempt.
                    let _ = self.del(attachment).await;
                    return Err(error);
                }
            }
        }
        attachment.result = previous;
        Ok(())
    }

    /// Whether what was added is still as it was.
    pub(in crate::runtime) async fn check(&self, attachment: &Attachment) -> Result<(), CniError> {
        let network = &attachment.network;
        if !network.has_check() || network.disable_check {
            return Ok(());
        }
        for plugin in &network.plugins {
            let input = network.input(plugin, attachment.result.as_ref());
            self.run("CHECK", plugin, &input, &attachment.pod).await?;
        }
        Ok(())
    }

    /// Takes a pod's attachment away, as far as it got; plugins take it well when there is nothing to take away.
    pub(in crate::runtime) async fn del(&self, attachment: &Attachment) -> Result<(), CniError> {
        let network = &attachment.network;
        let previous = attachment.result.as_ref().filter(|_| network.has_check());
        for plugin in network.plugins.iter().rev() {
            let input = network.input(plugin, previous);
            match self.run("DEL", plugin, &input, &attachment.pod).await {
                // One that is not there cannot be asked; it must not hold up the others, nor the pod for ever.
                Err(CniError::NoPlugin { plugin }) => tracing::warn!(plugin, "a network plugin is gone"),
                result => drop(result?),
            }
        }
        Ok(())
    }

    async fn run(
        &self,
        command: &str,
        plugin: &Map<String, Value>,
        input: &Value,
        pod: &Pod,
    ) -> Result<Option<Value>, CniError> {
        let plugin = plugin_name(plugin).unwrap_or_default().to_owned();
        let missing = || CniError::NoPlugin { plugin: plugin.clone() };
        let path = self.plugin(&plugin).ok_or_else(missing)?;
        match tokio::time::timeout(PLUGIN_LIMIT, self.exec(&path, command, input, pod)).await {
            Err(_) => Err(CniError::Late { plugin }),
            Ok(Err(source)) => Err(CniError::Run { plugin, source }),
            Ok(Ok((ended_well, answer))) => {
                let answer: Option<Value> = serde_json::from_slice(&answer).ok();
                if ended_well {
                    return Ok(answer);
                }
                let text = |key| answer.as_ref()?.get(key)?.as_str().filter(|text| !text.is_empty());
                let reason = [text("msg"), text("details")]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(": ");
                Err(CniError::Refused { plugin, reason })
            }
        }
    }

    async fn exec(&self, path: &Path, command: &str, input: &Value, pod: &Pod) -> io::Result<(bool, Vec<u8>)> {
        let Pod { uid, namespace, name, netns } = pod;
        let folders = std::env::join_paths(&self.plugin_dirs).map_err(io::Error::other)?;
        // After a reboot there is nothing left to enter; plugins then take away what they keep elsewhere.
        let netns = if netns.exists() { netns.as_path() } else { Path::new("") };
        let mut child = Command::new(path)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", uid)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_PATH", folders)
            .env(
                "CNI_ARGS",
                format!(
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
                     K8S_POD_INFRA_CONTAINER_ID={uid};K8S_POD_UID={uid}"
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // A plugin that ended without reading says why on its stdout; one that never reads meets the limit.
        let _ = stdin.write_all(input.to_string().as_bytes()).await;
        drop(stdin);
        let output = child.wait_with_output().await?;
        if output.stdout.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("its answer is too long"));
        }
        Ok((output.status.success(), output.stdout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        r#"{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"bridge","ipMasq":true},{"type":"portmap"}]}"#;

    fn parse(text: &str) -> Result<Network, CniError> {
        Network::parse(Path::new("x"), text.as_bytes())
    }

    #[test]
    fn lists_and_single_files_are_read() {
        let network = parse(LIST).unwrap();
        assert_eq!((network.name.as_str(), network.plugins.len()), ("pods", 2));
        let single = parse(r#"{"cniVersion":"0.3.1","name":"one","type":"bridge"}"#).unwrap();
        assert_eq!((single.name.as_str(), single.plugins.len()), ("one", 1));
        assert_eq!(plugin_name(&single.plugins[0]), Some("bridge"));
        let many = |count| {
            format!(
                r#"{{"name":"x","plugins":[{}]}}"#,
                vec![r#"{"type":"a"}"#; count].join(",")
            )
        };
        assert!(parse(&many(PLUGINS_MAX)).is_ok());
        for text in [
            "",
            "[]",
            "{}",
            r#"{"name":"x","plugins":[]}"#,
            r#"{"name":"x","type":"../sh"}"#,
            &many(33),
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_plugin_gets_what_it_inherits() {
        let network = parse(LIST).unwrap();
        let input = network.input(&network.plugins[0], Some(&serde_json::json!({"ips": []})));
        let expected = serde_json::json!({
            "type": "bridge", "ipMasq": true, "name": "pods", "cniVersion": "0.4.0", "prevResult": {"ips": []}
        });
        assert_eq!(input, expected);
    }

    #[test]
    fn check_came_with_0_4() {
        for (version, expected) in [
            ("", false),
            ("0.3.1", false),
            ("0.4.0", true),
            ("1.0.0", true),
            ("x", false),
        ] {
            let network = Network { cni_version: version.into(), ..parse(LIST).unwrap() };
            assert_eq!(network.has_check(), expected, "{version}");
        }
    }

    #[test]
    fn addresses_lose_their_prefix() {
        let result = serde_json::json!({"ips": [{"address": "10.1.2.3/24"}, {"address": "fd00::3/64"}, {"x": 1}]});
        let pod = Pod {
            uid: "u".into(),
            namespace: "n".into(),
            name: "p".into(),
            netns: "/x".into(),
        };
        let attachment = Attachment { network: parse(LIST).unwrap(), pod, result: Some(result) };
        assert_eq!(attachment.addresses(), ["10.1.2.3", "fd00::3"]);
        let text = serde_json::to_vec(&attachment).unwrap();
        assert_eq!(serde_json::from_slice::<Attachment>(&text).unwrap(), attachment);
    }

    #[test]
    fn the_first_file_by_name_counts() {
        let folder = std::env::temp_dir().join(format!("edgehold-cni-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let config = Config { conf_dir: folder.clone(), ..Config::default() };
        assert_eq!(config.network().unwrap(), None);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("00-readme"), "x").unwrap();
        assert_eq!(config.network().unwrap(), None);
        std::fs::write(folder.join("20-b.conflist"), LIST.replace("pods", "second")).unwrap();
        std::fs::write(folder.join("10-a.conflist"), LIST).unwrap();
        assert_eq!(config.network().unwrap().unwrap().name, "pods");
    }
}
