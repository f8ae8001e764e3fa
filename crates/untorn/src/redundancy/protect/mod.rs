//! [`Protected`]: redundancy for a plain file, or for a mapping that the program made itself.

mod options;

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::options::look;
pub use self::options::track;

use crate::error::{Error, Result};
use crate::options::ProtectOptions;
use crate::redundancy::{
    self, Coverage, Mode, RedundancyService, RepairReport, Scrub, ScrubReport, Threads, scrub_and_note,
};
use crate::storage::{self, Latched, Medium, PageCache};

/// A file whose pages have checksums and parity, kept up to date behind the program's stores.
///
/// The checksums and parity are in a file beside it, in the directory `.untorn`. [`scrub`](Protected::scrub) finds a
/// page that was damaged (by a device that lost or misdirected a write, or by bit rot). [`repair`](Protected::repair)
/// rebuilds it if the page and its stripe were covered.
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
/// let protected = untorn::redundancy::ProtectOptions::new().mapping(address, len)?;
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
/// Stores that were [announced](Protected::announce) before they were made leave every page either covered or known not
/// to be. Stores to a [mapping](ProtectOptions::mapping) are known only from page tables, which a crash empties. A page
/// that then does not match its checksum is *unknown*: it is reported and never repaired, and the next time the file is
/// protected its checksum is computed anew. The same happens to a file that was written to while no process protected
/// it.
///
/// Dropping a handle has the effect of a process crash, so [`close`](Protected::close) it. In a forked child its calls
/// fail with [`Error::Forked`].
pub struct Protected {
    service: Arc<dyn RedundancyService>,
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
    /// Protects a file with default options; see [`ProtectOptions::open`].
    ///
    /// # Errors
    /// As for [`ProtectOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        ProtectOptions::new().open(path)
    }

    /// What does the work, in the process that it was opened in.
    pub(crate) fn service(&self) -> Result<&dyn RedundancyService> {
        if self.threads.are_of_this_process() {
            Ok(&*self.service)
        } else {
            Err(Error::Forked { path: self.path().to_owned() })
        }
    }

    /// The path of the data file.
    pub fn path(&self) -> &Path {
        self.service.path()
    }

    /// Announces stores to a range of bytes, before they are made. The pages stay uncovered until the returned
    /// [`Stores`] is dropped: drop it when the stores are made. The first announcement of a page since it was covered
    /// costs a flush. With a [period](ProtectOptions::period) of 0 the call first compares the pages with their
    /// checksums and repairs them if needed, and the drop covers them.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// use std::os::unix::fs::FileExt;
    /// let file = std::fs::File::options().write(true).open(&path).unwrap();
    /// let protected = untorn::redundancy::Protected::open(&path)?;
    /// let stores = protected.announce(100..105)?;
    /// file.write_all_at(b"hello", 100).unwrap();
    /// stores.cover()?;
    /// assert_eq!(protected.coverage()?.uncovered, 0);
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; errors of writing and flushing; with a period of 0, [`Error::Corrupt`] for a page that is
    /// damaged beyond repair, unless all of it is announced. After an error the caller must not store.
    pub fn announce(&self, bytes: Range<u64>) -> Result<Stores<'_>> {
        self.service()?.announce(bytes.clone())?;
        Ok(Stores { protected: self, bytes })
    }

    /// Gives the file another length, in bytes, durably. Covered pages stay covered, and the added ones are covered
    /// zeros. A crash leaves the old length or the new one, with redundancy for it.
    ///
    /// The redundancy file is made anew beside the old one, so the call reads the parity of the whole file, and the
    /// pages of each stripe whose pages change: with [`Spread`](crate::redundancy::StripeLayout::Spread) stripes that
    /// is the whole file.
    ///
    /// A [mapping](ProtectOptions::mapping) must reach as far as the new length: map the file with the most bytes that
    /// it will have. Its pages behind the end can be stored to as soon as the file has them.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// let protected = untorn::redundancy::Protected::open(&path)?;
    /// protected.set_len(1 << 20)?;
    /// assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
    /// assert_eq!(protected.coverage()?.pages, 256);
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`] while announced [`Stores`] are being made, for a mapping that is shorter, and for a handle
    ///   that only looks; [`Error::Protection`] for a length of 0, for one that redundancy does not support, and for a
    ///   file whose length somebody else changed.
    /// - [`Error::Invalid`] too if the path names another file by now; [`Error::Poisoned`] after a failure.
    /// - Errors of reading, writing and flushing; a full disk. Up to the change of the file itself they leave it
    ///   protected as before.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.service()?.set_len(len)
    }

    /// Covers everything that was stored to before the call.
    ///
    /// # Errors
    /// Errors of reading, writing and flushing, also of the background thread. After one of them nothing more is
    /// promised.
    pub fn sync(&self) -> Result<()> {
        self.service()?.cover().map(drop)
    }

    /// Sets another [period](ProtectOptions::period), also for a file that was opened [on
    /// demand](ProtectOptions::on_demand). The next pass comes this long after the last one ended, so at once if that
    /// time has passed.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    /// use std::time::Duration;
    /// let protected = untorn::redundancy::ProtectOptions::new().period(Duration::from_secs(3600)).open(&path)?;
    /// drop(protected.announce(0..5)?);
    /// protected.set_period(Duration::from_millis(10))?;
    /// while protected.coverage()?.uncovered > 0 {
    ///     std::thread::yield_now();
    /// }
    /// protected.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0, which must be chosen when the file is opened, and for a handle that was opened so.
    pub fn set_period(&self, period: Duration) -> Result<()> {
        self.service()?.set_period(period)
    }

    /// Sets another [cap](ProtectOptions::max_uncovered), or takes it away. If more pages are uncovered, a pass begins
    /// at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a handle with a period of 0.
    pub fn set_max_uncovered(&self, pages: Option<u64>) -> Result<()> {
        self.service()?.set_max_uncovered(pages)
    }

    /// How much of the file is covered now.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure.
    pub fn coverage(&self) -> Result<Coverage> {
        self.service()?.coverage()
    }

    /// Reads everything as the medium holds it and compares it with checksums and parity, at full speed. It skips pages
    /// that were stored to and are not covered yet, and reports no page because of stores made meanwhile.
    ///
    /// # Errors
    /// Errors of reading, and of recording the scrub in the redundancy file. Damage is not an error: it is in the
    /// report. If the scrub found damage and cannot be recorded, the call still returns the report, and the next call
    /// fails.
    pub fn scrub(&self) -> Result<ScrubReport> {
        self.scrub_with(None, &mut |_, _| true)
    }

    /// Like [`scrub`](Protected::scrub), but reads at most `rate` bytes per second and calls `progress` now and then
    /// with the bytes read and the total. If `progress` returns `false`, the scrub ends. It must not call back into
    /// this handle.
    ///
    /// # Errors
    /// As for [`scrub`](Protected::scrub).
    pub fn scrub_with(&self, rate: Option<u64>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
        scrub_and_note(self.service()?, Scrub { rate, ..Scrub::telling(progress) })
    }

    /// Scrubs, and repairs the damage. If some of it cannot be repaired, it changes nothing. A repair replaces the
    /// whole page, so no thread may store to a damaged page meanwhile without [announcing](Protected::announce) it.
    ///
    /// # Errors
    /// Errors of reading, writing and flushing. Lost pages are in the report.
    pub fn repair(&self) -> Result<RepairReport> {
        self.repair_with(&mut |_, _| true)
    }

    /// Like [`repair`](Protected::repair), and calls `progress` now and then with the bytes read and the total.
    /// `progress` must not call back into this handle: the call could wait forever.
    ///
    /// # Errors
    /// As for [`repair`](Protected::repair).
    pub fn repair_with(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
        let report = self.service()?.repair(Scrub::telling(progress))?;
        std::thread::sleep(self.tick);
        Ok(report)
    }

    /// Like [`repair_with`](Protected::repair_with), and also replaces pages that were modified outside untorn; see
    /// [`repair_modified`](crate::repair_modified()). It takes a handle that only looks, such as
    /// [`look_on`](ProtectOptions::look_on) opens.
    ///
    /// # Errors
    /// As for [`repair_modified`](crate::repair_modified()); [`Error::Invalid`] for a handle that protects the file.
    pub fn repair_modified_with(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
        let report = self.service()?.repair_modified(Scrub::telling(progress))?;
        std::thread::sleep(self.tick);
        Ok(report)
    }

    /// Covers everything and leaves the file protected. A scrub finds damage from now on, and a repair can fix it. A
    /// scrub also finds later writes by other programs, which are not repaired. The program must not store to the file
    /// until the call returns.
    ///
    /// # Errors
    /// As for [`sync`](Protected::sync).
    pub fn close(mut self) -> Result<()> {
        self.service()?;
        self.threads.stop();
        self.service.close()?;
        // A store right after this must not have the very time that was noted.
        std::thread::sleep(self.tick);
        Ok(())
    }
}

/// [Announced](Protected::announce) stores that are being made. Drop it when they are made.
#[must_use = "the stores are to be made before this is dropped"]
pub struct Stores<'a> {
    protected: &'a Protected,
    bytes: Range<u64>,
}

impl Stores<'_> {
    /// Covers the announced stores, which are made, and all others, now.
    ///
    /// # Errors
    /// As for [`Protected::sync`].
    pub fn cover(mut self) -> Result<()> {
        // Nothing is left to the drop.
        let bytes = std::mem::take(&mut self.bytes);
        self.protected.service()?.release(bytes)?;
        self.protected.sync()
    }
}

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        // In a forked child there is nothing to release.
        if let Ok(service) = self.protected.service()
            && let Err(error) = service.release(self.bytes.clone())
        {
            // The redundancy remembers it, and every later call fails.
            tracing::error!(path = %self.protected.path().display(), %error, "cannot bring the redundancy up to date \
                                                                              with the announced stores");
        }
    }
}

impl fmt::Debug for Stores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("bytes", &self.bytes).finish()
    }
}

/// How much of a file is covered; `None` if it is not protected. The call does not read the file, so the result has no
/// lost or unknown pages and no ages.
///
/// # Errors
/// [`Error::InUse`] while another handle has the protected file open; otherwise as for [`ProtectOptions::open`].
pub fn coverage(path: impl AsRef<Path>) -> Result<Option<Coverage>> {
    let path = &storage::resolve(path.as_ref())?;
    let inode = storage::detect(path)?.identity.inode;
    let redundancy_file = redundancy::redundancy_file(path, inode);
    if !redundancy_file.try_exists().map_err(|error| Error::io("look for", &redundancy_file, error))? {
        return Ok(None);
    }
    look(path, Mode::Report)?.coverage().map(Some)
}

/// The recorded state of a file whose redundancy another process may keep. That process is not asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Record {
    /// The redundancy file's content when it was last written. It marks announced pages before they are stored to.
    /// Stores found through page tables appear only after the next pass. It does not have what only the owner knows:
    /// ages, lost or unknown pages, bytes in the sidecar of the hybrid log.
    pub coverage: Coverage,
    /// The process that has the file open, if the kernel tells; `None` also if no process has it open.
    pub holder: Option<u32>,
}

/// Reads what the redundancy file of a file says, also while a process keeps it; `None` if the file is not protected.
/// It locks and changes nothing.
///
/// # Errors
/// [`Error::Corrupt`] for a redundancy file with impossible values; [`Error::Protection`] for one that belongs to
/// another file; errors of reading.
pub fn recorded(path: impl AsRef<Path>) -> Result<Option<Record>> {
    let path = &storage::resolve(path.as_ref())?;
    let Some(coverage) = recorded_on(&PageCache::new(), path)? else { return Ok(None) };
    let file = std::fs::File::open(&coverage.redundancy_file);
    let holder = file.and_then(|file| crate::sys::locks::flock_holder(file.as_fd())).unwrap_or_default();
    Ok(Some(Record { coverage, holder }))
}

/// Like [`recorded`], on a custom medium; for simulators. It names no holder.
///
/// # Errors
/// As for [`recorded`].
pub fn recorded_on<M: Medium>(medium: &M, path: impl AsRef<Path>) -> Result<Option<Coverage>> {
    redundancy::recorded_coverage(medium, path.as_ref())
}

/// Compares a protected file that no process has open with its checksums and parity; see [`Protected::scrub_with`].
/// If a program writes to the file meanwhile, pages that do not match are
/// [unknown](crate::redundancy::Damage::Unknown) from then on.
///
/// # Errors
/// [`Error::Protection`] if the file is not protected; otherwise as for [`ProtectOptions::open`].
pub fn scrub(
    path: impl AsRef<Path>,
    rate: Option<u64>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<ScrubReport> {
    look(&storage::resolve(path.as_ref())?, Mode::Look)?.scrub_with(rate, progress)
}

/// Repairs a protected file that no process has open, and takes back what other programs wrote: a page that was
/// modified outside untorn gets the bytes that it was last covered with, and its new bytes are lost. Copy the file
/// first if they may be needed. [`RepairReport::replaced`] lists these pages.
///
/// Parity must vouch for each modified page: it is the only page of its stripe that differs, and its stripe is covered.
/// If parity cannot do so for one of them, the call changes nothing, and [`RepairReport::refused`] lists it.
/// [`protect`](crate::protect) does the opposite: it accepts modified pages.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// std::fs::write(&path, vec![7; 1 << 16]).unwrap();
/// untorn::redundancy::Protected::open(&path)?.close()?;
/// let mut bytes = std::fs::read(&path).unwrap();
/// bytes[5000] = 8;
/// std::fs::write(&path, &bytes).unwrap();
/// let report = untorn::repair_modified(&path, &mut |_, _| true)?;
/// assert_eq!(report.replaced[0].offset, 4096);
/// assert_eq!(std::fs::read(&path).unwrap(), vec![7; 1 << 16]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As for [`scrub`]; errors of writing and flushing; [`Error::Invalid`] for a file with a sidecar.
pub fn repair_modified(path: impl AsRef<Path>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
    look(&storage::resolve(path.as_ref())?, Mode::Look)?.repair_modified_with(progress)
}

/// Removes the checksums and parity of a file; returns false if it had none. The file itself is not changed.
///
/// # Errors
/// [`Error::InUse`] while a process has the redundancy open.
pub fn unprotect(path: impl AsRef<Path>) -> Result<bool> {
    let path = &storage::resolve(path.as_ref())?;
    redundancy::remove(&Latched::new(PageCache::new()), path)
}
