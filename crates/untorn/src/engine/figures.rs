//! What can be counted of an open file: for its metrics, and for other processes that ask.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Engine;

/// Bytes of a slice, the unit of what an engine holds outside the file.
const SLICE: u64 = 64;

/// The figures of one open file at about one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// The number of the last commit.
    pub commit: u64,
    /// The length in bytes.
    pub len: u64,
    /// Bytes that the sidecar takes on the disk.
    pub sidecar_bytes: u64,
    /// Pages with committed bytes that are not in the data file yet, and with those of the open epoch: how far the
    /// checkpoint is behind.
    pub lag_pages: u64,
    /// Bytes of the sidecar that hold such bytes: how much of the log is used.
    pub used_bytes: u64,
    /// The other bytes of the sidecar. They are its tables and its dead space, which a reclaim or a close frees.
    pub dead_bytes: u64,
    /// Held snapshots.
    pub snapshots: u64,
    /// Bytes that are kept for them.
    pub snapshot_bytes: u64,
}

/// Bytes that a file takes on its disk; 0 if it cannot be looked at.
pub(crate) fn allocated(path: &Path) -> u64 {
    path.metadata().map_or(0, |found| found.blocks() * 512)
}

impl Figures {
    pub(crate) fn of(engine: &dyn Engine) -> Self {
        let info = engine.info();
        let sidecar_bytes = info.sidecar.as_deref().map_or(0, allocated);
        let used_bytes = info.reflected_slices * SLICE;
        let held = engine.snapshots().map(|service| service.held()).unwrap_or_default();
        Figures {
            commit: info.commit,
            len: info.len,
            sidecar_bytes,
            lag_pages: info.reflected_pages,
            used_bytes,
            dead_bytes: sidecar_bytes.saturating_sub(used_bytes),
            snapshots: held.snapshots.len() as u64,
            snapshot_bytes: held.bytes,
        }
    }

    /// Each figure with its name, as metrics and other processes know it.
    pub(crate) fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("commit", self.commit),
            ("len", self.len),
            ("sidecar_bytes", self.sidecar_bytes),
            ("lag_pages", self.lag_pages),
            ("used_bytes", self.used_bytes),
            ("dead_bytes", self.dead_bytes),
            ("snapshots", self.snapshots),
            ("snapshot_bytes", self.snapshot_bytes),
        ]
    }

    /// Sets the figure of a name, if there is one.
    pub(crate) fn set(&mut self, name: &str, value: u64) {
        let place = match name {
            "commit" => &mut self.commit,
            "len" => &mut self.len,
            "sidecar_bytes" => &mut self.sidecar_bytes,
            "lag_pages" => &mut self.lag_pages,
            "used_bytes" => &mut self.used_bytes,
            "dead_bytes" => &mut self.dead_bytes,
            "snapshots" => &mut self.snapshots,
            "snapshot_bytes" => &mut self.snapshot_bytes,
            _ => return,
        };
        *place = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_comes_back_by_its_name() {
        let mut figures = Figures::default();
        for (value, (name, _)) in (1..).zip(Figures::default().named()) {
            figures.set(name, value);
        }
        figures.set("no-such", 99);
        let values: Vec<u64> = figures.named().iter().map(|(_, value)| *value).collect();
        assert_eq!(values, (1..=8).collect::<Vec<_>>());
    }
}
