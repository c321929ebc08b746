//! A registry on loopback that serves an archive of ours, and can be told to misbehave.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;

#[derive(Debug, Default)]
pub(crate) struct Behaviour {
    /// Every blob answer ends after so many bytes.
    pub(crate) cut_after: Option<usize>,
    /// The last byte of every layer is another one.
    pub(crate) damage: bool,
    /// Request lines with their ranges, in order.
    pub(crate) seen: Vec<String>,
    /// What is there, by path: manifests under their tags too.
    content: BTreeMap<String, Vec<u8>>,
}

/// Serves until the test's process ends.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    pub(crate) host: String,
    state: Arc<Mutex<Behaviour>>,
}

impl Registry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let registry = Self { host, state: Arc::default() };
        let served = registry.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || served.serve(stream));
            }
        });
        registry
    }

    pub(crate) fn behave<T>(&self, change: impl FnOnce(&mut Behaviour) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// Puts the one image of an archive under a name and tag; `edit` may change its configuration first.
    pub(crate) fn push(&self, archive: &Path, name: &str, tag: &str, edit: impl FnOnce(&mut Value)) {
        let read = |path: &str| {
            let output = Command::new("tar").arg("-xOf").arg(archive).arg(path).output().unwrap();
            assert!(output.status.success(), "{path}");
            output.stdout
        };
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let blob = |descriptor: &Value| {
            read(
                &descriptor["digest"]
                    .as_str()
                    .unwrap()
                    .replace("sha256:", "blobs/sha256/"),
            )
        };
        let index = json(&read("index.json"));
        let mut manifest = json(&blob(&index["manifests"][0]));
        let mut config = json(&blob(&manifest["config"]));
        edit(&mut config);
        let config = serde_json::to_vec(&config).unwrap();
        manifest["config"]["digest"] = digest(&config).into();
        manifest["config"]["size"] = config.len().into();
        let layer = &manifest["layers"][0];
        let (layer_digest, layer) = (layer["digest"].as_str().unwrap().to_owned(), blob(layer));
        let manifest = serde_json::to_vec(&manifest).unwrap();
        self.behave(|state| {
            let base = format!("/v2/{name}");
            state
                .content
                .insert(format!("{base}/blobs/{}", digest(&config)), config);
            state.content.insert(format!("{base}/blobs/{layer_digest}"), layer);
            state
                .content
                .insert(format!("{base}/manifests/{}", digest(&manifest)), manifest.clone());
            state.content.insert(format!("{base}/manifests/{tag}"), manifest);
        });
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        loop {
            let (mut line, mut range) = (String::new(), 0);
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                if header.trim().is_empty() {
                    break;
                }
                if let Some(from) = header.to_ascii_lowercase().strip_prefix("range: bytes=") {
                    range = from.trim().trim_end_matches('-').parse().unwrap();
                }
            }
            let path = line.split(' ').nth(1).unwrap().to_owned();
            let (content, cut) = self.behave(|state| {
                state.seen.push(format!("{path} {range}"));
                let mut content = state.content.get(&path).cloned();
                let layer = content.as_ref().is_some_and(|content| content.len() > 100_000);
                if let Some(last) = content
                    .as_mut()
                    .and_then(|content| content.last_mut())
                    .filter(|_| layer && state.damage)
                {
                    *last ^= 1;
                }
                (content, state.cut_after.filter(|_| layer))
            });
            let Some(content) = content else {
                write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
                continue;
            };
            let status = if range > 0 { "206 Partial Content" } else { "200 OK" };
            let rest = &content[range..];
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", rest.len()).unwrap();
            match cut {
                Some(cut) if cut < rest.len() => {
                    let _ = stream.write_all(&rest[..cut]);
                    return;
                }
                _ => drop(stream.write_all(rest)),
            }
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    edgecore::images::Digest::of(bytes).to_string()
}
