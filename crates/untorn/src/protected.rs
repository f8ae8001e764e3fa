//! [`Protected`]: redundancy for a plain file, or for a mapping that the program made itself.

mod threads;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use threads::Threads;

use crate::error::{Error, Result};
use crate::medium::{self, Dax, Latched, Medium, MediumKind, PageCache};
use crate::redundancy::{
    self, Checksum, Coverage, Damage, Mode, Redundancy, RepairReport, Scrub, ScrubReport, Settings, StripeLayout,
    Tracker,
};
use crate::sys::mappings::MappedRange;
use crate::sys::tracking::SharedTracking;
use crate::sys::{mappings, page_size};

const PAGE: u64 = 4096;

/// The shortest time between two stores that a file's modification time tells apart, and more: kernels note it by a clock
/// that ticks as seldom as 100 times a second.
const TICK: Duration = Duration::from_millis(20);

/// What is called with each damage that the scrub in the background comes upon.
pub(crate) type DamageFn = Arc<dyn Fn(&Damage) + Send + Sync>;

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
    period: Duration,
    scrub_every: Option<Duration>,
    scrub_rate: Option<u64>,
    on_damage: Option<DamageFn>,
}

impl Default for ProtectOptions {
    fn default() -> Self {
        ProtectOptions {
            settings: Settings { batch: Settings::BATCH, ..Settings::default() },
            period: Duration::from_secs(1),
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

    /// How often a thread covers what was stored to. With 0 there is none: stores are covered when
    /// [`Protected::sync`] or [`Stores::cover`] is called.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
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
    /// covered yet will be covered by the first [`sync`](Protected::sync), or after the first period.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty file, one that has an engine or another length than when it was protected, and for
    /// options that differ from those it is protected with; [`Error::InUse`] while it is protected by another handle or
    /// process; [`Error::Corrupt`] if neither copy of the superblock is whole.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Protected> {
        let path = &medium::resolve(path.as_ref())?;
        self.start_at(on(path)?, path, Mode::Announced)
    }

    /// Protects the file that the program has mapped at `address`: the whole of it, shared. Stores of this process through
    /// that mapping are found by themselves; there must be no others, neither with `write(2)` nor through another mapping.
    /// Keep the mapping until the handle is closed or dropped: once it is unmapped or mapped over every call fails, and what was
    /// stored last is unknown.
    ///
    /// # Errors
    /// Those of [`open`](ProtectOptions::open); [`Error::Invalid`] if there is no such mapping, on persistent memory, and where
    /// the kernel cannot track stores (it takes Linux 6.7 and a process that may use userfaultfd): announce them there.
    pub fn mapping(&self, address: *const u8, len: usize) -> Result<Protected> {
        let found = mappings::around(address as usize);
        let found = found.map_err(|error| Error::io("read", Path::new("/proc/self/maps"), error))?;
        let invalid = |path: &Path, what: String| Error::Invalid { path: path.to_owned(), what };
        let nowhere = || invalid(Path::new("(memory)"), format!("no file is mapped at address {address:p}"));
        let MappedRange { addresses, shared, offset, inode, path } = found.ok_or_else(nowhere)?;
        let metadata = std::fs::metadata(&path).map_err(|error| Error::io("open", &path, error))?;
        if std::os::unix::fs::MetadataExt::ino(&metadata) != inode {
            return Err(invalid(&path, "another file has this name by now; map it anew".to_owned()));
        }
        let page = page_size();
        let rounded = len.next_multiple_of(page);
        let whole = addresses.start == address as usize && offset == 0 && len as u64 >= metadata.len();
        if !shared || !whole || rounded > addresses.len() {
            let what = format!(
                "what is protected is a shared mapping of a whole file ({} bytes), from its first address on; at {address:p} \
                 there are {len} bytes of a mapping that begins at byte {offset} of the file",
                metadata.len()
            );
            return Err(invalid(&path, what));
        }
        let path = &path;
        let place = on(path)?;
        if matches!(&place, On::Memory(_)) && medium::detect(path)?.kind == MediumKind::PersistentMemory {
            let what = "on persistent memory stores cannot be tracked by write protection; open it with `open` and announce \
                        them";
            return Err(invalid(path, what.to_owned()));
        }
        let tracking = SharedTracking::new(address as usize, rounded).map_err(|error| {
            if error.kind() == std::io::ErrorKind::ResourceBusy {
                let holder = "this process, which has this very mapping protected or watched by userfaultfd".to_owned();
                return Error::InUse { path: path.clone(), holder };
            }
            let what = format!(
                "stores to its mapping cannot be tracked here ({error}); open it with `open` and announce them"
            );
            invalid(path, what)
        })?;
        let mode = Mode::Tracked(Arc::new(PageTables { tracking, path: path.clone() }));
        self.start_at(place, path, mode)
    }

    /// [`open`](ProtectOptions::open) on a medium of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn open_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<Protected> {
        self.start(medium, path.as_ref(), Mode::Announced)
    }

