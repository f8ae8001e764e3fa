//! Looking without changing: the report behind `info` and `check`.

use std::path::Path;
use std::sync::Arc;

use super::{hybrid_log, reflection};
use crate::engine::commits;
use crate::engine::snapshot::remote::client;
use crate::engine::{EngineKind, Report, Seen, SidecarReport, State, time_of};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::format::sidecar::attach::{Attached, share};
use crate::format::sidecar::data::{Pair, open_data, reopen_data};
use crate::format::sidecar::find_or_at;
use crate::format::sidecar::number::noted;
use crate::format::sidecar::retirement::Retirement;
use crate::format::sidecar::superblock::{Left, Superblock};
use crate::format::sidecar::{path as sidecar_path, uuid_text};
use crate::options::Options;
use crate::storage::{Access, Medium, MediumFile, PageCache, is_durable, lock_holder, resolve};

/// Reports on a file, its mark and its sidecar, and changes nothing. If another process has the file open for writing,
/// the report says so. Other processes can open the file at any time meanwhile.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("f");
/// untorn::AtomicFile::create(&path, 4096)?.close()?;
/// assert_eq!(untorn::inspect(&path)?.state, untorn::report::State::Clean);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Only errors that prevent the inspection, such as a missing file or missing permission. Damage that it finds is in
/// the report.
pub fn inspect(path: impl AsRef<Path>) -> Result<Report> {
    // Records are replayed in memory only. The page cache shows the same bytes as a DAX mapping, so reading goes
    // through it whatever the medium.
    let path = resolve(path.as_ref())?;
    let report = inspect_on(&Arc::new(PageCache::reading_by_call()), &path)?;
    let report = with_commit_log(Report { durable: is_durable(&path)?, ..report });
    Ok(if report.state == State::InUse { with_holders(report) } else { report })
}

/// The report with the snapshots that are held, which the process that has the file open is asked for.
fn with_holders(mut report: Report) -> Report {
    match client::report(&report.path) {
        Ok(told) => report.snapshots = Some(told.held),
        Err(why) => report.findings.push(format!("its snapshots are not known: {why}")),
    }
    report
}

/// The report with the commit log of the file.
fn with_commit_log(mut report: Report) -> Report {
    let behind = crate::sys::file::behind_mount(&report.path);
    let path = behind.as_ref().unwrap_or(&report.path);
    match commits::state::look(&PageCache::reading_by_call(), path, commits::LogOf::File) {
        Ok(log) => report.commit_log = log,
        Err(why) => report.findings.push(format!("its commit log is not known: {why}")),
    }
    report
}

fn inspect_on<M: Medium>(medium: &Arc<M>, path: &Path) -> Result<Report> {
    // Whoever opens the file between two of our looks at it changes what we saw; then we look anew.
    for _ in 0..4 {
        if let Some(report) = look(medium, path)? {
            return Ok(report);
        }
    }
    let data = open_data(&**medium, path, &reader())?;
    Ok(in_use(&**medium, path, &data))
}

fn reader() -> Options {
    Options::new().read_only(true)
}

fn plain<F: MediumFile>(path: &Path, data: &F) -> Report {
    // A note that cannot be read says nothing.
    let noted = noted(data).unwrap_or_default();
    Report {
        path: path.to_owned(),
        engine: None,
        len: data.len(),
        commit: noted.number,
        committed: time_of(noted.time),
        state: State::Clean,
        holder: None,
        snapshots: None,
        durable: true,
        sidecar: None,
        commit_log: None,
        findings: Vec::new(),
    }
}

/// The report; `None` if a writer came in between.
///
/// The lock is taken for a moment before and after, to see that no writer has it, and is not held in between: reading
/// all slices may take minutes, and who wants to write must not wait for that. What was read while a writer came in
/// may be nonsense, which recovery withstands, and is thrown away.
fn look<M: Medium>(medium: &Arc<M>, path: &Path) -> Result<Option<Report>> {
    let data = open_data(&**medium, path, &reader())?;
    let mut report = plain(path, &data);
    let attached = match share(&**medium, path, &data) {
        Ok(None) => return Ok(Some(report)),
        Ok(Some(attached)) => attached,
        Err(Error::InUse { .. }) => return Ok(Some(in_use(&**medium, path, &data))),
        Err(error) => return judged(report, error).map(Some),
    };
    let engine = attached.superblock.engine;
    report.engine = Some(engine);
    report.sidecar = Some(sidecar_report(&attached.path, &attached.side, &attached.superblock));
    let before = (attached.superblock.clone(), attached.retirement);
    let examined = medium.open_companion(&attached.path, Access::Read, 0, &data).and_then(|side| {
        let Attached { side: locked, path: sidecar, superblock, retirement } = attached;
        drop(locked);
        let attached = Attached { side, path: sidecar, superblock, retirement };
        let data = reopen_data(&**medium, path, &reader(), data)?;
        let physical = data.len();
        seen_by_engine(Arc::clone(medium), path, (data, attached), &reader()).map(|seen| (seen, physical))
    });
    let examined = match examined {
        Ok((seen, physical)) => Ok(examine(&seen, physical, before.0.left, report)),
        Err(error) => judged(report, error),
    };
    match share(&**medium, path, &open_data(&**medium, path, &reader())?) {
        Ok(Some(now)) if before == (now.superblock.clone(), now.retirement) => examined.map(Some),
        _ => Ok(None),
    }
}

