//! Operations in any order, with crashes between them, against a plain byte array.

use untorn::options::{Layout, LogPolicy, Order, ReadPolicy};
use untorn::testing::storage::MediumClass;
use untorn::{AtomicFile, Durability, EngineKind, Options};
use untorn_sim::{Rng, SimMedium};

use crate::input::Input;
use crate::judge::plain;
use crate::pair::{PAGE, PATH};

const START: usize = 2 * PAGE + 300;
const MAX: u64 = 12 * PAGE as u64;

/// The file and the content that it must have.
struct Run {
    medium: SimMedium,
    options: Options,
    durability: Durability,
    file: Option<AtomicFile>,
    now: Vec<u8>,
    /// As of the last commit: what every crash leaves.
    committed: Vec<u8>,
    /// Tells the bytes of one write from those of another.
    writes: u8,
}

/// Operations on a file in any order, with crashes between them, against a plain byte array.
pub fn operations(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let bit = |n: u8| choices >> n & 1 == 1;
    let class = if bit(0) { MediumClass::Block } else { MediumClass::PersistentMemory };
    let durability = if bit(1) { Durability::PerCommit } else { Durability::PerWrite };
    let options = Options::new()
        .durability(durability)
        .order(if bit(2) { Order::TwoFence } else { Order::OneFence })
        .layout(if bit(3) { Layout::Sparse } else { Layout::Dense })
        .read_policy(if bit(4) { ReadPolicy::Deploy } else { ReadPolicy::Gather })
        .record_area(1 + u32::from(bit(5)), if bit(6) { 4 } else { 8 })
        .max_len(MAX);
    let options = if bit(7) { hybrid_log(options, class, input.byte()) } else { options };
    let medium = SimMedium::new(class);
    let start = vec![9; START];
    medium.install(PATH, &start);
    let mut run = Run { medium, options, durability, file: None, now: start.clone(), committed: start, writes: 0 };
    run.reopen();
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
        run.compare();
    }
}

/// The other engine, with chunks as small as they come and no threads of its own.
fn hybrid_log(options: Options, class: MediumClass, choices: u8) -> Options {
    let policy = match (choices % 3, class) {
        (0, _) | (_, MediumClass::Block) => LogPolicy::Redo,
        (1, _) => LogPolicy::Undo,
        _ => LogPolicy::Hybrid,
    };
    let options = options.engine(EngineKind::HybridLog).log_policy(policy).redo_threshold_percent(choices % 101);
    options.log_size(1 << 20).checkpoint_threads(0)
}

impl Run {
    fn reopen(&mut self) {
        let opened = self.options.open_on(self.medium.clone(), PATH);
        self.file = Some(opened.unwrap_or_else(|error| panic!("the file does not open: {error}")));
    }

    fn file(&self) -> &AtomicFile {
        self.file.as_ref().expect("the file is open between steps")
    }

    fn compare(&self) {
        let file = self.file();
        assert_eq!(file.len(), self.now.len() as u64);
        let mut bytes = vec![0; self.now.len()];
        file.read_at(&mut bytes, 0).expect("the whole file is readable");
        let differs = bytes.iter().zip(&self.now).position(|(a, b)| a != b);
        assert_eq!(differs, None, "the file differs from the model at this byte");
        assert_eq!(self.medium.faults(), [], "the engine broke rules of the medium");
    }

    /// A place to write to, sometimes beyond the end, and bytes for it.
    fn piece(&mut self, input: &mut Input<'_>) -> (usize, Vec<u8>) {
        let at = match input.byte() % 4 {
            0 => usize::from(input.byte()) * 64,
            1 => PAGE * (1 + usize::from(input.byte() % 4)) - usize::from(input.byte()),
            _ => input.below(MAX) as usize,
        };
        let len = match input.byte() {
            small @ 0..=99 => usize::from(small),
            slices @ 100..=199 => 64 * usize::from(slices - 99),
            pages => 1000 * usize::from(pages - 199),
        };
        self.writes = self.writes.wrapping_add(1);
        (at, (0..len).map(|n| self.writes.wrapping_add((n / 7) as u8)).collect())
    }

