//! The background work of a protected file: it covers stores, scrubs, and reports damage.
//!
//! All of it is jobs of the [pool](crate::sync::pool) that the files of the process share, so a file that waits for its
//! next pass or scrub has no thread. [`covering`](super::covering) decides when the next pass is.
//!
//! # Invariants
//! 1. A task of a file has at most one job: one in line, one that waits for its time, or one that runs and puts the
//!    next one there when it is done. A task that is woken takes its job back and puts it in line at once; if the job
//!    is in line or runs already, the one after it is.
//! 2. No job begins once the tasks are stopped, and `stop` waits for those that run. They have let go of the file then.
//! 3. One job at a time tells the program of a file's damage, in the order in which it was found. What is left when the
//!    file goes is told by the thread that lets go of it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::all_files::Registration;
use super::covering::Covering;
use super::{DamageSender, RedundancyService, Scrub};
use crate::error::{Error, Result};
use crate::options::{Damage, DamageFn, ProtectOptions};
use crate::sync::pool::{Length, Pool, Submitter, Ticket};

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long to wait before the next time; `None` ends the task.
type Work = Box<dyn Fn(&Task, &dyn RedundancyService) -> Option<Duration> + Send + Sync>;

/// Work that is done again and again, with a pause before each time.
struct Task {
    service: Weak<dyn RedundancyService>,
    length: Length,
    submitter: Submitter,
    work: Work,
    state: Mutex<TaskState>,
    ended: Condvar,
}

#[derive(Default)]
struct TaskState {
    stopped: bool,
    /// Jobs that run. A job that has put the next one in its place may not have ended when that one begins.
    running: u32,
    /// The work is to be done once more, without a pause.
    woken: bool,
    phase: Phase,
}

/// Where the job of a task is.
#[derive(Default)]
enum Phase {
    /// It waits for its time, or for one that never comes.
    Waits(Option<Ticket>),
    InLine,
    Runs,
    /// There is none any more, or none yet.
    #[default]
    Gone,
}

impl Task {
    fn stops(&self) -> bool {
        locked(&self.state).stopped
    }

    /// Does the work after the pause, unless it is stopped before.
    fn arm(self: &Arc<Self>, pause: Duration) -> std::io::Result<()> {
        let mut state = locked(&self.state);
        if state.stopped {
            return Ok(());
        }
        if std::mem::take(&mut state.woken) {
            return self.line_up(&mut state);
        }
        let task = self.clone();
        state.phase = Phase::Waits(self.submitter.submit_after(pause, self.length, move || task.run())?);
        Ok(())
    }

    fn line_up(self: &Arc<Self>, state: &mut TaskState) -> std::io::Result<()> {
        let task = self.clone();
        self.submitter.submit(self.length, move || task.run())?;
        state.phase = Phase::InLine;
        Ok(())
    }

    /// Does the work now, or once more if it is being done.
    fn wake(self: &Arc<Self>) {
        let mut state = locked(&self.state);
        if state.stopped {
            return;
        }
        let lined_up = match state.phase {
            Phase::Runs => {
                state.woken = true;
                Ok(())
            }
            // If it cannot be taken back, it is in line.
            Phase::Waits(Some(ticket)) if !self.submitter.cancel(ticket) => Ok(()),
            Phase::Waits(_) => self.line_up(&mut state),
            Phase::InLine | Phase::Gone => Ok(()),
        };
        if let Err(error) = lined_up {
            tracing::error!(%error, "cannot hurry the background work of a protected file");
        }
    }

    fn run(self: Arc<Self>) {
        let mut state = locked(&self.state);
        if state.stopped {
            return;
        }
        state.running += 1;
        state.phase = Phase::Runs;
        drop(state);
        let _running = Running(&self);
        let pause = self.service.upgrade().and_then(|service| (self.work)(&self, &*service));
        let Some(pause) = pause else {
            locked(&self.state).phase = Phase::Gone;
            return;
        };
        if let Err(error) = self.arm(pause) {
            tracing::error!(%error, "cannot go on with the background work of a protected file");
        }
    }

