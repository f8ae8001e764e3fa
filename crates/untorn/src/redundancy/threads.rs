//! The threads of a protected file: one covers stores, one scrubs, one reports damage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::RedundancyService;
use super::{DamageSender, Scrub};
use crate::error::{Error, Result};
use crate::options::{Damage, DamageFn, ProtectOptions};

/// The longest wait at a time: what the system takes for a wait has an end.
const FOR_NOW: Duration = Duration::from_secs(24 * 60 * 60);

/// Wakes whoever waits when there is no more to do.
#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Waits this long, or until all is to end. Whether it is to.
    fn wait(&self, time: Duration) -> bool {
        // A time that no clock reaches is for ever.
        let end = Instant::now().checked_add(time);
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = end.map_or(FOR_NOW, |end| end.saturating_duration_since(Instant::now()).min(FOR_NOW));
            if *stopped || left.is_zero() {
                return *stopped;
            }
            stopped = self.changed.wait_timeout(stopped, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Those of one file. They end when this is dropped.
pub(crate) struct Threads {
    /// A forked child has none of them.
    process: u32,
    stop: Arc<Stop>,
    running: Vec<JoinHandle<()>>,
    /// The one that tells of damage, and the way to it. It goes on while the file is closed, for damage is come upon
    /// there too.
    teller: Option<(DamageSender, JoinHandle<()>)>,
}

impl Threads {
    pub(crate) fn none() -> Self {
        Threads { process: std::process::id(), stop: Arc::default(), running: Vec::new(), teller: None }
    }

    pub(crate) fn start(service: &Arc<dyn RedundancyService>, options: &ProtectOptions) -> Result<Self> {
        let mut threads = Threads::none();
        if let Some(notify) = options.on_damage.clone() {
            let (listener, notified) = channel();
            let path = service.path().to_owned();
            let thread = spawn("untorn-damage", &**service, move || tell_all(&notified, &path, &notify))?;
            threads.teller = Some((listener, thread));
        }
        let listener = threads.teller.as_ref().map(|(listener, _)| listener.clone());
        service.set_listener(listener.clone());
        if let Some(period) = options.period.filter(|period| !period.is_zero()) {
            let (stop, kept) = (threads.stop.clone(), service.clone());
            threads.running.push(spawn("untorn-cover", &**service, move || cover(&stop, &*kept, period))?);
        }
        if let Some(pause) = options.scrub_every {
            let (stop, kept, rate) = (threads.stop.clone(), service.clone(), options.scrub_rate);
            let work = move || scrub(&stop, &*kept, pause, rate, listener.as_ref());
            threads.running.push(spawn("untorn-scrub", &**service, work)?);
        }
        Ok(threads)
    }

    pub(crate) fn are_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Ends those that look for damage, and waits for them. What they came upon is told yet.
    pub(crate) fn stop(&mut self) {
        if !self.are_of_this_process() {
            // There is nobody to wait for, and a lock that one of them held will never be let go.
            return std::mem::forget(std::mem::take(&mut self.running));
        }
        self.stop.stop();
        for thread in self.running.drain(..) {
            // What failed in a thread is told by the next call. A panic is a mistake in here, and is told by whoever
            // prints it.
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
        let Some((listener, thread)) = self.teller.take() else { return };
        if self.are_of_this_process() {
            let _ = listener.send(None);
            let _ = thread.join();
        } else {
            std::mem::forget((listener, thread));
        }
    }
}

fn spawn(name: &str, service: &dyn RedundancyService, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map_err(|error| Error::io("start a thread for", service.path(), error))
}

/// Tells of damage, until there will be none.
fn tell_all(notified: &Receiver<Option<Damage>>, path: &Path, notify: &DamageFn) {
    while let Ok(Some(damage)) = notified.recv() {
        // The program's mistake: it is to hear of what comes after it all the same.
        if catch_unwind(AssertUnwindSafe(|| notify(&damage))).is_err() {
            tracing::error!(path = %path.display(), ?damage, "the program's damage callback panicked");
        }
    }
}

/// Whether every later call fails likewise, and so tells of it.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Poisoned { .. })
}

fn cover(stop: &Stop, service: &dyn RedundancyService, period: Duration) {
    while !stop.wait(period) {
        match service.pass() {
            Ok(0) => {}
            Ok(pages) => {
                tracing::debug!(path = %service.path().display(), pages, "updated the checksums and parity of \
                                                                                   stored pages")
            }
            Err(error) => {
                tracing::error!(path = %service.path().display(), %error, "cannot bring the redundancy up to date");
                if is_final(&error) {
                    return;
                }
                // A device that was full may have space the next time.
                service.failed(error);
            }
        }
    }
}

fn scrub(
    stop: &Stop,
    service: &dyn RedundancyService,
    pause: Duration,
    rate: Option<u64>,
    listener: Option<&DamageSender>,
) {
    while !stop.wait(pause) {
        let stops = || stop.wait(Duration::ZERO);
        let how = Scrub { rate, stops: &stops, progress: &mut |_, _| !stops() };
        let scrubbed = service.scrub(how).and_then(|report| {
            // Before anything else that may fail.
            for damage in &report.damage {
                tracing::error!(path = %service.path().display(), ?damage, "a scrub found damage");
                if let Some(listener) = listener {
                    let _ = listener.send(Some(*damage));
                }
            }
            service.note_scrub()
        });
        if let Err(error) = scrubbed {
            tracing::error!(path = %service.path().display(), %error, "cannot scrub");
            if is_final(&error) {
                return;
            }
            service.failed(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::mpsc::Sender;

    use super::*;
    use crate::redundancy::{Coverage, RepairReport, ScrubReport, scrub_and_note};

    const FOR_EVER: u64 = 77;

    /// Fails at first, and tells of each call.
    struct Full(Mutex<(u32, Sender<&'static str>)>);

    impl Full {
        fn start(options: &ProtectOptions, failures: u32) -> (Threads, Receiver<&'static str>) {
            let (notify, notified) = channel();
            let service: Arc<dyn RedundancyService> = Arc::new(Full(Mutex::new((failures, notify))));
            (Threads::start(&service, options).unwrap(), notified)
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
            self.notify("cover", 1)
        }

        fn failed(&self, error: Error) {
            assert_eq!(error.to_string(), Full::refused().to_string());
            let _ = self.0.lock().unwrap().1.send("failed");
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

        fn assess_closed(&self, _how: Scrub<'_>) -> Result<Option<RepairReport>> {
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
    fn damage_is_reported_even_if_its_scrub_cannot_be_recorded() {
        let (notify, found) = channel();
        let options = ProtectOptions::new().on_demand().scrub_every(Duration::from_millis(1));
        let options = options.on_damage(move |damage| notify.send(*damage).unwrap_or_default());
        let (_threads, _told) = Full::start(&options, u32::MAX);
        assert_eq!(found.iter().take(2).collect::<Vec<_>>(), [Damage::Parity { stripe: 7 }; 2]);
        // Whoever asks for a scrub is given what it found as well.
        let full = Full(Mutex::new((1, channel().0)));
        let report = scrub_and_note(&full, Scrub::telling(&mut |_, _| true)).unwrap();
        assert_eq!(report.damage, [Damage::Parity { stripe: 7 }]);
    }

    #[test]
    fn a_running_scrub_obeys_a_stop_and_a_rate_limit() {
        let options = ProtectOptions::new().on_demand().scrub_every(Duration::from_millis(1)).scrub_rate(FOR_EVER);
        let (mut threads, notified) = Full::start(&options, 0);
        assert_eq!(notified.recv().unwrap(), "scrub");
        assert!(notified.try_recv().is_err(), "it goes on");
        threads.stop();
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
    fn a_wait_for_ever_ends_when_all_does_and_a_short_one_by_itself() {
        let stop = Stop::default();
        assert!(!stop.wait(Duration::ZERO));
        assert!(!stop.wait(Duration::from_nanos(1)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| stop.wait(Duration::MAX));
            stop.stop();
            assert!(waits.join().unwrap());
        });
        assert!(stop.wait(Duration::MAX));
    }
}
