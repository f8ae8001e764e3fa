//! An engine whose data file has redundancy.
//!
//! Redundancy covers the pages of the data file, as for a plain file. The medium reports the stores to them
//! ([`TrackedData`]). For the reflection engine it covers the pages of the sidecar too ([`TrackedSidecar`]), because
//! a written slice is in one or the other and may stay there.
//!
//! It does not cover the hybrid log: an entry is written once, with its own checksum, is checkpointed soon, and its
//! space is reused. Before each pass, committed bytes in the log are checkpointed. So committed bytes are uncovered for
//! one period, as a stored page is, and no longer.
//!
//! # Closing
//!
//! At close an engine records the file's time, by which the next open detects a write by another program. So redundancy
//! makes all its repairs before that. Afterwards it only records what is covered, and that the file was closed. A crash
//! between the two leaves a closed file with redundancy that is not closed, in which each page is covered or marked.
//! After settling, the file is a plain protected file. A dropped handle leaves the file like a closed one: the engine
//! closes then too, and changes the file's time.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::data_and_sidecar;
use crate::engine::{Engine, EngineKind, Info, Piece};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::options::{Options, ProtectOptions, ReadPolicy, VerifyReads};
use crate::redundancy::{
    Coverage, DamageSender, EngineRedundancy, Mode, RedundancyService, RepairReport, Scrub, ScrubReport,
    SidecarRedundancy, Threads, TrackedData, TrackedSidecar, TrackedStorage, no_sidecar_redundancy,
};
use crate::storage::{Identity, Medium, is_bad};

/// How often a pass looks anew at a file that is cut short while it is brought home.
const TRIES: u32 = 16;

/// An engine, and the redundancy of its data file.
pub(crate) struct ProtectedEngine {
    /// They end before the engine does.
    threads: Mutex<Threads>,
    work: Arc<Work>,
    /// How long to wait after what notes the file's time.
    tick: Duration,
    /// Whether pages are compared with their checksums before they are read, and what is done then.
    verify: Option<VerifyReads>,
    /// Whether what is read goes home.
    deploys_reads: bool,
    /// The file was let go.
    ended: AtomicBool,
}

struct Work {
    engine: Box<dyn Engine>,
    beside: Arc<dyn EngineRedundancy>,
    sidecar: Arc<dyn SidecarRedundancy>,
    /// Why the last pass that nobody called for failed, until somebody is told, or another pass goes through.
    unreported: Mutex<Option<Error>>,
    /// Whether what is damaged in the sidecar is to stay so at the end.
    leaves_damage: AtomicBool,
}

/// How redundancy is kept: as the options have it, and what they leave open as the file has it.
fn named<M: Medium>(medium: &Arc<M>, path: &Path, options: &Options) -> Result<ProtectOptions> {
    options.redundancy.clone().unwrap_or_default().with_kept(&**medium, path)
}

/// What watches the file and its sidecar, if it has redundancy or is to have it.
pub(crate) fn watch<M: Medium>(
    medium: &Arc<M>,
    path: &Path,
    options: &Options,
) -> Result<Option<Arc<TrackedStorage<M>>>> {
    if options.read_only || options.engine == EngineKind::Passthrough {
        return Ok(None);
    }
    let redundancy = named(medium, path, options)?;
    let mode = if redundancy.period == Some(Duration::ZERO) { Mode::Synchronous } else { Mode::Announced };
    let (settings, batch) = (redundancy.settings, redundancy.settings.batch);
    let data = TrackedData::new(Arc::clone(medium), path, mode.clone(), settings, options.prefer.is_some());
    if !data.is_protected()? && options.redundancy.is_none() {
        no_sidecar_redundancy(&**medium, path)?;
        return Ok(None);
    }
    let sidecar = TrackedSidecar::new(Arc::clone(medium), path, mode, batch)?;
    Ok(Some(Arc::new(TrackedStorage { medium: Arc::clone(medium), data, sidecar })))
}

