//! The threads behind a protected file: one covers what was stored, one scrubs.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Scrub;
use super::service::Service;
use crate::error::{Error, Result};
use crate::options::{DamageFn, ProtectOptions};

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
}

impl Threads {
    pub(crate) fn none() -> Self {
        Threads { process: std::process::id(), stop: Arc::default(), running: Vec::new() }
    }

    pub(crate) fn start(service: &Arc<dyn Service>, options: &ProtectOptions) -> Result<Self> {
        let mut threads = Threads::none();
        if let Some(period) = options.period.filter(|period| !period.is_zero()) {
            let (stop, service) = (threads.stop.clone(), service.clone());
            threads.spawn("untorn-cover", service.clone(), move || cover(&stop, &*service, period))?;
        }
        if let Some(pause) = options.scrub_every {
            let (stop, service) = (threads.stop.clone(), service.clone());
            let (rate, tell) = (options.scrub_rate, options.on_damage.clone());
            threads
                .spawn("untorn-scrub", service.clone(), move || scrub(&stop, &*service, pause, rate, tell.as_ref()))?;
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, service: Arc<dyn Service>, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.running.push(spawned.map_err(|error| Error::io("start a thread for", service.path(), error))?);
        Ok(())
    }

    pub(crate) fn are_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn stop(&mut self) {
        if !self.are_of_this_process() {
            // There is nobody to wait for, and a lock that one of them held will never be let go.
            return std::mem::forget(std::mem::take(&mut self.running));
        }
        self.stop.stop();
        for thread in self.running.drain(..) {
            // What a thread came upon is told by the next call, also if it panicked.
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}

fn cover(stop: &Stop, service: &dyn Service, period: Duration) {
    while !stop.wait(period) {
        match service.cover() {
            Ok(0) => {}
            Ok(pages) => tracing::debug!(path = %service.path().display(), pages, "covered"),
            Err(error) => {
                // The redundancy remembers it, and every later call fails.
                return tracing::error!(path = %service.path().display(), %error, "covering failed");
            }
        }
    }
}

fn scrub(stop: &Stop, service: &dyn Service, pause: Duration, rate: Option<u64>, tell: Option<&DamageFn>) {
    while !stop.wait(pause) {
        let mut progress = |_, _| !stop.wait(Duration::ZERO);
        let report = service.scrub(Scrub { rate, progress: &mut progress });
        let report = report.and_then(|report| service.note_scrub().map(|()| report));
        match report {
            Ok(report) => {
                for damage in &report.damage {
                    tracing::error!(path = %service.path().display(), ?damage, "damage");
                    if let Some(tell) = tell {
                        tell(damage);
                    }
                }
            }
            Err(error) => return tracing::error!(path = %service.path().display(), %error, "scrubbing failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
