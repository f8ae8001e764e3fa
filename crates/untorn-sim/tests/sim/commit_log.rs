//! The commit log in every crash state of a script: the stream replayed gives the file at each commit, no commit comes
//! twice or is missing, and each barrier is needed.

use std::sync::{Arc, Mutex};

use untorn::commits::{Commit, CommitStream};
use untorn::testing::commit_log_barriers;
use untorn::testing::storage::{Barrier, MediumClass};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};
use untorn_sim::{CrashState, Rng, SimMedium, Step, Verdict};

use crate::common::{BOTH, errno};

const PATH: &str = "/data";
const LEN: usize = 9000;

/// So small that segments are dropped, and large enough for each commit.
const LIMIT: u64 = 48 << 10;

type Bytes = Arc<Vec<u8>>;

#[derive(Clone, Copy, Debug)]
struct Config {
    class: MediumClass,
    engine: EngineKind,
    durability: Durability,
}

impl Config {
    fn all() -> impl Iterator<Item = Config> {
        let of = |class, engine| {
            [Durability::PerCommit, Durability::PerWrite].map(move |durability| Config { class, engine, durability })
        };
        BOTH.into_iter()
            .flat_map(move |class| untorn::testing::ENGINES.into_iter().flat_map(move |engine| of(class, engine)))
    }

    fn options(&self) -> Options {
        Options::new()
            .engine(self.engine)
            .durability(self.durability)
            .commit_log(LIMIT)
            .log_size(512 << 10)
            .record_area(2, 16)
            .checkpoint_threads(0)
            .deploy_ahead(Some(u64::MAX))
            .max_len(64 << 10)
    }
}

/// What a crash must respect at one moment.
#[derive(Clone, Default)]
struct Expected {
    /// The commits that the reader has been given, with the file after each; the first is where the log began.
    given: Vec<(u64, Bytes)>,
    /// What the file may hold.
    allowed: Vec<Bytes>,
    /// While the file is let go, a crash may make the log begin anew.
    closing: bool,
}

/// A machine with one file, its program, and a reader of its commits.
struct Life {
    config: Config,
    medium: SimMedium,
    file: Option<AtomicFile>,
    expected: Arc<Mutex<Expected>>,
    states: Arc<Mutex<Vec<(CrashState, Expected)>>>,
    /// What the program sees.
    now: Vec<u8>,
}

fn replay(replica: &mut Vec<u8>, commit: &Commit) {
    replica.truncate(commit.shortest as usize);
    replica.resize(commit.len as usize, 0);
    for change in &commit.changes {
        replica[change.range.start as usize..change.range.end as usize].copy_from_slice(&change.bytes);
    }
}

fn contents(file: &AtomicFile) -> untorn::Result<Vec<u8>> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Repeats commits on a replica that is as the file was at one commit.
fn follow(stream: &mut CommitStream, replica: &mut Vec<u8>) -> Result<Vec<(u64, Bytes)>, String> {
    let mut found = Vec::new();
    while let Some(commit) = stream.next().map_err(|error| format!("reading the stream: {error}"))? {
        if found.last().is_some_and(|(number, _)| *number != commit.previous) {
            return Err(format!("commit {} says that {} came before it", commit.number, commit.previous));
        }
        replay(replica, &commit);
        found.push((commit.number, Arc::new(replica.clone())));
    }
    Ok(found)
}

impl Life {
    fn new(config: Config, medium: SimMedium, expected: Expected) -> Self {
        let (expected, states) = (Arc::new(Mutex::new(expected)), Arc::new(Mutex::new(Vec::new())));
        let (seen, of) = (Arc::clone(&states), Arc::clone(&expected));
        medium.set_hook(Box::new(move |instant| {
            if instant.step.persists() || instant.step == Step::Unlink {
                seen.lock().unwrap().push((instant.crash_state(), of.lock().unwrap().clone()));
            }
            Verdict::Allow
        }));
        Life { config, medium, file: None, expected, states, now: Vec::new() }
    }

    fn expect(&self, allowed: impl IntoIterator<Item = Vec<u8>>, closing: bool) {
        let mut expected = self.expected.lock().unwrap();
        expected.allowed = allowed.into_iter().map(Arc::new).collect();
        expected.closing = closing;
    }

