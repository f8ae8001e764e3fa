//! Random operations on an [`AtomicFile`] against a plain byte array, on every medium this machine has without root.

use std::path::Path;

use crate::common::{ReadAt, pmem};
use proptest::prelude::*;
use untorn::options::{Layout, LogPolicy, Order, ReadPolicy};
use untorn::{AtomicFile, Durability, EngineKind, Options, Result, Snapshot};
use untorn_testing::cases;

const START: u64 = 3 * 4096 + 100;
const MAX: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Write { offset: u64, len: usize, fill: u8 },
    Eager { offset: u64, len: usize, fill: u8 },
    Transaction(Vec<(u64, usize, u8)>),
    Abandoned(Vec<(u64, usize, u8)>),
    Read { offset: u64, len: usize },
    Deploy { offset: u64, len: u64 },
    Sync,
    Resize(u64),
    Reclaim,
    Snapshot,
    Release(usize),
    Reopen,
    Drop,
    Settle,
}

fn ranges() -> impl Strategy<Value = Vec<(u64, usize, u8)>> {
    prop::collection::vec((0..START, 0_usize..6000, any::<u8>()), 0..6)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..START, 0_usize..9000, any::<u8>()).prop_map(|(offset, len, fill)| Op::Write { offset, len, fill }),
        3 => (0..START / 64, 1_usize..64, any::<u8>())
            .prop_map(|(slice, slices, fill)| Op::Write { offset: slice * 64, len: slices * 64, fill }),
        1 => (0..START, 0_usize..300, any::<u8>()).prop_map(|(offset, len, fill)| Op::Eager { offset, len, fill }),
        3 => ranges().prop_map(Op::Transaction),
        1 => ranges().prop_map(Op::Abandoned),
        4 => (0..START, 0_usize..9000).prop_map(|(offset, len)| Op::Read { offset, len }),
        1 => (0..START, 0_u64..9000).prop_map(|(offset, len)| Op::Deploy { offset, len }),
        3 => Just(Op::Sync),
        2 => (0..8 * 4096_u64).prop_map(Op::Resize),
        1 => Just(Op::Reclaim),
        3 => Just(Op::Snapshot),
        1 => (0_usize..4).prop_map(Op::Release),
        1 => Just(Op::Reopen),
        1 => Just(Op::Drop),
        1 => Just(Op::Settle),
    ]
}

/// How a test opens files.
struct Rig {
    options: Options,
    pmem: bool,
}

impl Rig {
    fn open(&self, path: &Path) -> Result<AtomicFile> {
        if self.pmem { self.options.open_on(pmem(), path) } else { self.options.open(path) }
    }
}

/// What the file must hold.
struct Model {
    now: Vec<u8>,
    committed: Vec<u8>,
    durability: Durability,
    /// Held snapshots, each with what it must hold.
    held: Vec<(Snapshot, Vec<u8>)>,
}

