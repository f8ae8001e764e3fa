//! The background threads of a process, which all open files share.
//!
//! # Invariants
//! 1. A thread exists while it has a job, and at most [`KEPT`] threads wait for the next one. So an idle file has no
//!    thread, however many files are open.
//! 2. A job that comes while all threads are at work starts another, up to [`MOST`], so one file's job does not wait
//!    for the disk of another. No job waits for one that may stand behind it in line.
//! 3. Long jobs never take all threads: [`MOST_LONG`] run at a time.
//! 4. A job in line keeps no file open: it refers to the file weakly, and does nothing once that is closed.
//! 5. The threads end with the last [`Pool`], which waits for them.
//! 6. A forked child has none of its parent's threads: it submits nothing to them and waits for none.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::sys::{PerProcess, incarnation};

/// Threads that wait for a job at most.
const KEPT: usize = 2;

/// Threads at most.
const MOST: usize = 16;

/// Long jobs that run at once at most.
const MOST_LONG: usize = 4;

/// The longest wait at a time: what the system takes for a wait has an end.
const FOR_NOW: Duration = Duration::from_secs(24 * 60 * 60);

/// The threads of this process, for as long as one of its values is there.
pub(crate) struct Pool(Arc<Owner>);

/// A way to submit jobs that does not keep the threads.
#[derive(Clone)]
pub(crate) struct Submitter(Arc<Shared>);

/// A job that waits for its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(Instant, u64);

/// How long a job takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// As long as the disk takes for a bounded number of bytes.
    Short,
    /// As long as a whole file takes, or as a program likes.
    Long,
}

struct Job {
    length: Length,
    work: Box<dyn FnOnce() + Send>,
}

/// Waits for the threads when it goes.
struct Owner(Arc<Shared>);

struct Shared {
    process: u64,
    state: Mutex<State>,
    /// There is a job, an earlier time to wait for, or it is time to end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    short: VecDeque<Job>,
    long: VecDeque<Job>,
    timed: BTreeMap<Ticket, Job>,
    tickets: u64,
    /// Long jobs that run.
    long_running: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// One of them waits for the time of the first timed job.
    watched: bool,
    threads: Vec<JoinHandle<()>>,
    /// How many of them have not ended.
    alive: usize,
    ended: bool,
}

static POOL: PerProcess<Mutex<Weak<Owner>>> = PerProcess::new();

impl Pool {
    /// The pool of this process. It has no thread before the first job.
    pub(crate) fn shared() -> Pool {
        let mut shared = POOL.lock();
        Pool(shared.upgrade().unwrap_or_else(|| {
            let (state, changed) = (Mutex::default(), Condvar::new());
            let owner = Arc::new(Owner(Arc::new(Shared { process: incarnation(), state, changed })));
            *shared = Arc::downgrade(&owner);
            owner
        }))
    }

    pub(crate) fn submitter(&self) -> Submitter {
        Submitter(self.0.0.clone())
    }
}

impl Submitter {
    /// Has a thread do this soon.
    ///
    /// # Errors
    /// Why no thread can be started, where none is there; in a forked child, that it has none.
    pub(crate) fn submit(&self, length: Length, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.0.state()?;
        state.line(length).push_back(Job { length, work: Box::new(work) });
        let staffed = self.0.staff(&mut state);
        if staffed.is_err() {
            let refused = state.line(length).pop_back();
            drop(state);
            drop(refused);
        }
        staffed
    }