    fn stop(&self) {
        let mut state = locked(&self.state);
        state.stopped = true;
        while state.running > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let phase = std::mem::take(&mut state.phase);
        drop(state);
        if let Phase::Waits(Some(ticket)) = phase {
            self.submitter.cancel(ticket);
        }
    }
}

/// A task at work. It has let go of the file before this is dropped.
struct Running<'a>(&'a Task);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).running -= 1;
        self.0.ended.notify_all();
    }
}

/// Damage on its way to the program.
struct Teller {
    found: Mutex<Found>,
    /// Nobody tells at the moment.
    silent: Condvar,
    notify: DamageFn,
    path: PathBuf,
    submitter: Submitter,
}

#[derive(Default)]
struct Found {
    damage: VecDeque<Damage>,
    /// A job tells of it, or is in line to.
    is_told: bool,
}

impl Teller {
    fn take(self: &Arc<Self>, damage: Damage) {
        let mut found = locked(&self.found);
        found.damage.push_back(damage);
        if found.is_told {
            return;
        }
        let teller = self.clone();
        found.is_told = match self.submitter.submit(Length::Long, move || teller.tell_all()) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot report damage yet");
                false
            }
        };
    }

    /// Tells of damage until there is none.
    fn tell_all(&self) {
        let mut found = locked(&self.found);
        while let Some(damage) = found.damage.pop_front() {
            drop(found);
            // The program's mistake: it is to hear of what comes after it all the same.
            if catch_unwind(AssertUnwindSafe(|| (self.notify)(&damage))).is_err() {
                tracing::error!(path = %self.path.display(), ?damage, "the program's damage callback panicked");
            }
            found = locked(&self.found);
        }
        found.is_told = false;
        self.silent.notify_all();
    }

    /// Waits until all is told that was found.
    fn finish(&self) {
        let mut found = locked(&self.found);
        while found.is_told {
            found = self.silent.wait(found).unwrap_or_else(PoisonError::into_inner);
        }
        drop(found);
        self.tell_all();
    }
}

/// The background work of one file. It ends when this is dropped.
pub(crate) struct Threads {
    /// A forked child has none of it.
    process: u32,
    tasks: Vec<Arc<Task>>,
    /// Until the file is closed it is covered with all others.
    registration: Option<Registration>,
    /// Who tells of damage. It goes on while the file is closed, for damage is come upon there too.
    teller: Option<Arc<Teller>>,
    /// Kept until all of the above is done.
    pool: Option<Pool>,
}

impl Threads {
    pub(crate) fn none() -> Self {
        let (tasks, registration, teller, pool) = (Vec::new(), None, None, None);
        Threads { process: std::process::id(), tasks, registration, teller, pool }
    }

    pub(crate) fn start(service: &Arc<dyn RedundancyService>, options: &ProtectOptions) -> Result<Self> {
        let pool = Pool::shared();
        let submitter = pool.submitter();
        let mut threads = Threads::none();
        threads.pool = Some(pool);
        if let Some(notify) = options.on_damage.clone() {
            let (path, submitter) = (service.path().to_owned(), submitter.clone());
            let (found, silent) = (Mutex::default(), Condvar::new());
            threads.teller = Some(Arc::new(Teller { found, silent, notify, path, submitter }));
        }
        let teller = threads.teller.clone();
        let listener = teller.map(|teller| DamageSender::new(move |damage| teller.take(damage)));
        service.set_listener(listener.clone());
        let mut add = |length, work: Work| {
            let (state, ended) = (Mutex::default(), Condvar::new());
            let (service, submitter) = (Arc::downgrade(service), submitter.clone());
            let task = Arc::new(Task { service, length, submitter, work, state, ended });
            threads.tasks.push(task.clone());
            task
        };
        let failed = |error| Error::io("start a thread for", service.path(), error);
        if options.period != Some(Duration::ZERO) {
            let covering = Covering::new();
            let work: Work = Box::new(move |_, service| covering.go_on(service));
            let task = add(Length::Short, work);
            let woken = Arc::downgrade(&task);
            // Before its first job: one that finds no period waits until it is woken.
            service.pace().set_cap(options.max_uncovered);
            service.pace().begin(options.period, Arc::new(move || _ = woken.upgrade().map(|task| task.wake())));
            // With a cap it has to look at once: nobody could wake it yet.
            let pause = if options.max_uncovered.is_some() { Some(Duration::ZERO) } else { options.period };
            task.arm(pause.unwrap_or(Duration::MAX)).map_err(failed)?;
        }
        if let Some(pause) = options.scrub_every {
            let rate = options.scrub_rate;
            let work = move |task: &Task, service: &dyn RedundancyService| {
                scrub(&|| task.stops(), service, rate, listener.as_ref()).then_some(pause)
            };
            add(Length::Long, Box::new(work)).arm(pause).map_err(failed)?;
        }
        threads.registration = Some(Registration::new(service));
        Ok(threads)
    }

