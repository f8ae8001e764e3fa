//! The metrics of a build with that feature, as a recorder of the crate `metrics` gets them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use untorn::{Durability, Options};

/// One metric: a sum, or the last value; and how often it was told.
#[derive(Default)]
struct Cell {
    value: AtomicU64,
    told: AtomicU64,
}

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.value.fetch_add(value, Ordering::Relaxed);
        self.told.fetch_add(1, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {}

    fn decrement(&self, _: f64) {}

    fn set(&self, value: f64) {
        self.value.store(value as u64, Ordering::Relaxed);
        self.told.fetch_add(1, Ordering::Relaxed);
    }
}

impl HistogramFn for Cell {
    fn record(&self, seconds: f64) {
        assert!((0.0..3600.0).contains(&seconds));
        self.told.fetch_add(1, Ordering::Relaxed);
    }
}

/// The name of a metric, and its file.
type Place = (String, String);

/// All metrics.
#[derive(Clone, Default)]
struct Cells(Arc<Mutex<BTreeMap<Place, Arc<Cell>>>>);

impl Cells {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let file = key.labels().find(|label| label.key() == "file").expect("a label").value().to_owned();
        Arc::clone(self.0.lock().unwrap().entry((key.name().to_owned(), file)).or_default())
    }

    /// The value, and how often it was told.
    fn get(&self, name: &str, file: &str) -> (u64, u64) {
        let cells = self.0.lock().unwrap();
        let cell = cells.get(&(name.to_owned(), file.to_owned())).unwrap_or_else(|| panic!("no {name}"));
        (cell.value.load(Ordering::Relaxed), cell.told.load(Ordering::Relaxed))
    }
}

impl Recorder for Cells {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}

#[test]
fn every_metric_counts_what_its_name_says() {
    let cells = Cells::default();
    metrics::with_local_recorder(&cells.clone(), || {
        for engine in untorn::testing::ENGINES {
            for durability in [Durability::PerCommit, Durability::PerWrite] {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().canonicalize().unwrap().join("data");
                let options = Options::new().engine(engine).durability(durability).log_size(1 << 20);
                let file = options.create(&path, 1 << 20).unwrap();
                let name = path.to_str().unwrap();
                let get = |metric: &str| cells.get(metric, name);
                let at_first = (get("untorn_flushes_total").0, get("untorn_stored_bytes_total").0);
                let snapshot = file.snapshot().unwrap();
                for round in 0..3_u64 {
                    file.write_at(&[7; 1000], round * 5000).unwrap();
                    file.write_at(&[8; 24], round * 5000 + 2000).unwrap();
                    file.sync().unwrap();
                    file.sync().unwrap();
                }
                let (commits, what) = (get("untorn_commits_total").0, format!("{engine}, {durability}"));
                assert_eq!(commits, if durability == Durability::PerWrite { 6 } else { 3 }, "{what}");
                assert_eq!(
                    (get("untorn_writes_total").0, get("untorn_written_bytes_total").0),
                    (6, 3 * 1024),
                    "{what}"
                );
                assert_eq!(get("untorn_commit_seconds").1, commits, "{what}");
                assert!(
                    get("untorn_fences_total").0 >= commits && get("untorn_flushes_total").0 > at_first.0,
                    "{what}"
                );
                assert!(get("untorn_stored_bytes_total").0 >= at_first.1 + 3 * 1024, "{what}");
                assert_eq!((get("untorn_len").0, get("untorn_snapshots").0), (1 << 20, 1), "{what}");
                for gauge in ["commit", "sidecar_bytes", "lag_pages", "used_bytes", "dead_bytes", "snapshot_bytes"] {
                    assert!(get(&format!("untorn_{gauge}")).1 > 0, "{what}: {gauge} was never set");
                }
                drop(snapshot);
                file.close().unwrap();
            }
        }
    });
}
