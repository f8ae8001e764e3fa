//! Counts what an engine does, for the crate `metrics`.
//!
//! Only a build with the feature `metrics` has this layer, so any other build pays nothing for it. The names of the
//! metrics are in the documentation of the crate.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::commits::CommitService;
use super::figures::Figures;
use super::redundancy::RedundancyService;
use super::snapshot::SnapshotService;
use super::{Close, Engine, Info, Piece};
use crate::error::Result;
use crate::format::sidecar::number::Stamped;
use crate::options::{Durability, Options};
use crate::storage::Identity;

/// How often gauges are set at most: to look at all pages takes a while.
const PERIOD: Duration = Duration::from_secs(1);

/// Any engine, with counters.
pub(crate) struct Metered {
    engine: Box<dyn Engine>,
    durability: Durability,
    writes: Counter,
    written: Counter,
    commits: Counter,
    latency: Histogram,
    gauges: [Gauge; 8],
    /// The number of the last commit that was counted.
    last: AtomicU64,
    /// When the gauges were set.
    set: Mutex<Option<Instant>>,
}

impl Metered {
    pub(crate) fn new(engine: Box<dyn Engine>) -> Self {
        let info = engine.info();
        let file = || engine.path().display().to_string();
        let gauges = Figures::default().named().map(|(name, _)| gauge!(format!("untorn_{name}"), "file" => file()));
        Metered {
            durability: info.durability,
            writes: counter!("untorn_writes_total", "file" => file()),
            written: counter!("untorn_written_bytes_total", "file" => file()),
            commits: counter!("untorn_commits_total", "file" => file()),
            latency: histogram!("untorn_commit_seconds", "file" => file()),
            gauges,
            last: AtomicU64::new(info.commit),
            set: Mutex::new(None),
            engine,
        }
    }

    /// Sets the gauges, unless they were set a moment ago or another thread is setting them.
    fn set_gauges(&self) {
        let Ok(mut set) = self.set.try_lock() else { return };
        if set.is_none_or(|set| set.elapsed() >= PERIOD) {
            for ((_, value), gauge) in Figures::of(&*self.engine).named().iter().zip(&self.gauges) {
                gauge.set(*value as f64);
            }
            *set = Some(Instant::now());
        }
    }

    fn committed(&self, since: Instant) {
        self.latency.record(since.elapsed());
        self.set_gauges();
    }
}

impl Engine for Metered {
    fn path(&self) -> &Path {
        self.engine.path()
    }

    fn len(&self) -> u64 {
        self.engine.len()
    }

    fn identity(&self) -> Result<Identity> {
        self.engine.identity()
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        self.engine.check(offset, len)
    }

    fn writable(&self) -> Result<()> {
        self.engine.writable()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.engine.read(offset, dst)
    }

    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.engine.try_read(offset, dst)
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let since = (self.durability == Durability::PerWrite).then(Instant::now);
        self.engine.write(pieces)?;
        self.writes.increment(1);
        self.written.increment(pieces.iter().map(|piece| piece.bytes.len() as u64).sum());
        if let Some(since) = since {
            self.commits.increment(1);
            self.committed(since);
        }
        Ok(())
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        self.engine.deploy(offset, len)
    }

    fn deploy_ahead(&self) -> Result<u64> {
        self.engine.deploy_ahead()
    }

    fn sync(&self) -> Result<u64> {
        let since = Instant::now();
        let number = self.engine.sync()?;
        // Threads that share a commit count it once, and one that finds nothing to commit counts nothing.
        if self.durability == Durability::PerCommit && self.last.fetch_max(number, Ordering::Relaxed) < number {
            self.commits.increment(1);
            self.committed(since);
        }
        Ok(number)
    }

    fn resize(&self, len: u64) -> Result<()> {
        self.engine.resize(len)
    }

    fn reclaim(&self) -> Result<u64> {
        self.engine.reclaim()
    }

    fn info(&self) -> Info {
        self.engine.info()
    }

    fn accepts(&self, options: &Options) -> bool {
        self.engine.accepts(options)
    }

    fn close(&self, how: Close) -> Result<()> {
        self.engine.close(how)
    }

    fn settle(&self) -> Result<()> {
        self.engine.settle()
    }

    fn in_sidecar_page(&self, page: u64) -> Option<u64> {
        self.engine.in_sidecar_page(page)
    }

    fn redundancy(&self) -> Option<&dyn RedundancyService> {
        self.engine.redundancy()
    }

    fn resize_commits(&self) -> bool {
        self.engine.resize_commits()
    }

    fn number_above(&self, number: u64) {
        self.engine.number_above(number);
    }

    fn last_commit(&self) -> Stamped {
        self.engine.last_commit()
    }

    fn write_if(&self, pieces: &[Piece<'_>], changes: u64) -> Result<bool> {
        self.engine.write_if(pieces, changes)
    }

    fn changes(&self) -> Option<u64> {
        self.engine.changes()
    }

    fn commits(&self) -> Option<&dyn CommitService> {
        self.engine.commits()
    }

    fn snapshots(&self) -> Option<&dyn SnapshotService> {
        self.engine.snapshots()
    }
}
