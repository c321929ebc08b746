//! Watching: every later change of a scope exactly once and in order, or a clear word that this cannot be had.
//!
//! A watcher has a short line that the writer puts changes into as it publishes them. When the line is full the writer
//! passes it by, and the watcher reads on from the database, at its own pace, until it has caught up with the present;
//! nothing is skipped, and a slow watcher costs no memory and holds up nobody.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use proto::object::{Kind, Revision};
use tokio::sync::Notify;

use super::current::Current;
use super::reader::Readers;
use super::stored::{Change, Scope};
use super::{history, locked, read};

/// How many changes a watcher reads from the database at a time.
const READ_CHANGES: usize = 128;

/// A revision that history knows nothing of any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("revision {asked} is too old: the oldest that is known is {oldest}")]
pub struct Expired {
    pub asked: Revision,
    pub oldest: Revision,
}

/// A stream of changes. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    line: Arc<Line>,
    lines: Arc<Lines>,
    current: Arc<RwLock<Current>>,
    readers: Arc<Readers>,
}

/// What waits for one watcher.
#[derive(Debug)]
struct Line {
    scopes: Vec<Scope>,
    limits: LineLimits,
    state: Mutex<LineState>,
    wake: Notify,
}

#[derive(Debug)]
struct LineState {
    queue: VecDeque<Change>,
    bytes: usize,
    /// Changes after `reached` are missing from the line: they are in the database only.
    behind: bool,
    /// Everything up to here that concerns the watcher was put into the line, or is older than it asked for.
    reached: Revision,
    closed: bool,
}

/// How much may wait for one watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineLimits {
    pub changes: usize,
    pub bytes: usize,
}

impl Default for LineLimits {
    fn default() -> Self {
        Self { changes: 256, bytes: 4 << 20 }
    }
}

impl Watch {
    /// Starts behind `after`. The caller holds what is current, so that no change falls between.
    pub(super) fn start(
        (current, now): (&Arc<RwLock<Current>>, &Current),
        lines: &Arc<Lines>,
        readers: &Arc<Readers>,
        scopes: Vec<Scope>,
        after: Revision,
        limits: LineLimits,
    ) -> Result<Self, Expired> {
        if after < now.floor {
            return Err(Expired { asked: after, oldest: now.floor });
        }
        let mut state = LineState {
            queue: VecDeque::new(),
            bytes: 0,
            behind: after < now.revision,
            reached: after,
            closed: false,
        };
        state.catch_up(now, &scopes, limits);
        let line = Arc::new(Line {
            scopes,
            limits,
            state: Mutex::new(state),
            wake: Notify::new(),
        });
        lines.add(&line);
        Ok(Self {
            line,
            lines: Arc::clone(lines),
            current: Arc::clone(current),
            readers: Arc::clone(readers),
        })
    }

    /// The next change; waits until there is one. An error is the last word: list again.
    ///
    /// Nothing is lost when the returned future is dropped.
    pub async fn next(&mut self) -> Result<Change, Expired> {
        loop {
            let woken = self.line.wake.notified();
            let behind = {
                let mut state = locked(&self.line.state);
                if let Some(change) = state.queue.pop_front() {
                    state.bytes -= change.bytes();
                    return Ok(change);
                }
                (state.behind, state.closed, state.reached)
            };
            match behind {
                // What is current is never locked while a line is: the writer takes them the other way round.
                (_, true, reached) => return Err(self.expired(reached)),
                (true, false, reached) => self.read_on(reached).await?,
                (false, false, _) => woken.await,
            }
        }
    }

    /// Everything up to this revision that concerns the watcher was delivered.
    pub fn seen(&self) -> Revision {
        let now = read(&self.current);
        let state = locked(&self.line.state);
        match state.queue.front() {
            Some(next) => Revision(next.revision.0 - 1),
            None if state.behind => state.reached,
            None => state.reached.max(now.revision),
        }
    }

    /// Fills the line from memory or from the database.
    async fn read_on(&self, after: Revision) -> Result<(), Expired> {
        let head = {
            let now = read(&self.current);
            let mut state = locked(&self.line.state);
            state.catch_up(&now, &self.line.scopes, self.line.limits);
            if !state.behind || !state.queue.is_empty() {
                return Ok(());
            }
            now.revision
        };
        let scopes = self.line.scopes.clone();
        let limits = LineLimits {
            changes: self.line.limits.changes.min(READ_CHANGES),
            ..self.line.limits
        };
        let found = self
            .readers
            .run(move |snapshot, seal| {
                let floor = history::floor(snapshot)?;
                if after < floor {
                    return Ok(Err(Expired { asked: after, oldest: floor }));
                }
                history::changes(snapshot, seal, &scopes, after, head, limits).map(Ok)
            })
            .await;
        let (changes, reached) = match found {
            Ok(found) => found?,
            Err(error) => {
                tracing::error!(error = %format_args!("{:#}", anyhow::Error::new(error)), "reading history for a watcher");
                return Err(self.expired(after));
            }
        };
        let now = read(&self.current);
        let mut state = locked(&self.line.state);
        state.bytes = changes.iter().map(Change::bytes).sum();
        state.queue.extend(changes);
        state.reached = reached;
        // Whatever the writer publishes next goes into the line again, if nothing came between.
        state.behind = reached < now.revision;
        Ok(())
    }

