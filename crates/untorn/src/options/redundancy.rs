//! What may be chosen about redundancy.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::Options;

/// The checksum of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-32C (Castagnoli), with the CPU's own instructions where it has them. Any one burst of up to 32 flipped bits is
    /// noticed for certain, anything else but once in 2³² times.
    #[default]
    Crc32c,
    /// XXH3, 64 bits: damage goes unnoticed once in 2⁶⁴ times.
    Xxh3,
}

/// Which pages share a parity page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripeLayout {
    /// Neighbours: what a program stores to neighbours costs one parity page.
    #[default]
    Consecutive,
    /// Pages as far from each other as can be: a bad region of a device does not hit a whole stripe.
    Spread,
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Checksum::Crc32c => "crc32c",
            Checksum::Xxh3 => "xxh3",
        })
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "crc32c" => Ok(Checksum::Crc32c),
            "xxh3" => Ok(Checksum::Xxh3),
            other => Err(format!("{other:?} is no checksum; use crc32c or xxh3")),
        }
    }
}

impl fmt::Display for StripeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StripeLayout::Consecutive => "consecutive",
            StripeLayout::Spread => "spread",
        })
    }
}

impl FromStr for StripeLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "consecutive" => Ok(StripeLayout::Consecutive),
            "spread" => Ok(StripeLayout::Spread),
            other => Err(format!("{other:?} is no layout of stripes; use consecutive or spread")),
        }
    }
}

/// What a new companion file shall be like; `None` is what an existing one is like, or the default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// Data pages of a stripe.
    pub(crate) stripe: Option<u32>,
    pub(crate) layout: Option<StripeLayout>,
    pub(crate) checksum: Option<Checksum>,
    /// The period of later openings that name none.
    pub(crate) keep: Option<Duration>,
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

/// Pages of the data file, and where their bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// What a scrub came upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// A page of the data file differs from its checksum, and nobody stored to it.
    Page(PageRange),
    /// A page of the data file differs from its checksum, and it cannot be said whether somebody stored to it.
    Unknown(PageRange),
    /// The parity of a stripe is not what it was.
    Parity {
        /// The stripe's number.
        stripe: u64,
    },
    /// One of the two copies of a table block or of the superblock is not whole.
    Table {
        /// Where it is in the companion file.
        offset: u64,
    },
    /// As [`Page`](Damage::Page), of the sidecar. The bytes are counted from its start.
    SidecarPage(PageRange),
    /// As [`Unknown`](Damage::Unknown), of the sidecar.
    SidecarUnknown(PageRange),
    /// As [`Parity`](Damage::Parity), of the sidecar.
    SidecarParity {
        /// The stripe's number.
        stripe: u64,
    },
    /// As [`Table`](Damage::Table), of the sidecar.
    SidecarTable {
        /// Where it is in the companion file of the sidecar.
        offset: u64,
    },
}

/// What is called with each damage that is come upon.
pub(crate) type DamageFn = Arc<dyn Fn(&Damage) + Send + Sync>;

/// What a read does with a page that is covered and differs from its checksum, see [`Options::verify_reads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyReads {
    /// Fails with [`Error::Corrupt`](crate::Error::Corrupt).
    Fail,
    /// Gives the page its bytes back, and reads them; fails where parity does not have them.
    Repair,
}

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
    pub(crate) settings: Settings,
    /// `None` is when somebody asks for it, 0 at once.
    pub(crate) period: Option<Duration>,
    /// Nobody named a period: one that is kept with the file counts.
    pub(crate) any_period: bool,
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