/// Opens the engine on the medium that it is given, and the redundancy of its file.
///
/// # Errors
/// Those of the engine and of redundancy.
pub(crate) fn open<M: Medium>(
    watched: Arc<TrackedStorage<M>>,
    options: &Options,
    tick: Duration,
    engine: impl Fn(Arc<TrackedStorage<M>>) -> Result<Box<dyn Engine>>,
) -> Result<ProtectedEngine> {
    let (watch, sidecar) = (Arc::clone(&watched.data), Arc::clone(&watched.sidecar));
    let watched_medium = Arc::clone(&watched.medium);
    // Redundancy that there is must know of the engine's first store. That which is to be made must not be, if the
    // engine is refused the file.
    let is_protected = watch.is_protected()?;
    if is_protected {
        watch.bind()?;
        sidecar.bind()?;
    } else {
        no_sidecar_redundancy(&*watched.medium, watch.path())?;
    }
    let engine = match engine(Arc::clone(&watched)) {
        // A sidecar that was closed has digests of all that counts in it.
        Err(Error::Corrupt { .. }) if sidecar.mend()? => engine(watched)?,
        // Or pages that cannot be read, which an engine that loads them comes upon as lost ones.
        Err(error) if (is_bad(&error) || error.is_page_lost()) && sidecar.mend()? => engine(watched)?,
        opened => opened?,
    };
    if !is_protected {
        watch.bind()?;
    }
    watch.begin()?;
    let redundancy = named(&watched_medium, watch.path(), options)?;
    sidecar.begin(watch.settings().unwrap_or(redundancy.settings))?;
    let work = Arc::new(Work {
        engine,
        beside: watch,
        sidecar,
        unreported: Mutex::default(),
        leaves_damage: AtomicBool::new(false),
    });
    let service: Arc<dyn RedundancyService> = work.clone();
    let threads = Mutex::new(Threads::start(&service, &redundancy)?);
    let (verify, deploys_reads) = (options.verify_reads, options.read_policy == ReadPolicy::Deploy);
    Ok(ProtectedEngine { threads, work, tick, verify, deploys_reads, ended: AtomicBool::new(false) })
}

impl Work {
    fn cover_with(&self, cover: impl FnOnce() -> Result<u64>) -> Result<u64> {
        self.engine.writable()?;
        let home = if self.sidecar.is_kept() { Ok(()) } else { self.bring_home() };
        // What cannot be brought home, as to a page that cannot be read, keeps nothing else in the file from being
        // covered.
        let covered = cover()?;
        home?;
        *self.unreported() = None;
        Ok(covered)
    }

    /// Brings home what is committed and in the sidecar only.
    fn bring_home(&self) -> Result<()> {
        let mut last = Ok(());
        for _ in 0..TRIES {
            last = self.engine.deploy(0, self.engine.len());
            if !matches!(last, Err(Error::OutOfRange { .. })) {
                break;
            }
        }
        last
    }
}

impl Work {
    /// Looks at what these pages have in the sidecar before it goes home, and repairs it: at home nothing would tell
    /// it from what was written.
    fn verify_in_sidecar(&self, pages: Range<u64>) -> Result<()> {
        let repair = !self.leaves_damage.load(Ordering::Relaxed);
        pages
            .filter_map(|page| self.engine.in_sidecar_page(page))
            .try_for_each(|at| self.sidecar.verify(at..at + PAGE, repair))
    }

    /// The same of all that counts in the sidecar, before its engine takes a digest of it or lets go of it.
    fn verify_all_in_sidecar(&self) -> Result<()> {
        self.sidecar.verify_index(!self.leaves_damage.load(Ordering::Relaxed))?;
        self.verify_in_sidecar(0..self.engine.len().div_ceil(PAGE))
    }

    fn unreported(&self) -> MutexGuard<'_, Option<Error>> {
        self.unreported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedundancyService for Work {
    fn path(&self) -> &Path {
        self.engine.path()
    }

    fn cover(&self) -> Result<u64> {
        self.cover_with(|| Ok(self.beside.cover()? + self.sidecar.cover()?))
    }

    fn pass(&self) -> Result<u64> {
        self.cover_with(|| Ok(self.beside.pass()? + self.sidecar.pass()?))
    }

    fn set_listener(&self, listener: Option<DamageSender>) {
        self.beside.set_listener(listener.clone());
        self.sidecar.set_listener(listener);
    }

    fn failed(&self, error: Error) {
        *self.unreported() = Some(error);
    }

    fn coverage(&self) -> Result<Coverage> {
        // In a forked child its locks may be held for ever.
        self.engine.writable()?;
        if let Some(error) = self.unreported().take() {
            return Err(error);
        }
        let mut coverage = data_and_sidecar::coverage(&*self.beside, &*self.sidecar)?;
        if !self.sidecar.is_kept() {
            coverage.in_sidecar = self.engine.info().reflected_pages;
        }
        Ok(coverage)
    }

    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
        self.engine.writable()?;
        data_and_sidecar::scrub(&*self.beside, &*self.sidecar, how)
    }

