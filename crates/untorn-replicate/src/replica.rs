//! [`Replica`]: a file whose commits go to a store in the background.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use untorn::AtomicFile;

use crate::error::{Error, Result};
use crate::options::ReplicaOptions;
use crate::protocol::access::Access;
use crate::protocol::bundles::Bundle;
use crate::ship::{Shipped, Shipper, Source, check_place};
use crate::store::{self, Requests, Store, StoreError};

/// The longest pause between tries while the store fails.
const LONGEST: Duration = Duration::from_secs(30);

/// How often at least a replication looks for commits that wait for it.
const PROMPTLY: Duration = Duration::from_millis(2);

/// How often at most a replication whose store fails looks whether commits wait for it.
const LOOKS: Duration = Duration::from_millis(50);

/// How often the end of a replication looks whether the store has answered.
const GLANCE: Duration = Duration::from_millis(50);

/// Bundles that wait for the thread that makes them, at most.
const BUNDLES: usize = 8;

/// How a replication goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaStatus {
    /// The epoch of this writer.
    pub epoch: u64,
    /// The last commit that is in every later restoration for certain.
    pub acknowledged: u64,
    /// Objects with commits that were shipped.
    pub objects: u64,
    /// Commits in them.
    pub commits: u64,
    /// Snapshots that were shipped.
    pub snapshots: u64,
    /// Bytes of commits and snapshots, before compression.
    pub bytes: u64,
    /// Requests to the store since it was attached, with those of the probe.
    pub requests: Requests,
    /// Whether commits of the file return once the replica has them
    /// ([`CommitLog::await_consumers`](untorn::options::CommitLog::await_consumers)). Other commits are local.
    pub awaits: bool,
    /// The last failure, if nothing has succeeded since.
    pub failure: Option<String>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    status: ReplicaStatus,
    /// How many calls have asked for everything to be shipped, and up to which of them it was.
    asked: u64,
    done: u64,
    /// Tries that have failed, and for which call the last of them was.
    failed: Option<(u64, Arc<Error>)>,
    /// Nothing is shipped any more.
    ended: Option<Arc<Error>>,
    stops: bool,
    /// At its end the thread hands the replica over.
    hands_over: bool,
    handed_over: Option<Result<u64>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file whose commits go to a store, one object for a group of them, while programs go on.
///
/// A local `sync` stays local, and never waits for the store. [`sync_replicated`](Self::sync_replicated) waits until
/// the store has everything. Dropping it ends the replication at once; what was not shipped is shipped the next time.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("ledger");
/// # let url = format!("file://{}/bucket", dir.path().display());
/// use untorn::Options;
/// use untorn_replicate::{Replica, ReplicaOptions, RestoreOptions, restore};
/// let file = Options::new().commit_log(1 << 20).create(&path, 4096)?;
/// let replica = Replica::attach(&file, &url, ReplicaOptions::new())?;
/// file.write_at(b"hello", 100)?;
/// file.sync()?; // on this disk
/// replica.sync_replicated()?; // and in the store
/// replica.detach()?;
/// let copy = dir.path().join("copy");
/// restore(&url, &copy, &RestoreOptions::new())?;
/// assert_eq!(&std::fs::read(&copy)?[100..105], b"hello");
/// # Ok(()) }
/// ```
pub struct Replica {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    /// The requests that got their answer.
    answered: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Tells how long a store has been silent.
struct Watch<'a> {
    replica: &'a Replica,
    limit: Option<Duration>,
    answered: u64,
    since: Instant,
    has_given_up: bool,
}

