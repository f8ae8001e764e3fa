//! How a file is replicated.

use std::time::Duration;

/// The fate of commits when the store is so far behind that the commit log is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenBehind {
    /// They wait for the replication, and fail after the time that the log has for that. The log must be one that
    /// [blocks](untorn::options::CommitLog::block).
    Wait,
    /// They go on. The log drops its oldest commits, and the replica goes on with a snapshot, so that it lacks the
    /// states in between. A log that blocks does so only while a request to the store hangs.
    Snapshot,
}

/// How a [`Replica`](crate::Replica) ships commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaOptions {
    pub(crate) consumer: String,
    pub(crate) name: String,
    pub(crate) interval: Duration,
    pub(crate) object_bytes: u64,
    pub(crate) snapshot_bytes: Option<u64>,
    pub(crate) retain: Duration,
    pub(crate) confirm: Option<Duration>,
    pub(crate) when_behind: Option<WhenBehind>,
    pub(crate) begin_new: bool,
    pub(crate) begin_with_snapshot: bool,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "a host" } else { host.trim() };
        ReplicaOptions {
            consumer: "replica".to_owned(),
            name: format!("{host}, process {}", std::process::id()),
            interval: Duration::from_millis(250),
            object_bytes: 8 << 20,
            snapshot_bytes: None,
            retain: Duration::from_secs(30 * 24 * 3600),
            confirm: None,
            when_behind: None,
            begin_new: false,
            begin_with_snapshot: false,
        }
    }
}

impl ReplicaOptions {
    /// The defaults, which each method names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the consumer of the file's commit log. The default is `replica`. A file that is replicated to
    /// several places needs another name for each.
    #[must_use]
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// Sets the name of this writer in reports and errors. The default has the host and the process.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how often commits are shipped; those in between go into one object. The default is 250 ms.
    /// [`sync_replicated`](crate::Replica::sync_replicated) ships at once.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets how many bytes of commits an object has at most, unless one commit has more. The default is 8 MiB.
    #[must_use]
    pub fn object_bytes(mut self, bytes: u64) -> Self {
        self.object_bytes = bytes.clamp(1, 256 << 20);
        self
    }

    /// Sets after how many shipped bytes a new snapshot is made, which makes restorations faster. The default is the
    /// length of the file, and at least 64 MiB.
    #[must_use]
    pub fn snapshot_bytes(mut self, bytes: u64) -> Self {
        self.snapshot_bytes = Some(bytes);
        self
    }

    /// Sets how far back states can be restored. Older objects are deleted when a snapshot was made. The default is 30
    /// days.
    #[must_use]
    pub fn retain(mut self, time: Duration) -> Self {
        self.retain = time;
        self
    }

    /// Sets how often a writer that has nothing to ship asks the store whether it still owns the replica. Each time is
    /// one request. By default it does not ask, and learns of a take-over when it ships next.
    #[must_use]
    pub fn confirm(mut self, every: Duration) -> Self {
        self.confirm = Some(every);
        self
    }

    /// Sets whether a new replica is begun where the file had one that is gone. By default that is an error: the disk
    /// of the store may not be mounted.
    #[must_use]
    pub fn begin_new(mut self, begins: bool) -> Self {
        self.begin_new = begins;
        self
    }

    /// Sets whether a snapshot is shipped at the start, although the chain goes on. Restorations of later commits need
    /// nothing before it: that mends a replica whose store has lost an object.
    #[must_use]
    pub fn begin_with_snapshot(mut self, begins: bool) -> Self {
        self.begin_with_snapshot = begins;
        self
    }

    /// Sets the fate of commits when the store is so far behind that the commit log is full. By default the log
    /// decides: they [wait](WhenBehind::Wait) if it blocks.
    #[must_use]
    pub fn when_behind(mut self, what: WhenBehind) -> Self {
        self.when_behind = Some(what);
        self
    }
}
