//! Commands inside a running container, for probes and hooks.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_client::services::v1::{
    DeleteProcessRequest, ExecProcessRequest, GetContainerRequest, KillRequest, StartRequest, WaitRequest,
};
use prost_types::Any;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::client::{Answer as _, Client, PROCESS, QUICK, within};
use super::record::CODE_UNKNOWN;
use crate::runtime::{Executed, RuntimeError};
use crate::sys;

const EXEC: &str = "running a command in the container";

/// What is kept of a command's output; the rest is read and thrown away.
pub(super) const OUTPUT_BYTES_MAX: usize = 4096;

/// For the rest of the output of a command that has ended: something it left behind may hold it open.
const DRAIN: Duration = Duration::from_secs(1);

const SIGKILL: u32 = 9;

/// The type containerd wants a process in.
const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";

/// Runs commands; their outputs pass through FIFOs below a folder.
#[derive(Debug)]
pub(super) struct Execs {
    client: Client,
    folder: PathBuf,
}

impl Execs {
    pub(super) fn new(client: Client, run_dir: &Path) -> Self {
        // What another edge core before us was in the middle of has no reader any more.
        let _ = std::fs::remove_dir_all(run_dir.join("exec"));
        Self { client, folder: run_dir.join("exec") }
    }

    pub(super) async fn run(&self, id: &str, command: &[String], limit: Duration) -> Result<Executed, RuntimeError> {
        let spec = self.process(id, command).await?;
        // A name no other edge core before us left behind in the shim. The process's number does not tell them apart:
        // in a container of its own it is always the same.
        let name = format!("exec-{}", daemon::random::uid());
        let fifo = Fifo::make(self.folder.join(&name)).map_err(failed)?;
        let mut output = pipe::OpenOptions::new().open_receiver(&fifo.path).map_err(failed)?;
        let path = fifo.path.to_str().unwrap_or_default().to_owned();
        let request = ExecProcessRequest {
            container_id: id.to_owned(),
            stdout: path.clone(),
            stderr: path,
            spec: Some(spec),
            exec_id: name.clone(),
            ..ExecProcessRequest::default()
        };
        within(PROCESS, self.client.tasks().exec(self.client.request(request)))
            .await
            .or_error(EXEC, id)?;
        let result = self.follow(id, &name, &mut output, limit).await;
        let delete = DeleteProcessRequest { container_id: id.to_owned(), exec_id: name };
        let deleted = within(PROCESS, self.client.tasks().delete_process(self.client.request(delete))).await;
        let executed = result?;
        deleted.optional().or_error(EXEC, id)?;
        Ok(executed)
    }

    /// The container's own process with other arguments and no terminal.
    async fn process(&self, id: &str, command: &[String]) -> Result<Any, RuntimeError> {
        let get = self.client.request(GetContainerRequest { id: id.to_owned() });
        let answer = within(QUICK, self.client.containers().get(get))
            .await
            .or_error(EXEC, id)?;
        let spec = answer
            .container
            .and_then(|container| container.spec)
            .unwrap_or_default();
        let process = replace_command(&spec.value, command).ok_or_else(|| RuntimeError::Failed {
            action: EXEC,
            reason: "the container's record is damaged".into(),
        })?;
        Ok(Any { type_url: PROCESS_TYPE.to_owned(), value: process })
    }