    /// Returns whether a piece lies within the file; if so, puts the bytes into `bytes`.
    fn put(bytes: &mut [u8], at: usize, piece: &[u8]) -> bool {
        let place = bytes.get_mut(at..at + piece.len());
        place.map(|place| place.copy_from_slice(piece)).is_some()
    }

    fn written(&mut self) {
        if self.durability == Durability::PerWrite {
            self.committed.clone_from(&self.now);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            choice @ 0..=4 => {
                let (at, bytes) = self.piece(input);
                let fits = Self::put(&mut self.now, at, &bytes);
                let write = if choice == 4 { AtomicFile::write_at_eager } else { AtomicFile::write_at };
                assert_eq!(write(self.file(), &bytes, at as u64).is_ok(), fits);
                self.written();
            }
            5 | 6 => self.transaction(input, true),
            7 => self.transaction(input, false),
            8 => {
                self.file().sync().expect("sync succeeds");
                self.committed.clone_from(&self.now);
            }
            9 => {
                let len = input.below(MAX + PAGE as u64);
                let done = self.file().resize(len);
                assert_eq!(done.is_ok(), len <= MAX, "{done:?}");
                if done.is_ok() {
                    self.now.resize(len as usize, 0);
                    // Under the hybrid log the length belongs to the epoch.
                    if self.file().info().engine == EngineKind::HybridLog {
                        self.written();
                    } else {
                        self.committed.clone_from(&self.now);
                    }
                }
            }
            10 => {
                let (at, len) = (input.below(MAX), input.below(3 * PAGE as u64));
                let done = self.file().deploy(at, len);
                assert_eq!(done.is_ok(), at + len <= self.now.len() as u64, "{done:?}");
            }
            11 => drop(self.file().reclaim().expect("reclaim succeeds")),
            12 => {
                let closed = self.file.take().map(AtomicFile::close);
                assert!(matches!(closed, Some(Ok(()))), "{closed:?}");
                self.committed.clone_from(&self.now);
                self.reopen();
            }
            13 => {
                let settled = self.file.take().map(AtomicFile::settle);
                assert!(matches!(settled, Some(Ok(()))), "{settled:?}");
                self.committed.clone_from(&self.now);
                let plain = plain(&self.medium).expect("the data file exists");
                assert!(plain == self.now, "settling changed the file's bytes");
                self.reopen();
            }
            14 => {
                self.file = None;
                self.now.clone_from(&self.committed);
                self.reopen();
            }
            _ => self.crash(input),
        }
    }

    fn transaction(&mut self, input: &mut Input<'_>, commit: bool) {
        let pieces: Vec<_> = (0..input.byte() % 12).map(|_| self.piece(input)).collect();
        let mut after = self.now.clone();
        let mut transaction = self.file().transaction();
        for (at, bytes) in &pieces {
            let fits = Self::put(&mut after, *at, bytes);
            assert_eq!(transaction.write_at(bytes, *at as u64).is_ok(), fits);
        }
        let mut seen = vec![0; after.len()];
        transaction.read_at(&mut seen, 0).expect("reading within a transaction succeeds");
        assert!(seen == after, "a transaction does not see its own writes");
        if commit {
            transaction.commit().expect("commit succeeds");
            self.now = after;
            self.written();
        }
    }

    /// The processes are killed, or the power goes; the machine starts again.
    fn crash(&mut self, input: &mut Input<'_>) {
        let state = self.medium.crash_state();
        let next = match input.byte() {
            0 => state.killed(),
            1 => state.image(&state.nothing()).boot(),
            2 => state.image(&state.everything()).boot(),
            seed => state.image(&state.sample(&mut Rng::new(seed.into()))).boot(),
        };
        // The handle of the machine that is no more.
        self.file = None;
        self.medium = next;
        self.now.clone_from(&self.committed);
        self.reopen();
    }
}
