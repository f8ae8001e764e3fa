//! [`Protected`]: redundancy for a plain file, or for a mapping that the program made itself.

mod options;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::options::look;
pub use self::options::track;

use crate::error::{Error, Result};
use crate::options::ProtectOptions;
use crate::redundancy::{self, Coverage, Mode, RepairReport, Scrub, ScrubReport, Threads, Told, scrub_and_note};
use crate::storage::{self, Latched, Medium, PageCache};

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
    service: Arc<dyn Told>,
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
    pub(crate) fn service(&self) -> Result<&dyn Told> {
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
    /// when the stores are made. The first announcement of a page since it was covered costs a flush. With a
    /// [period](ProtectOptions::period) of 0 the pages are compared with their checksums first, and repaired if need be, and
    /// they are covered when the answer is dropped.
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
    /// [`Error::OutOfRange`]; those of writing and flushing; with a period of 0 [`Error::Corrupt`] for a page that is damaged
    /// beyond repair, unless the whole of it is to be stored to. Nothing may be stored then.
    pub fn announce(&self, bytes: Range<u64>) -> Result<Stores<'_>> {
        let file_len = self.service.len();
        if bytes.start > bytes.end || bytes.end > file_len {
            let len = bytes.end.saturating_sub(bytes.start);
            return Err(Error::OutOfRange { path: self.path().to_owned(), offset: bytes.start, len, file_len });
        }
        self.service()?.announce(bytes.clone())?;
        Ok(Stores { protected: self, bytes })
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
    /// Those of reading, and of noting in the companion file that it went through. Damage is not an error: it is in the report, also
    /// if it cannot be noted; the next call fails then.
    pub fn scrub(&self) -> Result<ScrubReport> {
        self.scrub_with(None, &mut |_, _| true)
    }

    /// The same, reading at most `rate` bytes in a second, and telling now and then how many of how many were read; `false`
    /// from `progress` ends it. It must not call back into this handle.
    ///
    /// # Errors
    /// As there.
    pub fn scrub_with(&self, rate: Option<u64>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
        scrub_and_note(self.service()?, Scrub { rate, ..Scrub::telling(progress) })
    }

    /// Scrubs, and repairs what can be repaired, unless some of it cannot be: then nothing is touched. A page is given back
    /// whole, so nobody may store to a damaged page meanwhile, save who [announces](Protected::announce) it.
    ///
    /// # Errors
    /// Those of reading, writing and flushing. What is lost is in the report.
    pub fn repair(&self) -> Result<RepairReport> {
        self.repair_with(&mut |_, _| true)
    }

    /// The same, telling now and then how many of how many bytes were read. `progress` must not call back into this handle: the
    /// call may wait for ever.
    ///
    /// # Errors
    /// As there.
    pub fn repair_with(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
        let report = self.service()?.repair(Scrub::telling(progress))?;
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
    bytes: Range<u64>,
}

impl Stores<'_> {
    /// The stores are made: covers them, and everything else, now.
    ///
    /// # Errors
    /// Those of [`Protected::sync`].
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
            tracing::error!(path = %self.protected.path().display(), %error, "covering failed");
        }
    }
}

impl fmt::Debug for Stores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("bytes", &self.bytes).finish()
    }
}

/// How much of a file is covered; `None` if it is not protected. It is not read for that, so pages that are lost or unknown, and ages,
/// are not told.
///
/// # Errors
/// [`Error::InUse`] while it is protected by somebody who has it open, and those of [`ProtectOptions::open`].
pub fn coverage(path: impl AsRef<Path>) -> Result<Option<Coverage>> {
    let path = &storage::resolve(path.as_ref())?;
    let inode = storage::detect(path)?.identity.inode;
    let companion = redundancy::companion(path, inode);
    if !companion.try_exists().map_err(|error| Error::io("look for", &companion, error))? {
        return Ok(None);
    }
    look(path, Mode::Report)?.coverage().map(Some)
}

/// What can be told of a file whose redundancy somebody else keeps, who is not asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Record {
    /// What the companion file says, as of when it was last written. Pages that are announced are marked in it before they are
    /// stored to; stores that page tables tell of are in it after the next pass only. What only the owner knows is not
    /// told: ages, pages that are lost or unknown, what is in the sidecar of the hybrid log.
    pub coverage: Coverage,
    /// The process that has it open, where the kernel tells; `None` too if nobody has.
    pub holder: Option<u32>,
}

/// What the companion file of a file says, also while a process keeps it; `None` if it is not protected. Nothing is locked or
/// changed.
///
/// # Errors
/// [`Error::Corrupt`] for a companion that cannot be believed, [`Error::Invalid`] for that of another file; those of reading.
pub fn recorded(path: impl AsRef<Path>) -> Result<Option<Record>> {
    let path = &storage::resolve(path.as_ref())?;
    let Some(coverage) = recorded_on(&PageCache::new(), path)? else { return Ok(None) };
    let holder = crate::sys::locks::flock_holder(&coverage.companion).unwrap_or_default();
    Ok(Some(Record { coverage, holder }))
}

/// The same on a medium of one's own, for simulators; nothing is said of a holder.
///
/// # Errors
/// As there.
pub fn recorded_on<M: Medium>(medium: &M, path: impl AsRef<Path>) -> Result<Option<Coverage>> {
    redundancy::recorded(medium, path.as_ref())
}

/// Compares a protected file that nobody has open with its checksums and parity; see [`Protected::scrub_with`]. If somebody writes to
/// it meanwhile, what differs is [unknown](crate::Damage::Unknown) from then on.
///
/// # Errors
/// [`Error::Io`] with ENOENT if it is not protected; those of [`ProtectOptions::open`].
pub fn scrub(
    path: impl AsRef<Path>,
    rate: Option<u64>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<ScrubReport> {
    look(&storage::resolve(path.as_ref())?, Mode::Look)?.scrub_with(rate, progress)
}

/// Removes the checksums and parity of a file; false if it had none. The file itself is not touched.
///
/// # Errors
/// [`Error::InUse`] while somebody has them open.
pub fn unprotect(path: impl AsRef<Path>) -> Result<bool> {
    let path = &storage::resolve(path.as_ref())?;
    redundancy::remove(&Latched::new(PageCache::new()), path)
}