impl Model {
    fn fits(&self, offset: u64, len: usize) -> bool {
        offset + len as u64 <= self.now.len() as u64
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.now[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn written(&mut self) {
        if self.durability == Durability::PerWrite {
            self.committed.clone_from(&self.now);
        }
    }
}

/// Bytes that tell where in the write they were.
fn pattern(len: usize, fill: u8) -> Vec<u8> {
    (0..len).map(|n| fill.wrapping_add((n / 7) as u8)).collect()
}

fn compare(file: &AtomicFile, model: &Model) {
    assert_eq!(file.len(), model.now.len() as u64);
    let bytes = file.bytes_at(0, model.now.len());
    if let Some(at) = bytes.iter().zip(&model.now).position(|(a, b)| a != b) {
        panic!("byte {at}: {} in the file, {} in the model", bytes[at], model.now[at]);
    }
}

fn compare_snapshots(file: &AtomicFile, model: &Model) {
    let held = file.snapshots();
    assert_eq!(held.snapshots.len(), model.held.len());
    assert!(!model.held.is_empty() || held.bytes == 0, "{held:?}");
    for (snapshot, bytes) in &model.held {
        assert_eq!(snapshot.len(), bytes.len() as u64);
        let mut read = vec![0xee; bytes.len()];
        snapshot.read_at(&mut read, 0).unwrap();
        if let Some(at) = read.iter().zip(bytes).position(|(a, b)| a != b) {
            panic!("byte {at}: {} in {snapshot:?}, {} in the model", read[at], bytes[at]);
        }
        assert!(snapshot.read_at(&mut [0], snapshot.len()).is_err());
    }
    for pair in model.held.windows(2) {
        let [(one, first), (two, second)] = pair else { continue };
        assert!(one.commit() <= two.commit());
        assert!(one.commit() < two.commit() || first == second, "one commit has one content");
    }
}

fn apply(file: AtomicFile, model: &mut Model, op: &Op, rig: &Rig) -> Result<AtomicFile> {
    let path = file.path().to_owned();
    match op {
        Op::Write { offset, len, fill } | Op::Eager { offset, len, fill } => {
            let bytes = pattern(*len, *fill);
            let done = if matches!(op, Op::Eager { .. }) {
                file.write_at_eager(&bytes, *offset)
            } else {
                file.write_at(&bytes, *offset)
            };
            assert_eq!(done.is_ok(), model.fits(*offset, *len), "{done:?}");
            if done.is_ok() {
                model.write(*offset, &bytes);
                model.written();
            }
        }
        Op::Transaction(writes) | Op::Abandoned(writes) => {
            let mut tx = file.transaction();
            let mut after = model.now.clone();
            for (offset, len, fill) in writes {
                let bytes = pattern(*len, *fill);
                let done = tx.write_at(&bytes, *offset);
                assert_eq!(done.is_ok(), model.fits(*offset, *len));
                if done.is_ok() {
                    after[*offset as usize..*offset as usize + len].copy_from_slice(&bytes);
                }
            }
            let mut seen = vec![0; after.len()];
            tx.read_at(&mut seen, 0)?;
            assert_eq!(seen, after, "a transaction sees its own writes");
            if matches!(op, Op::Transaction(_)) {
                tx.commit()?;
                model.now = after;
                model.written();
            }
        }
        Op::Read { offset, len } => {
            let mut bytes = vec![0; *len];
            let done = file.read_at(&mut bytes, *offset);
            assert_eq!(done.is_ok(), model.fits(*offset, *len));
            if done.is_ok() {
                assert_eq!(bytes, model.now[*offset as usize..*offset as usize + len]);
            }
        }
        Op::Deploy { offset, len } => {
            assert_eq!(file.deploy(*offset, *len).is_ok(), model.fits(*offset, *len as usize));
        }
        Op::Sync => {
            file.sync()?;
            model.committed.clone_from(&model.now);
        }
        Op::Resize(len) => {
            file.resize(*len)?;
            model.now.resize(*len as usize, 0);
            // Under the hybrid log the length belongs to the epoch.
            if file.info().engine != EngineKind::HybridLog || model.durability == Durability::PerWrite {
                model.committed.clone_from(&model.now);
            }
        }
        Op::Reclaim => {
            file.reclaim()?;
        }
        Op::Snapshot => model.held.push((file.snapshot()?, model.committed.clone())),
        Op::Release(index) => {
            if *index < model.held.len() {
                model.held.remove(*index);
            }
        }
        Op::Reopen => {
            model.held.clear();
            file.close()?;
            model.committed.clone_from(&model.now);
            return rig.open(&path);
        }
        Op::Drop => {
            model.held.clear();
            drop(file);
            model.now.clone_from(&model.committed);
            return rig.open(&path);
        }
        Op::Settle => {
            model.held.clear();
            file.settle()?;
            model.committed.clone_from(&model.now);
            assert_eq!(std::fs::read(&path).unwrap(), model.now, "a settled file is a plain file");
            return rig.open(&path);
        }
    }
    Ok(file)
}

/// One of the two engines with reflection pages.
fn configurations(engine: EngineKind) -> impl Strategy<Value = Options> {
    let durability = prop_oneof![Just(Durability::PerWrite), Just(Durability::PerCommit)];
    let order = prop_oneof![Just(Order::OneFence), Just(Order::TwoFence)];
    let layout = prop_oneof![Just(Layout::Dense), Just(Layout::Sparse)];
    let policy = prop_oneof![Just(ReadPolicy::Gather), Just(ReadPolicy::Deploy)];
    (durability, order, layout, policy, 1_u32..4, 4_u32..20).prop_map(
        move |(durability, order, layout, policy, lanes, slots)| {
            Options::new()
                .engine(engine)
                .durability(durability)
                .order(order)
                .layout(layout)
                .read_policy(policy)
                .record_area(lanes, slots)
                .max_len(MAX)
        },
    )
}

/// The hybrid log, with chunks so small that they fill all the time. Undo where the medium is persistent memory.
fn hybrid_logs(pmem: bool) -> impl Strategy<Value = Options> {
    let durability = prop_oneof![1 => Just(Durability::PerWrite), 3 => Just(Durability::PerCommit)];
    let order = prop_oneof![Just(Order::OneFence), Just(Order::TwoFence)];
    let policy = prop_oneof![Just(LogPolicy::Hybrid), Just(LogPolicy::Redo), Just(LogPolicy::Undo)];
    (durability, order, policy, 2_u32..8, 0_usize..3, 0_u8..=100).prop_map(
        move |(durability, order, policy, units, checkpointers, redo_from)| {
            Options::new()
                .engine(EngineKind::HybridLog)
                .durability(durability)
                .order(order)
                .log_policy(if policy == LogPolicy::Undo && !pmem { LogPolicy::Redo } else { policy })
                .redo_threshold_percent(redo_from)
                .record_area(1, 1 << units)
                .log_size(2 << 20)
                .checkpoint_threads(checkpointers)
                .max_len(MAX)
        },
    )
}

fn run(dir: &Path, rig: &Rig, ops: &[Op]) {
    let dir = tempfile::tempdir_in(dir).unwrap();
    let path = dir.path().join("data");
    let zeros = vec![0; START as usize];
    std::fs::write(&path, &zeros).unwrap();
    let mut file = rig.open(&path).unwrap();
    let durability = file.info().durability;
    let mut model = Model { now: zeros.clone(), committed: zeros, durability, held: Vec::new() };
    for op in ops {
        file = apply(file, &mut model, op, rig).unwrap();
        compare(&file, &model);
        compare_snapshots(&file, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(40, 100), ..ProptestConfig::default() })]

    /// On the page cache of whatever holds temporary files.
    #[test]
    fn block(options in configurations(EngineKind::Reflection), ops in prop::collection::vec(op(), 1..25)) {
        run(&std::env::temp_dir(), &Rig { options, pmem: false }, &ops);
    }

    #[test]
    fn shadow_on_block(options in configurations(EngineKind::Shadow), ops in prop::collection::vec(op(), 1..25)) {
        run(&std::env::temp_dir(), &Rig { options, pmem: false }, &ops);
    }

    #[test]
    fn hybrid_log_on_block(options in hybrid_logs(false), ops in prop::collection::vec(op(), 1..25)) {
        run(&std::env::temp_dir(), &Rig { options, pmem: false }, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(200, 600), ..ProptestConfig::default() })]

    /// On memory treated as if it were persistent.
    #[test]
    fn assumed_pmem(options in configurations(EngineKind::Reflection), ops in prop::collection::vec(op(), 1..40)) {
        run(Path::new("/dev/shm"), &Rig { options, pmem: true }, &ops);
    }

    #[test]
    fn shadow_on_pmem(options in configurations(EngineKind::Shadow), ops in prop::collection::vec(op(), 1..40)) {
        run(Path::new("/dev/shm"), &Rig { options, pmem: true }, &ops);
    }

    #[test]
    fn hybrid_log_on_assumed_pmem(options in hybrid_logs(true), ops in prop::collection::vec(op(), 1..40)) {
        run(Path::new("/dev/shm"), &Rig { options, pmem: true }, &ops);
    }
}