impl Watch<'_> {
    /// Waits for a change of the state, and closes a store that was silent for too long: its requests end then, and
    /// later ones fail.
    fn wait<'g>(&mut self, state: MutexGuard<'g, Progress>) -> MutexGuard<'g, Progress> {
        let Replica { shared, store, .. } = self.replica;
        let Some(limit) = self.limit else {
            return shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let answered = self.replica.answered.load(Ordering::Relaxed);
        if answered != self.answered {
            (self.answered, self.since) = (answered, Instant::now());
        } else if self.since.elapsed() >= limit && !self.has_given_up {
            self.has_given_up = true;
            store.close();
        }
        shared.changed.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The failure, in words that say why the request was ended.
    fn explain(&self, error: Error) -> Error {
        match (error, self.limit) {
            (Error::Store(error), Some(limit)) if self.has_given_up => {
                let cause = format!("the store gave no answer within {} seconds", limit.as_secs_f64());
                Error::Store(StoreError { cause, ..error })
            }
            (error, _) => error,
        }
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Replica {
    /// Replicates an open file, which needs a [commit log](untorn::Options::commit_log), to the store at this URL. The
    /// first time it ships a snapshot; later it goes on from the last commit that the store has.
    ///
    /// # Errors
    /// [`Error::NotDescendant`] if the replica has commits that the file lacks; [`Error::UnsafeStore`] if the store
    /// ignores conditions; [`Error::NotFound`] if the file had a replica there that is gone, as with a disk that is not
    /// mounted ([`begin_new`](ReplicaOptions::begin_new)); [`Error::File`] if the file has no commit log, or another
    /// process replicates it; [`Error::Io`] if its file system keeps no extended attributes; those of the store.
    pub fn attach(file: &AtomicFile, url: &str, options: ReplicaOptions) -> Result<Self> {
        Self::of(Source::Handle(file.clone()), url, options)
    }

    /// The same for a file that any process may have open, or none.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach); [`untorn::Error::NeedsRecovery`] for a file that a crash left.
    pub fn attach_path(path: impl AsRef<Path>, url: &str, options: ReplicaOptions) -> Result<Self> {
        Self::of(Source::Path(path.as_ref().to_owned()), url, options)
    }

    fn of(source: Source, url: &str, options: ReplicaOptions) -> Result<Self> {
        let store = store::open(url)?;
        let access = Access::new(Arc::clone(&store));
        check_place(&source, &access, &options)?;
        store::probe(&*store)?;
        let shipper = Shipper::attach(source, &access, options.clone())?;
        Self::start(shipper, store, url, &options)
    }

    pub(crate) fn start(shipper: Shipper, store: Arc<dyn Store>, url: &str, options: &ReplicaOptions) -> Result<Self> {
        let (interval, confirm) = (options.interval, options.confirm);
        let answered = Arc::clone(&shipper.owner().access().answered);
        let shared = Arc::new(Shared::default());
        shared.lock().status = status(&shipper, 0, None);
        let (of_thread, named) = (Arc::clone(&shared), std::thread::Builder::new().name("untorn-replicate".to_owned()));
        let thread = named.spawn(move || run(shipper, &of_thread, interval, confirm));
        let failed = |source| Error::Io { operation: "start the thread that replicates", path: url.into(), source };
        Ok(Replica { shared, store, answered, thread: Some(thread.map_err(failed)?) })
    }

    /// Waits until the store has every commit that was made before the call, and the ownership record still names this
    /// writer. Returns the number of the last one. Those commits are in every later restoration.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another writer has taken the replica over: the handle is of no further use. Otherwise why a
    /// try failed; the commits are still shipped in the background, and the call may be made again.
    pub fn sync_replicated(&self) -> Result<u64> {
        self.sync(&mut self.watch(None))
    }

    fn watch(&self, limit: Option<Duration>) -> Watch<'_> {
        let answered = self.answered.load(Ordering::Relaxed);
        Watch { replica: self, limit, answered, since: Instant::now(), has_given_up: false }
    }

    fn sync(&self, watch: &mut Watch<'_>) -> Result<u64> {
        let mut state = self.shared.lock();
        state.asked += 1;
        let mine = state.asked;
        self.shared.changed.notify_all();
        loop {
            if state.done >= mine {
                return Ok(state.status.acknowledged);
            }
            if let Some(error) = &state.ended {
                return Err(watch.explain(again(error)));
            }
            if let Some((asked, error)) = &state.failed
                && *asked >= mine
            {
                return Err(watch.explain(again(error)));
            }
            state = watch.wait(state);
        }
    }

    /// How it goes.
    pub fn status(&self) -> ReplicaStatus {
        ReplicaStatus { requests: self.store.requests(), ..self.shared.lock().status.clone() }
    }

    /// Why nothing is shipped any more; `None` while it goes on, also if the store fails for now.
    pub fn ended(&self) -> Option<Error> {
        self.shared.lock().ended.as_deref().map(again)
    }

    /// Ships what there is, and ends the replication. The next writer of this file goes on.
    ///
    /// # Errors
    /// As for [`sync_replicated`](Self::sync_replicated); the replication has ended then, too.
    pub fn detach(self) -> Result<ReplicaStatus> {
        self.end(None)
    }

    /// The same, and gives up once the store has answered nothing for this long: [`detach`](Self::detach) repeats its
    /// requests, which takes up to two minutes with a store that has died. What was not shipped is shipped the next
    /// time.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("file://{}/bucket", dir.path().display());
    /// use std::time::Duration;
    /// use untorn::Options;
    /// use untorn_replicate::{Replica, ReplicaOptions};
    /// let file = Options::new().commit_log(1 << 20).create(dir.path().join("ledger"), 4096)?;
    /// let replica = Replica::attach(&file, &url, ReplicaOptions::new())?;
    /// replica.detach_within(Duration::from_secs(10))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`detach`](Self::detach); [`Error::Store`] if it gave up.
    pub fn detach_within(self, silence: Duration) -> Result<ReplicaStatus> {
        self.end(Some(silence))
    }

    fn end(mut self, silence: Option<Duration>) -> Result<ReplicaStatus> {
        let synced = self.sync(&mut self.watch(silence));
        self.stop();
        synced.map(|_| self.status())
    }

    /// Ships what there is, and hands the replica over: nothing can be shipped in this epoch any more, and a
    /// [follower](crate::Follower::take_over) that waits for that learns that it has everything.
    ///
    /// # Errors
    /// As for [`sync_replicated`](Self::sync_replicated); the replication has ended then, too, and is not handed over.
    pub fn hand_over(self) -> Result<ReplicaStatus> {
        self.release(None)
    }

    /// The same, and gives up once the store has answered nothing for this long, as
    /// [`detach_within`](Self::detach_within) does.
    ///
    /// # Errors
    /// As for [`hand_over`](Self::hand_over); [`Error::Store`] if it gave up.
    pub fn hand_over_within(self, silence: Duration) -> Result<ReplicaStatus> {
        self.release(Some(silence))
    }

    fn release(mut self, silence: Option<Duration>) -> Result<ReplicaStatus> {
        let released = self.await_release(&mut self.watch(silence));
        self.stop();
        released.map(|acknowledged| ReplicaStatus { acknowledged, ..self.status() })
    }

    /// Has the thread hand the replica over at its end. The store is open until then: a release makes requests.
    fn await_release(&self, watch: &mut Watch<'_>) -> Result<u64> {
        let mut state = self.shared.lock();
        (state.stops, state.hands_over) = (true, true);
        self.shared.changed.notify_all();
        loop {
            if let Some(handed_over) = state.handed_over.take() {
                return handed_over.map_err(|error| watch.explain(error));
            }
            if let Some(error) = &state.ended {
                return Err(watch.explain(again(error)));
            }
            state = watch.wait(state);
        }
    }

    fn stop(&mut self) {
        self.shared.lock().stops = true;
        self.shared.changed.notify_all();
        // A request that gets no answer would keep the thread.
        self.store.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the replication, as `ended` says.
            let _ = thread.join();
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The error for one more call that it concerns.
fn again(error: &Error) -> Error {
    match error {
        Error::Fenced { url, epoch, by } => Error::Fenced { url: url.clone(), epoch: *epoch, by: by.clone() },
        Error::Store(error) => Error::Store(error.clone()),
        Error::File(untorn::Error::InUse { path, holder }) => {
            Error::File(untorn::Error::InUse { path: path.clone(), holder: holder.clone() })
        }
        Error::File(untorn::Error::NeedsRecovery { path }) => {
            Error::File(untorn::Error::NeedsRecovery { path: path.clone() })
        }
        error => Error::Poisoned { cause: error.to_string() },
    }
}

/// Whether a later try may succeed: the store may come back, and a program that has the file open may just be opening
/// or closing it, or have been killed and start again.
fn is_passing(error: &Error) -> bool {
    use untorn::Error::{InUse, NeedsRecovery};
    matches!(error, Error::Store(_) | Error::File(InUse { .. } | NeedsRecovery { .. }))
}

fn status(shipper: &Shipper, acknowledged: u64, failure: Option<String>) -> ReplicaStatus {
    let Shipped { objects, commits, snapshots, bytes } = shipper.shipped;
    let epoch = shipper.owner().place().epoch;
    let requests = Requests::default();
    let awaits = shipper.awaits();
    ReplicaStatus { epoch, acknowledged, objects, commits, snapshots, bytes, requests, awaits, failure }
}

/// Tells the callers that nothing is shipped any more, also if the thread panics.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let ended = Error::Poisoned { cause: "its thread has ended".to_owned() };
        self.0.lock().ended.get_or_insert_with(|| Arc::new(ended));
        self.0.changed.notify_all();
    }
}

/// Ships until it is to stop, or cannot go on. Bundles are made by a thread of their own, so that no commit waits for
/// them.
fn run(shipper: Shipper, shared: &Shared, interval: Duration, confirm: Option<Duration>) {
    let access = shipper.owner().access().clone();
    let (sender, receiver) = sync_channel::<Bundle>(BUNDLES);
    std::thread::scope(|scope| {
        let named = std::thread::Builder::new().name("untorn-bundles".to_owned());
        let thread = named.spawn_scoped(scope, move || {
            for bundle in receiver {
                if let Err(error) = bundle.make(&access) {
                    tracing::debug!(%error, "cannot make a bundle of objects");
                }
            }
        });
        if let Err(error) = thread {
            tracing::debug!(%error, "cannot start the thread that makes bundles of objects");
        }
        ship(shipper, shared, interval, confirm, sender);
    });
}

fn ship(
    mut shipper: Shipper,
    shared: &Shared,
    interval: Duration,
    confirm: Option<Duration>,
    bundles: SyncSender<Bundle>,
) {
    let _ending = Ending(shared);
    let mut pause = interval;
    let mut confirmed = Instant::now();
    loop {
        let (asked, done) = {
            let state = shared.lock();
            if state.stops {
                let hands_over = state.hands_over;
                drop(state);
                if hands_over {
                    let handed_over = shipper.release();
                    let mut state = shared.lock();
                    state.status = status(&shipper, state.status.acknowledged, None);
                    state.handed_over = Some(handed_over);
                }
                return;
            }
            (state.asked, state.done)
        };
        let tried = shipper.ship().and_then(|(commit, is_confirmed)| {
            // A caller that waits is told only what the record confirms after its call, which was noticed above.
            let is_due = asked > done || confirm.is_some_and(|every| confirmed.elapsed() >= every);
            let commit = if is_due && !is_confirmed { shipper.confirm()? } else { commit };
            if is_due || is_confirmed {
                confirmed = Instant::now();
                shipper.look_at_log();
            }
            if shipper.is_snapshot_due() {
                shipper.snapshot()?;
            }
            Ok(commit)
        });
        let mut state = shared.lock();
        match tried {
            Ok(commit) => {
                state.status = status(&shipper, commit, None);
                (state.done, state.failed) = (state.done.max(asked), None);
                pause = if state.status.awaits { interval.min(PROMPTLY) } else { interval };
            }
            Err(error) => {
                let acknowledged = state.status.acknowledged;
                state.status = status(&shipper, acknowledged, Some(error.to_string()));
                tracing::warn!(%error, "cannot replicate");
                let error = Arc::new(error);
                if !is_passing(&error) || shipper.owner().is_fenced() {
                    state.ended = Some(error);
                    return;
                }
                state.failed = Some((asked, error));
                pause = (pause * 2).clamp(Duration::from_millis(100), LONGEST);
            }
        }
        shared.changed.notify_all();
        for bundle in shipper.take_bundles() {
            // If there are too many, readers make some more requests.
            let _ = bundles.try_send(bundle);
        }
        let until = Instant::now() + pause;
        // A call is served at once, and also one after a failure.
        while !state.stops && state.asked <= asked {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let is_failing = state.failed.is_some();
            let left = if is_failing { left.min(interval.max(LOOKS)) } else { left };
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            if is_failing {
                drop(state);
                if let Err(error) = shipper.give_way() {
                    tracing::warn!(%error, "cannot give way to commits that wait");
                }
                state = shared.lock();
            }
        }
    }
}