fn examine(seen: &Seen, physical: u64, left: Left, mut report: Report) -> Report {
    report.len = seen.len;
    report.commit = seen.commit;
    report.committed = time_of(seen.time);
    if left != Left::Clean {
        report.state = State::NeedsRecovery;
        report.findings.push(format!(
            "the file was not closed cleanly: recovery would replay {} records and drop {} of unfinished writes",
            seen.recovery.replayed, seen.recovery.discarded
        ));
    }
    if physical < report.len {
        report.state = State::Refused;
        report.findings.push(format!(
            "another program truncated the data file: it has {physical} bytes, its last commit has {}",
            report.len
        ));
    }
    report
}

/// How many commits have bytes that only the sidecar of a file holds, at most, whether or not file and sidecar agree;
/// 0 if it has no sidecar. Nothing is locked or changed.
pub(crate) fn commits_held(path: &Path) -> Result<u64> {
    let medium = Arc::new(PageCache::reading_by_call());
    let path = &resolve(path)?;
    let data = open_data(&*medium, path, &reader())?;
    let place = sidecar_path(path, data.identity()?.inode);
    let Some(place) = find_or_at(&*medium, path, &data, place)? else { return Ok(0) };
    let side = medium.open_companion(&place, Access::Read, 0, &data)?;
    let superblock = Superblock::read(&side, &place)?;
    if superblock.left == Left::Settled {
        return Ok(0);
    }
    let retirement = Retirement::read(&side, &place, &superblock.uuid)?;
    let pair = (data, Attached { side, path: place, superblock, retirement });
    seen_by_engine(medium, path, pair, &reader()).map(|seen| seen.held)
}

/// What the engine of a sidecar finds in a file, changing nothing.
///
/// # Errors
/// [`Error::Corrupt`] for a sidecar that no engine could have left so; errors of reading.
pub(crate) fn seen_by_engine<M: Medium>(
    medium: Arc<M>,
    path: &Path,
    pair: Pair<M::File>,
    options: &Options,
) -> Result<Seen> {
    match pair.1.superblock.engine {
        EngineKind::HybridLog => hybrid_log::look(medium, path, pair, options),
        _ => reflection::look(medium, path, pair, options),
    }
}

/// What can be said of a file that a writer has: what it last wrote down of it.
fn in_use<M: Medium>(medium: &M, path: &Path, data: &M::File) -> Report {
    let mut report = plain(path, data);
    report.state = State::InUse;
    let mut holder = "another process".to_owned();
    let mut written = || {
        let place = sidecar_path(path, data.identity()?.inode);
        let side = medium.open_companion(&place, Access::Read, 0, data)?;
        holder = lock_holder(&side);
        let superblock = Superblock::read(&side, &place)?;
        let retirement = Retirement::read(&side, &place, &superblock.uuid)?;
        let changed = side.stamp()?.modified;
        Ok::<_, Error>((sidecar_report(&place, &side, &superblock), superblock.engine, retirement, changed))
    };
    // The writer may be creating, or removing, its sidecar.
    if let Ok((sidecar, engine, retirement, changed)) = written() {
        report.engine = Some(engine);
        report.sidecar = Some(sidecar);
        report.len = retirement.len;
        report.commit = retirement.checkpoint;
        report.committed = time_of(changed);
    }
    let (said, not) = ("this report shows the last state it recorded", "not its current changes");
    report.findings.push(format!("{holder} has the file open; {said}, {not}"));
    report.holder = Some(holder);
    report
}

fn sidecar_report<F: MediumFile>(place: &Path, side: &F, superblock: &Superblock) -> SidecarReport {
    SidecarReport {
        path: place.to_owned(),
        bytes: side.len(),
        uuid: uuid_text(&superblock.uuid),
        layout: superblock.engine.has_reflection_pages().then_some(superblock.layout),
        durability: superblock.durability,
    }
}

/// Puts what opening would refuse into the report; what kept us from looking is an error.
fn judged(mut report: Report, error: Error) -> Result<Report> {
    report.state = match error {
        Error::Corrupt { .. } => State::Corrupt,
        Error::SidecarMissing { .. }
        | Error::SidecarMismatch { .. }
        | Error::ModifiedExternally { .. }
        | Error::OtherEngine { .. }
        | Error::Unsupported { .. } => State::Refused,
        _ => return Err(error),
    };
    report.findings.push(error.to_string());
    Ok(report)
}