/// A period as it is kept, whoever asked for it: none at all, or one in which a thread has something else to do than to begin anew.
pub(crate) fn as_kept(period: Duration) -> Duration {
    if period.is_zero() { period } else { period.max(Duration::from_millis(1)) }
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
    /// With 0 there is no thread and no delay: a page is covered when its [`Stores`](crate::Stores) are dropped, by the
    /// difference that they made to it, and a page that is damaged beside it can be given back all the while. That takes four
    /// flushes for each announcement, and until it is dropped memory for what its pages held, as many bytes as are announced.
    /// Where that is more than a [batch](ProtectOptions::batch), stripes all of whose pages are announced take no memory, and
    /// three more flushes for each batch of them. With [`StripeLayout::Spread`] such stripes are few: announce what is large
    /// in parts.
    ///
    /// It is for stores that are [announced](crate::Protected::announce); those to a [mapping](ProtectOptions::mapping) are found
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
    ///
    /// A period above 0 and below a millisecond counts as a millisecond: a shorter one would keep a core busy.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = Some(as_kept(period));
        self.any_period = false;
        self
    }

    /// Keeps a period with the file: every later opening goes by it that names neither a [period](ProtectOptions::period) nor
    /// [none](ProtectOptions::on_demand), until another is kept. It is noted to the microsecond, and above 0 is a millisecond or more.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16])?;
    /// use std::time::Duration;
    /// let kept = untorn::ProtectOptions::new().keep_period(Duration::from_secs(30));
    /// assert_eq!(untorn::protect(&path, &kept)?.period, Some(Duration::from_secs(30)));
    /// let protected = untorn::Protected::open(&path)?; // covers every 30 seconds
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

    /// Has no thread cover what was stored to: [`Protected::sync`](crate::Protected::sync), [`Stores::cover`](crate::Stores::cover) and
    /// [`Protected::close`](crate::Protected::close) do.
    #[must_use]
    pub fn on_demand(mut self) -> Self {
        self.period = None;
        self.any_period = false;
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

    /// Is called with each damage that nobody asked for: what the scrub in the background comes upon, a pass that covers, an
    /// announcement, an engine's store, and a read that is [verified](Options::verify_reads). Of a page this is told whether or not it
    /// was repaired there and then ([`coverage`](crate::Protected::coverage) tells what is lost), and of one that was not once, until
    /// it is stored to or repaired; each scrub tells anew. What a call to scrub or to repair finds is in its report.
    ///
    /// It is called on a thread of its own, in the order of finding, and so may use the file by a handle that somebody else keeps. It
    /// must neither open nor close it, nor drop the last handle: that waits for this thread, until all is told. If it panics, it is called with the next damage all the same. Damage
    /// ends nothing by itself: a program that would rather abort does it here.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// let options = untorn::ProtectOptions::new().on_damage(|damage| {
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

impl Options {
    /// Keeps checksums and parity of the data file, up to date behind the engine: damage to a page of it is found by
    /// [`scrub`](crate::AtomicFile::scrub), and [`repair`](crate::AtomicFile::repair) gives its bytes back. A file that has
    /// them already ([`protect`](crate::protect()), `untorn protect`) keeps them whether or not this is set, with default
    /// options if it is not. Of several handles of one file the first decides. Not for a handle for reading, nor for a file
    /// [shared](Options::shared) with other processes, which keeps what it has by the process that has it open.
    ///
    /// All pages that the engine stores to are known from its stores, so after a crash each is covered, or known not to be.
    /// Once a [period](ProtectOptions::period), what was stored to is covered. Until then a page is as safe as without
    /// redundancy. With a period of 0 all that the engine stores to the file is covered at once, which takes several flushes for
    /// each store; what it stores to the sidecar waits for [`sync_redundancy`](crate::AtomicFile::sync_redundancy), or for the
    /// close.
    ///
    /// Of the reflection engine the pages of the sidecar that may have bytes of the file are covered like those of the file.
    /// They are compared with their checksums before they go home, and repaired: where they cannot be, deploying and settling fail
    /// with [`Error::Corrupt`](crate::Error::Corrupt), and so does a read with [`ReadPolicy::Deploy`](crate::ReadPolicy::Deploy).
    /// Of the hybrid log they are not: what is committed and in the log only is brought home once a period, and covered there.
    ///
    /// The first store to a page of the file since it was covered costs a flush, so that on a disk a program whose stores are
    /// spread over many pages is slowed down by it; of the sidecar it is a few flushes in a period, however many pages it is. A
    /// new length takes new checksums and parity, all of them: a file that is protected is better not grown in small steps.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("ledger");
    /// use untorn::{Options, ProtectOptions};
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

    /// Has each read compare the covered pages that it reads from with their checksums first, in the file and in the sidecar. It
    /// costs a pass over each of these pages, whole, and a lock that all readers share. Without it, damage is found by a
    /// [scrub](crate::AtomicFile::scrub). What was stored to since it was covered is passed over, and so is what the hybrid log has
    /// in its log. Of several handles of one file the first decides, and a later one may not ask for anything else.
    ///
    /// It is for an [`AtomicFile`](crate::AtomicFile) of which redundancy is kept, and refused for any other; nobody verifies the plain
    /// loads of a map.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("ledger");
    /// use untorn::{Options, ProtectOptions, VerifyReads};
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