    /// The same for a file whose stores this tracker finds.
    ///
    /// # Errors
    /// As there.
    pub fn track_on<M: Medium>(
        &self,
        medium: M,
        path: impl AsRef<Path>,
        tracker: Arc<dyn Tracker>,
    ) -> Result<Protected> {
        self.start(medium, path.as_ref(), Mode::Tracked(tracker))
    }

    /// A handle to a protected file that nobody stores to, to [`scrub`](Protected::scrub) and
    /// [`repair`](Protected::repair) it: for simulators. On real media there are [`scrub()`] and [`repair()`].
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

/// A file whose pages have checksums and parity, kept up to date behind the program's stores.
///
/// They lie in a file beside it, in the directory `.untorn`. A page that was damaged (by a device that lost or misdirected a
/// write, or by bit rot) is found by [`scrub`](Protected::scrub), and [`repair`](Protected::repair) gives it its bytes back,
/// if it was covered, and with it its stripe.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rustix::mm::{MapFlags, ProtFlags, mmap};
///
/// let file = std::fs::File::options().read(true).write(true).open("table")?;
/// let len = file.metadata()?.len() as usize;
/// // The program's own mapping, of the whole file.
/// let (loads_and_stores, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
/// // SAFETY: a new mapping, at an address of the kernel's choice.
/// let address = unsafe { mmap(null, len, loads_and_stores, MapFlags::SHARED, &file, 0) }?.cast::<u8>();
/// let protected = untorn::ProtectOptions::new().mapping(address, len)?;
/// // ... store to it for as long as you like ...
/// protected.sync()?; // cover what was stored until now; it would be after a second anyway
/// for damage in &protected.scrub()?.damage {
///     eprintln!("{damage:?}");
/// }
/// protected.close()?;
/// # Ok(()) }
/// ```
///
/// # After a crash
/// Stores that were [announced](Protected::announce) before they were made leave every page either covered or known not to be.
/// Stores to a [mapping](ProtectOptions::mapping) are known from page tables, which a crash empties: a page that then
/// differs from its checksum is *unknown*. It is reported and never repaired, and the next time the file is
/// protected it is covered as it is. The same happens to a file that was written to while nobody protected it.
///
/// Dropping a handle is like a crash of the process; [`close`](Protected::close) it. In a forked child its calls fail with
/// [`Error::Forked`].
pub struct Protected {
    service: Arc<dyn Service>,
    threads: Threads,
    /// How long to wait after what notes the file's time.
    tick: Duration,
}

impl fmt::Debug for Protected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protected").field("path", &self.path()).finish()
    }
}

