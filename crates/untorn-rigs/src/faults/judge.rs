//! Judges whether a process's reports, and the state it left on the disk, match the documented promises.

use std::sync::Arc;

use untorn_sim::script::{Bytes, Content, Op};

use super::calls::{Duty, How};
use super::report::{Handle, Report};
use super::script::{Setup, digest, script};

/// A result of the judge, or a description of the violation.
pub(super) type Check<T> = std::result::Result<T, String>;

/// The call that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) how: How,
    pub(super) duty: Duty,
    /// The number of reports received before the call.
    pub(super) at: usize,
}

impl Failure {
    fn must_tell(&self) -> bool {
        matches!(self.duty, Duty::Tell | Duty::Poison)
    }
}

/// The states that the disk may hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowed {
    states: Vec<Bytes>,
    /// The file may also be missing.
    missing: bool,
}

impl Allowed {
    fn one(state: Bytes) -> Self {
        Allowed { states: vec![state], missing: false }
    }

    fn find(&self, what: &str, shows: u64) -> Check<Bytes> {
        let found = self.states.iter().find(|bytes| digest(bytes) == shows);
        found.cloned().ok_or_else(|| {
            let lengths: Vec<_> = self.states.iter().map(|bytes| bytes.len()).collect();
            format!("{what} bytes that match none of the {} allowed states (of {lengths:?} bytes)", self.states.len())
        })
    }

    /// Judges an examiner's reports.
    pub(super) fn examine(&self, reports: &[Report]) -> Check<()> {
        match reports {
            [Report::Absent] if self.missing => Ok(()),
            [Report::Inspected(_), Report::Reopened(shows), Report::Settled(plain)] => {
                self.find("when reopened at the end, the file holds", *shows)?;
                if plain == shows { Ok(()) } else { Err("settling changed the file's bytes".to_owned()) }
            }
            other => Err(format!("unexpected reports at the end: {}", listed(other))),
        }
    }
}

fn listed(reports: &[Report]) -> String {
    reports.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Judges a process's reports, one operation after the other.
struct Judge<'a> {
    setup: Setup,
    failure: Option<Failure>,
    reports: std::iter::Enumerate<std::slice::Iter<'a, Report>>,
    /// `None` until the file exists.
    model: Option<Content>,
}

/// Judges the reports of a process that ran the script, and returns the states that the disk may hold afterwards.
/// Without a failure every operation must succeed. With `stops`, the process exits after its first failed operation.
pub(super) fn judge(setup: Setup, failure: Option<Failure>, reports: &[Report], stops: bool) -> Check<Allowed> {
    let mut judge = Judge { setup, failure, reports: reports.iter().enumerate(), model: None };
    for (number, op) in script().into_iter().enumerate() {
        let place = |what: String| format!("operation {number}, {op:?}: {what}");
        if let Some(allowed) = judge.operation(&op).map_err(place)?
            && stops
        {
            return judge.ends(allowed);
        }
    }
    match judge.next() {
        Some((at, Report::Done)) => {
            if judge.fails(at).is_some_and(|failure| failure.must_tell()) {
                return Err("the last close returned success although its system call failed".to_owned());
            }
            let now = judge.model.take().map_or_else(Bytes::default, |model| model.now);
            judge.examined(Allowed::one(now))
        }
        // The close may have committed the epoch or not.
        Some((at, Report::Failed { errno, message, .. })) => {
            judge.due(at, *errno, message)?;
            let states = judge.model.take().map(|model| vec![model.now, model.kept]).unwrap_or_default();
            judge.examined(Allowed { states, missing: false })
        }
        last => Err(format!("unexpected report of the last close: {last:?}")),
    }
}

impl<'a> Judge<'a> {
    fn next(&mut self) -> Option<(usize, &'a Report)> {
        self.reports.next()
    }

    /// Checks that the process made no more reports.
    fn ends(&mut self, allowed: Allowed) -> Check<Allowed> {
        match self.reports.next() {
            None => Ok(allowed),
            Some((_, report)) => Err(format!("unexpected report after the last one: {report}")),
        }
    }

