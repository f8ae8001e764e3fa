//! Starting to protect a file, and the checks before it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Protected;
use crate::error::{Error, ProtectionProblem, Result};
use crate::format::magic::is_region_store;
use crate::options::{ProtectOptions, Settings};
use crate::redundancy::{FileRedundancy, Mode, RedundancyService, TICK, Threads, TrackedPages, Tracker, kept_pace};
use crate::storage::{self, Access, Dax, Latched, Medium, MediumFile, MediumKind, PageCache};
use crate::sys::mappings::MappedRange;
use crate::sys::tracking::SharedTracking;
use crate::sys::{mappings, page_size};

/// Bytes of a page, whatever those of the system are.
const PAGE: u64 = 4096;

impl ProtectOptions {
    /// Protects a file until the handle is closed or dropped. All stores to the file must be
    /// [announced](Protected::announce). Pages that are not covered yet are covered by the first
    /// [`sync`](Protected::sync) or after the first period; with a period of 0, before this returns.
    ///
    /// # Errors
    /// - [`Error::Protection`] for an empty file, a file with a sidecar (see
    ///   [`Options::redundancy`](crate::Options::redundancy)), a file with another length than when it was protected, a
    ///   [region store](crate::region::RegionStore), and options that differ from those the file is protected with.
    /// - [`Error::InUse`] while another handle or process protects it.
    /// - [`Error::Corrupt`] if neither copy of the superblock is valid.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Protected> {
        let path = &storage::resolve(path.as_ref())?;
        self.start_at(on(path)?, path, self.announced())
    }

    /// How stores that are announced are covered.
    pub(crate) fn announced(&self) -> Mode {
        if self.period == Some(Duration::ZERO) { Mode::Synchronous } else { Mode::Announced }
    }

    /// The same with the period and the cap that are kept with the file, if none was named.
    pub(crate) fn with_kept<M: Medium>(mut self, medium: &M, path: &Path) -> Result<Self> {
        let any_period = self.any_period && self.settings.keep.is_none();
        // On demand is on demand, unless the program names a cap.
        let any_cap = self.max_uncovered.is_none() && self.period.is_some();
        if any_period || any_cap {
            let (period, max_uncovered) = kept_pace(medium, path)?;
            if any_period {
                self.period = period.or(self.period);
            }
            if any_cap {
                self.max_uncovered = self.settings.keep_max_uncovered.or(max_uncovered);
            }
        }
        Ok(self)
    }

    /// Refuses to cover at once what is found afterwards.
    fn check_period(&self, path: &Path) -> Result<()> {
        if self.period != Some(Duration::ZERO) {
            return Ok(());
        }
        let what = "a tracked mapping cannot have period 0, because untorn finds stores only after they were made; \
                    choose a longer period, or use `open` and announce the stores";
        Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() })
    }

    /// Protects the file that the program has mapped at `address`: the whole file, mapped shared. untorn finds the
    /// stores that this process makes through that mapping. There must be no other stores, neither with `write(2)` nor
    /// through another mapping. A mapping may be longer than the file, which can then [get
    /// longer](Protected::set_len). Keep the mapping until the handle is closed or dropped. If it is unmapped or mapped
    /// over, every call fails, and the last stores are unknown.
    ///
    /// # Errors
    /// As for [`open`](ProtectOptions::open). [`Error::Invalid`] if there is no such mapping, with a period of 0, and
    /// on persistent memory; [`Error::Protection`] if the kernel cannot track stores (this takes Linux 6.7 and a
    /// process that may use userfaultfd). Announce the stores in these cases.
    pub fn mapping(&self, address: *const u8, len: usize) -> Result<Protected> {
        let mapped = mapped_at(address)?;
        self.check_period(&mapped.path)?;
        let (place, tracker) = tracked(&mapped, address, len)?;
        self.start_at(place, &mapped.path, Mode::Tracked(tracker))
    }

    /// Like [`open`](ProtectOptions::open), on a custom medium; for simulators.
    ///
    /// # Errors
    /// As for [`open`](ProtectOptions::open).
    pub fn open_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<Protected> {
        self.start(medium, path.as_ref(), self.announced())
    }

    /// Like [`open_on`](ProtectOptions::open_on), for a file whose stores this tracker finds.
    ///
    /// # Errors
    /// As for [`open`](ProtectOptions::open); [`Error::Invalid`] with a period of 0.
    pub fn track_on<M: Medium>(
        &self,
        medium: M,
        path: impl AsRef<Path>,
        tracker: Arc<dyn Tracker>,
    ) -> Result<Protected> {
        self.check_period(path.as_ref())?;
        self.start(medium, path.as_ref(), Mode::Tracked(tracker))
    }

    /// Opens a handle to [`scrub`](Protected::scrub) and [`repair`](Protected::repair) a protected file that no process
    /// stores to; for simulators. For real media use [`scrub()`](super::scrub()) and [`repair()`](crate::repair()).
    ///
    /// # Errors
    /// As for [`open`](ProtectOptions::open), and [`Error::Protection`] if the file is not protected.
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
        let medium = Arc::new(Latched::new(medium));
        if matches!(mode, Mode::Look | Mode::Report) {
            let service = redundancy_of(medium, path, mode, Self::new().settings)?;
            return Ok(Protected { service, threads: Threads::none(), tick: Duration::ZERO });
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
        let service = redundancy_of(medium, path, mode, self.settings)?;
        let threads = Threads::start(&service, self)?;
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
        return Err(Error::protection(path, ProtectionProblem::RegionStore));
    }
    Ok(())
}

