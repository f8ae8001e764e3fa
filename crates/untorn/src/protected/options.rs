//! How a file is protected, and the beginning of it.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Protected;
use super::service::Service;
use super::threads::Threads;
use crate::error::{Error, Result};
use crate::medium::{self, Dax, Latched, Medium, MediumKind, PageCache};
use crate::redundancy::{Checksum, Damage, Mode, Redundancy, Settings, StripeLayout, Tracker};
use crate::sys::mappings::MappedRange;
use crate::sys::tracking::SharedTracking;
use crate::sys::{mappings, page_size};

/// The shortest time between two stores that a file's modification time tells apart, and more: kernels note it by a clock
/// that ticks as seldom as 100 times a second.
const TICK: Duration = Duration::from_millis(20);

/// Bytes of a page, whatever those of the system are.
const PAGE: u64 = 4096;

/// What is called with each damage that the scrub in the background comes upon.
pub(super) type DamageFn = Arc<dyn Fn(&Damage) + Send + Sync>;

/// How a file is protected.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
/// use std::time::Duration;
/// let options = untorn::ProtectOptions::new().stripe(8).period(Duration::from_secs(30));
/// options.open(&path)?.close()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ProtectOptions {
    settings: Settings,
    /// `None` is when somebody asks for it, 0 at once.
    pub(super) period: Option<Duration>,
    pub(super) scrub_every: Option<Duration>,
    pub(super) scrub_rate: Option<u64>,
    pub(super) on_damage: Option<DamageFn>,
}

impl Default for ProtectOptions {
    fn default() -> Self {
        ProtectOptions {
            settings: Settings { batch: Settings::BATCH, ..Settings::default() },
            period: Some(Duration::from_secs(1)),
            scrub_every: None,
            scrub_rate: None,
            on_damage: None,
        }
    }
}

impl fmt::Debug for ProtectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectOptions").field("settings", &self.settings).field("period", &self.period).finish()
    }
}

impl ProtectOptions {
    /// Stripes of four consecutive pages, CRC-32C, a period of one second, no scrub in the background. A file that is
    /// protected already keeps its shape.
    pub fn new() -> Self {
        ProtectOptions::default()
    }

    /// Data pages that share a parity page, 1 to 64. The fewer, the more damage can be repaired, and the more space and
    /// time it takes.
    #[must_use]
    pub fn stripe(mut self, pages: u32) -> Self {
        self.settings.stripe = Some(pages);
        self
    }

    /// Which pages share a parity page.
    #[must_use]
    pub fn layout(mut self, layout: StripeLayout) -> Self {
        self.settings.layout = Some(layout);
        self
    }

    /// The checksum of a page.
    #[must_use]
    pub fn checksum(mut self, checksum: Checksum) -> Self {
        self.settings.checksum = Some(checksum);
        self
    }

    /// How often a thread covers what was stored to.
    ///
    /// With 0 there is no thread and no delay: a page is covered when its [`Stores`](super::Stores) are dropped, by the
    /// difference that they made to it, and a page that is damaged beside it can be given back all the while. That takes four
    /// flushes for each announcement, and until it is dropped memory for what its pages held, as many bytes as are announced.
    /// Where that is more than a [batch](ProtectOptions::batch), stripes all of whose pages are announced take no memory, and
    /// three more flushes for each batch of them. With [`StripeLayout::Spread`] such stripes are few: announce what is large
    /// in parts.
    ///
    /// It is for stores that are [announced](Protected::announce); those to a [mapping](ProtectOptions::mapping) are found
    /// afterwards only, and with 0 it is refused.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// use std::os::unix::fs::FileExt;
    /// let file = std::fs::File::options().write(true).open(&path).unwrap();
    /// let protected = untorn::ProtectOptions::new().period(std::time::Duration::ZERO).open(&path)?;
    /// let stores = protected.announce(100..105)?;
    /// file.write_all_at(b"hello", 100).unwrap();
    /// drop(stores);
    /// assert_eq!(protected.coverage()?.uncovered, 0);
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = Some(period);
        self
    }

    /// Has no thread cover what was stored to: [`Protected::sync`], [`Stores::cover`](super::Stores::cover) and
    /// [`Protected::close`] do.
    #[must_use]
    pub fn on_demand(mut self) -> Self {
        self.period = None;
        self
    }

    /// Pages that are covered at a time, with two flushes.
    #[must_use]
    pub fn batch(mut self, pages: u64) -> Self {
        self.settings.batch = pages;
        self
    }

    /// Has a thread scrub the file, and again this long after it is through. Without it nobody does.
    #[must_use]
    pub fn scrub_every(mut self, pause: Duration) -> Self {
        self.scrub_every = Some(pause);
        self
    }

    /// Bytes of the file that a scrub reads in a second, at most. Without it as many as it can.
    #[must_use]
    pub fn scrub_rate(mut self, bytes: u64) -> Self {
        self.scrub_rate = Some(bytes);
        self
    }

    /// Is called with each damage that the scrub in the background comes upon, on its thread.
    #[must_use]
    pub fn on_damage(mut self, call: impl Fn(&Damage) + Send + Sync + 'static) -> Self {
        self.on_damage = Some(Arc::new(call));
        self
    }

    /// Protects a file to which all stores are [announced](Protected::announce), until it is closed or dropped. What is not
    /// covered yet will be covered by the first [`sync`](Protected::sync), or after the first period; if that is 0, before
    /// this returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty file, one that has an engine or another length than when it was protected, and for
    /// options that differ from those it is protected with; [`Error::InUse`] while it is protected by another handle or
    /// process; [`Error::Corrupt`] if neither copy of the superblock is whole.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Protected> {
        let path = &medium::resolve(path.as_ref())?;
        self.start_at(on(path)?, path, self.announced())
    }

    /// How stores that are announced are covered.
    fn announced(&self) -> Mode {
        if self.period == Some(Duration::ZERO) { Mode::Synchronous } else { Mode::Announced }
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
        let settings = if only_looks { Settings::default() } else { self.settings };
        let redundancy = Redundancy::open(Arc::new(Latched::new(medium)), path, mode, settings)?;
        let service: Arc<dyn Service> = Arc::new(redundancy);
        let threads = if only_looks { Threads::none() } else { Threads::start(&service, self)? };
        Ok(Protected { service, threads, tick: Duration::ZERO })
    }
}

/// A handle that only looks.
pub(super) fn look(path: &Path, mode: Mode) -> Result<Protected> {
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
    if matches!(&place, On::Memory(_)) && medium::detect(path)?.kind == MediumKind::PersistentMemory {
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
    let detected = medium::detect(path)?;
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