    fn committed(&self) -> Vec<u8> {
        let expected = self.expected.lock().unwrap();
        expected.given.last().map_or_else(|| vec![0; LEN], |(_, bytes)| bytes.to_vec())
    }

    /// Opens the file, which must hold something that is allowed, and brings the reader up to date.
    fn open(&mut self) -> Result<(), String> {
        let file = self.config.options().open_on(self.medium.clone(), PATH);
        let file = file.map_err(|error| format!("opening: {error}"))?;
        self.now = contents(&file).map_err(|error| error.to_string())?;
        let expected = self.expected.lock().unwrap().clone();
        if !expected.allowed.iter().any(|bytes| **bytes == self.now) {
            return Err("the opened file is at no commit that is allowed".to_owned());
        }
        self.file = Some(file);
        if expected.given.is_empty() {
            let number = self.file().last_commit().number;
            self.expected.lock().unwrap().given.push((number, Arc::new(self.now.clone())));
        }
        self.read_on(expected.closing)?;
        self.expect([self.now.clone()], false);
        Ok(())
    }

    fn file(&self) -> &AtomicFile {
        self.file.as_ref().expect("the script opens the file first")
    }

    /// Reads on from where the reader stopped: the replica must be what is committed.
    fn read_on(&self, may_begin_anew: bool) -> Result<(), String> {
        let (from, bytes) = self.expected.lock().unwrap().given.last().cloned().expect("the log began somewhere");
        let mut replica = bytes.to_vec();
        let found = match self.file().commits(from) {
            Ok(mut stream) => follow(&mut stream, &mut replica)?,
            Err(Error::CommitsMissing { oldest: Some(_), .. }) if may_begin_anew => {
                let number = self.file().last_commit().number;
                let now = contents(self.file()).map_err(|error| error.to_string())?;
                vec![(number, Arc::new(now))]
            }
            Err(error) => return Err(format!("the stream after {from}: {error}")),
        };
        self.expected.lock().unwrap().given.extend(found);
        Ok(())
    }

    /// Runs something that commits `next`, perhaps; a failure leaves the last commit.
    fn commit(&mut self, next: Vec<u8>, act: impl FnOnce(&AtomicFile) -> untorn::Result<()>) -> Result<(), String> {
        let before = self.committed();
        self.expect([before.clone(), next.clone()], false);
        act(self.file()).map_err(|error| format!("committing: {error}"))?;
        self.expect([next.clone()], false);
        self.read_on(false)?;
        if self.committed() != next {
            return Err("the stream, repeated, is not what was committed".to_owned());
        }
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        match self.config.durability {
            Durability::PerWrite => self.commit(self.now.clone(), |file| file.write_at(bytes, offset as u64)),
            Durability::PerCommit => {
                self.file().write_at(bytes, offset as u64).map_err(|error| format!("writing: {error}"))
            }
        }
    }

    fn resize(&mut self, len: usize) -> Result<(), String> {
        self.now.resize(len, 0);
        let commits = self.config.engine != EngineKind::HybridLog || self.config.durability == Durability::PerWrite;
        if commits {
            return self.commit(self.now.clone(), |file| file.resize(len as u64));
        }
        self.file().resize(len as u64).map_err(|error| format!("resizing: {error}"))
    }

    fn sync(&mut self) -> Result<(), String> {
        match self.config.durability {
            Durability::PerWrite => Ok(()),
            Durability::PerCommit => self.commit(self.now.clone(), |file| file.sync().map(drop)),
        }
    }