/// The redundancy of a file that no engine has open. A caller that only looks at it looks at its sidecar too,
/// if that has redundancy.
fn redundancy_of<M: Medium>(
    medium: Arc<M>,
    path: &Path,
    mode: Mode,
    settings: Settings,
) -> Result<Arc<dyn RedundancyService>> {
    let looks = matches!(mode, Mode::Look | Mode::Report);
    let sidecar = TrackedPages::of_sidecar(Arc::clone(&medium), path, mode.clone(), settings.batch)?;
    let data = TrackedPages::plain(medium, path, mode, settings)?;
    if looks {
        sidecar.bind()?;
    }
    Ok(Arc::new(FileRedundancy::new(data, sidecar, None)))
}

/// A handle that only looks.
pub(crate) fn look(path: &Path, mode: Mode) -> Result<Protected> {
    ProtectOptions::new().start_at(on(path)?, path, mode)
}

/// Finds the stores to a file that the program has mapped at `address`, as [`ProtectOptions::mapping`] does, but covers
/// nothing. It measures what finding stores costs by itself.
///
/// # Errors
/// Errors of setting up the tracking; see [`ProtectOptions::mapping`].
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
    let nowhere = || {
        invalid(
            Path::new("(memory)"),
            format!(
                "no file is mapped at address {address:p}; pass the first \
                                                             address of a mapping"
            ),
        )
    };
    let mapped = found.ok_or_else(nowhere)?;
    let path = &mapped.path;
    let metadata = std::fs::metadata(path).map_err(|error| Error::io("open", path, error))?;
    if std::os::unix::fs::MetadataExt::ino(&metadata) != mapped.inode {
        return Err(invalid(path, "another file has this name now; map the file again".to_owned()));
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
            "only a shared mapping of the whole file ({file_len} bytes) can be protected, by its first address; the \
             range at {address:p} has {len} bytes and its mapping starts at byte {offset} of the file"
        );
        return Err(invalid(path, what));
    }
    let place = on(path)?;
    if matches!(&place, On::Memory(_)) && storage::detect(path)?.kind == MediumKind::PersistentMemory {
        let what = "write protection cannot track stores on persistent memory; use `open` and announce the stores";
        return Err(invalid(path, what.to_owned()));
    }
    let tracking = SharedTracking::new(address as usize, rounded).map_err(|error| {
        if error.kind() == std::io::ErrorKind::ResourceBusy {
            let holder = "this process, which already protects this mapping or watches it with \
                          userfaultfd(2)"
                .to_owned();
            return Error::InUse { path: path.clone(), holder };
        }
        Error::protection(path, ProtectionProblem::Untrackable { cause: error.to_string() })
    })?;
    Ok((place, Arc::new(PageTables { tracking, path: path.clone(), reach: rounded as u64 })))
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
    /// Bytes of the mapping.
    reach: u64,
}

impl PageTables {
    fn pages(&self, found: std::io::Result<crate::sys::runs::Runs>) -> Result<Vec<Range<u64>>> {
        let runs = found.map_err(|error| Error::io("find the stores to the mapping of", &self.path, error))?;
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

    fn reach(&self) -> Option<u64> {
        Some(self.reach)
    }
}
