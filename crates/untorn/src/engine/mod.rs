//! The engines: how a commit is made all or nothing.
//!
//! Each engine is a sibling that imports no other. All are generic over [`Medium`], so the code that runs on real
//! storage is the code the crash explorer takes apart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::inspect::inspect;
pub(crate) use self::others::NoOthers;
use crate::error::{Error, Result};
use crate::medium::{self, Barrier, Dax, Identity, Latched, Medium, MediumFile, MediumKind, PageCache};
pub use crate::options::EngineKind;
use crate::options::{Admission, Durability, Layout, Options};
use crate::redundancy::{Service, TICK};
use crate::sidecar::attach::engine_of;
use crate::sys::sync;

mod covered;
mod hybrid_log;
mod inspect;
mod others;
mod passthrough;
mod reflection;
mod registry;
pub(crate) mod snapshot;
pub(crate) mod standing;
pub(crate) mod terms;
mod together;

/// One contiguous part of an atomic write.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Where, in bytes.
    pub offset: u64,
    /// What.
    pub bytes: &'a [u8],
}

/// What recovery at open found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The file had not been closed cleanly.
    pub was_needed: bool,
    /// Records of commits applied; of the hybrid log, entries of committed epochs.
    pub replayed: u64,
    /// Records of writes in flight at the crash, dropped whole; of the hybrid log, entries of epochs that did not commit.
    pub discarded: u64,
}

/// The state of an open file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The engine that serves the file.
    pub engine: EngineKind,
    /// Length in bytes.
    pub len: u64,
    /// The highest commit number so far. Of the hybrid log it is the last durable epoch, and commits are numbered one by
    /// one. Of the reflection engine, a commit is numbered above every commit it follows on its pages and in its
    /// thread; commits of unrelated pages by different threads may share a number or be numbered below one another. It
    /// never falls, and survives reopening.
    pub commit: u64,
    /// When a write is durable.
    pub durability: Durability,
    /// Layout of the sidecar's meta pages; `None` for an engine without them.
    pub layout: Option<Layout>,
    /// The sidecar; `None` for an engine without one.
    pub sidecar: Option<PathBuf>,
    /// Pages with at least one slice valid in the sidecar only; of the hybrid log, pages of which an entry has bytes that are
    /// not at home yet, or under undo bytes to return to.
    pub reflected_pages: u64,
    /// Slices of 64 bytes valid in the sidecar only; of the hybrid log, those that such entries touch.
    pub reflected_slices: u64,
    /// What recovery did when the file was opened.
    pub recovery: Recovery,
}

/// In what state a file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Closed cleanly, or a plain file without a sidecar.
    Clean,
    /// Open in another process right now.
    InUse,
    /// Not closed cleanly; opening it for writing, or [`recover`](crate::recover), brings it to its last commit.
    NeedsRecovery,
    /// The file and its sidecar contradict each other or themselves; the findings say how.
    Corrupt,
}

/// A sidecar as [`inspect`](crate::inspect) found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SidecarReport {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes; most of it may be holes that take no space.
    pub bytes: u64,
    /// Its UUID, as text.
    pub uuid: String,
    /// Layout of its meta pages; `None` for an engine that has none.
    pub layout: Option<Layout>,
    /// The durability the file was created with.
    pub durability: Durability,
}

/// What [`inspect`](crate::inspect) found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The data file.
    pub path: PathBuf,
    /// The engine it was last opened with; `None` for a plain file.
    pub engine: Option<EngineKind>,
    /// Length at the last commit, in bytes.
    pub len: u64,
    /// Number of the last commit, 0 for a plain file.
    pub commit: u64,
    /// Its state.
    pub state: State,
    /// Its sidecar.
    pub sidecar: Option<SidecarReport>,
    /// What is wrong or worth knowing, in sentences.
    pub findings: Vec<String>,
}

