//! A closed file is a plain file: nothing is left beside it that only untorn can read, unless somebody asks for it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::counting::Counting;
use crate::common::{PAGE, attempt, mark, names, pattern, read, scratch, sidecar_of};
use untorn::options::{Layout, Prefer, Progress};
use untorn::report::State;
use untorn::testing::storage::PageCache;
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Error, Options};

const LEN: usize = 5 * PAGE + 100;
const ENGINES: [EngineKind; 3] = untorn::testing::ENGINES;

fn options(engine: EngineKind) -> Options {
    Options::new().engine(engine).durability(Durability::PerCommit).record_area(2, 8)
}

fn is_plain(path: &Path, bytes: &[u8]) {
    assert!(std::fs::read(path).unwrap() == bytes, "any program reads every committed byte");
    assert_eq!((mark(path), names(path.parent().unwrap())), (None, vec!["data".to_owned()]));
    assert_eq!(untorn::inspect(path).unwrap().engine, None);
}

/// Writes three commits, and then what no commit covers.
fn written(file: &AtomicFile) -> Vec<u8> {
    let mut model = vec![0; LEN];
    for (n, at) in [3000, PAGE - 30, LEN - 700].into_iter().enumerate() {
        let bytes = pattern(700, n as u64 + 1);
        file.write_at(&bytes, at as u64).unwrap();
        model[at..at + 700].copy_from_slice(&bytes);
        file.sync().unwrap();
    }
    model
}

#[test]
fn a_file_that_was_closed_or_dropped_is_a_plain_one() {
    for engine in ENGINES {
        for drops in [false, true] {
            let path = scratch("data");
            let file = options(engine).create(&path, LEN as u64).unwrap();
            let model = written(&file);
            if drops {
                file.write_at(&[9; 5000], 2000).unwrap();
                drop(file);
            } else {
                file.close().unwrap();
            }
            is_plain(&path, &model);
            assert!(read(&options(engine).open(&path).unwrap()) == model);
        }
    }
}

/// The phases that were shown since the last look, each with its last step and the number of its steps.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<Progress>>>);

impl Shown {
    fn on(&self, options: Options) -> Options {
        let steps = self.0.clone();
        options.progress(move |step| steps.lock().unwrap().push(step))
    }

    fn take(&self) -> Vec<(&'static str, u64, usize)> {
        let steps = std::mem::take(&mut *self.0.lock().unwrap());
        let phases = steps.chunk_by(|one, next| one.phase == next.phase);
        phases
            .map(|steps| {
                assert!(steps.is_sorted_by_key(|step| step.done), "{steps:?}");
                let last = steps[steps.len() - 1];
                assert_eq!(last.done, last.total, "{steps:?}");
                (last.phase, last.total, steps.len())
            })
            .collect()
    }
}

#[test]
fn closing_the_hybrid_log_shows_its_progress() {
    // Chunks of eight units each.
    let (chunks, len) = (20, 20 * 8 * PAGE);
    let options = options(EngineKind::HybridLog).checkpoint_threads(0);
    for settles in [false, true] {
        let (path, shown) = (scratch("data"), Shown::default());
        let file = shown.on(options.clone()).create(&path, len as u64).unwrap();
        let model = pattern(len, 1);
        file.write_at(&model, 0).unwrap();
        file.sync().unwrap();
        assert_eq!(shown.take(), [], "a commit is no long work");
        if settles { file.settle() } else { file.close() }.unwrap();
        let phases = shown.take();
        let [("emptying the log", total, steps), ("flushing the file", 1, 2)] = phases[..] else {
            panic!("{phases:?}");
        };
        assert!((chunks..2 * chunks).contains(&total) && steps as u64 == total + 1, "{phases:?}");
        is_plain(&path, &model);
        // A map goes the same way.
        let mut map = shown.on(options.clone()).map(&path).unwrap();
        map.fill(7);
        map.commit().unwrap();
        assert_eq!(shown.take(), []);
        if settles { map.settle() } else { map.close() }.unwrap();
        let phases: Vec<&str> = shown.take().into_iter().map(|(phase, ..)| phase).collect();
        assert_eq!(phases, ["emptying the log", "flushing the file"]);
        is_plain(&path, &vec![7; len]);
    }
}

#[test]
fn a_map_that_was_closed_or_discarded_leaves_a_plain_file() {
    for discards in [false, true] {
        let path = scratch("data");
        let mut map = AtomicMap::create(&path, LEN as u64).unwrap();
        map[100..200].fill(1);
        map.commit().unwrap();
        map[PAGE..][..100].fill(2);
        let mut model = vec![0; LEN];
        model[100..200].fill(1);
        if discards {
            map.discard().unwrap();
        } else {
            model[PAGE..][..100].fill(2);
            map.close().unwrap();
        }
        is_plain(&path, &model);
    }
}