    /// Judges the process's examination of the state it left.
    fn examined(&mut self, allowed: Allowed) -> Check<Allowed> {
        let rest: Vec<Report> = self.reports.by_ref().map(|(_, report)| report.clone()).collect();
        allowed.examine(&rest).map(|()| allowed)
    }

    /// Whether the failed call happened between the previous report and this one.
    fn fails(&self, at: usize) -> Option<Failure> {
        self.failure.filter(|failure| failure.at == at)
    }

    /// Checks that an error follows from the failed call, and carries its errno.
    fn due(&self, at: usize, errno: i32, message: &str) -> Check<Failure> {
        let lasting = self.failure.filter(|failure| failure.duty == Duty::Later && failure.at < at);
        let failure =
            self.fails(at).or(lasting).ok_or_else(|| format!("it failed although no system call failed: {message}"))?;
        match failure.duty {
            Duty::Tell | Duty::Poison if failure.how.errno() != Some(errno) => {
                Err(format!("the error has errno {errno}, not that of the failed system call: {message}"))
            }
            _ => Ok(failure),
        }
    }

    /// Judges one operation. If it failed, returns the states that the disk may hold after a kill.
    fn operation(&mut self, op: &Op) -> Check<Option<Allowed>> {
        let before = self.model.clone();
        let known = before.clone().unwrap_or_else(|| Content::committed(Bytes::default()));
        let after = self.setup.after(&known, &op.clone().fit(known.now.len() as u64));
        let Some((at, report)) = self.next() else { return Err("the report is missing".to_owned()) };
        let report = report.clone();
        match report {
            Report::Done | Report::Saw(_) => {
                if let Some(failure) = self.fails(at)
                    && failure.must_tell()
                    && *op != Op::Drop
                {
                    // Dropping a handle cannot report an error.
                    return Err("it returned success although its system call failed".to_owned());
                }
                if let Report::Saw(shows) = report {
                    Allowed::one(after.now.clone()).find("the read returned", shows)?;
                }
                self.model = Some(after);
                Ok(None)
            }
            Report::Failed { errno, handle, message } => {
                let failure = self.due(at, errno, &message)?;
                let allowed = self.failed(failure, op, handle, before, after)?;
                Ok(Some(allowed))
            }
            other => Err(format!("unexpected report: {other}")),
        }
    }

    /// Judges a failed operation: the states it may leave, and how the process continues.
    fn failed(
        &mut self,
        failure: Failure,
        op: &Op,
        handle: Handle,
        before: Option<Content>,
        after: Content,
    ) -> Check<Allowed> {
        let mut allowed = Allowed { states: vec![after.kept.clone()], missing: before.is_none() };
        // A file under creation may be missing or still empty.
        allowed.states.push(before.as_ref().map_or_else(Bytes::default, |before| before.kept.clone()));
        let (shows, usable) = match handle {
            Handle::Gone => return self.opened_anew(allowed, after),
            Handle::Poisoned(shows) => (shows, false),
            Handle::Usable(shows) => (shows, true),
        };
        let before = before.ok_or("a failed create returned a handle")?;
        let shows = shows.ok_or("the file can no longer be read through the handle")?;
        let either = Allowed { states: vec![before.now.clone(), after.now.clone()], missing: false };
        let seen = either.find("after the failure the handle shows", shows)?;
        if !usable {
            return self.opened_anew(allowed, after);
        }
        if failure.duty == Duty::Poison {
            return Err("a write succeeded after a failed flush".to_owned());
        }
        let took_effect = after.now != before.now && seen == after.now;
        if took_effect && !matches!(op, Op::Eager(_) | Op::Resize { .. }) {
            return Err("it failed but took effect, and the handle is not poisoned".to_owned());
        }
        let now = if took_effect { after } else { before };
        let allowed = Allowed::one(now.kept.clone());
        self.model = Some(now);
        Ok(allowed)
    }