    fn note_scrub(&self) -> Result<()> {
        self.engine.writable()?;
        self.beside.note_scrub()?;
        self.sidecar.note_scrub()
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        self.engine.writable()?;
        data_and_sidecar::repair(&*self.beside, &*self.sidecar, how)
    }

    fn leave_damage(&self) {
        self.leaves_damage.store(true, Ordering::Relaxed);
    }
}

impl ProtectedEngine {
    /// Lets go of the file in one of the two ways of engines, and of its redundancy.
    fn end(&self, settles: bool) -> Result<()> {
        if self.ended.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).stop();
        let work = &*self.work;
        let let_go = || if settles { work.engine.settle() } else { work.engine.close() };
        if work.engine.writable().is_err() {
            // Of what failed before, or of a forked child, nothing may be said to be covered.
            return let_go();
        }
        // To cover is to repair what is damaged beside it.
        let leaves_damage = work.leaves_damage.load(Ordering::Relaxed);
        let covered = if leaves_damage { Ok(0) } else { work.cover() };
        if !settles && let Err(error) = work.verify_all_in_sidecar() {
            // It still differs from its checksum, so it is found again, and nobody is kept from closing the file.
            tracing::error!(path = %self.path().display(), %error, "cannot verify the sidecar against its checksums");
        }
        let_go()?;
        covered?;
        work.beside.finish()?;
        work.sidecar.finish()?;
        // A store right after this must not have the very time that was noted.
        std::thread::sleep(self.tick);
        Ok(())
    }

    /// The pages of a range. One that is not of the file is for the engine to refuse.
    fn pages_of(&self, offset: u64, len: u64) -> Range<u64> {
        let end = self.work.engine.len().min(offset.saturating_add(len));
        if offset < end { offset / PAGE..end.div_ceil(PAGE) } else { 0..0 }
    }

    /// Looks at what is about to be read.
    fn verify(&self, offset: u64, len: u64) -> Result<()> {
        let Some(verify) = self.verify else { return Ok(()) };
        let (work, repair) = (&*self.work, verify == VerifyReads::Repair);
        let pages = self.pages_of(offset, len);
        if pages.is_empty() {
            return Ok(());
        }
        work.beside.verify(offset..work.engine.len().min(offset.saturating_add(len)), repair)?;
        for page in pages {
            if let Some(at) = work.engine.in_sidecar_page(page) {
                work.sidecar.verify(at..at + PAGE, repair)?;
            }
        }
        Ok(())
    }
}

impl Drop for ProtectedEngine {
    fn drop(&mut self) {
        // In a forked child, and after a failure, nothing is done to the file.
        if let Err(error) = self.end(false) {
            tracing::warn!(path = %self.path().display(), %error, "cannot close the file cleanly; the next open \
                                                                   recovers it");
        }
    }
}

impl Engine for ProtectedEngine {
    fn path(&self) -> &Path {
        self.work.engine.path()
    }

    fn len(&self) -> u64 {
        self.work.engine.len()
    }

    fn identity(&self) -> Result<Identity> {
        self.work.engine.identity()
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        self.work.engine.check(offset, len)
    }

    fn writable(&self) -> Result<()> {
        self.work.engine.writable()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.verify(offset, dst.len() as u64)?;
        if self.verify.is_none() && self.deploys_reads {
            self.work.verify_in_sidecar(self.pages_of(offset, dst.len() as u64))?;
        }
        self.work.engine.read(offset, dst)
    }

    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.verify.is_none() && self.work.engine.try_read(offset, dst)
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.work.engine.write(pieces)
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        self.work.verify_in_sidecar(self.pages_of(offset, len))?;
        self.work.engine.deploy(offset, len)
    }

    fn sync(&self) -> Result<u64> {
        self.work.engine.sync()
    }

    fn resize(&self, len: u64) -> Result<()> {
        self.work.engine.resize(len)
    }

    fn reclaim(&self) -> Result<u64> {
        self.work.engine.reclaim()
    }

    fn info(&self) -> Info {
        self.work.engine.info()
    }

    fn accepts(&self, options: &Options) -> bool {
        self.work.engine.accepts(options) && (options.verify_reads.is_none() || options.verify_reads == self.verify)
    }

    fn close(&self) -> Result<()> {
        self.end(false)
    }

    fn settle(&self) -> Result<()> {
        if self.work.engine.writable().is_ok() {
            // What is damaged would be all there is: then the file stays as it is, and is closed.
            self.work.verify_all_in_sidecar()?;
        }
        self.end(true)
    }

    fn redundancy(&self) -> Option<&dyn RedundancyService> {
        Some(&*self.work)
    }
}
