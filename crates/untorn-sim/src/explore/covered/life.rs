//! One life of a machine with a file of an engine that has redundancy: a script of operations, crashed everywhere.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use untorn::AtomicFile;
use untorn::testing::storage::{Access, Barrier, Medium, MediumFile};

use super::super::life::{Effort, Finding, Found, describe, guarded};
use super::super::recorder::{Point, Recorder};
use super::super::scripted::Case;
use super::super::shared::{Shared, digest};
use super::check::{Sidecar, deceive, is_covered, judge, mend, open, read, rot_before};
use super::config::Config;
use crate::choice::Choice;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

pub(super) const PAGE: usize = 4096;
pub(super) const PATH: &str = "/data";
/// Lengths that the file is given; the first is that which it begins with.
const LENS: [usize; 4] = [6 * PAGE + 1000, 4 * PAGE, 7 * PAGE + 64, 0];

/// One step.
#[derive(Clone, Debug)]
enum Op {
    /// Writes so many bytes of this tag at each of these offsets, in one transaction.
    Write(Vec<(usize, usize, u64)>),
    Sync,
    Cover,
    Resize(usize),
    /// All is committed, brought home and covered; a page is damaged at rest, and then the file gets another length.
    RotResize(usize, u64),
    Reopen {
        clean: bool,
    },
    Settle,
    /// All is committed, brought home and covered; then a page is damaged at rest, and repaired.
    Mend(u64),
    /// The file is closed, a page of its sidecar is damaged at rest, and it is opened again. Or all is covered, a
    /// page is damaged, and the file is closed or settled before it is opened.
    Rest(u64),
    /// Another program stores to the file past its engine.
    Untold(u64),
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Write(pieces) => write!(f, "write (offset, bytes, tag) {pieces:?}"),
            Op::Sync => write!(f, "sync"),
            Op::Cover => write!(f, "cover"),
            Op::Resize(len) => write!(f, "resize to {len}"),
            Op::RotResize(len, seed) => write!(f, "damage with seed {seed}, resize to {len}, repair"),
            Op::Reopen { clean: true } => write!(f, "close, open"),
            Op::Reopen { clean: false } => write!(f, "drop, open"),
            Op::Settle => write!(f, "settle, open"),
            Op::Mend(seed) => write!(f, "damage with seed {seed}, repair"),
            Op::Rest(seed) => write!(f, "close, damage the sidecar with seed {seed}, open"),
            Op::Untold(seed) => write!(f, "store with seed {seed} outside the engine"),
        }
    }
}

/// The states that a crash may leave.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// The contents that the file may have; the last is the one that it has.
    pub(super) states: Vec<Vec<u8>>,
    /// Whether there may be no companion file.
    pub(super) unprotected: bool,
    /// Whether it may be of another length than the file.
    pub(super) resizing: bool,
}

impl Expected {
    fn digest(&self) -> u64 {
        digest(&self.states)
    }

    fn now(&self) -> &Vec<u8> {
        self.states.last().expect("the list of states is never empty")
    }
}

struct Context<'a> {
    config: Config,
    muted: Option<Barrier>,
    effort: Effort,
    shared: &'a Shared,
}

struct Life<'a> {
    context: &'a Context<'a>,
    medium: SimMedium,
    recorder: Arc<Recorder>,
    file: Option<AtomicFile>,
    expected: Expected,
    seed: u64,
    generation: u32,
    phases: u64,
    log: Vec<String>,
}

fn bytes_of(offset: usize, len: usize, tag: u64) -> Vec<u8> {
    let word = |at: usize| mix((tag << 32) | (at as u64 / 8));
    (offset..offset + len).map(|at| (word(at) >> (8 * (at % 8))) as u8).collect()
}

pub(super) fn wrong<T>(what: String) -> Found<T> {
    Err(Finding::new(what))
}

/// Runs a case to its first violation.
pub(super) fn run(case: &Case<Config>, shared: &Shared) -> Option<Box<Finding>> {
    let mut rng = Rng::derive(case.seed, 1);
    let effort =
        Effort { cap: *rng.pick(&[8, 32]), samples: *rng.pick(&[4, 8, 16]), afterlife: *rng.pick(&[10, 40]), depth: 2 };
    let context = Context { config: case.config, muted: case.muted, effort, shared };
    let medium = SimMedium::new(case.config.medium);
    let bytes = bytes_of(0, LENS[0], 0);
    medium.install(PATH, &bytes);
    let mut life = Life::new(&context, medium, case.seed);
    life.expected = Expected { states: vec![bytes], unprotected: true, resizing: false };
    let creation = rng.one_in(6);
    let (before, after) = (rng.below(8), 1 + rng.below(4));
    let result = life.begin(creation).and_then(|()| life.play(rng, before, after));
    life.report(result).err()
}