    fn expired(&self, asked: Revision) -> Expired {
        let now = read(&self.current);
        Expired {
            asked,
            oldest: now.floor.max(Revision(asked.0.saturating_add(1))),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.lines.remove(&self.line);
    }
}

impl LineState {
    /// Ends being behind, if the latest changes in memory are enough for it and there is room.
    fn catch_up(&mut self, now: &Current, scopes: &[Scope], limits: LineLimits) {
        if !self.behind || !self.queue.is_empty() {
            return;
        }
        let Some(missed) = now.recent.after(self.reached) else {
            return;
        };
        for change in missed {
            if !scopes.iter().any(|scope| change.concerns(scope)) {
                continue;
            }
            if !self.has_room(change, limits) {
                return;
            }
            self.push(change.clone());
        }
        self.reached = now.revision;
        self.behind = false;
    }

    fn has_room(&self, change: &Change, limits: LineLimits) -> bool {
        self.queue.len() < limits.changes && (self.queue.is_empty() || self.bytes + change.bytes() <= limits.bytes)
    }

    fn push(&mut self, change: Change) {
        self.reached = change.revision;
        self.bytes += change.bytes();
        self.queue.push_back(change);
    }
}

/// The lines of all watchers, by what they watch, so that a change finds those it concerns without asking the others.
#[derive(Debug, Default)]
pub(super) struct Lines {
    by_scope: Mutex<HashMap<Interest, Vec<Arc<Line>>>>,
}

/// The narrowest index that a scope is found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Interest {
    Kind(Kind),
    Namespace(Kind, String),
    Node(String),
}

impl Interest {
    fn of(scope: &Scope) -> Self {
        match (&scope.node, &scope.namespace) {
            (Some(node), _) => Self::Node(node.clone()),
            (None, Some(namespace)) => Self::Namespace(scope.kind.clone(), namespace.clone()),
            (None, None) => Self::Kind(scope.kind.clone()),
        }
    }
}

impl Lines {
    fn add(&self, line: &Arc<Line>) {
        let mut lines = locked(&self.by_scope);
        for scope in &line.scopes {
            lines.entry(Interest::of(scope)).or_default().push(Arc::clone(line));
        }
    }

    fn remove(&self, line: &Arc<Line>) {
        let mut lines = locked(&self.by_scope);
        for scope in &line.scopes {
            let interest = Interest::of(scope);
            if let Some(found) = lines.get_mut(&interest) {
                found.retain(|other| !Arc::ptr_eq(other, line));
                if found.is_empty() {
                    lines.remove(&interest);
                }
            }
        }
    }

    /// Hands a change to everybody whom it concerns. The writer calls it in order of revisions, while it holds what is
    /// current for writing.
    pub(super) fn publish(&self, change: &Change) {
        let lines = locked(&self.by_scope);
        let key = &change.object().key;
        let mut interests = vec![
            Interest::Kind(key.kind.clone()),
            Interest::Namespace(key.kind.clone(), key.namespace.clone()),
        ];
        let nodes = [&change.before, &change.after].into_iter().flatten();
        interests.extend(
            nodes
                .filter_map(|object| object.node())
                .map(|node| Interest::Node(node.to_owned())),
        );
        for interest in &interests {
            for line in lines.get(interest).into_iter().flatten() {
                line.offer(change);
            }
        }
    }

    /// The store ends: whoever waits is told.
    pub(super) fn close(&self) {
        let lines = self.by_scope.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines.values().flatten() {
            locked(&line.state).closed = true;
            line.wake.notify_one();
        }
    }
}

impl Line {
    fn offer(&self, change: &Change) {
        let mut state = locked(&self.state);
        // A watcher with several scopes, or whose scopes see both sides of a change, is found more than once; one that
        // asked for the future has no use for what comes before it.
        if state.behind || change.revision <= state.reached || !self.scopes.iter().any(|scope| change.concerns(scope)) {
            return;
        }
        if state.has_room(change, self.limits) {
            state.push(change.clone());
        } else {
            state.behind = true;
            state.reached = Revision(change.revision.0 - 1);
        }
        drop(state);
        self.wake.notify_one();
    }
}