    /// Judges how the process reopens the file, or creates it again if it is missing. A process that stops makes no
    /// such report.
    fn opened_anew(&mut self, allowed: Allowed, after: Content) -> Check<Allowed> {
        let Some((_, report)) = self.next() else { return Ok(allowed) };
        match report.clone() {
            Report::Reopened(shows) => {
                let found = allowed.find("when reopened, the file shows", shows)?;
                self.model = Some(Content::committed(Arc::clone(&found)));
            }
            Report::Absent if allowed.missing => {
                if !matches!(self.next(), Some((_, Report::Done))) {
                    return Err("the missing file could not be created again".to_owned());
                }
                self.model = Some(after);
            }
            other => return Err(format!("unexpected report after the failure: {other}")),
        }
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup::all()[0]
    }

    /// The reports of a correct process.
    fn honest() -> (Vec<Report>, Vec<Content>) {
        let mut models = vec![Content::committed(Bytes::default())];
        let mut reports = Vec::new();
        for (number, op) in script().iter().enumerate() {
            let before = &models[number];
            let model = setup().after(before, &op.clone().fit(before.now.len() as u64));
            reports.push(if *op == Op::READ_ALL { Report::Saw(digest(&model.now)) } else { Report::Done });
            models.push(model);
        }
        let shows = digest(&models[reports.len()].now);
        reports.extend([
            Report::Done,
            Report::Inspected(String::new()),
            Report::Reopened(shows),
            Report::Settled(shows),
        ]);
        (reports, models)
    }

    fn failure(duty: Duty, at: usize) -> Option<Failure> {
        Some(Failure { how: How::Errno(5), duty, at })
    }

    fn error(handle: Handle) -> Report {
        Report::Failed { errno: 5, handle, message: "cannot".to_owned() }
    }

    /// The first operation of a kind.
    fn find(op: &Op) -> usize {
        script().iter().position(|one| one == op).expect("it is in the script")
    }

    #[test]
    fn an_honest_process_is_acquitted_and_a_silent_one_is_not() {
        let (reports, models) = honest();
        let allowed = judge(setup(), None, &reports, false).expect("all is well");
        let shows = digest(&models.last().expect("there is one").now);
        let examined =
            |shows, plain| [Report::Inspected(String::new()), Report::Reopened(shows), Report::Settled(plain)];
        assert_eq!(allowed.examine(&examined(shows, shows)), Ok(()));
        assert!(allowed.examine(&examined(shows, 1)).is_err());
        assert!(allowed.examine(&examined(1, 1)).is_err());
        assert!(allowed.examine(&[Report::Absent]).is_err());
        let sync = find(&Op::Sync);
        assert!(judge(setup(), failure(Duty::Either, sync), &reports, false).is_ok());
        assert!(judge(setup(), failure(Duty::Poison, sync), &reports, false).is_err());
        assert!(judge(setup(), failure(Duty::Tell, sync), &reports, false).is_err());
        assert!(judge(setup(), None, &reports[..9], false).is_err());
    }

    #[test]
    fn a_failed_flush_must_poison_and_an_error_must_have_a_cause() {
        let (reports, models) = honest();
        let sync = find(&Op::Sync);
        let shows = Some(digest(&models[sync].now));
        let said = |handle| [&reports[..sync], &[error(handle)]].concat();
        let verdict = |duty, at, handle| judge(setup(), failure(duty, at), &said(handle), true);
        let allowed = verdict(Duty::Poison, sync, Handle::Poisoned(shows)).expect("it is poisoned");
        assert_eq!(allowed.states.len(), 2);
        assert!(verdict(Duty::Poison, sync, Handle::Usable(shows)).is_err());
        assert!(verdict(Duty::Tell, sync, Handle::Usable(shows)).is_ok());
        assert!(verdict(Duty::Poison, sync, Handle::Poisoned(Some(1))).is_err());
        assert!(verdict(Duty::Poison, sync, Handle::Poisoned(None)).is_err());
        assert!(verdict(Duty::Either, sync - 1, Handle::Usable(shows)).is_err());
        assert!(verdict(Duty::Later, sync - 1, Handle::Usable(shows)).is_ok());
        assert!(verdict(Duty::Poison, sync - 1, Handle::Poisoned(shows)).is_err());
    }
}