/// What all handles of one open file share. Dropping it without [`Engine::close`] leaves the last commit.
pub(crate) struct Shared {
    pub(crate) engine: Box<dyn Engine>,
    /// No further handle of this process may have it.
    exclusive: bool,
    /// Other processes may have it open too.
    several: bool,
    /// Goes after the engine has let go of everything; the registry waits for that before it opens the file anew.
    lease: registry::Lease,
}

impl Shared {
    /// The state itself if this is the last handle of it. Of several handles given up at once, one is the last.
    pub(crate) fn into_sole(shared: sync::Arc<Self>) -> Option<Self> {
        let place = shared.lease.place();
        // A thread that opens the file with other options holds the state for a moment, only to be refused.
        let _quiet = place.as_ref().map(|place| registry::lock(place));
        sync::Arc::into_inner(shared)
    }
}

/// What a face needs of an engine. Ranges are checked by the engine against its length.
pub(crate) trait Engine: Send + Sync {
    fn path(&self) -> &Path;
    fn len(&self) -> u64;
    /// Which file it is that was opened.
    fn identity(&self) -> Result<Identity>;
    /// Whether a range lies within the file now.
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self.path(), offset, len, self.len())
    }
    /// Why the file accepts no writes, if so.
    fn writable(&self) -> Result<()>;
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()>;
    /// [`read`](Engine::read) where that is a plain copy; false, with `dst` in any state, where there is more to do or to
    /// say. It comes first at each read, so it is short.
    fn try_read(&self, _offset: u64, _dst: &mut [u8]) -> bool {
        false
    }
    /// Writes all pieces as one. They are sorted by offset and do not overlap.
    fn write(&self, pieces: &[Piece<'_>]) -> Result<()>;
    fn deploy(&self, offset: u64, len: u64) -> Result<()>;
    fn sync(&self) -> Result<u64>;
    fn resize(&self, len: u64) -> Result<()>;
    fn reclaim(&self) -> Result<u64>;
    fn info(&self) -> Info;
    /// Whether a further handle with these options may share this open file.
    fn accepts(&self, options: &Options) -> bool;
    /// Closes cleanly at the last commit. Called once, with no other call under way.
    fn close(&self) -> Result<()>;
    /// Deploys all and removes the sidecar. Called once, with no other call under way.
    fn settle(&self) -> Result<()>;
    /// Where a page has bytes in the sidecar that count and are not at home, if it has any and the sidecar is what has
    /// redundancy: the first byte of its page there. It may not be so any more.
    fn aside(&self, _page: u64) -> Option<u64> {
        None
    }
    /// The redundancy of the data file, if this keeps it.
    fn redundancy(&self) -> Option<&dyn Service> {
        None
    }
}

impl dyn Engine + '_ {
    /// Reads, the short way if there is one.
    #[inline]
    pub(crate) fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        if self.try_read(offset, dst) { Ok(()) } else { self.read(offset, dst) }
    }
}

/// Every barrier an engine of this kind passes, its sidecar's included: the list the mutation tests must convict whole.
pub fn barriers(kind: EngineKind) -> Vec<Barrier> {
    match kind {
        EngineKind::Auto | EngineKind::Reflection => {
            [reflection::barriers::ALL, crate::sidecar::barriers::ALL].concat()
        }
        EngineKind::HybridLog => [hybrid_log::barriers::ALL, crate::sidecar::barriers::ALL].concat(),
        EngineKind::Passthrough => passthrough::barriers::ALL.to_vec(),
    }
}

/// Every barrier that a region store passes: the list the mutation tests must convict whole.
pub fn region_barriers() -> Vec<Barrier> {
    snapshot::barriers::ALL.to_vec()
}

/// The barriers of the write cache: for the mutation tests.
pub fn cache_barriers() -> Vec<Barrier> {
    crate::cache::barriers::ALL.to_vec()
}

/// The barriers that only the redundancy of a sidecar passes: for the mutation tests.
pub fn sidecar_redundancy_barriers() -> Vec<Barrier> {
    crate::redundancy::sidecar_barriers::ALL.to_vec()
}