impl Protected {
    /// [`ProtectOptions::open`] with default options.
    ///
    /// # Errors
    /// As there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        ProtectOptions::new().open(path)
    }

    /// What does the work, in the process that it was opened in.
    fn service(&self) -> Result<&dyn Service> {
        if self.threads.are_of_this_process() {
            Ok(&*self.service)
        } else {
            Err(Error::Forked { path: self.path().to_owned() })
        }
    }

    /// The data file's path.
    pub fn path(&self) -> &Path {
        self.service.path()
    }

    /// Tells that bytes will be stored to, before they are. Their pages are not covered before the answer is dropped: drop it
    /// when the stores are made. The first announcement of a page since it was covered costs a flush.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// use std::os::unix::fs::FileExt;
    /// let file = std::fs::File::options().write(true).open(&path).unwrap();
    /// let protected = untorn::Protected::open(&path)?;
    /// let stores = protected.announce(100..105)?;
    /// file.write_all_at(b"hello", 100).unwrap();
    /// stores.cover()?;
    /// assert_eq!(protected.coverage()?.uncovered, 0);
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; those of writing and flushing. Nothing may be stored then.
    pub fn announce(&self, bytes: Range<u64>) -> Result<Stores<'_>> {
        let file_len = self.service.len();
        if bytes.start > bytes.end || bytes.end > file_len {
            let len = bytes.end.saturating_sub(bytes.start);
            return Err(Error::OutOfRange { path: self.path().to_owned(), offset: bytes.start, len, file_len });
        }
        let pages = if bytes.is_empty() { 0..0 } else { bytes.start / PAGE..bytes.end.div_ceil(PAGE) };
        self.service()?.announce(pages.clone())?;
        Ok(Stores { protected: self, pages })
    }

    /// Covers everything that was stored to before the call.
    ///
    /// # Errors
    /// Those of reading, writing and flushing, also of the thread that does it in the background; after them nothing more is
    /// promised.
    pub fn sync(&self) -> Result<()> {
        self.service()?.cover().map(drop)
    }

    /// What is covered now.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure.
    pub fn coverage(&self) -> Result<Coverage> {
        self.service()?.coverage()
    }

    /// Reads everything as the medium holds it and compares, as fast as can be. A page that was stored to and is not covered
    /// yet is passed over; none is accused because of stores that are made meanwhile.
    ///
    /// # Errors
    /// Those of reading. Damage is not an error: it is in the report.
    pub fn scrub(&self) -> Result<ScrubReport> {
        self.scrub_with(None, &mut |_, _| true)
    }

    /// The same, reading at most `rate` bytes in a second, and telling now and then how many of how many were read; `false`
    /// from `progress` ends it.
    ///
    /// # Errors
    /// As there.
    pub fn scrub_with(&self, rate: Option<u64>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
        let report = self.service()?.scrub(Scrub { rate, progress })?;
        self.service()?.note_scrub()?;
        Ok(report)
    }

    /// Scrubs, and repairs what can be repaired, unless some of it cannot be: then nothing is touched. A page is given back
    /// whole, so nobody may store to a damaged page meanwhile, save who [announces](Protected::announce) it.
    ///
    /// # Errors
    /// Those of reading, writing and flushing. What is lost is in the report.
    pub fn repair(&self) -> Result<RepairReport> {
        self.repair_with(&mut |_, _| true)
    }

    /// The same, telling now and then how many of how many bytes were read.
    ///
    /// # Errors
    /// As there.
    pub fn repair_with(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
        let report = self.service()?.repair(Scrub { rate: None, progress })?;
        std::thread::sleep(self.tick);
        Ok(report)
    }

    /// Covers everything and leaves the file protected: what is damaged from now on is found and can be repaired; what is
    /// written to it by others is found too, and is not repaired. Nobody may store to it from the call on until it returns.
    ///
    /// # Errors
    /// Those of [`sync`](Protected::sync).
    pub fn close(mut self) -> Result<()> {
        self.service()?;
        self.threads.stop();
        self.service.close()?;
        // A store right after this must not have the very time that was noted.
        std::thread::sleep(self.tick);
        Ok(())
    }
}

/// Stores that were [announced](Protected::announce) and are being made. Drop it when they are.
#[must_use = "the stores are to be made before this is dropped"]
pub struct Stores<'a> {
    protected: &'a Protected,
    pages: Range<u64>,
}

