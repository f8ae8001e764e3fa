//! Golden files of the hybrid log: what was written by its first version opens in every later one, byte for byte.
//!
//! `UNTORN_BLESS=1 cargo test -p untorn --test file hybrid_log_golden::` writes them anew, which only a change of the
//! format's version may ask for. A sidecar is kept without the zeros at its end; its length stands in its retirement
//! line.

use std::path::{Path, PathBuf};

use crate::common::golden;
use crate::common::{PAGE, Pair, killed, memory_dir, names, pattern, pmem, read, scratch_holding};
use untorn::options::LogPolicy;
use untorn::testing::storage::PageCache;
use untorn::{Durability, EngineKind, Error, Options};

const LEN: usize = 3 * PAGE + 100;

struct Case {
    name: &'static str,
    policy: LogPolicy,
    clean: bool,
    /// On a disk the short epochs are inline.
    on_disk: bool,
}

const CASES: [Case; 4] = [
    Case { name: "hybrid-log-redo-open", policy: LogPolicy::Redo, clean: false, on_disk: false },
    Case { name: "hybrid-log-undo-open", policy: LogPolicy::Undo, clean: false, on_disk: false },
    Case { name: "hybrid-log-clean", policy: LogPolicy::Redo, clean: true, on_disk: false },
    Case { name: "hybrid-log-inline-open", policy: LogPolicy::Redo, clean: false, on_disk: true },
];

/// The epochs of every golden file, by offset and bytes: in one block, over the edge of two, over all.
fn epochs() -> Vec<(usize, Vec<u8>)> {
    vec![(7, pattern(200, 10)), (PAGE - 30, pattern(60, 11)), (1000, pattern(2 * PAGE, 12)), (0, pattern(LEN, 13))]
}

fn contents() -> Vec<u8> {
    let mut model = pattern(LEN, 1);
    for (offset, bytes) in epochs() {
        model[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    model
}

impl Case {
    fn bless(&self) {
        let path = scratch_holding(pattern(LEN, 1));
        let options = Options::new().engine(EngineKind::HybridLog).durability(Durability::PerCommit);
        let options = options.log_policy(self.policy).record_area(1, 4).checkpoint_threads(0).keep_sidecar(true);
        let opened =
            if self.on_disk { options.open_on(PageCache::new(), &path) } else { options.open_on(pmem(), &path) };
        let file = opened.unwrap();
        for (offset, bytes) in epochs() {
            file.write_at(&bytes, offset as u64).unwrap();
            file.sync().unwrap();
        }
        if self.clean {
            file.close().unwrap();
        } else {
            // An open epoch, which is no part of the contents.
            file.write_at(&[0xee; 500], 3000).unwrap();
            killed(file);
        }
        golden::bless(self.name, &Pair::of(&path));
    }

    fn place(&self, dir: &Path) -> PathBuf {
        let path = golden::place(self.name, dir);
        if self.clean {
            golden::restore_time(&path, &golden::load(self.name).1);
        }
        path
    }
}

#[test]
fn a_golden_file_opens_and_holds_what_was_committed() {
    if golden::are_blessed() {
        CASES.iter().for_each(Case::bless);
    }
    for case in &CASES {
        for on_disk in [false, true] {
            let what = format!("{}, on a disk: {on_disk}", case.name);
            let dir = memory_dir();
            let path = case.place(dir.path());
            // Its engine is found with it.
            let options = Options::new().adopt(true);
            let open = |options: &Options| {
                let dax = pmem();
                if on_disk { options.open_on(PageCache::new(), &path) } else { options.open_on(dax, &path) }
            };
            let refused = open(&Options::new()).unwrap_err();
            assert!(matches!(refused, Error::SidecarMissing { .. }), "{what}: {refused}");
            let file = open(&options).unwrap_or_else(|error| panic!("{what}: {error}"));
            let info = file.info();
            assert_eq!((info.engine, info.durability), (EngineKind::HybridLog, Durability::PerCommit), "{what}");
            assert_eq!(info.commit, epochs().len() as u64, "{what}");
            assert_eq!(info.recovery.was_needed, !case.clean, "{what}");
            assert_eq!(info.recovery.replayed > 0, !case.clean && case.policy == LogPolicy::Redo, "{what}");
            assert_eq!(info.recovery.discarded > 0, !case.clean, "{what}");
            assert!(read(&file) == contents(), "{what}");
            // It is as good as any other file from now on.
            let mut model = contents();
            file.write_at(&[5; 3000], 3000).unwrap();
            model[3000..6000].fill(5);
            file.close().unwrap();
            let file = open(&Options::new()).unwrap();
            assert!(read(&file) == model, "{what}");
            file.settle().unwrap();
            assert!(std::fs::read(&path).unwrap() == model, "{what}");
            assert_eq!(names(dir.path()), ["data"], "{what}");
        }
    }
}
