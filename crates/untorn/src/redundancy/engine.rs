//! An engine whose data file has redundancy.
//!
//! Redundancy covers the pages of the data file, as for a plain file. The medium reports the stores to them
//! ([`TrackedPages`]). For the reflection engine it covers the pages of the sidecar too, because a written slice is in
//! one or the other and may stay there.
//!
//! It does not cover the hybrid log: an entry is written once, with its own checksum, is checkpointed soon, and its
//! space is reused. Before each pass, committed bytes in the log are checkpointed. So committed bytes are uncovered for
//! one period, as a stored page is, and no longer.
//!
//! # Closing
//!
//! Closing brings everything home, which stores to the data file. If it keeps the sidecar, it records the file's time,
//! by which the next open detects a write by another program. So redundancy makes all its repairs before that.
//! Afterwards it only covers what came home, and records that the file was closed. A crash between the two leaves a
//! closed file with redundancy that is not closed, in which each page is covered or marked. Unless the sidecar stays,
//! the file is then a plain protected file. The sidecar stays if damage in it cannot be repaired. A dropped handle
//! leaves the file like a closed one: the engine closes then too, and changes the file's time.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::layer::Layer;
use crate::engine::snapshot::{HeldSnapshots, LapseElsewhere, Marks, Readers, SnapshotService, Taken};
use crate::engine::{Close, Engine, EngineKind, Piece};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::options::{Options, ProtectOptions, ReadPolicy, VerifyReads};
use crate::redundancy::{
    FileRedundancy, Redundancy, RedundancyService, Threads, TrackedPages, TrackedStorage, no_sidecar_redundancy,
};
use crate::storage::{Medium, is_bad};

/// An engine, and the redundancy of its data file.
pub(crate) struct ProtectedEngine<M: Medium> {
    /// They end before the engine does.
    threads: Mutex<Threads>,
    engine: Arc<dyn Engine>,
    kept: Arc<FileRedundancy<M>>,
    /// How long to wait after what notes the file's time.
    tick: Duration,
    /// Whether pages are compared with their checksums before they are read, and what is done then.
    verify: Option<VerifyReads>,
    /// Whether what is read goes home.
    deploys_reads: bool,
    /// The file was let go.
    ended: AtomicBool,
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
    let (mode, settings) = (redundancy.announced(), redundancy.settings);
    let data = TrackedPages::of_data(Arc::clone(medium), path, mode.clone(), settings, options.prefer.is_some());
    if !data.is_protected()? && options.redundancy.is_none() {
        no_sidecar_redundancy(&**medium, path)?;
        return Ok(None);
    }
    let sidecar = TrackedPages::of_sidecar(Arc::clone(medium), path, mode, settings.batch)?;
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
) -> Result<ProtectedEngine<M>> {
    let (data, sidecar) = (Arc::clone(&watched.data), Arc::clone(&watched.sidecar));
    let medium = Arc::clone(&watched.medium);
    // Redundancy that there is must know of the engine's first store. That which is to be made must not be, if the
    // engine is refused the file.
    let is_protected = data.is_protected()?;
    if is_protected {
        data.bind()?;
        sidecar.bind()?;
    } else {
        no_sidecar_redundancy(&*medium, data.path())?;
    }
    let engine = match engine(Arc::clone(&watched)) {
        // A sidecar that was closed has digests of all that counts in it.
        Err(Error::Corrupt { .. }) if sidecar.mend()? => engine(watched)?,
        // Or pages that cannot be read, which an engine that loads them comes upon as lost ones.
        Err(error) if (is_bad(&error) || error.is_page_lost()) && sidecar.mend()? => engine(watched)?,
        opened => opened?,
    };
    // What goes home without a write by a program has been claimed before, and is again: this handle takes note of it.
    let held: Vec<u64> = match engine.info().reflected_pages {
        0 => Vec::new(),
        _ => (0..engine.len().div_ceil(PAGE)).filter(|page| engine.in_sidecar_page(*page).is_some()).collect(),
    };
    if !is_protected {
        if !held.is_empty() {
            // All or nothing: a file that is refused for want of space is not protected.
            data.give_all_room();
        }
        data.bind()?;
    }
    data.with(Redundancy::start)?;
    let redundancy = named(&medium, data.path(), options)?;
    let like_data = data.with(|data| Ok(Some(data.settings())))?;
    sidecar.begin(like_data.unwrap_or(redundancy.settings))?;
    let engine: Arc<dyn Engine> = Arc::from(engine);
    let kept = Arc::new(FileRedundancy::new(data, sidecar, Some(Arc::clone(&engine))));
    held.into_iter().try_for_each(|page| kept.claim(&(page * PAGE..(page + 1) * PAGE)))?;
    let service: Arc<dyn RedundancyService> = kept.clone();
    let threads = Mutex::new(Threads::start(&service, &redundancy)?);
    let (verify, deploys_reads) = (options.verify_reads, options.read_policy == ReadPolicy::Deploy);
    Ok(ProtectedEngine { threads, engine, kept, tick, verify, deploys_reads, ended: AtomicBool::new(false) })
}

