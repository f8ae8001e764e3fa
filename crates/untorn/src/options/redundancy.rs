//! Options for redundancy: checksum, stripes, periods and callbacks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Options;
use super::choices::words;

/// The checksum of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-32C (Castagnoli), computed with CPU instructions where the CPU has them. It detects every burst of up to 32
    /// flipped bits, and misses other damage once in 2³² times.
    #[default]
    Crc32c,
    /// XXH3, 64 bits. It misses damage once in 2⁶⁴ times.
    Xxh3,
}

/// Which pages share a parity page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripeLayout {
    /// Neighbouring pages: stores to neighbours update one parity page.
    #[default]
    Consecutive,
    /// Pages as far apart as possible: one bad region of a device does not damage a whole stripe.
    Spread,
}

words!(Checksum, "checksum", Crc32c = "crc32c", Xxh3 = "xxh3");
words!(StripeLayout, "stripe layout", Consecutive = "consecutive", Spread = "spread");
words!(VerifyReads, "verification of reads", Fail = "fail", Repair = "repair");

/// What a new redundancy file shall be like; `None` is what an existing one is like, or the default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// Data pages of a stripe.
    pub(crate) stripe: Option<u32>,
    pub(crate) layout: Option<StripeLayout>,
    pub(crate) checksum: Option<Checksum>,
    /// The period of later openings that name none.
    pub(crate) keep: Option<Duration>,
    /// Their cap.
    pub(crate) keep_max_uncovered: Option<u64>,
    /// Pages covered at a time.
    pub(crate) batch: u64,
}

impl Settings {
    /// Data pages of a stripe where nobody says how many.
    pub(crate) const STRIPE: u32 = 4;
    /// The most data pages of a stripe.
    pub(crate) const MAX_STRIPE: u32 = 64;
    /// Pages covered at a time where nobody says how many.
    pub(crate) const BATCH: u64 = 1024;
}

/// A range of the data file, as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Damage that a scrub found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// A page of the data file does not match its checksum, and no announced or tracked store explains it.
    Page(PageRange),
    /// A page of the data file does not match its checksum, and untorn cannot tell whether a store changed it.
    Unknown(PageRange),
    /// The parity of a stripe does not match its data pages.
    Parity {
        /// The stripe's number.
        stripe: u64,
    },
    /// One of the two copies of a table block or of the superblock is damaged.
    Table {
        /// Where it is in the redundancy file.
        offset: u64,
    },
    /// Like [`Page`](Damage::Page), for the sidecar. Offsets count from the sidecar's start.
    SidecarPage(PageRange),
    /// Like [`Unknown`](Damage::Unknown), for the sidecar.
    SidecarUnknown(PageRange),
    /// Like [`Parity`](Damage::Parity), for the sidecar.
    SidecarParity {
        /// The stripe's number.
        stripe: u64,
    },
    /// Like [`Table`](Damage::Table), for the sidecar.
    SidecarTable {
        /// Where it is in the redundancy file of the sidecar.
        offset: u64,
    },
}

impl PageRange {
    /// The same range of a file in which the bytes that it counts from begin at `from`.
    pub(crate) fn behind(self, from: u64) -> Self {
        PageRange { offset: from + self.offset, ..self }
    }
}

impl Damage {
    /// Damage to the pages of a sidecar, which begin at `from`, in its own words.
    pub(crate) fn in_sidecar(self, from: u64) -> Self {
        match self {
            Damage::Page(range) => Damage::SidecarPage(range.behind(from)),
            Damage::Unknown(range) => Damage::SidecarUnknown(range.behind(from)),
            Damage::Parity { stripe } => Damage::SidecarParity { stripe },
            Damage::Table { offset } => Damage::SidecarTable { offset },
            other => other,
        }
    }
}

/// What is called with each damage that is come upon.
pub(crate) type DamageFn = Arc<dyn Fn(&Damage) + Send + Sync>;

/// What a read does when a covered page does not match its checksum; see [`Options::verify_reads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyReads {
    /// The read fails with [`Error::Corrupt`](crate::Error::Corrupt).
    Fail,
    /// The read rebuilds the page from parity and returns it; it fails if parity cannot rebuild the page.
    Repair,
}