impl<'a> Life<'a> {
    fn new(context: &'a Context<'a>, medium: SimMedium, seed: u64) -> Self {
        if let Some(barrier) = context.muted {
            medium.mutate(barrier);
        }
        let recorder = Recorder::attach(&medium);
        let (file, expected, log) = (None, Expected::default(), Vec::new());
        Life { context, medium, recorder, file, expected, seed, generation: 0, phases: 0, log }
    }

    /// Puts the operations of this life in front of what a finding says already.
    fn report<T>(&mut self, result: Found<T>) -> Found<T> {
        result.map_err(|mut finding| {
            finding.operations.extend(self.log.drain(..).rev());
            finding
        })
    }

    /// Opens the file, which may not be protected yet.
    fn begin(&mut self, tested: bool) -> Found<()> {
        self.log.push("open".to_owned());
        self.recorder.arm(tested);
        // A crash may have left it without bytes that count, and at another length than its companion's.
        let during = Expected { resizing: true, ..self.expected.clone() };
        self.open()?;
        self.expected.unprotected = self.expected.now().is_empty();
        let after = self.expected.clone();
        self.crash(&during, &after)
    }

    fn open(&mut self) -> Found<()> {
        self.file = Some(open(&self.context.config, &self.medium, &self.expected)?);
        let held = read(self.file.as_ref().expect("it was opened just now"))?;
        self.expected.states = vec![held];
        Ok(())
    }

    fn file(&self) -> &AtomicFile {
        self.file.as_ref().expect("the file is open while a script runs")
    }

    /// Runs random steps, the first of them without crashes.
    fn play(&mut self, mut rng: Rng, untested: u64, tested: u64) -> Found<()> {
        for step in 0..untested + tested {
            if self.context.shared.stopped() {
                break;
            }
            let op = self.next(&mut rng);
            // After a store past the engine, only the judge looks at the file: another check could convict it where
            // the judge is blind.
            let past = matches!(op, Op::Untold(_));
            self.operation(&op, past || step >= untested)?;
            if past {
                return Ok(());
            }
        }
        self.recorder.arm(false);
        self.file = None;
        self.faults(&self.medium)
    }

    fn next(&self, rng: &mut Rng) -> Op {
        let len = self.expected.now().len();
        if self.context.config.canary && rng.one_in(4) && len > 0 {
            return Op::Untold(rng.next_u64());
        }
        match rng.below(16) {
            0..6 if len > 0 => {
                let mut pieces = Vec::new();
                let mut from = 0;
                for _ in 0..1 + rng.below(2) {
                    if from >= len {
                        break;
                    }
                    let offset = from + rng.below((len - from) as u64) as usize;
                    let most = *rng.pick(&[64, 300, 2 * PAGE]);
                    let bytes = (1 + rng.below(most as u64) as usize).min(len - offset);
                    pieces.push((offset, bytes, 1 + rng.below(3)));
                    from = offset + bytes;
                }
                Op::Write(pieces)
            }
            6 | 7 => Op::Sync,
            8..11 => Op::Cover,
            11 if len > 0 && rng.one_in(3) => Op::RotResize(*rng.pick(&LENS), rng.next_u64()),
            11 => Op::Resize(*rng.pick(&LENS)),
            12 | 13 => Op::Reopen { clean: rng.one_in(2) },
            14 if rng.one_in(2) => Op::Settle,
            14 => Op::Rest(rng.next_u64()),
            15 if len > 0 => Op::Mend(rng.next_u64()),
            _ => Op::Cover,
        }
    }

