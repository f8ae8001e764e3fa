//! The factory: it chooses the engine and the medium of a file, with or without redundancy, alone or with other
//! processes.
//!
//! Products do not import each other; this module, above all of them, composes operations that need several. So it
//! has the functions of [`AtomicFile`], [`AtomicMap`](crate::AtomicMap) and [`SharedMap`](crate::shared::SharedMap)
//! that open a file, and those that need both a file and its redundancy ([`redundancy`]).
//!
//! Without the feature `redundancy`, `no_redundancy.rs` stands in for `redundancy.rs`: it refuses a file that has any.
//!
//! Reading order: [`open`] (registry, exclusion check, medium), [`engine_on`] (redundancy around an engine),
//! [`bare_engine_on`] (which engine, and snapshots around it); then [`map`], [`redundancy`], [`recover`], [`adopt`].
//!
//! Lock order: the file's place in the registry, then the exclusion check, then the sidecar's lock.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::commits::{check_no_regions, glance, with_commit_log};
use crate::engine::exclusion::{NotShared, retry_while_shared};
use crate::engine::snapshot::remote::server;
use crate::engine::snapshot::{Capture, WithSnapshots};
use crate::engine::{Engine, EngineKind, Shared, default_engine, registry};
use crate::error::{Error, Result};
use crate::file::AtomicFile;
use crate::file::hybrid_log::HybridLog;
use crate::file::passthrough::Passthrough;
use crate::file::reflection::Reflection;
use crate::file::reflection::background::Deploying;
use crate::format::sidecar::attach::engine_of;
use crate::options::{ExclusionCheck, Options};
use crate::shared;
use crate::storage::{self, Dax, Latched, Medium, MediumFile, MediumKind, PageCache};
use crate::sys::sync;

mod adopt;
pub mod commits;
pub(crate) mod leftovers;
mod map;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;
mod recover;
#[cfg_attr(not(feature = "redundancy"), path = "no_redundancy.rs")]
pub(crate) mod redundancy;
mod snapshot;

pub use self::leftovers::prune;
pub use self::recover::recover;
use self::redundancy::{TICK, engine_on};

impl AtomicFile {
    /// Opens an existing file with default [`Options`].
    ///
    /// # Errors
    /// See [`Options::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::new().open(path)
    }

    /// Creates a file of `len` zero bytes with default [`Options`].
    ///
    /// # Errors
    /// See [`Options::create`].
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        Options::new().create(path, len)
    }

    /// Opens a file with default [`Options`], and creates it with `len` zero bytes first if it does not exist.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("ledger");
    /// use untorn::AtomicFile;
    ///
    /// for run in 1..=2_u8 {
    ///     let file = AtomicFile::open_or_create(&path, 4096)?;
    ///     let mut count = [0];
    ///     file.read_at(&mut count, 0)?;
    ///     assert_eq!(count, [run - 1]);
    ///     file.write_at(&[run], 0)?;
    ///     file.sync()?;
    ///     file.close()?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Options::open_or_create`].
    pub fn open_or_create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        Options::new().open_or_create(path, len)
    }
}

impl Options {
    /// Opens an existing file. It recovers the file after a crash, and creates a sidecar if the file has none.
    ///
    /// # Errors
    /// Any variant of [`Error`]; the file is then unchanged.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<AtomicFile> {
        open(path.as_ref(), self).map(AtomicFile::new)
    }

    /// Creates a file of `len` zero bytes and opens it.
    ///
    /// # Errors
    /// As for [`open`](Options::open), and [`Error::Io`] with EEXIST if the file exists.
    pub fn create(&self, path: impl AsRef<Path>, len: u64) -> Result<AtomicFile> {
        create(path.as_ref(), len, self).map(AtomicFile::new)
    }

    /// Opens a file, and creates it with `len` zero bytes first if it does not exist. An empty file grows to `len`, as
    /// one that another process is just creating; any other file keeps its length.
    ///
    /// # Errors
    /// As for [`open`](Options::open) and [`create`](Options::create); never EEXIST for a regular file.
    pub fn open_or_create(&self, path: impl AsRef<Path>, len: u64) -> Result<AtomicFile> {
        let path = path.as_ref();
        let file = open_or_create(path, || self.open(path), || self.create(path, len))?;
        if file.is_empty() && len > 0 {
            file.resize(len)?;
            file.sync()?;
        }
        Ok(file)
    }

    /// Like [`open`](Options::open), on a custom medium such as a simulated one.
    ///
    /// # Errors
    /// As for [`open`](Options::open).
    pub fn open_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<AtomicFile> {
        open_on(medium, path.as_ref(), self).map(AtomicFile::new)
    }

    /// Like [`create`](Options::create), on a custom medium.
    ///
    /// # Errors
    /// As for [`create`](Options::create).
    pub fn create_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>, len: u64) -> Result<AtomicFile> {
        create_on(medium, path.as_ref(), len, self).map(AtomicFile::new)
    }
}

