//! Counts what an engine does, for the crate `metrics`.
//!
//! Only a build with the feature `metrics` has this layer, so any other build pays nothing for it. The names of the
//! metrics are in the documentation of the crate.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::figures::Figures;
use super::layer::Layer;
use super::{Engine, Piece};
use crate::error::Result;
use crate::options::Durability;

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

impl Layer for Metered {
    type Within = dyn Engine;

    fn within(&self) -> &Self::Within {
        &*self.engine
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
}