    fn operation(&mut self, op: &Op, tested: bool) -> Found<()> {
        self.recorder.arm(tested);
        self.log.push(op.to_string());
        let mut during = self.expected.clone();
        let failed = |error: untorn::Error| Finding::new(format!("{op} failed: {error}"));
        match op {
            Op::Write(pieces) => {
                let mut held = self.expected.now().clone();
                let mut transaction = self.file().transaction();
                for &(offset, len, tag) in pieces {
                    let bytes = bytes_of(offset, len, tag);
                    transaction.write_at(&bytes, offset as u64).map_err(failed)?;
                    held[offset..offset + len].copy_from_slice(&bytes);
                }
                guarded("writing", || transaction.commit())?.map_err(failed)?;
                self.becomes(held);
                during.states.clone_from(&self.expected.states);
                if self.context.config.durability == untorn::Durability::PerWrite {
                    self.committed();
                }
            }
            Op::Sync => {
                guarded("syncing", || self.file().sync())?.map_err(failed)?;
                self.committed();
            }
            Op::Cover => self.cover()?,
            Op::Resize(len) => {
                let mut held = self.expected.now().clone();
                held.resize(*len, 0);
                guarded("resizing", || self.file().resize(*len as u64))?.map_err(failed)?;
                self.becomes(held);
                during.states.clone_from(&self.expected.states);
                during.resizing = true;
                // The data file follows a shrink later.
                during.unprotected |= *len == 0;
                self.expected.unprotected |= *len == 0;
            }
            Op::RotResize(len, seed) => {
                guarded("syncing", || self.file().sync())?.map_err(failed)?;
                self.committed();
                self.cover()?;
                self.recorder.arm(false);
                let mut held = self.expected.now().clone();
                let is_rotten = rot_before(&self.medium, held.len().min(*len), &mut Rng::new(*seed));
                held.resize(*len, 0);
                guarded("resizing", || self.file().resize(*len as u64))?.map_err(failed)?;
                guarded("syncing", || self.file().sync())?.map_err(failed)?;
                self.becomes(held);
                self.committed();
                self.expected.unprotected |= *len == 0;
                if is_rotten {
                    let report = guarded("repair", || self.file().repair())?.map_err(failed)?;
                    if !report.is_whole() || read(self.file())? != *self.expected.now() {
                        return wrong(format!("{op}: earlier damage was accepted as valid data: {report:?}"));
                    }
                }
                self.cover()?;
            }
            Op::Reopen { clean } => {
                during.resizing = true;
                if let Some(file) = self.file.take()
                    && *clean
                {
                    guarded("closing", || file.close())?.map_err(failed)?;
                    self.committed();
                }
                self.open()?;
            }
            Op::Settle => {
                during.resizing = true;
                if let Some(file) = self.file.take() {
                    guarded("settling", || file.settle())?.map_err(failed)?;
                    self.committed();
                }
                self.open()?;
            }
            Op::Mend(seed) => {
                guarded("syncing", || self.file().sync())?.map_err(failed)?;
                self.cover()?;
                self.recorder.arm(false);
                mend(&self.medium, self.file(), &mut Rng::new(*seed))?;
                guarded("syncing", || self.file().sync())?.map_err(failed)?;
                self.committed();
            }
            Op::Rest(seed) => {
                during.resizing = true;
                let mut rng = Rng::new(*seed);
                let early = rng.one_in(2);
                if early {
                    guarded("syncing", || self.file().sync())?.map_err(failed)?;
                    self.committed();
                    self.cover()?;
                }
                let file = self.file.take();
                let sidecar = file.as_ref().and_then(Sidecar::of);
                // The damage comes before the crashes of the next steps, which find the sidecar whole again or still
                // damaged.
                self.recorder.arm(false);
                if let Some(sidecar) = sidecar.as_ref().filter(|_| early) {
                    sidecar.rot(&self.medium, &mut rng);
                }
                if let Some(file) = file {
                    // Bytes that are covered and damaged by then must not become the truth, neither at home nor in
                    // the digests of the engine.
                    let settles = early && rng.one_in(2);
                    guarded("closing or settling", || if settles { file.settle() } else { file.close() })?
                        .map_err(failed)?;
                    self.committed();
                }
                if let Some(sidecar) = sidecar.filter(|_| !early) {
                    sidecar.rot(&self.medium, &mut rng);
                }
                self.open()?;
                let report = guarded("repair", || self.file().repair())?.map_err(failed)?;
                let again = guarded("scrubbing", || self.file().scrub())?.map_err(failed)?;
                if !report.is_whole() || !again.is_clean() {
                    return wrong(format!("damage at rest was not repaired: {report:?}, then {again:?}"));
                }
            }
            Op::Untold(seed) => {
                let mut rng = Rng::new(*seed);
                let stored = || {
                    let file = self.medium.open(Path::new(PATH), Access::ReadWrite, 0)?;
                    let at = rng.below(file.len().max(1));
                    let mut byte = [0];
                    file.read(at, &mut byte)?;
                    file.store(at, &[!byte[0]])
                };
                guarded("storing", stored)?.map_err(failed)?;
            }
        }
        let after = self.expected.clone();
        self.crash(&during, &after)
    }

    fn cover(&mut self) -> Found<()> {
        let covered = guarded("covering", || self.file().sync_redundancy())?;
        covered.map_err(|error| Finding::new(format!("covering failed: {error}")))?;
        is_covered(self.file())
    }

    /// The file holds something else, and whether that is durable is open.
    fn becomes(&mut self, held: Vec<u8>) {
        self.expected.states.push(held);
    }

