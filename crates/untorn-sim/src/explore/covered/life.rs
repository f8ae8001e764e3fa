//! A life of a machine with a file of an engine that has redundancy.

use std::fmt;
use std::path::Path;

use untorn::AtomicFile;
use untorn::testing::storage::{Access, Medium, MediumFile};

use super::super::companion::{self, PAGE, PATH};
use super::super::finding::{Finding, Found, tried, wrong};
use super::super::life::{Pace, Paced, Plan, Subject};
use super::super::search::Case;
use super::super::shared::{Shared, digest};
use super::check::{Sidecar, cover, deceive, judge, mend, open, read, rot_before, uuid};
use super::config::Config;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

type Life<'a> = super::super::life::Life<'a, Config>;

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
    /// All is committed and covered; the file and its sidecar are restored under another inode number, and adopted.
    Restore,
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
            Op::Restore => write!(f, "close, restore under another inode number, adopt"),
            Op::Mend(seed) => write!(f, "damage with seed {seed}, repair"),
            Op::Rest(seed) => write!(f, "close, damage the sidecar with seed {seed}, open"),
            Op::Untold(seed) => write!(f, "store with seed {seed} outside the engine"),
        }
    }
}

/// The states that a crash may leave.
#[derive(Clone, Debug, Default)]
pub(in crate::explore) struct Expected {
    /// The contents that the file may have; the last is the one that it has.
    pub(super) states: Vec<Vec<u8>>,
    /// Whether there may be no companion file.
    pub(super) unprotected: bool,
    /// Whether it may be of another length than the file.
    pub(super) resizing: bool,
    /// Whether the file may have to adopt its sidecar, and with it this redundancy file.
    pub(super) adopts: Option<[u8; 16]>,
}

impl Expected {
    fn now(&self) -> &Vec<u8> {
        self.states.last().expect("the list of states is never empty")
    }
}

fn bytes_of(offset: usize, len: usize, tag: u64) -> Vec<u8> {
    companion::bytes_of(tag << 32, offset..offset + len)
}

const PACE: Pace =
    Pace { caps: &[8, 32], samples: &[4, 8, 16], afterlives: &[10, 40], minor_cap: 4, creations: 6, ..Pace::USUAL };

impl Subject for Config {
    type Handle = AtomicFile;
    type Model = Expected;
    type Expected = Expected;
    type Script = Rng;

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        let medium = SimMedium::new(case.config.medium);
        let bytes = bytes_of(0, LENS[0], 0);
        medium.install(PATH, &bytes);
        let expected = Expected { states: vec![bytes], unprotected: true, resizing: false, adopts: None };
        // The explorer judges the file that the canary leaves, and no more.
        let depth = if case.config.canary { 0 } else { PACE.depth };
        Pace { depth, ..PACE }.run(case, shared, medium, expected)
    }

    fn inherit(_: &Life<'_>, expected: &Expected) -> Expected {
        expected.clone()
    }

    fn begin(life: &mut Life<'_>, expected: &Expected, _killed: bool, mut rng: Rng) -> Found<Option<Plan<Rng>>> {
        judge(&life.medium, expected)?;
        let phases = rng.below(4);
        Config::create(life, true)?;
        Ok(Some(Plan { script: rng, untested: 0, tested: phases }))
    }

    fn step(life: &mut Life<'_>, script: &mut Rng, tested: bool) -> Found<()> {
        if life.handle.is_none() {
            return Ok(());
        }
        let op = life.next(script);
        // After a store past the engine, only the judge looks at the file: another check could convict it where the
        // judge is blind.
        let past = matches!(op, Op::Untold(_));
        life.operation(&op, past || tested)?;
        if past { life.let_go() } else { Ok(()) }
    }

    /// An image of the same bytes may differ in the time of its files.
    fn digest(expected: &Expected, medium: &SimMedium) -> Found<u64> {
        let modified = tried("opening the file", || companion::modified(medium))?;
        Ok(digest(&expected.states) ^ mix(modified) ^ u64::from(expected.adopts.is_some()))
    }

    fn recover(life: &Life<'_>, medium: &SimMedium, expected: &Expected, seed: u64) -> Found<()> {
        judge(medium, expected)?;
        if life.config().canary {
            return Ok(());
        }
        if seed.is_multiple_of(4) && expected.adopts.is_none() {
            deceive(medium, &mut Rng::new(mix(seed)))?;
        }
        // Whatever filled the disk meanwhile, except in the middle of what makes new files.
        if expected.adopts.is_none() && !expected.resizing && !expected.unprotected {
            medium.leave_room(Some(0));
        }
        let keeps = seed.is_multiple_of(3);
        let file = match open(life.config(), medium, expected, keeps) {
            // A file that nobody has written to yet has no sidecar, or half of one.
            Err(_) if medium.refused_new() => {
                medium.leave_room(None);
                open(life.config(), medium, expected, keeps)?
            }
            opened => opened?,
        };
        if file.is_empty() {
            return Ok(());
        }
        let held = read(&file)?;
        cover(&file)?;
        medium.leave_room(None);
        mend(medium, &file, &mut Rng::new(seed))?;
        if read(&file)? == held { Ok(()) } else { wrong("covering or repair changed the file's bytes") }
    }
}

impl Paced for Config {
    /// Opens the file, which may not be protected yet.
    fn create(life: &mut Life<'_>, tested: bool) -> Found<()> {
        life.log.push("open".to_owned());
        life.recorder.arm(tested);
        // A crash may have left it without bytes that count, and at another length than its companion's.
        let during = Expected { resizing: true, ..life.model.clone() };
        life.open()?;
        life.model.unprotected = life.model.now().is_empty();
        let after = life.model.clone();
        life.crash(&during, &after)
    }