/// Pages of a chunk of a sidecar whose pages have redundancy, of which the first says which bytes of the others count.
pub(crate) fn chunk_pages(layout: Layout) -> u64 {
    reflection::chunk_pages(layout)
}

/// Every barrier that the redundancy of a file passes: the list the mutation tests must convict whole.
pub fn redundancy_barriers() -> Vec<Barrier> {
    crate::redundancy::barriers::ALL.to_vec()
}

pub(crate) fn open(path: &Path, options: &Options) -> Result<sync::Arc<Shared>> {
    options.validate(path)?;
    // Another file may get the name between our looking at it and the engine's opening it; each time round we look anew.
    for _ in 0..16 {
        let path = &medium::resolve(path)?;
        let detected = medium::detect(path)?;
        let mut replaced = false;
        let others = if options.shared {
            Some(NoOthers::as_memory(path, detected.identity))
        } else if options.admission.is_some() {
            None
        } else {
            Some(NoOthers::of_any_kind(path, detected.identity))
        };
        let shared = others::in_a_moment(|turned_away| {
            registry::shared(path, detected.identity, options, || {
                // Here for readers, and for whoever would give the file a sidecar. Whether it is still so is asked when it is locked.
                let asked = others.as_ref().map_or(Ok(()), Admission::admit);
                *turned_away = matches!(asked, Err(Error::InUse { .. }));
                asked?;
                let admitted = others.clone().map(|others| options.admitted_by(others));
                let options = admitted.as_ref().unwrap_or(options);
                let engine = if options.shared {
                    let (kind, place) = (detected.kind, path.clone());
                    let opener = Arc::new(move |options: &Options| engine_at(kind, &place, options));
                    together::open(path, detected.identity, options, opener)
                } else {
                    engine_at(detected.kind, path, options)
                }?;
                replaced = engine.identity()? != detected.identity;
                if replaced { Err(in_flux(path)) } else { Ok(engine) }
            })
        });
        if !replaced {
            return shared;
        }
    }
    Err(in_flux(path))
}

/// The engine on the medium that a file was found on.
fn engine_at(kind: MediumKind, path: &Path, options: &Options) -> Result<Box<dyn Engine>> {
    match kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
            let medium = Dax::new(kind).on_lost_page(options.lost_page);
            engine_on(Arc::new(Latched::new(medium)), path, options, TICK)
        }
        MediumKind::Block | MediumKind::Volatile => {
            let medium = PageCache::new().on_lost_page(options.lost_page);
            engine_on(Arc::new(Latched::new(medium)), path, options, TICK)
        }
    }
}

fn in_flux(path: &Path) -> Error {
    let holder = "another process, which keeps putting other files in its place".to_owned();
    Error::InUse { path: path.to_owned(), holder }
}

pub(crate) fn create(path: &Path, len: u64, options: &Options) -> Result<sync::Arc<Shared>> {
    options.validate(path)?;
    let path = &medium::absolute(path)?;
    let medium = PageCache::new();
    let made = medium.create(path, len, len)?.identity()?;
    let ours =
        |shared: sync::Arc<Shared>| if shared.engine.identity()? == made { Ok(shared) } else { Err(in_flux(path)) };
    open(path, options).and_then(ours).inspect_err(|error| {
        // Whoever has it in use by now owns it.
        if matches!(error, Error::InUse { .. }) {
            return;
        }
        // A file that could not be set up must not be left behind for the next attempt to trip over. If removing it
        // fails too, the first error is the one that helps.
        let _ = medium.unlink(path);
    })
}

/// Removes a file that was just created and cannot be used after all because of this error. The caller's is its only handle.
pub(crate) fn abandon(shared: sync::Arc<Shared>, error: &Error) {
    // Whoever has it in use by now owns it.
    if matches!(error, Error::InUse { .. }) {
        return;
    }
    let path = shared.engine.path().to_owned();
    // If something of it stays, the error that led here is the one that helps.
    let _ = Shared::into_sole(shared).map(|shared| shared.engine.settle());
    let _ = PageCache::new().unlink(&path);
}

