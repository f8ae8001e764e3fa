//! How a commit log is kept.

use std::fmt;
use std::time::Duration;

#[cfg(doc)]
use super::Options;
#[cfg(doc)]
use crate::commits::CommitStream;
#[cfg(doc)]
use crate::error::Error;

/// How a [commit log](Options::commit_log) is kept: how long it may get, and whether commits wait for
/// [consumers](CommitStream::consumer) that have not acknowledged its oldest commits.
///
/// A number of bytes stands for a log that waits for nobody.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("ledger");
/// use std::time::Duration;
/// use untorn::{Options, commits::CommitStream, options::CommitLog};
/// let log = CommitLog::new(1 << 20).block(Duration::from_secs(5));
/// let file = Options::new().commit_log(log).create(&path, 4096)?;
/// let mut replica = CommitStream::consumer(&path, "replica")?; // in another process, later
/// file.write_at(b"hello", 100)?;
/// file.sync()?;
/// while let Some(commit) = replica.next()? {
///     replica.acknowledge(commit.number)?; // once it is where it belongs
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitLog {
    pub(crate) limit: u64,
    pub(crate) block: Option<Duration>,
    /// `None` leaves it as it is; a new log awaits nobody.
    pub(crate) awaits: Option<bool>,
}

impl CommitLog {
    /// A log of at most so many bytes. Its oldest commits go when it is full, also those that a consumer has not
    /// acknowledged: the consumer learns of that by [`Error::CommitsMissing`].
    pub fn new(limit: u64) -> Self {
        CommitLog { limit, block: None, awaits: None }
    }

    /// Keeps commits until each registered consumer has acknowledged them. A commit for which the full log has no room
    /// waits for the slowest consumer, up to this time, and then fails with [`Error::ConsumerBehind`]; the open epoch
    /// is as it was, and may be committed later. Zero refuses such a commit at once.
    ///
    /// Other commits and writes of the file wait with it. The limit in time also ends the wait of a thread that is the
    /// consumer itself, and that of a consumer which is gone. The time is kept to milliseconds.
    #[must_use]
    pub fn block(mut self, time: Duration) -> Self {
        self.block = Some(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
        self
    }

    /// Has a commit return only once each registered consumer has acknowledged it: with a replica as the consumer, once
    /// the commit has left this machine. A log without a consumer waits for one.
    ///
    /// The commit is durable here before that, and others see it; it stays if the wait fails. While it waits, other
    /// threads and processes go on, and their commits are acknowledged together with it. A time given to
    /// [`block`](Self::block) also ends this wait, with [`Error::NotAcknowledged`]; without one, it lasts until the
    /// consumer comes. `close` commits, and waits as well.
    /// No commit goes from the log before the consumers have acknowledged it, as with a log that blocks.
    ///
    /// A region store and a `SharedMap` cannot have this.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("ledger");
    /// use std::time::Duration;
    /// use untorn::{Error, Options, commits::CommitStream, options::CommitLog};
    /// let log = CommitLog::new(1 << 20).await_consumers().block(Duration::from_secs(5));
    /// let file = Options::new().commit_log(log).create(&path, 4096)?;
    /// let mut replica = CommitStream::consumer(&path, "replica")?; // in another process
    /// let shipped = std::thread::spawn(move || -> untorn::Result<()> {
    ///     while let Some(commit) = replica.next_within(Duration::from_secs(5))? {
    ///         replica.acknowledge(commit.number)?; // once it is where it belongs
    ///         break;
    ///     }
    ///     Ok(())
    /// });
    /// file.write_at(b"hello", 100)?;
    /// file.sync()?; // here and there
    /// shipped.join().unwrap()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn await_consumers(mut self) -> Self {
        self.awaits = Some(true);
        self
    }

    /// The same log, whose commits do not wait until they are acknowledged. Without this, and without
    /// [`await_consumers`](Self::await_consumers), a log that is there stays as it is in this respect.
    #[must_use]
    pub fn await_nobody(mut self) -> Self {
        self.awaits = Some(false);
        self
    }

    /// Whether a commit returns only once each registered consumer has acknowledged it.
    pub fn awaits_consumers(&self) -> bool {
        self.awaits == Some(true)
    }

    /// Whether a file whose log is kept so has what is asked for here.
    pub(crate) fn is_met_by(&self, kept: CommitLog) -> bool {
        *self == CommitLog { awaits: self.awaits.and(kept.awaits), ..kept }
    }

    /// The bytes that it may take.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a commit waits for consumers; `None` if it does not.
    pub fn waits(&self) -> Option<Duration> {
        self.block
    }
}

impl fmt::Display for CommitLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {} bytes", self.limit)?;
        if self.awaits_consumers() {
            f.write_str(" that awaits its consumers")?;
        }
        self.block.map_or(Ok(()), |time| write!(f, " that blocks for {} ms", time.as_millis()))
    }
}

impl From<u64> for CommitLog {
    fn from(limit: u64) -> Self {
        CommitLog::new(limit)
    }
}