    /// The current content is durable now.
    fn committed(&mut self) {
        let last = self.expected.states.len() - 1;
        self.expected.states.drain(..last);
    }

    /// Crashes the machine at every point recorded since the last call, and checks what is left.
    fn crash(&mut self, during: &Expected, after: &Expected) -> Found<()> {
        self.recorder.returned(&self.medium);
        self.recorder.arm(false);
        self.note_reached(&self.medium);
        self.faults(&self.medium)?;
        self.phases += 1;
        let Effort { cap, samples, .. } = self.context.effort;
        for (index, point) in (0_u64..).zip(self.recorder.take()) {
            let expected = if point.before.is_some() { during } else { after };
            let mut rng = Rng::new(mix(self.seed ^ mix(self.phases << 32 | index)));
            let (cap, samples) = if point.decisive() { (cap, samples) } else { (cap.min(4), samples.div_ceil(6)) };
            let choices: Vec<Choice> = match point.state.choices(cap) {
                Some(choices) => choices.collect(),
                None => {
                    let fixed = [point.state.everything(), point.state.nothing()];
                    fixed.into_iter().chain((0..samples).map(|_| point.state.sample(&mut rng))).collect()
                }
            };
            for choice in &choices {
                if self.context.shared.stopped() {
                    return Ok(());
                }
                let lives_on = self.lives_on(&mut rng);
                self.check(&point, choice, expected, lives_on).map_err(|finding| finding.at(&point, choice))?;
            }
            if self.lives_on(&mut rng) && !self.context.config.canary {
                let seed = rng.next_u64();
                self.next_life(point.state.killed(), expected, seed).map_err(|mut finding| {
                    finding.operations.push(format!("— all processes killed, {}", describe(&point)));
                    finding
                })?;
            }
        }
        Ok(())
    }

    /// Whether an image lives on; decided before anything is known of it, so that a replay decides alike.
    fn lives_on(&self, rng: &mut Rng) -> bool {
        let deep_enough = self.generation < self.context.effort.depth;
        rng.one_in(self.context.effort.afterlife << (2 * self.generation)) && deep_enough
    }

    fn check(&self, point: &Point, choice: &Choice, expected: &Expected, lives_on: bool) -> Found<()> {
        let image = point.state.image(choice);
        let digest = image.digest();
        let medium = image.boot();
        // An image of the same bytes may differ in the time of its files.
        let stamp = medium.open(Path::new(PATH), Access::Read, 0).and_then(|file| file.stamp());
        let stamp = stamp.map_err(|error| Finding::new(format!("the file cannot be opened: {error}")))?;
        if !self.context.shared.note(digest, expected.digest() ^ mix(stamp.modified)) {
            return Ok(());
        }
        self.context.shared.recoveries.fetch_add(1, Ordering::Relaxed);
        let seed = mix(self.seed ^ choice.digest());
        if self.context.config.canary {
            return judge(&medium, expected);
        }
        if lives_on {
            return self.next_life(medium, expected, seed);
        }
        judge(&medium, expected)?;
        if seed.is_multiple_of(4) {
            deceive(&medium, &mut Rng::new(mix(seed)))?;
        }
        let file = open(&self.context.config, &medium, expected)?;
        if !file.is_empty() {
            let held = read(&file)?;
            let covered = guarded("covering", || file.sync_redundancy())?;
            covered.map_err(|error| Finding::new(format!("covering failed: {error}")))?;
            is_covered(&file)?;
            mend(&medium, &file, &mut Rng::new(seed))?;
            if read(&file)? != held {
                return wrong("covering or repair changed the file's bytes".to_owned());
            }
        }
        drop(file);
        self.note_reached(&medium);
        self.faults(&medium)
    }

    /// The file is opened under the eyes of the recorder, so that this is crashed too, then a few more steps.
    fn next_life(&self, medium: SimMedium, expected: &Expected, seed: u64) -> Found<()> {
        judge(&medium, expected)?;
        let mut life = Life::new(self.context, medium, seed);
        life.generation = self.generation + 1;
        life.expected = expected.clone();
        let mut rng = Rng::new(seed);
        let phases = rng.below(4);
        let result = life.begin(true).and_then(|()| life.play(rng, 0, phases));
        life.report(result)
    }

    fn note_reached(&self, medium: &SimMedium) {
        if let Some(barrier) = self.context.muted
            && medium.reached().contains(&barrier)
        {
            self.context.shared.reached.store(true, Ordering::Relaxed);
        }
    }

    fn faults(&self, medium: &SimMedium) -> Found<()> {
        match medium.faults().first() {
            Some(fault) => wrong(format!("{fault}")),
            None => Ok(()),
        }
    }
}