/// How to protect a file.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
/// use std::time::Duration;
/// let options = untorn::redundancy::ProtectOptions::new().stripe(8).period(Duration::from_secs(30));
/// options.open(&path)?.close()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ProtectOptions {
    pub(crate) settings: Settings,
    /// `None` is when somebody asks for it, 0 at once.
    pub(crate) period: Option<Duration>,
    /// Nobody named a period: one that is kept with the file counts.
    pub(crate) any_period: bool,
    /// `None`: the one that is kept with the file counts, if there is one.
    pub(crate) max_uncovered: Option<u64>,
    pub(crate) scrub_every: Option<Duration>,
    pub(crate) scrub_rate: Option<u64>,
    pub(crate) on_damage: Option<DamageFn>,
}

impl Default for ProtectOptions {
    fn default() -> Self {
        ProtectOptions {
            settings: Settings { batch: Settings::BATCH, ..Settings::default() },
            period: Some(Duration::from_secs(1)),
            any_period: true,
            max_uncovered: None,
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

/// A period as it is kept, whoever asked for it: none at all, or one in which a thread has something else to do than
/// to begin anew.
pub(crate) fn as_kept(period: Duration) -> Duration {
    if period.is_zero() { period } else { period.max(Duration::from_millis(1)) }
}

impl ProtectOptions {
    /// The defaults: stripes of four consecutive pages, CRC-32C, a period of one second, no background scrub. An
    /// already protected file keeps its stripes, layout and checksum.
    pub fn new() -> Self {
        ProtectOptions::default()
    }

    /// Sets the number of data pages that share a parity page, 1 to 64. Fewer pages mean that more damage can be
    /// repaired, at more space and time.
    #[must_use]
    pub fn stripe(mut self, pages: u32) -> Self {
        self.settings.stripe = Some(pages);
        self
    }

    /// Sets which pages share a parity page.
    #[must_use]
    pub fn layout(mut self, layout: StripeLayout) -> Self {
        self.settings.layout = Some(layout);
        self
    }

    /// Sets the checksum of a page.
    #[must_use]
    pub fn checksum(mut self, checksum: Checksum) -> Self {
        self.settings.checksum = Some(checksum);
        self
    }

    /// Sets how often a thread covers the pages that were stored to, that is, updates their checksums and parity.
    ///
    /// With 0 there is no thread and no delay. The drop of a page's [`Stores`](crate::redundancy::Stores) covers it,
    /// from the difference that the stores made, and a damaged page beside it can be rebuilt at any time. The costs:
    ///
    /// - Each announcement takes four flushes.
    /// - Until the announcement is dropped, it takes as much memory as the bytes announced, for the old contents of
    ///   their pages.
    /// - If the announcement is larger than a [batch](ProtectOptions::batch), stripes whose pages are all announced
    ///   take no memory, but three more flushes for each batch of them. [`StripeLayout::Spread`] has few such stripes:
    ///   announce large ranges in parts.
    ///
    /// A period of 0 is only for [announced](crate::redundancy::Protected::announce) stores. untorn finds the stores
    /// to a [mapping](ProtectOptions::mapping) only afterwards, so it refuses 0 there.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// use std::os::unix::fs::FileExt;
    /// let file = std::fs::File::options().write(true).open(&path).unwrap();
    /// let protected = untorn::redundancy::ProtectOptions::new().period(std::time::Duration::ZERO).open(&path)?;
    /// let stores = protected.announce(100..105)?;
    /// file.write_all_at(b"hello", 100).unwrap();
    /// drop(stores);
    /// assert_eq!(protected.coverage()?.uncovered, 0);
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// A period above 0 and below a millisecond counts as one millisecond: a shorter one would keep a core busy.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = Some(as_kept(period));
        self.any_period = false;
        self
    }

    /// Stores a period with the file. Every later open that sets neither a [period](ProtectOptions::period) nor [on
    /// demand](ProtectOptions::on_demand) uses it, until another one is stored. It is kept in microseconds; a period
    /// above 0 is at least one millisecond.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16])?;
    /// use std::time::Duration;
    /// let kept = untorn::redundancy::ProtectOptions::new().keep_period(Duration::from_secs(30));
    /// assert_eq!(untorn::protect(&path, &kept)?.period, Some(Duration::from_secs(30)));
    /// let protected = untorn::redundancy::Protected::open(&path)?; // covers every 30 seconds
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn keep_period(mut self, period: Duration) -> Self {
        self.settings.keep = Some(as_kept(period));
        if self.any_period {
            self.period = Some(as_kept(period));
        }
        self
    }

    /// Sets a cap on the uncovered pages of the file and its sidecar: if there are more, a pass begins at once, and the
    /// [period](ProtectOptions::period) is only the longest time until the next pass. After a power failure, a
    /// battery that lasts until so many pages are covered suffices ([`cover_all`](crate::redundancy::cover_all)).
    ///
    /// The cap is soft. A pass covers at most a [batch](ProtectOptions::batch) of pages at a time, and the program
    /// stores meanwhile:
    ///
    /// - **Announced stores, engines.** The announcement that exceeds the cap wakes the thread. If it does not keep up,
    ///   the announcement that would have twice the cap uncovered, of the file or of its sidecar, covers them itself
    ///   first. No more than twice the cap are uncovered, besides pages that are being stored to and their stripes,
    ///   damaged stripes, and the pages of one announcement.
    /// - **Stores to a [mapping](ProtectOptions::mapping).** Only a scan of its page tables finds them. untorn scans
    ///   more often the sooner the program would reach the cap at its present rate, and at least every 100 ms. A
    ///   process without page faults is not scanned: an idle program costs ten short wakeups a second. The pages
    ///   stored to within 100 ms and one pass can exceed the cap.
    ///
    /// [`CoveringPace::peak_uncovered`](crate::redundancy::CoveringPace::peak_uncovered) tells how many there were. 0
    /// has a pass follow each store. With [on demand](ProtectOptions::on_demand) only the cap and calls have stores
    /// covered. Bytes that are only in the log of the hybrid log are not counted. With a period of
    /// 0 the cap has no effect.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    /// use std::time::Duration;
    /// let options = untorn::redundancy::ProtectOptions::new().period(Duration::from_secs(3600)).max_uncovered(64);
    /// let protected = options.open(&path)?;
    /// drop(protected.announce(0..65 * 4096)?);
    /// // The pass begins at once, and not in an hour.
    /// while protected.coverage()?.uncovered > 0 {
    ///     std::thread::yield_now();
    /// }
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_uncovered(mut self, pages: u64) -> Self {
        self.max_uncovered = Some(pages);
        self
    }

    /// Stores a [cap](ProtectOptions::max_uncovered) with the file. Every later open that sets none uses it, until
    /// another one is stored. An open [on demand](ProtectOptions::on_demand) does not use it.
    #[must_use]
    pub fn keep_max_uncovered(mut self, pages: u64) -> Self {
        self.settings.keep_max_uncovered = Some(pages);
        self
    }

    /// Starts no thread that covers stores. [`Protected::sync`](crate::redundancy::Protected::sync),
    /// [`Stores::cover`](crate::redundancy::Stores::cover) and
    /// [`Protected::close`](crate::redundancy::Protected::close) cover them.
    #[must_use]
    pub fn on_demand(mut self) -> Self {
        self.period = None;
        self.any_period = false;
        self
    }

    /// Sets how many pages one batch covers. A batch takes two flushes.
    #[must_use]
    pub fn batch(mut self, pages: u64) -> Self {
        self.settings.batch = pages;
        self
    }

    /// Starts a thread that scrubs the file, and again this long after each scrub ends. Without it no thread scrubs.
    #[must_use]
    pub fn scrub_every(mut self, pause: Duration) -> Self {
        self.scrub_every = Some(pause);
        self
    }

    /// Limits the bytes of the file that a scrub reads per second. Without it there is no limit.
    #[must_use]
    pub fn scrub_rate(mut self, bytes: u64) -> Self {
        self.scrub_rate = Some(bytes);
        self
    }

    /// Sets a function to call for each damage found outside a scrub or repair call: by the background scrub, a
    /// covering pass, an announcement, an engine's store, or a [verified](Options::verify_reads) read.
    ///
    /// - A repaired page is reported too; [`coverage`](crate::redundancy::Protected::coverage) tells which pages are
    ///   lost.
    /// - A page that was not repaired is reported once, until it is stored to or repaired. Each scrub reports it anew.
    /// - A call to scrub or repair returns its findings in its report.
    ///
    /// The library calls the function on its own thread, in the order of discovery. So it may use the file through a
    /// handle that another owner keeps. It must not open or close the file, nor drop the last handle: that would wait
    /// for this thread. If the function panics, it is still called for the next damage. Damage ends nothing by itself:
    /// a program that would rather abort can do so here.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// let options = untorn::redundancy::ProtectOptions::new().on_damage(|damage| {
    ///     eprintln!("{damage:?}");
    ///     std::process::abort();
    /// });
    /// options.open(&path)?.close()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_damage(mut self, call: impl Fn(&Damage) + Send + Sync + 'static) -> Self {
        self.on_damage = Some(Arc::new(call));
        self
    }
}

#[cfg(feature = "redundancy")]
impl Options {
    /// Keeps checksums and parity of the data file up to date behind the engine. [`scrub`](crate::AtomicFile::scrub)
    /// finds damage, and [`repair`](crate::AtomicFile::repair) rebuilds damaged pages.
    ///
    /// A file that already has redundancy ([`protect`](crate::protect()), `untorn protect`) keeps it whether or not
    /// this is set; without it, with default options. Of several handles of one file, the first decides. It is refused
    /// for a read-only handle, and for a file [shared](Options::shared) with other processes: there the owner process
    /// keeps the redundancy that the file has.
    ///
    /// The engine knows every page it stores to, so after a crash each page is either covered or known not to be. A
    /// thread covers stored pages once per [period](ProtectOptions::period). Until then such a page is as safe as
    /// without redundancy. With a period of 0 every store of the engine to the file is covered at once, at several
    /// flushes each. Its stores to the sidecar wait for [`sync_redundancy`](crate::AtomicFile::sync_redundancy) or the
    /// close.
    ///
    /// For the reflection engine, redundancy also covers the sidecar pages that may hold bytes of the file. The
    /// engine checks and repairs them before it deploys them. If that fails, deploying and settling fail with
    /// [`Error::Corrupt`](crate::Error::Corrupt), and so does a read with
    /// [`ReadPolicy::Deploy`](crate::options::ReadPolicy::Deploy). The hybrid log's sidecar is not covered: once per
    /// period, committed bytes that are only in the log are checkpointed and then covered in the data file.
    ///
    /// The first store to a file page since it was last covered costs a flush. On a disk this slows down a program
    /// whose stores are spread over many pages. In the sidecar it is a few flushes per period, for any number of pages.
    /// A new length needs all checksums and parity anew: avoid growing a protected file in small steps.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("ledger");
    /// use untorn::redundancy::ProtectOptions;
    /// use untorn::Options;
    /// let file = Options::new().redundancy(ProtectOptions::new().stripe(8)).create(&path, 1 << 20)?;
    /// file.write_at(b"hello", 4000)?;
    /// file.sync()?;
    /// file.sync_redundancy()?; // it would be covered after a second anyway
    /// assert!(file.scrub()?.is_clean());
    /// file.close()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn redundancy(mut self, options: ProtectOptions) -> Self {
        self.redundancy = Some(options);
        self
    }