pub(crate) fn open(path: &Path, options: &Options) -> Result<sync::Arc<Shared>> {
    options.validate(path)?;
    // Another file may get the name between our looking at it and the engine's opening it; each time round we look
    // anew.
    for _ in 0..16 {
        let path = &storage::resolve(path)?;
        let detected = storage::detect(path)?;
        let mut replaced = false;
        let others = if options.shared {
            Some(NotShared::as_memory(path, detected.identity))
        } else if options.exclusion.is_some() {
            None
        } else {
            Some(NotShared::of_any_kind(path, detected.identity))
        };
        let opened = retry_while_shared(|turned_away| {
            registry::shared(path, detected.identity, options, || {
                // Here for readers, and for whoever would give the file a sidecar. Whether it is still so is asked
                // when it is locked.
                let asked = others.as_ref().map_or(Ok(()), ExclusionCheck::check_exclusion);
                *turned_away = matches!(asked, Err(Error::InUse { .. }));
                asked?;
                let admitted = others.clone().map(|others| options.checked_by(others));
                let options = admitted.as_ref().unwrap_or(options);
                let engine = if options.shared {
                    let (kind, place) = (detected.kind, path.clone());
                    // The process that serves next goes on from the sidecar: the last to leave says when it goes.
                    let opener =
                        Arc::new(move |options: &Options| engine_at(kind, &place, &options.clone().keep_sidecar(true)));
                    shared::file::open(path, detected.identity, options, opener)
                } else {
                    engine_at(detected.kind, path, options)
                }?;
                replaced = engine.identity()? != detected.identity;
                if replaced { Err(in_flux(path)) } else { Ok(engine) }
            })
        });
        if !replaced {
            if opened.is_ok() && !options.read_only && options.serve_snapshots {
                server::start();
            }
            return opened.inspect(|shared| {
                let (read_only, len) = (options.read_only, shared.engine.len());
                tracing::debug!(path = %path.display(), medium = %detected.kind, len, read_only, "opened");
            });
        }
    }
    Err(in_flux(path))
}

/// The engine on the medium that a file was found on.
fn engine_at(kind: MediumKind, path: &Path, options: &Options) -> Result<Box<dyn Engine>> {
    let engine = match kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
            let medium = metrics::counted(Dax::new(kind).on_lost_page(options.lost_page), path);
            engine_on(Arc::new(Latched::new(medium)), path, options, TICK)
        }
        MediumKind::Block | MediumKind::Volatile => {
            let medium = metrics::counted(PageCache::new().on_lost_page(options.lost_page), path);
            engine_on(Arc::new(Latched::new(medium)), path, options, TICK)
        }
    };
    engine.map(metrics::metered)
}

fn in_flux(path: &Path) -> Error {
    let holder = "another process, which keeps replacing the file".to_owned();
    Error::InUse { path: path.to_owned(), holder }
}