#[test]
fn a_sidecar_that_is_to_stay_stays() {
    for engine in ENGINES {
        let path = scratch("data");
        let file = options(engine).keep_sidecar(true).create(&path, LEN as u64).unwrap();
        let model = written(&file);
        file.close().unwrap();
        let side = std::fs::read(sidecar_of(&path)).unwrap();
        assert!(mark(&path).is_some());
        // A reader changes nothing, whatever it asks for.
        let reader = options(engine).read_only(true).open(&path).unwrap();
        assert!(read(&reader) == model);
        reader.close().unwrap();
        assert!(std::fs::read(sidecar_of(&path)).unwrap() == side);
        // The next program that does not ask for it removes it.
        options(engine).open(&path).unwrap().close().unwrap();
        is_plain(&path, &model);
    }
}

/// What is written to a file of this length through a handle that is opened so, at the end too.
fn fill(options: &Options, path: &std::path::Path, len: u64, byte: u8) {
    let file = options.open(path).unwrap();
    assert_eq!(file.len(), len);
    file.write_at(&[byte; 100], 4090).unwrap();
    file.write_at(&[byte; 10], len - 10).unwrap();
    file.close().unwrap();
}

#[test]
fn a_kept_sidecar_that_holds_nothing_minds_no_change() {
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        for layout in [Layout::Dense, Layout::Sparse] {
            let path = scratch("data");
            let options = options(EngineKind::Reflection).durability(durability).layout(layout);
            let options = options.keep_sidecar(true).plain_at_close(true).max_len(64 << 20);
            let file = options.create(&path, 10_000).unwrap();
            file.close().unwrap();
            fill(&options, &path, 10_000, 1);
            let sidecar = sidecar_of(&path);
            let mut model = vec![0; 10_000];
            model[4090..4190].fill(1);
            model[9990..].fill(1);
            assert!(std::fs::read(&path).unwrap() == model, "the file is plain");
            let plain = std::fs::File::options().write(true).open(&path).unwrap();
            // Longer than the sidecar has pages for, within a slice, to nothing and up, and edited.
            for (resizes, edit) in [(vec![9 << 20], None), (vec![4100], None), (vec![0, 20_000], Some(4000))] {
                for &len in &resizes {
                    plain.set_len(len as u64).unwrap();
                    model.resize(len, 0);
                }
                if let Some(at) = edit {
                    std::os::unix::fs::FileExt::write_all_at(&plain, &[7; 200], at as u64).unwrap();
                    model[at..at + 200].fill(7);
                }
                let reader = options.clone().read_only(true).open(&path).unwrap();
                assert!(read(&reader) == model);
                reader.close().unwrap();
                let file = options.open(&path).unwrap();
                assert!(read(&file) == model);
                file.close().unwrap();
                let len = model.len();
                model[4090..len.min(4190)].fill(2);
                model[len - 10..].fill(2);
                let file = options.open(&path).unwrap();
                file.write_at(&vec![2; len.min(4190) - 4090], 4090).unwrap();
                file.write_at(&[2; 10], len as u64 - 10).unwrap();
                file.close().unwrap();
                assert!(std::fs::read(&path).unwrap() == model);
                assert_eq!(sidecar_of(&path), sidecar);
            }
            // One that is left with slices is another matter.
            let kept = options.clone().plain_at_close(false);
            fill(&kept, &path, 20_000, 3);
            plain.set_len(30_000).unwrap();
            let error = options.open(&path).unwrap_err();
            assert!(matches!(error, Error::ModifiedExternally { .. }), "{error}");
        }
    }
}

#[test]
fn a_kept_sidecar_that_holds_nothing_goes_to_another_engine() {
    let path = scratch("data");
    let options = options(EngineKind::Reflection).keep_sidecar(true).plain_at_close(true);
    let file = options.create(&path, LEN as u64).unwrap();
    let model = written(&file);
    file.close().unwrap();
    let file = options.engine(EngineKind::HybridLog).keep_sidecar(false).open(&path).unwrap();
    assert!(read(&file) == model);
    file.close().unwrap();
    is_plain(&path, &model);
}