    /// Verifies each read: it first compares the covered pages that it reads, in the file and in the sidecar, with
    /// their checksums. This costs one pass over each whole page, and a lock that all readers share. Without it, only a
    /// [scrub](crate::AtomicFile::scrub) finds damage. It skips bytes that were stored since they were covered, and
    /// bytes that are in the hybrid log. Of several handles of one file the first decides; a later handle must ask for
    /// the same.
    ///
    /// A [snapshot](crate::AtomicFile::snapshot) of the handle is verified, too, whichever process reads it. A
    /// [shared](Options::shared) file can be verified if it was protected before; then the process that serves it reads
    /// for all, so reads in the others are slower.
    ///
    /// It needs an [`AtomicFile`](crate::AtomicFile) with redundancy, and is refused otherwise; the plain loads of a
    /// map cannot be verified.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("ledger");
    /// use untorn::redundancy::{ProtectOptions, VerifyReads};
    /// use untorn::Options;
    /// let options = Options::new().redundancy(ProtectOptions::new()).verify_reads(VerifyReads::Repair);
    /// let file = options.create(&path, 1 << 20)?;
    /// let mut bytes = [1; 100];
    /// file.read_at(&mut bytes, 4000)?;
    /// assert_eq!(bytes, [0; 100]);
    /// file.close()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn verify_reads(mut self, verify: VerifyReads) -> Self {
        self.verify_reads = Some(verify);
        self
    }
}