    /// Starts it, reads what it says, and waits for its end, or makes an end of it.
    async fn follow(
        &self,
        id: &str,
        name: &str,
        output: &mut pipe::Receiver,
        limit: Duration,
    ) -> Result<Executed, RuntimeError> {
        let client = &self.client;
        let start = StartRequest { container_id: id.to_owned(), exec_id: name.to_owned() };
        within(PROCESS, client.tasks().start(client.request(start)))
            .await
            .or_error(EXEC, id)?;
        let mut kept = Vec::new();
        let wait = WaitRequest { container_id: id.to_owned(), exec_id: name.to_owned() };
        let mut tasks = client.tasks();
        let mut ended = std::pin::pin!(within(limit, tasks.wait(client.request(wait))));
        let mut open = true;
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended,
                more = read(output, &mut kept), if open => open = more,
            }
        };
        let status = match ended {
            Ok(status) => status,
            Err(refusal) => {
                let request = KillRequest {
                    container_id: id.to_owned(),
                    exec_id: name.to_owned(),
                    signal: SIGKILL,
                    all: false,
                };
                let killed = within(PROCESS, client.tasks().kill(client.request(request))).await;
                killed.optional().or_error(EXEC, id)?;
                // Only what has ended can be deleted.
                let wait = WaitRequest { container_id: id.to_owned(), exec_id: name.to_owned() };
                within(QUICK, client.tasks().wait(client.request(wait)))
                    .await
                    .optional()
                    .or_error(EXEC, id)?;
                return Err(refusal.error(EXEC, id));
            }
        };
        let _ = timeout(DRAIN, async { while open && read(output, &mut kept).await {} }).await;
        Ok(Executed {
            code: i32::try_from(status.exit_status).unwrap_or(CODE_UNKNOWN),
            output: String::from_utf8_lossy(&kept).into_owned(),
        })
    }
}

/// Reads some; whether there may be more.
async fn read(output: &mut pipe::Receiver, kept: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 1024];
    match output.read(&mut buffer).await {
        Ok(0) | Err(_) => false,
        Ok(count) => {
            let room = OUTPUT_BYTES_MAX - kept.len();
            kept.extend_from_slice(&buffer[..count.min(room)]);
            true
        }
    }
}

fn replace_command(spec: &[u8], command: &[String]) -> Option<Vec<u8>> {
    let mut spec: Value = serde_json::from_slice(spec).ok()?;
    let process = spec.get_mut("process")?.as_object_mut()?;
    process.insert("args".into(), command.into());
    process.insert("terminal".into(), false.into());
    serde_json::to_vec(process).ok()
}

fn failed(error: io::Error) -> RuntimeError {
    RuntimeError::Failed { action: EXEC, reason: error.to_string() }
}

/// Goes when it is dropped.
#[derive(Debug)]
struct Fifo {
    path: PathBuf,
}

impl Fifo {
    fn make(path: PathBuf) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Left behind by another process that had our number.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sys::make_fifo(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_replaces_the_containers_own() {
        let spec = br#"{"ociVersion":"1","process":{"args":["a"],"terminal":true,"cwd":"/"}}"#;
        let process = replace_command(spec, &["b".into(), "c".into()]).unwrap();
        assert_eq!(process, br#"{"args":["b","c"],"cwd":"/","terminal":false}"#);
        for damaged in ["", "{}", r#"{"process":1}"#] {
            assert_eq!(replace_command(damaged.as_bytes(), &[]), None, "{damaged}");
        }
    }

    #[tokio::test]
    async fn output_is_kept_up_to_the_limit_and_read_to_the_end() {
        for length in [OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX + 1, 10 * OUTPUT_BYTES_MAX] {
            let path = std::env::temp_dir().join(format!("edgehold-fifo-{}-{length}", std::process::id()));
            let fifo = Fifo::make(path.clone()).unwrap();
            let mut receiver = pipe::OpenOptions::new().open_receiver(&fifo.path).unwrap();
            let writer = std::thread::spawn({
                let path = path.clone();
                move || std::fs::write(path, vec![b'x'; length]).unwrap()
            });
            // Before the writer opens it, an empty FIFO reads as ended.
            let mut kept = Vec::new();
            let full = async {
                while !writer.is_finished() || read(&mut receiver, &mut kept).await {
                    read(&mut receiver, &mut kept).await;
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(10), full).await.unwrap();
            assert_eq!(kept.len(), OUTPUT_BYTES_MAX);
            drop(fifo);
            assert!(!path.exists());
        }
    }
}