pub(crate) fn open_on<M: Medium>(medium: M, path: &Path, options: &Options) -> Result<sync::Arc<Shared>> {
    options.validate(path)?;
    if options.shared {
        let what = "a file on a medium of the program's own is not shared with other processes".to_owned();
        return Err(Error::Invalid { path: path.to_owned(), what });
    }
    let engine = engine_on(Arc::new(Latched::new(medium)), path, options, Duration::ZERO)?;
    let (exclusive, lease) = (options.exclusive, registry::Lease::default());
    Ok(sync::Arc::new(Shared { engine, exclusive, several: false, lease }))
}

pub(crate) fn create_on<M: Medium>(medium: M, path: &Path, len: u64, options: &Options) -> Result<sync::Arc<Shared>> {
    options.validate(path)?;
    drop(medium.create(path, len, len)?);
    open_on(medium, path, options)
}

/// The engine of a file, with its redundancy if it has any or is to.
fn engine_on<M: Medium>(medium: Arc<M>, path: &Path, options: &Options, tick: Duration) -> Result<Box<dyn Engine>> {
    match covered::watch(&medium, path, options)? {
        None if options.verify_reads.is_some() => {
            let what = "no redundancy is kept of it, against which reads could be verified; protect it (`untorn protect`), or open \
                        it with `Options::redundancy`";
            Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() })
        }
        None => bare_engine_on(medium, path, options),
        Some(watched) => {
            covered::open(watched, options, tick, |medium| bare_engine_on(medium, path, options)).map(boxed)
        }
    }
}

fn bare_engine_on<M: Medium>(medium: Arc<M>, path: &Path, options: &Options) -> Result<Box<dyn Engine>> {
    let recorded = if options.engine == EngineKind::Passthrough { None } else { engine_of(&*medium, path, options)? };
    // A reader takes the file as it is, whatever engine it asked for.
    let chosen = match (options.engine, recorded) {
        (EngineKind::Auto, recorded) => recorded.unwrap_or(EngineKind::Reflection),
        (EngineKind::Passthrough, _) => EngineKind::Passthrough,
        (wanted, Some(recorded)) => {
            if options.read_only {
                recorded
            } else {
                wanted
            }
        }
        (wanted, None) => wanted,
    };
    if options.read_only && chosen != EngineKind::Passthrough {
        let medium = Arc::clone(&medium);
        let opened: Option<Box<dyn Engine>> = match chosen {
            EngineKind::HybridLog => hybrid_log::HybridLog::open_for_reading(medium, path, options)?.map(boxed),
            _ => reflection::Reflection::open_for_reading(medium, path, options)?.map(boxed),
        };
        if let Some(engine) = opened {
            return Ok(engine);
        }
        // A plain file needs no sidecar to be read, and a reader may not create one.
    } else if chosen == EngineKind::HybridLog {
        return hybrid_log::HybridLog::open(medium, path, options).map(boxed);
    } else if chosen == EngineKind::Reflection {
        return reflection::Reflection::open(medium, path, options).map(boxed);
    }
    passthrough::Passthrough::open(medium, path, options).map(boxed)
}

fn boxed(engine: impl Engine + 'static) -> Box<dyn Engine> {
    Box::new(engine)
}

/// The error for a range outside the file, or nothing.
#[inline(always)]
pub(crate) fn check_range(path: &Path, offset: u64, len: u64, file_len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= file_len => Ok(()),
        _ => Err(out_of_range(path, offset, len, file_len)),
    }
}

#[cold]
fn out_of_range(path: &Path, offset: u64, len: u64, file_len: u64) -> Error {
    Error::OutOfRange { path: path.to_owned(), offset, len, file_len }
}