    pub(crate) fn are_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Ends what looks for damage, and waits for it. What it came upon is told yet.
    pub(crate) fn stop(&mut self) {
        if !self.are_of_this_process() {
            // There is nobody to wait for, and a lock that one of them held will never be let go.
            std::mem::forget(self.registration.take());
            return std::mem::forget(std::mem::take(&mut self.tasks));
        }
        drop(self.registration.take());
        // What failed there is told by the next call.
        self.tasks.drain(..).for_each(|task| task.stop());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
        match self.teller.take() {
            Some(teller) if self.are_of_this_process() => teller.finish(),
            inherited => std::mem::forget(inherited),
        }
        // Now nothing of this file is left to do.
        drop(self.pool.take());
    }
}

/// Whether every later call fails likewise, and so tells of it.
pub(super) fn is_final(error: &Error) -> bool {
    matches!(error, Error::Poisoned { .. })
}

/// Whether to go on.
fn scrub(
    stops: &dyn Fn() -> bool,
    service: &dyn RedundancyService,
    rate: Option<u64>,
    listener: Option<&DamageSender>,
) -> bool {
    let how = Scrub { rate, stops, progress: &mut |_, _| !stops() };
    let scrubbed = service.scrub(how).and_then(|report| {
        // Before anything else that may fail.
        for damage in &report.damage {
            tracing::error!(path = %service.path().display(), ?damage, "a scrub found damage");
            if let Some(listener) = listener {
                listener.send(*damage);
            }
        }
        service.note_scrub()
    });
    if let Err(error) = scrubbed {
        tracing::error!(path = %service.path().display(), %error, "cannot scrub");
        if is_final(&error) {
            return false;
        }
        service.failed(error);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::engine::redundancy::{Pace, Part};
    use crate::redundancy::{Coverage, RepairReport, ScrubReport, scrub_and_note};

    const FOR_EVER: u64 = 77;

    /// The work of a file, and the file: the jobs do not keep it.
    type Started = (Threads, Arc<dyn RedundancyService>);

    /// Fails at first, and tells of each call. The thread that starts it may be slow to ask for its pace.
    struct Full(Mutex<(u32, Sender<&'static str>)>, Pace, Option<ThreadId>);

    impl Full {
        fn start(options: &ProtectOptions, failures: u32) -> (Started, Receiver<&'static str>) {
            Full::start_by(options, failures, None)
        }

        fn start_by(
            options: &ProtectOptions,
            failures: u32,
            slow: Option<ThreadId>,
        ) -> (Started, Receiver<&'static str>) {
            let (notify, notified) = channel();
            let full = Full(Mutex::new((failures, notify)), Pace::default(), slow);
            let service: Arc<dyn RedundancyService> = Arc::new(full);
            ((Threads::start(&service, options).unwrap(), service), notified)
        }

        fn refused() -> Error {
            Error::Invalid { path: "/full".into(), what: "there is no space".to_owned() }
        }

        fn notify<T>(&self, word: &'static str, done: T) -> Result<T> {
            let (failures, notify) = &mut *self.0.lock().unwrap();
            // Who listens has heard enough by then.
            let _ = notify.send(word);
            if *failures == 0 {
                return Ok(done);
            }
            *failures -= 1;
            Err(Full::refused())
        }
    }

    impl RedundancyService for Full {
        fn path(&self) -> &Path {
            Path::new("/full")
        }

        fn cover(&self) -> Result<u64> {
            self.notify("cover", 0)
        }

        fn failed(&self, error: Error) {
            assert_eq!(error.to_string(), Full::refused().to_string());
            let _ = self.0.lock().unwrap().1.send("failed");
        }

        fn pace(&self) -> &Pace {
            if self.2 == Some(thread::current().id()) {
                thread::sleep(Duration::from_millis(30));
            }
            &self.1
        }

        fn coverage(&self) -> Result<Coverage> {
            Err(Full::refused())
        }

        fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
            let _ = self.0.lock().unwrap().1.send("scrub");
            // By this it is told apart from one that is to go on until it is stopped.
            while how.rate == Some(FOR_EVER) && !(how.stops)() {
                std::thread::yield_now();
            }
            Ok(ScrubReport { damage: vec![Damage::Parity { stripe: 7 }], ..ScrubReport::default() })
        }

        fn note_scrub(&self) -> Result<()> {
            self.notify("note", ())
        }

        fn repair(&self, _how: Scrub<'_>) -> Result<RepairReport> {
            Err(Full::refused())
        }

        fn repair_modified(&self, _how: Scrub<'_>) -> Result<RepairReport> {
            Err(Full::refused())
        }

        fn assess_closed(&self, _how: Scrub<'_>) -> Result<Option<RepairReport>> {
            Err(Full::refused())
        }

        fn set_len(&self, _len: u64) -> Result<()> {
            Err(Full::refused())
        }

        fn announce(&self, _bytes: Range<u64>) -> Result<()> {
            Err(Full::refused())
        }

        fn release(&self, _bytes: Range<u64>) -> Result<()> {
            Err(Full::refused())
        }

        fn close(&self) -> Result<()> {
            Err(Full::refused())
        }
    }

    #[test]
    fn a_thread_goes_on_after_what_may_heal() {
        let often = Duration::from_millis(1);
        let (_threads, notified) = Full::start(&ProtectOptions::new().period(often), 2);
        let calls: Vec<_> = notified.iter().take(6).collect();
        assert_eq!(calls, ["cover", "failed", "cover", "failed", "cover", "cover"]);
        let (_threads, notified) = Full::start(&ProtectOptions::new().on_demand().scrub_every(often), 2);
        let calls: Vec<_> = notified.iter().take(8).collect();
        assert_eq!(calls, ["scrub", "note", "failed", "scrub", "note", "failed", "scrub", "note"]);
    }

    #[test]
    fn a_cap_and_another_period_wake_the_thread() {
        let hours = Duration::from_secs(3600);
        let (started, notified) = Full::start(&ProtectOptions::new().period(hours).max_uncovered(3), 0);
        let pace = started.1.pace();
        pace.note(Part::Data, 3);
        assert!(notified.recv_timeout(Duration::from_millis(50)).is_err(), "three pages are no more than three");
        pace.note(Part::Data, 4);
        assert_eq!(notified.recv().unwrap(), "cover");
        // Four are left: twice the cap, and not each store, is a reason for the next.
        pace.note(Part::Data, 7);
        assert!(notified.recv_timeout(Duration::from_millis(50)).is_err(), "a pass covers nothing, again and again");
        pace.note(Part::Data, 8);
        assert_eq!(notified.recv().unwrap(), "cover");
        pace.note(Part::Data, 0);
        started.1.set_period(Duration::from_millis(1)).unwrap();
        assert_eq!(notified.iter().take(3).collect::<Vec<_>>(), ["cover"; 3]);
        // Without a period there is none before somebody names one.
        let (started, notified) = Full::start(&ProtectOptions::new().on_demand(), 0);
        assert!(notified.recv_timeout(Duration::from_millis(50)).is_err());
        started.1.set_period(Duration::from_millis(1)).unwrap();
        assert_eq!(notified.iter().take(3).collect::<Vec<_>>(), ["cover"; 3]);
        let (started, _) = Full::start(&ProtectOptions::new().period(Duration::ZERO), 0);
        assert!(started.1.set_period(hours).is_err() && started.1.set_max_uncovered(Some(1)).is_err());
    }

    #[test]
    fn wakes_from_all_sides_and_a_stop_do_not_miss_each_other() {
        for _ in 0..200 {
            let options = ProtectOptions::new().period(Duration::MAX).max_uncovered(0);
            let (mut started, notified) = Full::start(&options, 0);
            let service = started.1.clone();
            let waking =
                std::thread::spawn(move || (1..20).for_each(|nth| service.pace().note(Part::Data, 1000 * nth)));
            notified.recv().unwrap();
            started.0.stop();
            while notified.try_recv().is_ok() {}
            waking.join().unwrap();
            assert!(notified.recv_timeout(Duration::from_millis(3)).is_err(), "a task that was stopped goes on");
        }
    }

    #[test]
    fn damage_is_reported_even_if_its_scrub_cannot_be_recorded() {
        let (notify, found) = channel();
        let options = ProtectOptions::new().on_demand().scrub_every(Duration::from_millis(1));
        let options = options.on_damage(move |damage| notify.send(*damage).unwrap_or_default());
        let (_threads, _told) = Full::start(&options, u32::MAX);
        assert_eq!(found.iter().take(2).collect::<Vec<_>>(), [Damage::Parity { stripe: 7 }; 2]);
        // Whoever asks for a scrub is given what it found as well.
        let full = Full(Mutex::new((1, channel().0)), Pace::default(), None);
        let report = scrub_and_note(&full, Scrub::telling(&mut |_, _| true)).unwrap();
        assert_eq!(report.damage, [Damage::Parity { stripe: 7 }]);
    }

    #[test]
    fn a_running_scrub_obeys_a_stop_and_a_rate_limit() {
        let options = ProtectOptions::new().on_demand().scrub_every(Duration::from_millis(1)).scrub_rate(FOR_EVER);
        let (mut threads, notified) = Full::start(&options, 0);
        assert_eq!(notified.recv().unwrap(), "scrub");
        assert!(notified.try_recv().is_err(), "it goes on");
        threads.0.stop();
        assert_eq!(notified.recv().unwrap(), "note");
    }

    #[test]
    fn a_function_that_panics_is_told_of_what_comes_after() {
        let (notify, found) = channel();
        let options = ProtectOptions::new().on_demand().scrub_every(Duration::from_millis(1));
        let options = options.on_damage(move |damage| {
            let _ = notify.send(*damage);
            panic!("as it is to");
        });
        let (threads, _told) = Full::start(&options, 0);
        assert_eq!(found.iter().take(2).count(), 2);
        drop(threads);
    }

    #[test]
    fn many_files_that_wait_have_few_threads() {
        let hours = Duration::from_secs(3600);
        let options = ProtectOptions::new().period(hours).scrub_every(Duration::MAX).on_damage(|_| ());
        let count = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = count();
        let all: Vec<_> = (0..500).map(|_| Full::start(&options, 0)).collect();
        assert!(count() < before + 100, "500 protected files have {} threads", count() - before);
        drop(all);
    }

    #[test]
    fn a_stop_takes_back_what_waits_for_its_time() {
        let (told, _hear) = channel();
        let service: Arc<dyn RedundancyService> = Arc::new(Full(Mutex::new((0, told)), Pace::default(), None));
        let options = ProtectOptions::new().period(Duration::from_secs(3600));
        let mut threads = Threads::start(&service, &options).unwrap();
        let task = Arc::downgrade(&threads.tasks[0]);
        assert!(task.upgrade().is_some());
        threads.stop();
        assert!(task.upgrade().is_none(), "the job that waited keeps its task");
        assert_eq!(Arc::strong_count(&service), 1);
    }

    /// The period is shorter than the thread that starts the task takes to go on.
    #[test]
    fn a_task_has_its_period_before_its_first_job() {
        let options = ProtectOptions::new().period(Duration::from_millis(1));
        let (_started, told) = Full::start_by(&options, 0, Some(thread::current().id()));
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok("cover"));
    }
}
