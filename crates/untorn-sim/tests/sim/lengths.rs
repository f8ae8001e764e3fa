//! Lengths, as other threads see them while they change.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use untorn::testing::storage::MediumClass;
use untorn::{AtomicFile, Durability, EngineKind, Options};
use untorn_sim::{SimMedium, Verdict};

const PATH: &str = "/data";
const LEN: u64 = 3 * 4096;

/// The lengths that the file has at each barrier of a change of its length, and afterwards.
fn seen(engine: EngineKind, class: MediumClass, durability: Durability, len: u64) -> Vec<u64> {
    let medium = SimMedium::new(class);
    medium.install(PATH, &[7; LEN as usize]);
    let options = Options::new().engine(engine).durability(durability).max_len(1 << 20).record_area(2, 4);
    let file: Arc<AtomicFile> = Arc::new(options.open_on(medium.clone(), Path::new(PATH)).unwrap());
    file.write_at(b"before", 100).unwrap();
    let (found, looked_at) = (Arc::new(Mutex::new(Vec::new())), Arc::new(OnceLock::new()));
    looked_at.set(Arc::downgrade(&file)).unwrap();
    let noted = found.clone();
    medium.set_hook(Box::new(move |instant| {
        let file = looked_at.get().and_then(std::sync::Weak::upgrade).unwrap();
        if instant.barrier.is_some() {
            noted.lock().unwrap().push(file.len());
        }
        Verdict::Allow
    }));
    file.resize(len).unwrap();
    medium.clear_hook();
    let mut found = std::mem::take(&mut *found.lock().unwrap());
    found.push(file.len());
    found
}

/// If each write is durable before it is seen, each length is, too: at the barrier that makes it durable, the old
/// length is still visible.
#[test]
fn no_reader_sees_a_length_that_a_crash_could_take_back() {
    for engine in untorn::testing::ENGINES {
        for class in [MediumClass::PersistentMemory, MediumClass::Block] {
            for len in [LEN + 5000, LEN - 5000, 100] {
                let lens = seen(engine, class, Durability::PerWrite, len);
                let old = lens.iter().take_while(|found| **found == LEN).count();
                assert!(old > 0 && lens[old..].iter().all(|found| *found == len), "{engine:?} on {class:?}: {lens:?}");
                // The calls after the record of a shorter length give back room, and make nothing durable that was
                // seen.
                let after = lens.len() - old - 1;
                assert!(after == 0 || len < LEN, "{engine:?} on {class:?}: {lens:?}");
            }
        }
    }
}