    /// A write, or a commit, that the engine refuses: the file stays as it was, or can't be used.
    fn refused(&mut self, rng: &mut Rng) -> Result<(), String> {
        let before = self.committed();
        let mut next = self.now.clone();
        let at = rng.below(next.len() as u64 - 100) as usize;
        next[at..at + 100].fill(0xee);
        self.expect([before.clone(), next.clone()], false);
        let (seen, of) = (Arc::clone(&self.states), Arc::clone(&self.expected));
        let mut records = 0;
        self.medium.set_hook(Box::new(move |instant| {
            if instant.step.persists() || instant.step == Step::Unlink {
                seen.lock().unwrap().push((instant.crash_state(), of.lock().unwrap().clone()));
            }
            let name = instant.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_log = name.contains(".commits");
            records += u32::from(is_log && instant.step == Step::Fence);
            // Once the record is durable.
            if records > 0 && !is_log && matches!(instant.step, Step::Write | Step::Store) {
                return Verdict::Refuse(errno(instant, 28));
            }
            Verdict::Allow
        }));
        let file = self.file();
        let failed = file.write_at(&next[at..at + 100], at as u64).and_then(|()| file.sync());
        let (seen, of) = (Arc::clone(&self.states), Arc::clone(&self.expected));
        self.medium.set_hook(Box::new(move |instant| {
            if instant.step.persists() || instant.step == Step::Unlink {
                seen.lock().unwrap().push((instant.crash_state(), of.lock().unwrap().clone()));
            }
            Verdict::Allow
        }));
        // Nobody is given a commit that failed.
        let given = self.expected.lock().unwrap().given.len();
        if failed.is_err() {
            self.read_on(false)?;
            if self.expected.lock().unwrap().given.len() != given {
                return Err("a commit that failed was given".to_owned());
            }
        }
        if failed.is_ok() {
            // Nothing of the engine's was written after the record.
            self.now = next.clone();
            self.expect([next], false);
            return self.read_on(false);
        }
        let seen = contents(self.file());
        let usable = self.file().sync().is_ok();
        if usable && self.config.durability == Durability::PerWrite {
            if seen.map_err(|error| error.to_string())? != before {
                return Err("a write that failed is seen".to_owned());
            }
            self.now = before.clone();
            self.expect([before], false);
            // A call that commits nothing, so that crashes after the failure are tried.
            return self.read_on(false);
        }
        // Per commit the bytes may be in the open epoch, which the sync just committed.
        self.expect([before.clone(), next.clone()], !usable);
        self.file = None;
        self.expect([before, next], true);
        self.open()
    }

    fn let_go(&mut self, close: bool) -> Result<(), String> {
        let committed = if close { self.now.clone() } else { self.committed() };
        self.expect([self.committed(), committed.clone()], true);
        if let Some(file) = self.file.take() {
            let closed = if close { file.close() } else { Ok(()) };
            closed.map_err(|error| format!("closing: {error}"))?;
        }
        // Closed: nothing may begin anew from here on.
        self.expect([committed], false);
        self.open()
    }

    fn script(&mut self, seed: u64, steps: u64) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        self.open()?;
        for _ in 0..steps {
            match rng.below(12) {
                0..=5 => {
                    for _ in 0..=rng.below(3) {
                        let len = [1, 64, 700, 4096][rng.below(4) as usize].min(self.now.len());
                        let offset = rng.below((self.now.len() - len + 1) as u64) as usize;
                        let mut bytes = vec![0; len];
                        rng.fill(&mut bytes);
                        self.write(offset, &bytes)?;
                    }
                    self.sync()?;
                }
                6 => self.resize(LEN + rng.below(5000) as usize)?,
                7 => {
                    self.resize(500 + rng.below(8000) as usize)?;
                    self.resize(LEN)?;
                    self.sync()?;
                }
                8 | 9 => self.let_go(true)?,
                10 => self.let_go(false)?,
                _ => self.refused(&mut rng)?,
            }
        }
        self.let_go(true)
    }
}

/// How much is tried.
#[derive(Clone, Copy)]
struct Effort {
    steps: u64,
    /// Images of a moment besides the two extremes and that of a kill.
    samples: u32,
    /// One moment in so many is tried.
    one_in: u64,
}

