//! Commands inside a running container, for probes and hooks: a process of this program for each, which makes an end of
//! the command at its limit also where the edge core is gone by then.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

use super::act::{self, Outcome};
use super::{EXEC, failed};
use crate::runtime::{Executed, RuntimeError};

/// What is kept of a command's output; the rest is read and thrown away.
const OUTPUT_BYTES_MAX: usize = 4096;
/// For the rest of the output of a command that has ended: something it left behind may hold it open.
const DRAIN: Duration = Duration::from_secs(1);
/// For making the command's process, beside its own limit.
const GRACE: Duration = Duration::from_secs(30);

/// `folder` is the container's, `run` its pod's.
pub(super) async fn exec(
    program: &Path,
    folder: &Path,
    run: &Path,
    id: &str,
    command: &[String],
    limit: Duration,
) -> Result<Executed, RuntimeError> {
    let (theirs, mut report) = tokio::net::unix::pipe::pipe().map_err(failed(EXEC))?;
    let theirs = theirs.into_blocking_fd().map_err(failed(EXEC))?;
    let mut child = Command::new(program)
        .arg0("edgecore")
        .args([act::WORD, act::EXEC])
        .arg(folder)
        .arg(run)
        .args([id, &limit.as_millis().to_string()])
        .args(command)
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed(EXEC))?;
    let mut output = child.stdout.take();
    let mut kept = Vec::new();
    let mut said = Vec::new();
    let reading = async {
        // What of it was started holds the report open until the command has ended; what it left behind does not.
        let mut ended = std::pin::pin!(report.read_to_end(&mut said));
        loop {
            tokio::select! {
                ended = &mut ended => return ended.map(drop),
                more = read(&mut output, &mut kept), if output.is_some() => if !more { output = None },
            }
        }
    };
    let all = limit + GRACE;
    timeout(all, reading)
        .await
        .map_err(|_| RuntimeError::Timeout { action: EXEC, limit: all })?
        .map_err(failed(EXEC))?;
    let _ = timeout(DRAIN, async {
        while output.is_some() && read(&mut output, &mut kept).await {}
    })
    .await;
    child.wait().await.map_err(failed(EXEC))?;
    match act::outcome(&said) {
        Outcome::Ended(code) => Ok(Executed { code, output: String::from_utf8_lossy(&kept).into_owned() }),
        Outcome::Late => Err(RuntimeError::Timeout { action: EXEC, limit }),
        Outcome::Fault(reason) => Err(RuntimeError::Failed { action: EXEC, reason }),
    }
}

/// Reads some; whether there may be more.
async fn read(output: &mut Option<ChildStdout>, kept: &mut Vec<u8>) -> bool {
    let Some(output) = output else { return false };
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