#[test]
fn a_file_grows_with_its_data_file_if_it_is_asked_to() {
    for engine in ENGINES {
        let path = scratch("data");
        let options = options(engine).max_len(1 << 20).grow_with_file(true);
        let file = options.create(&path, LEN as u64).unwrap();
        let mut model = written(&file);
        let plain = std::fs::File::options().write(true).open(&path).unwrap();
        assert!(!file.accept_growth().unwrap());
        for (round, accepts) in [true, false, true].into_iter().enumerate() {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let len = LEN + (round + 1) * 5000;
            plain.set_len(len as u64).unwrap();
            // A commit after the growth refuses nothing.
            file.write_at(&[round as u8], 3).unwrap();
            file.sync().unwrap();
            model[3] = round as u8;
            if accepts {
                assert!(file.accept_growth().unwrap());
                model.resize(len, 0);
                let last = model.len() - 1;
                file.write_at(&[9], last as u64).unwrap();
                model[last] = 9;
            }
            assert!(read(&file) == model, "{engine} {round}");
        }
        plain.set_len(model.len() as u64 + 1).unwrap();
        file.close().unwrap();
        model.push(0);
        is_plain(&path, &model);

        // Without being asked, and for a file that became shorter, it is a change by another program.
        for (options, len) in [(options.clone().grow_with_file(false), 40_000), (options, 100)] {
            let file = options.open(&path).unwrap();
            file.write_at(b"x", 0).unwrap();
            file.sync().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(30));
            plain.set_len(len).unwrap();
            let error = file.close().unwrap_err();
            assert!(matches!(error, Error::ModifiedExternally { .. }), "{engine}: {error}");
            untorn::recover(&path, &Options::new().prefer(Prefer::File)).unwrap();
        }
    }
}

#[test]
fn a_close_that_fails_says_that_the_commit_is_durable() {
    for engine in ENGINES {
        let path = scratch("data");
        let file = options(engine).create(&path, LEN as u64).unwrap();
        let model = written(&file);
        // Nobody but a meddler does so; it makes the last step of closing fail.
        std::fs::remove_file(sidecar_of(&path)).unwrap();
        let error = file.close().unwrap_err();
        let Error::NotClosed { commit, .. } = &error else { panic!("{error}") };
        let text = error.to_string();
        assert!(text.contains(&format!("commit {commit} is durable")) && text.contains("closing"), "{text}");
        assert_eq!(error.errno(), rustix::io::Errno::NOENT.raw_os_error());
        assert!(read(&options(engine).open(&path).unwrap()) == model);
    }
}

#[test]
fn a_kept_file_is_taken_over_by_another_engine() {
    let path = scratch("data");
    let file = options(EngineKind::HybridLog).keep_sidecar(true).create(&path, LEN as u64).unwrap();
    let model = written(&file);
    file.close().unwrap();
    let file = options(EngineKind::Reflection).open(&path).unwrap();
    assert!(read(&file) == model);
    file.close().unwrap();
    is_plain(&path, &model);
}

/// A process that is killed while one engine takes a file over from another leaves a file that both open.
#[test]
fn a_switch_of_engines_may_end_at_any_barrier() {
    let barriers = ["remove.state", "remove.mark", "create.file", "attach.files"];
    for barrier in barriers.map(|name| format!("sidecar.{name}")) {
        let path = scratch("data");
        let file = options(EngineKind::HybridLog).keep_sidecar(true).create(&path, LEN as u64).unwrap();
        let model = written(&file);
        file.close().unwrap();
        let (medium, at) = (Counting::new(PageCache::new()), barrier.clone());
        medium.watch(move |what, _| assert!(what != at, "the process ends here"));
        let ended = attempt(|| options(EngineKind::Reflection).open_on(medium, &path).map(drop));
        assert!(ended.is_err(), "{barrier} is not passed");
        let file = options(EngineKind::Reflection).open(&path).unwrap_or_else(|error| panic!("{barrier}: {error}"));
        assert!(read(&file) == model, "{barrier}");
    }
}

#[test]
fn recovery_says_how_many_commits_it_gave_up() {
    let path = scratch("data");
    let file = options(EngineKind::Reflection).keep_sidecar(true).create(&path, LEN as u64).unwrap();
    written(&file);
    file.close().unwrap();
    let home = std::fs::read(&path).unwrap();
    let recovery = untorn::recover(&path, &Options::new().prefer(Prefer::File)).unwrap();
    assert_eq!(recovery.dropped_commits, 3, "{recovery:?}");
    is_plain(&path, &home);
    // Of a plain file there is nothing to give up, nor of a log whose bytes are all at home.
    assert_eq!(untorn::recover(&path, &Options::new().prefer(Prefer::File)).unwrap().dropped_commits, 0);
    let file = options(EngineKind::HybridLog).keep_sidecar(true).open(&path).unwrap();
    let model = written(&file);
    file.close().unwrap();
    assert_eq!(untorn::recover(&path, &Options::new().prefer(Prefer::File)).unwrap().dropped_commits, 0);
    assert!(std::fs::read(&path).unwrap()[LEN - 700..] == model[LEN - 700..]);
    assert_eq!(untorn::inspect(&path).unwrap().state, State::Clean);
}
