//! How a file is protected, and the beginning of it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Protected;
use crate::error::{Error, Result};
use crate::format::magic::is_region_store;
use crate::options::{ProtectOptions, Settings};
use crate::redundancy::{Both, Mode, Redundancy, Service, SidecarPages, TICK, Threads, Told, Tracker, kept_period};
use crate::storage::{self, Access, Dax, Latched, Medium, MediumFile, MediumKind, PageCache};
use crate::sys::mappings::MappedRange;
use crate::sys::tracking::SharedTracking;
use crate::sys::{mappings, page_size};

/// Bytes of a page, whatever those of the system are.
const PAGE: u64 = 4096;

impl ProtectOptions {
    /// Protects a file to which all stores are [announced](Protected::announce), until it is closed or dropped. What is not
    /// covered yet will be covered by the first [`sync`](Protected::sync), or after the first period; if that is 0, before
    /// this returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty file, one that has an engine (see [`Options::redundancy`](crate::Options::redundancy)) or
    /// another length than when it was protected, a [region store](crate::RegionStore), and for
    /// options that differ from those it is protected with; [`Error::InUse`] while it is protected by another handle or
    /// process; [`Error::Corrupt`] if neither copy of the superblock is whole.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Protected> {
        let path = &storage::resolve(path.as_ref())?;
        self.start_at(on(path)?, path, self.announced())
    }

    /// How stores that are announced are covered.
    fn announced(&self) -> Mode {
        if self.period == Some(Duration::ZERO) { Mode::Synchronous } else { Mode::Announced }
    }

    /// The same with the period that is kept with the file, if none was named.
    pub(crate) fn with_kept<M: Medium>(mut self, medium: &M, path: &Path) -> Result<Self> {
        if self.any_period && self.settings.keep.is_none() {
            self.period = kept_period(medium, path)?.or(self.period);
        }
        Ok(self)
    }

    /// Refuses to cover at once what is found afterwards.
    fn check_period(&self, path: &Path) -> Result<()> {
        if self.period != Some(Duration::ZERO) {
            return Ok(());
        }
        let what = "stores to a mapping are found after they were made, so they cannot be covered at once; choose a period, or \
                    open it with `open` and announce them";
        Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() })
    }

    /// Protects the file that the program has mapped at `address`: the whole of it, shared. Stores of this process through
    /// that mapping are found by themselves; there must be no others, neither with `write(2)` nor through another mapping.
    /// Keep the mapping until the handle is closed or dropped: once it is unmapped or mapped over every call fails, and what was
    /// stored last is unknown.
    ///
    /// # Errors
    /// Those of [`open`](ProtectOptions::open); [`Error::Invalid`] if there is no such mapping, with a period of 0, on persistent
    /// memory, and where the kernel cannot track stores (it takes Linux 6.7 and a process that may use userfaultfd):
    /// announce them there.
    pub fn mapping(&self, address: *const u8, len: usize) -> Result<Protected> {
        let mapped = mapped_at(address)?;
        self.check_period(&mapped.path)?;
        let (place, tracker) = tracked(&mapped, address, len)?;
        self.start_at(place, &mapped.path, Mode::Tracked(tracker))
    }

    /// [`open`](ProtectOptions::open) on a medium of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn open_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<Protected> {
        self.start(medium, path.as_ref(), self.announced())
    }

    /// The same for a file whose stores this tracker finds.
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] with a period of 0.
    pub fn track_on<M: Medium>(
        &self,
        medium: M,
        path: impl AsRef<Path>,
        tracker: Arc<dyn Tracker>,
    ) -> Result<Protected> {
        self.check_period(path.as_ref())?;
        self.start(medium, path.as_ref(), Mode::Tracked(tracker))
    }

    /// A handle to a protected file that nobody stores to, to [`scrub`](Protected::scrub) and
    /// [`repair`](Protected::repair) it: for simulators. On real media there are [`scrub()`](super::scrub()) and [`repair()`](super::repair()).
    ///
    /// # Errors
    /// Those of [`open`](ProtectOptions::open), and ENOENT if it is not protected.
    pub fn look_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<Protected> {
        self.start(medium, path.as_ref(), Mode::Look)
    }

    fn start_at(&self, place: On, path: &Path, mode: Mode) -> Result<Protected> {
        let started = match place {
            On::Memory(medium) => self.start(medium, path, mode),
            On::Disk(medium) => self.start(medium, path, mode),
        };
        started.map(|protected| Protected { tick: TICK, ..protected })
    }

    fn start<M: Medium>(&self, medium: M, path: &Path, mode: Mode) -> Result<Protected> {
        let only_looks = matches!(mode, Mode::Look | Mode::Report);
        let medium = Arc::new(Latched::new(medium));
        if only_looks {
            return look_with(medium, path, mode);
        }
        let options = self.clone().with_kept(&*medium, path)?;
        let mode = match mode {
            // What is found afterwards cannot be covered at once, whatever else the file is opened for.
            Mode::Tracked(_) if options.period == Some(Duration::ZERO) => {
                return Self { period: Self::new().period, any_period: false, ..options }.start_on(medium, path, mode);
            }
            Mode::Tracked(_) => mode,
            _ => options.announced(),
        };
        options.start_on(medium, path, mode)
    }

    fn start_on<M: Medium>(&self, medium: Arc<Latched<M>>, path: &Path, mode: Mode) -> Result<Protected> {
        refuse_own(&*medium, path)?;
        let redundancy = Arc::new(Redundancy::open(medium, path, mode, self.settings)?);
        let kept: Arc<dyn Service> = redundancy.clone();
        let service: Arc<dyn Told> = redundancy;
        let threads = Threads::start(&kept, self)?;
        Ok(Protected { service, threads, tick: Duration::ZERO })
    }
}

