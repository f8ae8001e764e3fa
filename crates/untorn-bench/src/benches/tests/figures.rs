//! The figures of papers: their systems and points.

use serde_json::Value;
use untorn::testing::storage::MediumKind;

use super::{names, report, small};
use crate::args::Args;

#[test]
fn region_ops_compares_what_is_done_with_regions_and_files() {
    for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dirty: vec![1, 3], threads: vec![1], ..small(dir.path()) };
        let json = report(kind, "region-ops", &args);
        let rows = json["rows"].as_array().unwrap();
        let of = |pages: u64| rows.iter().filter(move |row| row["pages"] == pages).map(|row| &row["workload"]);
        let all = ["create", "allocate", "map", "unmap", "free-alternate", "free", "delete"];
        assert!(of(3).eq(all) && of(1).eq(all.into_iter().filter(|step| *step != "free-alternate")), "{json}");
        for row in rows {
            for field in ["ops_per_s", "untorn_ops_per_s", "ratio_to_untorn"] {
                assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
            }
        }
    }
}

#[test]
fn the_figures_of_the_region_system_have_their_systems() {
    for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { sizes: vec![], commit_every: None, threads: vec![1, 2], ..small(dir.path()) };
        let json = report(kind, "region-fig5", &args);
        let rows = json["rows"].as_array().unwrap();
        for (threads, rows) in [(1, &rows[..rows.len() / 2]), (2, &rows[rows.len() / 2..])] {
            let systems: Vec<&str> = rows.iter().map(|row| row["system"].as_str().unwrap()).collect();
            let is_missing = |system: &str| {
                json["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().starts_with(system))
            };
            let all = ["untorn-region", "untorn-shared-region", "libpmem", "libpmem-dax"];
            let expected = all.into_iter().filter(|system| !is_missing(&format!("without {system}:")));
            assert!(systems.iter().copied().eq(expected), "{systems:?}");
            assert_eq!(systems.contains(&"libpmem"), kind == MediumKind::AssumedPmem);
            assert!(rows.iter().all(|row| row["threads"] == threads && row["baseline"] == "untorn-region"));
        }
        let args =
            Args { dirty: vec![2], sizes: vec![], threads: vec![], file_len: None, ops: None, ..small(dir.path()) };
        let json = report(kind, "region-fig4", &Args { commit_every: None, seconds: Some(0.01), ..args });
        assert_eq!(json["rows"].as_array().unwrap().len(), 7);
        assert!(json["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains("ext4-DAX")));
    }
}

#[test]
fn the_figures_of_nvcache_have_each_stack() {
    let stacks = ["disk", "disk-direct", "tmpfs", "untorn-log", "untorn-log-through"];
    for (figure, expected, points) in [
        ("nvcache-fig3", [1, 0, 1, 1, 1], 4),
        ("nvcache-fig4", [1, 1, 1, 1, 1], 1),
        ("nvcache-fig5", [0, 1, 0, 1, 1], 1),
        ("nvcache-fig6", [0, 1, 0, 1, 1], 5),
        ("nvcache-fig7", [1, 0, 1, 1, 1], 3),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let args = Args {
            dir: Some(dir.path().to_owned()),
            file_len: Some(64 * 4096),
            log_size: Some(1 << 20),
            seconds: Some(0.5),
            ops: Some(20),
            ..Args::default()
        };
        let json = report(MediumKind::Volatile, figure, &args);
        let notes = json["notes"].to_string();
        assert!(notes.contains("the paper writes 20 GiB"), "{figure}: how it differs from the paper: {notes}");
        let rows = json["rows"].as_array().unwrap();
        for (stack, expected) in stacks.iter().zip(expected) {
            let of_stack: Vec<&Value> = rows.iter().filter(|row| row["system"] == *stack).collect();
            // A file system may have no O_DIRECT.
            let expected = if notes.contains(&format!("without {stack}")) { 0 } else { expected * points };
            assert_eq!(of_stack.len(), expected, "{figure}: {stack}");
            for row in of_stack {
                assert!(row["latency_ns"]["ops"].as_u64().unwrap() > 0, "{row}");
                assert!(!row["slices_per_s"].as_array().unwrap().is_empty(), "{row}");
            }
        }
    }
}

#[test]
fn the_libnvmmio_figures_have_a_row_for_each_system() {
    let figures =
        [("fig1", 1), ("fig6", 2), ("fig7", 4), ("fig8", 2), ("fig9", 2), ("fig10", 4), ("table2", 2), ("fig11", 2)];
    for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
        for (figure, points) in figures {
            let dir = tempfile::tempdir().unwrap();
            let args = Args { dir: Some(dir.path().to_owned()), ops: Some(4), quick: true, ..Args::default() };
            let args = Args { file_len: Some(2 << 20), ..args };
            let bench = names().into_iter().map(|(name, _)| name).find(|name| *name == format!("libnvmmio-{figure}"));
            let json = report(kind, bench.unwrap(), &args);
            let rows = json["rows"].as_array().unwrap();
            // Undo logging needs persistent memory.
            let is_of_policies = matches!(figure, "fig6" | "fig11");
            let systems = if is_of_policies && kind == MediumKind::Volatile { 3 } else { 4 };
            assert_eq!(rows.len(), points * systems, "{figure}");
            for row in rows {
                assert!(
                    row["ops_per_s"].as_f64().unwrap() > 0.0 && row["latency_ns"]["ops"].as_u64().unwrap() > 0,
                    "{row}"
                );
            }
            let notes = json["notes"].to_string();
            assert!(notes.contains("the paper: ") && notes.contains("left out: PMFS"), "{notes}");
        }
    }
}

/// The economy of the Acumen paper, §V-A: bytes that random writes of 1 KiB store.
#[test]
fn the_figure_of_acumen_counts_what_writes_store() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args { dir: Some(dir.path().to_owned()), ops: Some(100), file_len: Some(1 << 20), ..Args::default() };
    let args = Args { quick: true, sizes: vec![64, 1024], reads: vec![0, 80, 100], ..args };
    let json = report(MediumKind::AssumedPmem, "acumen-fig3", &args);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 2 * 5, "three mixes, two sizes, five systems");
    let stored = |mix: &str, size: u64, system: &str| {
        let is_it = |row: &&Value| {
            row["workload"].as_str().unwrap().starts_with(mix) && row["size"] == size && row["system"] == system
        };
        rows.iter().find(is_it).unwrap()["bytes_per_user_byte"].as_f64()
    };
    for mix in ["0 % reads", "80 % reads"] {
        let [reflection, hybrid_log, shadow] = ["untorn-reflection", "untorn-hybrid-log", "untorn-shadow"]
            .map(|system| stored(mix, 1024, system).unwrap());
        assert!((1.0..=1.10).contains(&reflection), "{mix}: reflection stores {reflection}");
        assert!(reflection <= 0.55 * hybrid_log, "{mix}: {reflection}, hybrid-log {hybrid_log}");
        assert!(shadow >= 4.0 && reflection <= 0.30 * shadow, "{mix}: {reflection}, shadow {shadow}");
        // A page for a slice.
        assert!(stored(mix, 64, "untorn-shadow").unwrap() >= 64.0);
    }
    assert_eq!(stored("100 % reads", 1024, "untorn-reflection"), None, "no byte was written");
    let deployed = stored("80 % reads", 1024, "untorn-reflection-deploying").unwrap();
    assert!(deployed >= stored("80 % reads", 1024, "untorn-reflection").unwrap());
    let notes = json["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("20.2 % of NOVA")), "{json}");
}
