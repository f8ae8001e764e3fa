//! One run of the writing process on a recorded disk.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use untorn_rigs::block::{Clock, FileSystem, Log, Position, Recorder};

use crate::exit::{Exit, Failure, Result};
use crate::torture::model::{Heard, Model};
use crate::victim::{End, Victim};

/// The number of reports to wait for before a kill. Without them, a writer on a busy machine would do nothing before
/// its kill. The power cut can be at any instant of the run, also before these reports.
const FEWEST_REPORTS: usize = 64;

/// The record of one run.
pub(super) struct Life {
    /// Everything that reached the disk.
    pub(super) log: Log,
    /// All reports, in the order of their arrival.
    pub(super) reports: Vec<u64>,
    /// Positions of the log, each with the number of reports received by then.
    received: Vec<(Position, usize)>,
}

impl Life {
    /// How many of the reports had been received when the log reached a position.
    pub(super) fn known(&self, at: Position) -> usize {
        let counted = self.received.partition_point(|(position, _)| *position <= at);
        self.received[..counted].last().map_or(0, |(_, reports)| *reports).min(self.reports.len())
    }
}

/// The operations that a crash must preserve if only the first `known` reports had been received.
///
/// This raises no false alarm. The writer sends a report after the event, and the position noted with it is read
/// *after* the report arrived. Everything that made an operation durable was in the log before its report was sent. So
/// at any position at or after the noted one, the power cut follows the acknowledgement. A report in flight at the
/// crash counts as unknown, which demands less, never more.
///
/// This misses no detectable violation. An operation that had not begun cannot be on the disk, because an image holds
/// only bytes written before its instant. So the last operation of the whole run is as good an upper bound as the last
/// one before the crash. Mixtures that reads returned, and the order in which operations began and returned, are facts
/// of the run, independent of the instant of the crash.
pub(super) fn heard(model: &Model, reports: &[u64], known: usize) -> Heard {
    let life = model.hear(reports);
    Heard { durable: model.hear(&reports[..known.min(reports.len())]).durable, ..life }
}

/// Runs the writing process on the disk in `image` until it is killed.
pub(super) fn live(
    kind: FileSystem,
    image: &Path,
    dir: &Path,
    arguments: impl FnOnce(&Path) -> Vec<OsString>,
    time: Duration,
) -> Result<std::result::Result<Life, String>> {
    let recorder = Recorder::start(kind, image, dir)?;
    let file = recorder.path().join(super::chain::FILE);
    let received = Arc::new(Mutex::new(Vec::new()));
    let victim = Victim::spawn_watched(arguments(&file), note(recorder.clock(), received.clone()))?;
    let end = victim.wait_reports(FEWEST_REPORTS).and_then(|()| victim.kill_after(time))?;
    let log = recorder.finish();
    let received = std::mem::take(&mut *received.lock().unwrap_or_else(PoisonError::into_inner));
    match end {
        End::Killed(reports) => Ok(Ok(Life { log, reports, received })),
        // A full disk breaks no promise.
        End::ByItself(status) if status.code() == Some(Exit::Io as i32) => {
            let message = format!("the writer failed on {kind} ({status}); its message is above");
            Err(Failure { exit: Exit::Io, path: None, message })
        }
        End::ByItself(status) => Ok(Err(format!("the writer exited by itself ({status}); its message is above"))),
    }
}

/// Notes the log's position after each arrival of reports.
fn note(clock: Clock, received: Arc<Mutex<Vec<(Position, usize)>>>) -> impl FnMut(usize) + Send + 'static {
    move |reports| {
        let now = clock.now();
        received.lock().unwrap_or_else(PoisonError::into_inner).push((now, reports));
    }
}

#[cfg(test)]
mod tests {
    use untorn::Durability;

    use super::*;
    use crate::torture::plan::Plan;
    use crate::torture::report::Report;

    fn life(received: &[(Position, usize)], reports: &[Report]) -> Life {
        let reports = reports.iter().map(|report| report.encode()).collect();
        Life { log: Log::default(), reports, received: received.to_vec() }
    }

    #[test]
    fn a_report_binds_crashes_from_its_position_on() {
        let done = |operation| Report::Done { thread: 0, operation };
        let life = life(&[(3, 1), (7, 2), (7, 3), (9, 3)], &[done(1), done(2), done(3)]);
        let known: Vec<usize> = (0..11).map(|at| life.known(at)).collect();
        assert_eq!(known, [0, 0, 0, 1, 1, 1, 1, 3, 3, 3, 3]);
    }

    #[test]
    fn operations_not_yet_reported_may_be_lost_or_kept() {
        let model = Model::new(Plan::new(1, 1), Durability::PerCommit);
        let reports = [
            Report::Done { thread: 0, operation: 1 },
            Report::SyncStart { thread: 0 },
            Report::SyncEnd { thread: 0 },
            Report::Done { thread: 0, operation: 2 },
        ];
        let reports: Vec<u64> = reports.iter().map(|report| report.encode()).collect();
        let all = heard(&model, &reports, reports.len());
        assert_eq!((all.durable[0], all.done[0]), (1, 2));
        let early = heard(&model, &reports, 2);
        assert_eq!((early.durable[0], early.done[0]), (0, 2));
    }
}