impl Stores<'_> {
    /// The stores are made: covers them, and everything else, now.
    ///
    /// # Errors
    /// Those of [`Protected::sync`].
    pub fn cover(self) -> Result<()> {
        let protected = self.protected;
        drop(self);
        protected.sync()
    }
}

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        // In a forked child there is nothing to release.
        if let Ok(service) = self.protected.service() {
            service.release(self.pages.clone());
        }
    }
}

impl fmt::Debug for Stores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("pages", &self.pages).finish()
    }
}

/// How much of a file is covered; `None` if it is not protected. It is not read for that.
///
/// # Errors
/// [`Error::InUse`] while it is protected by somebody who has it open, and those of [`ProtectOptions::open`].
pub fn coverage(path: impl AsRef<Path>) -> Result<Option<Coverage>> {
    let path = &medium::resolve(path.as_ref())?;
    let inode = medium::detect(path)?.identity.inode;
    let companion = redundancy::companion(path, inode);
    if !companion.try_exists().map_err(|error| Error::io("look for", &companion, error))? {
        return Ok(None);
    }
    look(path, Mode::Report)?.coverage().map(Some)
}

/// Compares a protected file that nobody has open with its checksums and parity; see [`Protected::scrub_with`].
///
/// # Errors
/// [`Error::Io`] with ENOENT if it is not protected; those of [`ProtectOptions::open`].
pub fn scrub(
    path: impl AsRef<Path>,
    rate: Option<u64>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<ScrubReport> {
    look(&medium::resolve(path.as_ref())?, Mode::Look)?.scrub_with(rate, progress)
}

/// Repairs a protected file that nobody has open; see [`Protected::repair`].
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
/// untorn::Protected::open(&path)?.close()?;
/// let report = untorn::repair(&path, &mut |done, of| { eprintln!("{done} of {of}"); true })?;
/// assert!(report.scrub.is_clean() && report.repaired.is_empty());
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of [`scrub()`], of writing and of flushing.
pub fn repair(path: impl AsRef<Path>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
    look(&medium::resolve(path.as_ref())?, Mode::Look)?.repair_with(progress)
}

/// Removes the checksums and parity of a file; false if it had none. The file itself is not touched.
///
/// # Errors
/// [`Error::InUse`] while somebody has them open.
pub fn unprotect(path: impl AsRef<Path>) -> Result<bool> {
    let path = &medium::resolve(path.as_ref())?;
    redundancy::remove(&Latched::new(PageCache::new()), path)
}

fn look(path: &Path, mode: Mode) -> Result<Protected> {
    ProtectOptions::new().start_at(on(path)?, path, mode)
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

/// [`Redundancy`] over whatever medium.
trait Service: Send + Sync {
    fn path(&self) -> &Path;
    fn len(&self) -> u64;
    fn announce(&self, pages: Range<u64>) -> Result<()>;
    fn release(&self, pages: Range<u64>);
    fn cover(&self) -> Result<u64>;
    fn coverage(&self) -> Result<Coverage>;
    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport>;
    fn note_scrub(&self) -> Result<()>;
    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport>;
    fn close(&self) -> Result<()>;
}

impl<M: Medium> Service for Redundancy<M> {
    fn path(&self) -> &Path {
        Redundancy::path(self)
    }

    fn len(&self) -> u64 {
        Redundancy::len(self)
    }

    fn announce(&self, pages: Range<u64>) -> Result<()> {
        Redundancy::announce(self, pages)
    }

    fn release(&self, pages: Range<u64>) {
        Redundancy::release(self, pages);
    }

    fn cover(&self) -> Result<u64> {
        Redundancy::cover(self)
    }

    fn coverage(&self) -> Result<Coverage> {
        Redundancy::coverage(self)
    }

    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
        Redundancy::scrub(self, how)
    }

    fn note_scrub(&self) -> Result<()> {
        Redundancy::note_scrub(self)
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        Redundancy::repair(self, how)
    }

    fn close(&self) -> Result<()> {
        Redundancy::close(self)
    }
}