    fn script(&self, rng: Rng) -> Rng {
        rng
    }
}

impl Life<'_> {
    fn open(&mut self) -> Found<()> {
        let keeps = mix(self.seed ^ self.log.len() as u64).is_multiple_of(2);
        let file = open(self.config(), &self.medium, &self.model, keeps)?;
        self.model.states = vec![read(&file)?];
        self.model.adopts = None;
        self.handle = Some(file);
        Ok(())
    }

    fn next(&self, rng: &mut Rng) -> Op {
        let len = self.model.now().len();
        if self.config().canary && rng.one_in(4) && len > 0 {
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
            12 if len > 0 && rng.one_in(3) => Op::Restore,
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
        let mut during = self.model.clone();
        match op {
            Op::Write(pieces) => {
                let mut held = self.model.now().clone();
                let mut transaction = self.handle().transaction();
                for &(offset, len, tag) in pieces {
                    let bytes = bytes_of(offset, len, tag);
                    tried("writing", || transaction.write_at(&bytes, offset as u64))?;
                    held[offset..offset + len].copy_from_slice(&bytes);
                }
                tried("writing", || transaction.commit())?;
                self.becomes(held);
                during.states.clone_from(&self.model.states);
                if self.config().durability == untorn::Durability::PerWrite {
                    self.committed();
                }
            }
            Op::Sync => {
                self.commit()?;
            }
            Op::Cover => self.cover()?,
            Op::Resize(len) => {
                let mut held = self.model.now().clone();
                held.resize(*len, 0);
                tried("resizing", || self.handle().resize(*len as u64))?;
                self.becomes(held);
                during.states.clone_from(&self.model.states);
                during.resizing = true;
                // The data file follows a shrink later.
                during.unprotected |= *len == 0;
                self.model.unprotected |= *len == 0;
            }
            Op::RotResize(len, seed) => {
                self.commit()?;
                self.cover()?;
                self.recorder.arm(false);
                let mut held = self.model.now().clone();
                let is_rotten = rot_before(&self.medium, held.len().min(*len), &mut Rng::new(*seed));
                held.resize(*len, 0);
                tried("resizing", || self.handle().resize(*len as u64))?;
                tried("syncing", || self.handle().sync())?;
                self.becomes(held);
                self.committed();
                self.model.unprotected |= *len == 0;
                if is_rotten {
                    let report = tried("repair", || self.handle().repair())?;
                    if !report.is_whole() || read(self.handle())? != *self.model.now() {
                        return wrong(format!("{op}: earlier damage was accepted as valid data: {report:?}"));
                    }
                }
                self.cover()?;
            }
            Op::Reopen { clean } => {
                during.resizing = true;
                if let Some(file) = self.handle.take()
                    && *clean
                {
                    tried("closing", || file.close())?;
                    self.committed();
                }
                self.open()?;
            }
            Op::Settle => {
                during.resizing = true;
                if let Some(file) = self.handle.take() {
                    tried("settling", || file.settle())?;
                    self.committed();
                }
                self.open()?;
            }
            Op::Restore => {
                self.recorder.arm(false);
                self.commit()?;
                self.handle.take();
                let file = open(self.config(), &self.medium, &self.model, true)?;
                // Something that is in the sidecar only.
                tried("writing", || file.write_at(&self.model.now()[..1], 0))?;
                tried("syncing", || file.sync())?;
                tried("closing", || file.close())?;
                self.model.adopts = uuid(&self.medium)?;
                self.medium.restore(PATH);
                self.recorder.arm(tested);
                during = self.model.clone();
                self.open()?;
            }
            Op::Mend(seed) => {
                tried("syncing", || self.handle().sync())?;
                self.cover()?;
                self.recorder.arm(false);
                mend(&self.medium, self.handle(), &mut Rng::new(*seed))?;
                self.commit()?;
            }
            Op::Rest(seed) => {
                during.resizing = true;
                let mut rng = Rng::new(*seed);
                let early = rng.one_in(2);
                if early {
                    self.commit()?;
                    self.cover()?;
                }
                let file = self.handle.take();
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
                    tried("closing or settling", || if settles { file.settle() } else { file.close() })?;
                    self.committed();
                }
                if let Some(sidecar) = sidecar.filter(|_| !early) {
                    sidecar.rot(&self.medium, &mut rng);
                }
                self.open()?;
                let report = tried("repair", || self.handle().repair())?;
                let again = tried("scrubbing", || self.handle().scrub())?;
                if !report.is_whole() || !again.is_clean() {
                    return wrong(format!("damage at rest was not repaired: {report:?}, then {again:?}"));
                }
            }
            Op::Untold(seed) => {
                let mut rng = Rng::new(*seed);
                tried("storing", || {
                    let file = self.medium.open(Path::new(PATH), Access::ReadWrite, 0)?;
                    let at = rng.below(file.len().max(1));
                    let mut byte = [0];
                    file.read(at, &mut byte)?;
                    file.store(at, &[!byte[0]])
                })?;
            }
        }
        let after = self.model.clone();
        self.crash(&during, &after)
    }

    fn cover(&mut self) -> Found<()> {
        cover(self.handle())
    }

    fn commit(&mut self) -> Found<()> {
        tried("syncing", || self.handle().sync())?;
        self.committed();
        Ok(())
    }

    /// The file holds something else, and whether that is durable is open.
    fn becomes(&mut self, held: Vec<u8>) {
        self.model.states.push(held);
    }

    /// The current content is durable now.
    fn committed(&mut self) {
        let last = self.model.states.len() - 1;
        self.model.states.drain(..last);
    }
}