impl<M: Medium> ProtectedEngine<M> {
    /// Compares what these pages have in the sidecar with its checksums.
    fn verify_in_sidecar(&self, pages: Range<u64>, repair: bool) -> Result<()> {
        pages
            .filter_map(|page| self.engine.in_sidecar_page(page))
            .try_for_each(|at| self.kept.sidecar.verify(at..at + PAGE, repair))
    }

    /// The same before it goes home, with a repair unless damage is to stay: at home nothing would tell it from what
    /// was written.
    fn verify_to_deploy(&self, pages: Range<u64>) -> Result<()> {
        self.verify_in_sidecar(pages, !self.kept.leaves_damage())
    }

    /// The same of all that counts in the sidecar, before its engine takes a digest of it or lets go of it.
    fn verify_all_in_sidecar(&self) -> Result<()> {
        self.kept.sidecar.verify_index(!self.kept.leaves_damage())?;
        self.verify_to_deploy(0..self.engine.len().div_ceil(PAGE))
    }

    /// Lets go of the file and of its redundancy. `how` is none to settle.
    fn end(&self, how: Option<Close>) -> Result<()> {
        if self.ended.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).stop();
        let let_go = |how: Option<Close>| how.map_or_else(|| self.engine.settle(), |how| self.engine.close(how));
        if self.engine.writable().is_err() {
            // Of what failed before, or of a forked child, nothing may be said to be covered.
            return let_go(how);
        }
        // To cover is to repair what is damaged beside it.
        let covered = if self.kept.leaves_damage() { Ok(0) } else { self.kept.cover() };
        let verified = how.map_or(Ok(()), |_| self.verify_all_in_sidecar());
        if let Err(error) = &verified {
            // It still differs from its checksum, so it is found again, and nobody is kept from closing the file.
            let path = self.engine.path().display();
            tracing::error!(%path, %error, "cannot verify the sidecar against its checksums");
        }
        // At home nothing would tell damage from what was written, so damage stays in the sidecar.
        let stays = verified.is_err() || self.kept.leaves_damage();
        let_go(how.map(|how| if stays { Close::KeepSidecar } else { how }))?;
        covered?;
        self.kept.finish()?;
        // A store right after this must not have the very time that was noted.
        std::thread::sleep(self.tick);
        Ok(())
    }

    /// The pages of a range. One that is not of the file is for the engine to refuse.
    fn pages_of(&self, offset: u64, len: u64) -> Range<u64> {
        let end = self.engine.len().min(offset.saturating_add(len));
        if offset < end { offset / PAGE..end.div_ceil(PAGE) } else { 0..0 }
    }

    fn within_snapshots(&self) -> Result<&dyn SnapshotService> {
        let cause = "the handles of its file are of no further use";
        let ended = || Error::SnapshotEnded { path: self.engine.path().to_owned(), cause: cause.to_owned() };
        self.engine.snapshots().ok_or_else(ended)
    }

    /// Looks at what is about to be read.
    fn verify(&self, offset: u64, len: u64) -> Result<()> {
        let Some(verify) = self.verify else { return Ok(()) };
        let (pages, repair) = (self.pages_of(offset, len), verify == VerifyReads::Repair);
        if pages.is_empty() {
            return Ok(());
        }
        self.kept.data.verify(offset..self.engine.len().min(offset.saturating_add(len)), repair)?;
        self.verify_in_sidecar(pages, repair)
    }
}

