//! An engine whose data file has redundancy.
//!
//! Redundancy speaks of the pages of the data file, as it does for a plain one; that they are stored to it learns from the
//! medium, which watches ([`Watch`]). What the sidecar holds is not covered. So what is committed and valid there only is
//! brought home before each pass: truth is out of cover for a period, as a page is that was stored to, and no longer. What
//! a page holds at home beside that, slices that do not count, is covered with it.
//!
//! # The end
//! An engine notes the file's time when it closes, by which it knows at the next opening whether somebody else wrote. So all
//! that redundancy may repair it repairs before; after, it only notes what is covered, and that the file was closed. A crash
//! between the two leaves a file that is closed, and redundancy that is not, in which each page is covered or marked. After
//! settling, the file is a plain protected one.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Engine, EngineKind, Info, Piece};
use crate::error::{Error, Result};
use crate::medium::{Identity, Medium};
use crate::options::{Options, ProtectOptions};
use crate::redundancy::{Beside, Coverage, Mode, RepairReport, Scrub, ScrubReport, Service, Threads, Watch, Watched};

/// How often a pass looks anew at a file that is cut short while it is brought home.
const TRIES: u32 = 16;

/// An engine, and the redundancy of its data file.
pub(super) struct Covered {
    /// They end before the engine does.
    threads: Mutex<Threads>,
    work: Arc<Work>,
    /// How long to wait after what notes the file's time.
    tick: Duration,
}

struct Work {
    engine: Box<dyn Engine>,
    beside: Arc<dyn Beside>,
    /// Why the last pass that nobody called for failed, until somebody is told, or another pass goes through.
    untold: Mutex<Option<Error>>,
}

/// What watches the file, if it has redundancy or is to have it.
pub(super) fn watch<M: Medium>(medium: &Arc<M>, path: &Path, options: &Options) -> Result<Option<Arc<Watch<M>>>> {
    if options.read_only || options.engine == EngineKind::Passthrough {
        return Ok(None);
    }
    let redundancy = options.redundancy.clone().unwrap_or_default();
    let mode = if redundancy.period == Some(Duration::ZERO) { Mode::Synchronous } else { Mode::Announced };
    let watch = Watch::new(Arc::clone(medium), path, mode, redundancy.settings, options.trust.is_some());
    let is_protected = watch.is_protected()?;
    Ok((is_protected || options.redundancy.is_some()).then_some(watch))
}

/// Opens the engine on the medium that it is given, and the redundancy of its file.
///
/// # Errors
/// Those of the engine and of redundancy.
pub(super) fn open<M: Medium>(
    watch: Arc<Watch<M>>,
    options: &Options,
    tick: Duration,
    engine: impl FnOnce(Arc<Watched<M>>) -> Result<Box<dyn Engine>>,
) -> Result<Covered> {
    // Redundancy that there is must know of the engine's first store. That which is to be made must not be, if the engine is
    // refused the file.
    let is_protected = watch.is_protected()?;
    if is_protected {
        watch.bind()?;
    }
    let engine = engine(Arc::new(Watched(Arc::clone(&watch))))?;
    if !is_protected {
        watch.bind()?;
    }
    watch.begin()?;
    let work = Arc::new(Work { engine, beside: watch, untold: Mutex::default() });
    let service: Arc<dyn Service> = work.clone();
    let redundancy: ProtectOptions = options.redundancy.clone().unwrap_or_default();
    let threads = Mutex::new(Threads::start(&service, &redundancy)?);
    Ok(Covered { threads, work, tick })
}

impl Work {
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
    fn untold(&self) -> MutexGuard<'_, Option<Error>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Work {
    fn path(&self) -> &Path {
        self.engine.path()
    }

    fn cover(&self) -> Result<u64> {
        self.engine.writable()?;
        self.bring_home()?;
        let covered = self.beside.cover()?;
        *self.untold() = None;
        Ok(covered)
    }

    fn failed(&self, error: Error) {
        *self.untold() = Some(error);
    }

    fn coverage(&self) -> Result<Coverage> {
        // In a forked child its locks may be held for ever.
        self.engine.writable()?;
        if let Some(error) = self.untold().take() {
            return Err(error);
        }
        let mut coverage = self.beside.coverage()?;
        coverage.in_sidecar = self.engine.info().reflected_pages;
        Ok(coverage)
    }

    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
        self.engine.writable()?;
        self.beside.scrub(how)
    }

    fn note_scrub(&self) -> Result<()> {
        self.engine.writable()?;
        self.beside.note_scrub()
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        self.engine.writable()?;
        self.beside.repair(how)
    }
}

impl Covered {
    /// Lets go of the file in one of the two ways of engines, and of its redundancy.
    fn end(&self, engine: impl FnOnce(&dyn Engine) -> Result<()>) -> Result<()> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).stop();
        let work = &*self.work;
        if work.engine.writable().is_err() {
            // Of what failed before, or of a forked child, nothing may be said to be covered.
            return engine(&*work.engine);
        }
        let covered = work.bring_home().and_then(|()| {
            // What this engine brought home counts from the next commit on. The epoch was committed before the file is let go.
            if work.engine.info().engine == EngineKind::Reflection {
                work.engine.sync()?;
            }
            work.beside.cover()
        });
        engine(&*work.engine)?;
        covered?;
        work.beside.finish()?;
        // A store right after this must not have the very time that was noted.
        std::thread::sleep(self.tick);
        Ok(())
    }
}

impl Engine for Covered {
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
        self.work.engine.read(offset, dst)
    }

    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.work.engine.try_read(offset, dst)
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.work.engine.write(pieces)
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
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
        self.work.engine.accepts(options)
    }

    fn close(&self) -> Result<()> {
        self.end(|engine| engine.close())
    }

    fn settle(&self) -> Result<()> {
        self.end(|engine| engine.settle())
    }

    fn redundancy(&self) -> Option<&dyn Service> {
        Some(&*self.work)
    }
}