/// Crashes at recorded moments; what a crash leaves is opened, and now and then goes on.
fn crash(life: &Life, seed: u64, effort: Effort, depth: u32) -> Result<(), String> {
    let states = std::mem::take(&mut *life.states.lock().unwrap());
    for (index, (state, expected)) in states.into_iter().enumerate() {
        let mut rng = Rng::new(seed ^ (index as u64) << 8);
        if !rng.one_in(effort.one_in) {
            continue;
        }
        let samples = effort.samples;
        let fixed = [state.everything(), state.nothing()];
        let choices: Vec<_> = fixed.into_iter().chain((0..samples).map(|_| state.sample(&mut rng))).collect();
        let mut machines: Vec<SimMedium> = choices.iter().map(|choice| state.image(choice).boot()).collect();
        // A process that is killed leaves its page cache.
        machines.push(state.killed());
        for (n, medium) in machines.into_iter().enumerate() {
            let mut after = Life::new(life.config, medium, expected.clone());
            let what = |error: String| format!("{:?}, crash {index}, image {n}, depth {depth}: {error}", life.config);
            if expected.given.is_empty() && after.medium.peek(PATH).is_none_or(|bytes| bytes.len() != LEN) {
                continue;
            }
            after.open().map_err(what)?;
            // From its beginning, or from the oldest commit that it names, the log gives the file.
            whole(&after, &expected).map_err(what)?;
            if depth > 0 && rng.one_in(if n == choices.len() { 3 } else { 25 }) {
                crash(&after, rng.next_u64(), effort, 0).map_err(what)?;
            }
        }
    }
    Ok(())
}

fn whole(life: &Life, before: &Expected) -> Result<(), String> {
    let given = life.expected.lock().unwrap().given.clone();
    let from = match life.file().commits(given[0].0) {
        Ok(_) => given[0].0,
        Err(Error::CommitsMissing { oldest: Some(oldest), .. }) => oldest,
        Err(error) => return Err(format!("the whole stream: {error}")),
    };
    let Some((_, bytes)) = given.iter().find(|(number, _)| *number == from) else {
        return if before.closing { Ok(()) } else { Err(format!("no commit {from} was ever given")) };
    };
    let last = given.last().map_or(from, |(number, _)| *number);
    if from == last && given.len() > 1 && !before.closing {
        return Err(format!("the log begins anew at {from}, and nobody closed the file"));
    }
    let mut replica = bytes.to_vec();
    let mut stream = life.file().commits(from).map_err(|error| error.to_string())?;
    let found = follow(&mut stream, &mut replica)?;
    let expected: Vec<_> = given.iter().skip_while(|(number, _)| *number <= from).cloned().collect();
    if found != expected {
        let numbers = |commits: &[(u64, Bytes)]| commits.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        return Err(format!("{:?} is in the log, and {:?} was given", numbers(&found), numbers(&expected)));
    }
    if replica != life.now { Err("the stream, repeated, is not the file".to_owned()) } else { Ok(()) }
}

fn explored(config: Config, muted: Option<Barrier>, seed: u64, effort: Effort) -> Result<(), String> {
    let medium = SimMedium::new(config.class);
    medium.install(PATH, &[0; LEN]);
    if let Some(barrier) = muted {
        medium.mutate(barrier);
    }
    let first = Expected { allowed: vec![Arc::new(vec![0; LEN])], closing: true, ..Expected::default() };
    let mut life = Life::new(config, medium, first);
    life.script(seed, effort.steps)?;
    life.medium.clear_hook();
    crash(&life, seed, effort, 1)
}

#[test]
fn a_stream_gives_the_file_at_each_commit_through_crashes() {
    for config in Config::all() {
        for seed in 0..untorn_testing::cases(1, 40) {
            let effort = Effort { steps: 5, samples: 2, one_in: untorn_testing::cases(6, 1) };
            let explored = explored(config, None, 0x5eed + seed, effort);
            assert_eq!(explored, Ok(()), "seed {seed}");
        }
    }
}

#[test]
fn each_barrier_of_the_commit_log_is_needed() {
    for barrier in commit_log_barriers() {
        // First the configuration that convicts the one which is hardest to convict.
        let configs = || Config::all().skip(5).chain(Config::all().take(5));
        let tries = (0..6).flat_map(|seed| configs().map(move |config| (config, seed)));
        let effort = Effort { steps: 5, samples: 2, one_in: 3 };
        let mut tries = tries.map(|(config, seed)| explored(config, Some(barrier), seed, effort));
        let convicted = tries.find_map(Result::err);
        assert!(convicted.is_some(), "no crash convicts a log without {}", barrier.name());
    }
}
