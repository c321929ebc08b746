//! Owns every essential task of the process: one ending ends them all, in good order and with a reason.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// Names, cancels and joins tasks; the first one to end stops them all.
#[derive(Debug, Default)]
pub struct Supervisor {
    tasks: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
    stop: CancellationToken,
}

impl Supervisor {
    /// Starts a task, which is expected to run until `stop` is cancelled.
    pub fn spawn<F, Fut>(&mut self, name: &'static str, task: F)
    where
        F: FnOnce(CancellationToken) -> Fut,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let run = task(self.stop.clone()).instrument(tracing::info_span!("task", name));
        let id = self.tasks.spawn(run).id();
        self.names.insert(id, name);
    }

    /// Runs until `shutdown` resolves or a task ends, then gives the others `grace` to finish.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>, grace: Duration) -> anyhow::Result<()> {
        let mut result = tokio::select! {
            () = shutdown => Ok(()),
            Some(ended) = self.tasks.join_next_with_id() => self.explain(ended).and_then(|name| {
                anyhow::bail!("{name}: ended before shutdown")
            }),
        };
        self.stop.cancel();
        let drain = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                let later = self.explain(ended).map(drop);
                if result.is_ok() {
                    result = later;
                }
            }
        };
        timeout(grace, drain)
            .await
            .context("tasks still running after the grace period")?;
        result
    }

    /// The name of the task that ended, or why it failed.
    fn explain(&self, ended: Ended) -> anyhow::Result<&'static str> {
        match ended {
            Ok((id, result)) => {
                let name = self.names[&id];
                result.context(name)?;
                Ok(name)
            }
            Err(error) => {
                let name = self.names[&error.id()];
                Err(error).context(name)
            }
        }
    }
}

type Ended = Result<(Id, anyhow::Result<()>), JoinError>;

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    async fn until(stop: CancellationToken) -> anyhow::Result<()> {
        stop.cancelled().await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn signal_stops_every_task() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn("a", until);
        supervisor.spawn("b", until);
        supervisor.run(async {}, GRACE).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn failure_names_the_task() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn("a", until);
        supervisor.spawn("b", |_| async { anyhow::bail!("disk full") });
        let error = supervisor.run(std::future::pending(), GRACE).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "b: disk full");
    }

    #[tokio::test(start_paused = true)]
    async fn early_end_is_a_failure() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn("a", |_| async { Ok(()) });
        let error = supervisor.run(std::future::pending(), GRACE).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "a: ended before shutdown");
    }

    #[tokio::test(start_paused = true)]
    async fn panic_is_a_failure() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn("a", |_| async { panic!("bug") });
        let error = supervisor.run(std::future::pending(), GRACE).await.unwrap_err();
        assert!(format!("{error:#}").starts_with("a: "));
    }

    #[tokio::test(start_paused = true)]
    async fn grace_is_bounded() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn("stuck", |_| std::future::pending());
        let error = supervisor.run(async {}, GRACE).await.unwrap_err();
        assert!(format!("{error:#}").starts_with("tasks still running"));
    }
}
