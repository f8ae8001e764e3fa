//! Sidecars that are longer than anything: an opening reads what is there, and of holes nothing.

use std::fs::OpenOptions;

use crate::common::counting::Counting;
use crate::common::{PAGE, killed, limit, memory_dir, pattern, read, sidecar_of};
use untorn::options::Layout;
use untorn::testing::storage::PageCache;
use untorn::{Durability, EngineKind, Options};

/// The most that an opening may read of a file of a few pages and of its sidecar: a small part of a mebibyte for each
/// gibibyte that the sidecar pretends to have.
const MOST: u64 = 8 << 20;

fn options(engine: EngineKind, layout: Layout, units: u32) -> Options {
    let options = Options::new().engine(engine).layout(layout).durability(Durability::PerCommit).checkpoint_threads(0);
    options.record_area(1, units)
}

#[test]
fn a_sidecar_of_terabytes_of_hole_costs_what_it_holds() {
    let _limit = limit(120, "opening files with long sidecars");
    // The pages of a chunk, with what goes before them, by which a sidecar grows.
    for (engine, layout, units, chunk) in [
        (EngineKind::Reflection, Layout::Dense, 16, 513),
        (EngineKind::Reflection, Layout::Sparse, 16, 257),
        (EngineKind::HybridLog, Layout::Dense, 512, 520),
        (EngineKind::HybridLog, Layout::Dense, 4, 5),
    ] {
        let what = format!("{engine} {layout}, {units} units");
        // In memory, where a file may have any length.
        let dir = memory_dir();
        let options = options(engine, layout, units);
        let mut model = pattern(20 * PAGE, 1);
        let path = dir.path().join("data");
        let file = options.create_on(PageCache::new(), &path, 20 * PAGE as u64).unwrap();
        file.write_at(&model, 0).and_then(|()| file.sync()).unwrap();
        killed(file);
        let sidecar = sidecar_of(&path);
        let len = std::fs::metadata(&sidecar).unwrap().len();
        let chunk = chunk * PAGE as u64;
        let more = (8 << 40) / chunk * chunk;
        OpenOptions::new().write(true).open(&sidecar).unwrap().set_len(len + more).unwrap();
        let medium = Counting::new(PageCache::new());
        let reader = options.clone().read_only(true).open_on(medium.clone(), &path);
        let reader = reader.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(read(&reader) == model, "{what}");
        drop(reader);
        let file = options.open_on(medium.clone(), &path).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(read(&file) == model, "{what}");
        let bytes_read = medium.bytes_read();
        assert!(bytes_read < MOST, "{what}: {bytes_read} bytes were read");
        // Work goes on in it.
        model[5..5 + PAGE].copy_from_slice(&pattern(PAGE, 2));
        file.write_at(&model[5..5 + PAGE], 5).and_then(|()| file.sync()).unwrap();
        file.reclaim().unwrap();
        file.close().unwrap();
        let file = options.open_on(medium.clone(), &path).unwrap();
        assert!(read(&file) == model, "{what}");
        file.settle().unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "{what}");
        let bytes_read = medium.bytes_read();
        assert!(bytes_read < 2 * MOST, "{what}: {bytes_read} bytes were read in all");
    }
}

/// One that is longer than any address space is refused, and nothing of it is read through.
#[test]
fn a_sidecar_of_exabytes_is_refused_at_once() {
    let _limit = limit(60, "opening files with endless sidecars");
    for engine in untorn::testing::ENGINES {
        let dir = memory_dir();
        let options = options(engine, Layout::Dense, 16);
        let path = dir.path().join("data");
        let file = options.create_on(PageCache::new(), &path, 20 * PAGE as u64).unwrap();
        file.write_at(&pattern(PAGE, 1), 0).and_then(|()| file.sync()).unwrap();
        killed(file);
        let sidecar = OpenOptions::new().write(true).open(sidecar_of(&path)).unwrap();
        sidecar.set_len(i64::MAX as u64).unwrap();
        let medium = Counting::new(PageCache::new());
        let error = options.open_on(medium.clone(), &path).unwrap_err();
        assert!(!error.to_string().is_empty() && medium.bytes_read() < MOST, "{error}");
    }
}