    /// Has a thread do this at a time. A time that no clock reaches never comes.
    ///
    /// # Errors
    /// As for [`submit`](Submitter::submit).
    pub(crate) fn submit_after(
        &self,
        time: Duration,
        length: Length,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Option<Ticket>> {
        let Some(due) = Instant::now().checked_add(time) else { return Ok(None) };
        let mut state = self.0.state()?;
        state.tickets += 1;
        let ticket = Ticket(due, state.tickets);
        state.timed.insert(ticket, Job { length, work: Box::new(work) });
        let staffed = self.0.staff(&mut state);
        if let Err(error) = staffed {
            let refused = state.timed.remove(&ticket);
            drop(state);
            drop(refused);
            return Err(error);
        }
        // The thread that waits may wait for a later one.
        self.0.changed.notify_all();
        Ok(Some(ticket))
    }

    /// Takes a timed job back whose time has not come. Otherwise it is in line, runs, or is done: then false.
    pub(crate) fn cancel(&self, ticket: Ticket) -> bool {
        let cancelled = self.0.state().ok().and_then(|mut state| state.timed.remove(&ticket));
        let is_back = cancelled.is_some();
        // Not under the lock: what the job owns may have something to say on its way out.
        drop(cancelled);
        is_back
    }
}

impl Shared {
    /// Of a forked child's it fails: a thread of the parent may have held the lock at the fork.
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        if self.process != incarnation() {
            return Err(io::Error::other("a forked child has none of its parent's threads"));
        }
        // No job runs under the lock, so whatever panics leaves the state whole.
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sees to it that a thread comes for what is there to do. Fails if there is none at all, and none can be had.
    fn staff(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if !state.has_work() && (state.timed.is_empty() || state.watched) {
            return Ok(());
        }
        if state.idle > state.runnable().saturating_sub(1) {
            self.changed.notify_one();
            return Ok(());
        }
        if state.alive == MOST || state.ended {
            return Ok(());
        }
        state.threads.retain(|thread| !thread.is_finished());
        let shared = self.clone();
        let name = format!("untorn-pool-{}", state.alive);
        match thread::Builder::new().name(name).spawn(move || shared.serve()) {
            Ok(thread) => {
                state.threads.push(thread);
                state.alive += 1;
                Ok(())
            }
            // One that is there comes when it is done.
            Err(_) if state.alive > 0 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A thread: jobs until there is nothing to do and enough others wait.
    fn serve(self: Arc<Self>) {
        let Ok(mut state) = self.state() else { return };
        loop {
            state.promote(Instant::now());
            if let Some(job) = state.take() {
                // If no thread can be started for what is left, this one comes back for it.
                let _ = self.staff(&mut state);
                drop(state);
                let long = job.length == Length::Long;
                // The hook has printed what a panic says; other files' jobs go on.
                let _ = catch_unwind(AssertUnwindSafe(job.work));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.long_running -= usize::from(long);
            } else if state.ended {
                break;
            } else if let Some(first) = state.first_to_watch() {
                state.watched = true;
                state = self.wait(state, first.saturating_duration_since(Instant::now()));
                state.watched = false;
            } else if state.idle < KEPT {
                state = self.wait(state, FOR_NOW);
            } else {
                break;
            }
        }
        state.alive -= 1;
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        state.idle += 1;
        let waited = self.changed.wait_timeout(state, time.min(FOR_NOW));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.idle -= 1;
        state
    }
}

impl State {
    fn line(&mut self, length: Length) -> &mut VecDeque<Job> {
        match length {
            Length::Short => &mut self.short,
            Length::Long => &mut self.long,
        }
    }

    /// Jobs that a thread could begin now.
    fn runnable(&self) -> usize {
        self.short.len() + self.long.len().min(MOST_LONG - self.long_running)
    }

    fn has_work(&self) -> bool {
        self.runnable() > 0
    }

    /// Puts timed jobs into line whose time has come.
    fn promote(&mut self, now: Instant) {
        while let Some(first) = self.timed.first_entry().filter(|first| first.key().0 <= now) {
            let job = first.remove();
            self.line(job.length).push_back(job);
        }
    }

    fn take(&mut self) -> Option<Job> {
        if let Some(job) = self.short.pop_front() {
            return Some(job);
        }
        if self.long_running == MOST_LONG {
            return None;
        }
        let job = self.long.pop_front()?;
        self.long_running += 1;
        Some(job)
    }

    /// The time that the calling thread is to wait for, unless another one does.
    fn first_to_watch(&self) -> Option<Instant> {
        self.timed.first_key_value().filter(|_| !self.watched).map(|(ticket, _)| ticket.0)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Ok(mut state) = self.0.state() else {
            // The handles of threads that the child does not have, and jobs of files that it may not use.
            return mem::forget(self.0.clone());
        };
        state.ended = true;
        let left = (mem::take(&mut state.short), mem::take(&mut state.long), mem::take(&mut state.timed));
        let threads = mem::take(&mut state.threads);
        drop(state);
        self.0.changed.notify_all();
        drop(left);
        // A job that lets go of the last file of the process is not waited for by itself.
        let me = thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
            // A panic of a job was caught there.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    use super::*;

    /// A pool of a test's own.
    fn pool() -> Pool {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Pool(Arc::new(Owner(Arc::new(Shared { process: incarnation(), state, changed }))))
    }

    fn counts(pool: &Pool) -> (usize, usize) {
        let state = pool.0.0.state().unwrap();
        (state.alive, state.idle)
    }

    /// Waits until the threads of a pool have nothing to do.
    fn settled(pool: &Pool) -> usize {
        loop {
            let (alive, idle) = counts(pool);
            if alive == idle && pool.0.0.state().unwrap().runnable() == 0 {
                return alive;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn jobs_run_at_once_and_few_threads_are_kept() {
        let pool = pool();
        assert_eq!(counts(&pool), (0, 0), "no job, no thread");
        let all = Arc::new(Barrier::new(MOST + 1));
        for _ in 0..MOST {
            let all = all.clone();
            pool.submitter().submit(Length::Short, move || _ = all.wait()).unwrap();
        }
        // Were they to wait for each other, none would end.
        all.wait();
        assert!((1..=KEPT).contains(&settled(&pool)));
        let (told, hear) = channel();
        for number in 0..1000 {
            let told = told.clone();
            pool.submitter().submit(Length::Short, move || told.send(number).unwrap()).unwrap();
        }
        let mut heard: Vec<i32> = hear.iter().take(1000).collect();
        heard.sort_unstable();
        assert_eq!(heard, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn long_jobs_leave_threads_to_short_ones() {
        let pool = pool();
        let (stop, stopped) = (Arc::new(Barrier::new(MOST_LONG + 1)), channel());
        for _ in 0..MOST_LONG {
            let stop = stop.clone();
            pool.submitter().submit(Length::Long, move || _ = stop.wait()).unwrap();
        }
        for _ in 0..MOST {
            let told = stopped.0.clone();
            pool.submitter().submit(Length::Long, move || told.send("long").unwrap()).unwrap();
        }
        let told = stopped.0.clone();
        pool.submitter().submit(Length::Short, move || told.send("short").unwrap()).unwrap();
        assert_eq!(stopped.1.recv().unwrap(), "short");
        stop.wait();
        assert_eq!(stopped.1.iter().take(MOST).filter(|word| *word == "long").count(), MOST);
    }

    #[test]
    fn timed_jobs_come_in_their_order_and_can_be_taken_back() {
        let pool = pool();
        let (told, hear) = channel();
        let after = |milliseconds, word: &'static str| {
            let told = told.clone();
            let work = move || told.send(word).unwrap();
            pool.submitter().submit_after(Duration::from_millis(milliseconds), Length::Short, work).unwrap()
        };
        let never = after(30, "cancelled").unwrap();
        after(90, "third");
        after(1, "first");
        after(60, "second");
        after(u64::MAX, "never");
        pool.submitter().cancel(never);
        assert_eq!(hear.iter().take(3).collect::<Vec<_>>(), ["first", "second", "third"]);
        assert!(settled(&pool) <= KEPT);
        assert_eq!(pool.submitter().submit_after(Duration::MAX, Length::Short, || ()).unwrap(), None);
    }

    #[test]
    fn the_last_pool_ends_its_threads_and_drops_what_waits() {
        let pool = pool();
        let (begun, told) = channel();
        let (submitter, kept) = (pool.submitter(), Arc::new(()));
        let owned = kept.clone();
        submitter.submit_after(Duration::from_secs(1000), Length::Long, move || drop(owned)).unwrap();
        submitter.submit(Length::Short, move || begun.send(thread::current().id()).unwrap()).unwrap();
        told.recv().unwrap();
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(pool);
        assert_eq!((Arc::strong_count(&kept), submitter.0.state().unwrap().alive), (1, 0));
        // A job that comes later is dropped with the line; it starts no thread.
        submitter.submit(Length::Short, || panic!("nobody is there")).unwrap();
        assert_eq!(submitter.0.state().unwrap().alive, 0);
    }

    #[test]
    fn a_job_that_panics_harms_no_other() {
        let pool = pool();
        let (told, hear) = channel();
        pool.submitter().submit(Length::Long, || panic!("as it is to")).unwrap();
        pool.submitter().submit(Length::Long, move || told.send(()).unwrap()).unwrap();
        hear.recv().unwrap();
        settled(&pool);
        assert_eq!(pool.0.0.state().unwrap().long_running, 0);
    }

    #[test]
    fn a_child_has_no_threads_of_its_parent() {
        let pool = pool();
        pool.submitter().submit(Length::Short, || ()).unwrap();
        // Held by a thread that the child does not have.
        let held = pool.0.0.state().unwrap();
        let copy = Pool(pool.0.clone());
        let child = crate::sys::in_forked_child(move || {
            let refused = copy.submitter().submit(Length::Short, || ()).is_err();
            drop(copy);
            let (told, hear) = channel();
            let own = Pool::shared();
            let served = own.submitter().submit(Length::Short, move || told.send(7).unwrap()).is_ok();
            i32::from(!(refused && served && hear.recv() == Ok(7)))
        });
        drop(held);
        assert_eq!(child, Some(0));
    }
}