pub(crate) fn create(path: &Path, len: u64, options: &Options) -> Result<sync::Arc<Shared>> {
    options.validate(path)?;
    let path = &storage::absolute(path)?;
    let medium = PageCache::new();
    let made = medium.create(path, len, len)?.identity()?;
    tracing::debug!(path = %path.display(), len, "created a file of zeros");
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

/// Opens what there is at a path, or creates it. Another process may create or remove the file between two steps; each
/// time round this looks anew.
fn open_or_create<T>(path: &Path, open: impl Fn() -> Result<T>, create: impl Fn() -> Result<T>) -> Result<T> {
    let is = |error: &Error, kind| matches!(error, Error::Io { source, .. } if source.kind() == kind);
    for _ in 0..16 {
        match open() {
            // A symbolic link to nothing is a name that is taken.
            Err(error) if is(&error, ErrorKind::NotFound) && !path.is_symlink() => {}
            opened => return opened,
        }
        match create() {
            Err(error) if is(&error, ErrorKind::AlreadyExists) => {}
            created => return created,
        }
    }
    Err(in_flux(path))
}

/// Removes a file that was just created and cannot be used after all because of this error. The caller's is its only
/// handle.
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
        let what = "a file on a custom medium cannot be shared with other processes; open it without \
                    `Options::shared`"
            .to_owned();
        return Err(Error::Invalid { path: path.to_owned(), what });
    }
    let engine = engine_on(Arc::new(Latched::new(medium)), path, options, Duration::ZERO)?;
    Ok(sync::Arc::new(Shared::unregistered(engine, options.exclusive)))
}

pub(crate) fn create_on<M: Medium>(medium: M, path: &Path, len: u64, options: &Options) -> Result<sync::Arc<Shared>> {
    options.validate(path)?;
    drop(medium.create(path, len, len)?);
    open_on(medium, path, options)
}

/// The engine of a file, whatever redundancy it has, with its commit log. `covered` says whether it has any.
fn bare_engine_on<M: Medium>(medium: Arc<M>, path: &Path, options: &Options, covered: bool) -> Result<Box<dyn Engine>> {
    if options.read_only || options.engine == EngineKind::Passthrough {
        return chosen_engine_on(medium, path, options, covered);
    }
    // How the file stands tells whether the log goes on; the engine may change that.
    check_no_regions(&*medium, path, options)?;
    let glance = glance(&*medium, path)?;
    let engine = chosen_engine_on(Arc::clone(&medium), path, options, covered)?;
    with_commit_log(engine, &medium, options, glance)
}

fn chosen_engine_on<M: Medium>(
    medium: Arc<M>,
    path: &Path,
    options: &Options,
    covered: bool,
) -> Result<Box<dyn Engine>> {
    let recorded = if options.engine == EngineKind::Passthrough { None } else { engine_of(&*medium, path)? };
    // A reader takes the file as it is, whatever engine it asked for.
    let chosen = match (options.engine, recorded) {
        (EngineKind::Auto, recorded) => recorded
            .unwrap_or_else(|| default_engine(medium.class(), options.durability, covered || options.plain_at_close)),
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
        let used = Arc::clone(&medium);
        let opened = match chosen {
            EngineKind::HybridLog => {
                HybridLog::open_for_reading(medium, path, options)?.map(|engine| with_snapshots(engine, &used, options))
            }
            _ => Reflection::open_for_reading(medium, path, options)?
                .map(|engine| with_snapshots(engine, &used, options)),
        };
        if let Some(engine) = opened {
            return engine;
        }
        // A plain file needs no sidecar to be read, and a reader may not create one.
        return with_snapshots(Passthrough::open(Arc::clone(&used), path, options)?, &used, options);
    }
    let used = Arc::clone(&medium);
    match chosen {
        EngineKind::HybridLog => with_snapshots(HybridLog::open(medium, path, options)?, &used, options),
        EngineKind::Reflection | EngineKind::Shadow => {
            let engine = Reflection::open(medium, path, chosen, options)?;
            // With background work, if that is wanted.
            if engine.deploys_ahead() {
                with_snapshots(Deploying::new(engine), &used, options)
            } else {
                with_snapshots(engine, &used, options)
            }
        }
        _ => with_snapshots(Passthrough::open(medium, path, options)?, &used, options),
    }
}

fn with_snapshots<M: Medium>(
    engine: impl Capture + 'static,
    medium: &Arc<M>,
    options: &Options,
) -> Result<Box<dyn Engine>> {
    Ok(Box::new(WithSnapshots::new(engine, Arc::clone(medium), options)?))
}
