//! Tasks beside the one that starts them.

use std::sync::{Mutex, PoisonError};

use tokio::task::JoinSet;

/// Tasks that end by themselves or, at the latest, with this.
#[derive(Debug, Default)]
pub(super) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    /// Those that have ended are let go of: a set keeps each until it is asked for it, and nobody asks for these.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_ended_is_let_go_of() {
        let tasks = Tasks::default();
        for _ in 0..1000 {
            tasks.spawn(async {});
            tokio::task::yield_now().await;
        }
        assert!(tasks.0.lock().unwrap().len() < 10);
    }
}