/// Refuses what untorn itself stores to without a word: whatever it stores would be unknown, or taken for damage.
fn refuse_own<M: Medium>(medium: &M, path: &Path) -> Result<()> {
    let file = medium.open(path, Access::Read, 0)?;
    let mut start = [0; 2 * PAGE as usize];
    let there = file.len().min(start.len() as u64) as usize;
    // One that cannot be read is damaged, and whoever protects it is told so otherwise.
    let is_there = there > 0 && file.read_unless_bad(0, &mut start[..there])?;
    if is_there && is_region_store(&start[..there]) {
        let what =
            "it is a region store, and redundancy is not told of what is committed to it; a store cannot be protected";
        return Err(invalid(path, what.to_owned()));
    }
    Ok(())
}

/// A handle that only looks: at the file, and at its sidecar if redundancy is kept of that.
fn look_with<M: Medium>(medium: Arc<M>, path: &Path, mode: Mode) -> Result<Protected> {
    let sidecar = SidecarPages::new(Arc::clone(&medium), path, mode.clone(), Settings::BATCH)?;
    let data = Redundancy::open(medium, path, mode, Settings::default())?;
    sidecar.bind()?;
    let service: Arc<dyn Told> = Arc::new(Both { data, sidecar });
    Ok(Protected { service, threads: Threads::none(), tick: Duration::ZERO })
}

/// A handle that only looks.
pub(crate) fn look(path: &Path, mode: Mode) -> Result<Protected> {
    ProtectOptions::new().start_at(on(path)?, path, mode)
}

/// Finds stores to a file that the program has mapped at `address`, as [`ProtectOptions::mapping`] does, and covers nothing:
/// for who wants to know what finding them costs by itself.
///
/// # Errors
/// Those of finding stores that are there.
pub fn track(address: *const u8, len: usize) -> Result<Arc<dyn Tracker>> {
    tracked(&mapped_at(address)?, address, len).map(|(_, tracker)| tracker)
}

fn invalid(path: &Path, what: String) -> Error {
    Error::Invalid { path: path.to_owned(), what }
}

/// What the program has mapped there.
fn mapped_at(address: *const u8) -> Result<MappedRange> {
    let found = mappings::around(address as usize);
    let found = found.map_err(|error| Error::io("read", Path::new("/proc/self/maps"), error))?;
    let nowhere = || invalid(Path::new("(memory)"), format!("no file is mapped at address {address:p}"));
    let mapped = found.ok_or_else(nowhere)?;
    let path = &mapped.path;
    let metadata = std::fs::metadata(path).map_err(|error| Error::io("open", path, error))?;
    if std::os::unix::fs::MetadataExt::ino(&metadata) != mapped.inode {
        return Err(invalid(path, "another file has this name by now; map it anew".to_owned()));
    }
    Ok(mapped)
}

/// What the file lies on, and who finds stores to its mapping from now on.
fn tracked(mapped: &MappedRange, address: *const u8, len: usize) -> Result<(On, Arc<dyn Tracker>)> {
    let MappedRange { addresses, shared, offset, path, .. } = mapped;
    let file_len = std::fs::metadata(path).map_err(|error| Error::io("open", path, error))?.len();
    let rounded = len.next_multiple_of(page_size());
    let whole = addresses.start == address as usize && *offset == 0 && len as u64 >= file_len;
    if !shared || !whole || rounded > addresses.len() {
        let what = format!(
            "what is protected is a shared mapping of a whole file ({file_len} bytes), from its first address on; at \
             {address:p} there are {len} bytes of a mapping that begins at byte {offset} of the file"
        );
        return Err(invalid(path, what));
    }
    let place = on(path)?;
    if matches!(&place, On::Memory(_)) && storage::detect(path)?.kind == MediumKind::PersistentMemory {
        let what =
            "on persistent memory stores cannot be tracked by write protection; open it with `open` and announce them";
        return Err(invalid(path, what.to_owned()));
    }
    let tracking = SharedTracking::new(address as usize, rounded).map_err(|error| {
        if error.kind() == std::io::ErrorKind::ResourceBusy {
            let holder = "this process, which has this very mapping protected or watched by userfaultfd".to_owned();
            return Error::InUse { path: path.clone(), holder };
        }
        let what =
            format!("stores to its mapping cannot be tracked here ({error}); open it with `open` and announce them");
        invalid(path, what)
    })?;
    Ok((place, Arc::new(PageTables { tracking, path: path.clone() })))
}

/// What a file lies on.
enum On {
    Memory(Dax),
    Disk(PageCache),
}

fn on(path: &Path) -> Result<On> {
    let detected = storage::detect(path)?;
    Ok(match detected.kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => On::Memory(Dax::new(detected.kind)),
        MediumKind::Block | MediumKind::Volatile => On::Disk(PageCache::new()),
    })
}

/// Page tables, as a [`Tracker`].
struct PageTables {
    tracking: SharedTracking,
    path: std::path::PathBuf,
}

impl PageTables {
    fn pages(&self, found: std::io::Result<crate::sys::runs::Runs>) -> Result<Vec<Range<u64>>> {
        let runs = found.map_err(|error| Error::io("find out what was stored to the mapping of", &self.path, error))?;
        Ok(runs.into_ranges().into_iter().map(|run| run.start / PAGE..run.end.div_ceil(PAGE)).collect())
    }
}

impl Tracker for PageTables {
    fn take(&self) -> Result<Vec<Range<u64>>> {
        self.pages(self.tracking.take())
    }

    fn look(&self) -> Result<Vec<Range<u64>>> {
        self.pages(self.tracking.look())
    }
}