impl<M: Medium> Drop for ProtectedEngine<M> {
    fn drop(&mut self) {
        // In a forked child, and after a failure, nothing is done to the file.
        if let Err(error) = self.end(Some(Close::AsAsked)) {
            let path = self.engine.path().display();
            tracing::warn!(%path, %error, "cannot close the file cleanly; the next open recovers it");
        }
    }
}

impl<M: Medium> Layer for ProtectedEngine<M> {
    type Within = dyn Engine;

    fn within(&self) -> &Self::Within {
        &*self.engine
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.verify(offset, dst.len() as u64)?;
        if self.verify.is_none() && self.deploys_reads {
            self.verify_to_deploy(self.pages_of(offset, dst.len() as u64))?;
        }
        self.engine.read(offset, dst)
    }

    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.verify.is_none() && self.engine.try_read(offset, dst)
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        // In a forked child locks may be held for ever.
        self.engine.writable()?;
        for piece in pieces {
            let end = self.engine.len().min(piece.offset.saturating_add(piece.bytes.len() as u64));
            self.kept.claim(&(piece.offset.min(end)..end))?;
        }
        self.engine.write(pieces)
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        self.verify_to_deploy(self.pages_of(offset, len))?;
        self.engine.deploy(offset, len)
    }

    fn accepts(&self, options: &Options) -> bool {
        self.engine.accepts(options) && (options.verify_reads.is_none() || options.verify_reads == self.verify)
    }

    fn close(&self, how: Close) -> Result<()> {
        self.end(Some(how))
    }

    fn settle(&self) -> Result<()> {
        if self.engine.writable().is_ok() {
            // What is damaged would be all there is: then the file stays as it is, and is closed.
            self.verify_all_in_sidecar()?;
        }
        self.end(None)
    }

    fn deploy_ahead(&self) -> Result<u64> {
        // A page goes home after a check against its checksum: when it is deployed, or at the close.
        Ok(0)
    }

    fn redundancy(&self) -> Option<&dyn RedundancyService> {
        Some(&*self.kept)
    }

    fn snapshots(&self) -> Option<&dyn SnapshotService> {
        let within = self.engine.snapshots()?;
        Some(if self.verify.is_some() { self } else { within })
    }
}

/// Snapshots whose reads are verified. A reader in another process gets each page from here: it is told of none that it
/// could copy out of the data file by itself, and none is published.
impl<M: Medium> SnapshotService for ProtectedEngine<M> {
    fn take(&self, process: u32) -> Result<Taken> {
        self.within_snapshots()?.take(process)
    }

    fn take_marked(&self, process: u32) -> Result<(Taken, Option<Arc<Marks>>)> {
        self.within_snapshots()?.take_marked(process)
    }

    fn read(&self, taken: &Taken, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.verify(offset, dst.len() as u64)?;
        self.within_snapshots()?.read(taken, offset, dst)
    }

    fn data_from(&self, taken: &Taken, offset: u64) -> Result<Option<Range<u64>>> {
        self.within_snapshots()?.data_from(taken, offset)
    }

    fn take_here(&self) -> Result<(Taken, Option<Arc<Readers>>)> {
        self.within_snapshots()?.take_here()
    }

    fn let_lapse(&self, snapshot: u64, lapse: LapseElsewhere) {
        if let Some(service) = self.engine.snapshots() {
            service.let_lapse(snapshot, lapse);
        }
    }

    fn release(&self, snapshot: u64) {
        if let Some(service) = self.engine.snapshots() {
            service.release(snapshot);
        }
    }

    fn release_here(&self, snapshot: u64, readers: Option<&Arc<Readers>>) {
        if let Some(service) = self.engine.snapshots() {
            service.release_here(snapshot, readers);
        }
    }

    fn held_as(&self, snapshot: u64) -> Option<Taken> {
        self.engine.snapshots()?.held_as(snapshot)
    }

    fn held(&self) -> HeldSnapshots {
        self.engine.snapshots().map(SnapshotService::held).unwrap_or_default()
    }
}
