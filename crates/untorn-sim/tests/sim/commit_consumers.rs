//! Registered consumers of a commit log in every crash state of a script: a position that was acknowledged is never
//! lost, a log that blocks keeps what a consumer needs, and each barrier is needed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use untorn::commits::CommitStream;
use untorn::options::CommitLog;
use untorn::testing::consumer_barriers;
use untorn::testing::storage::{Barrier, MediumClass};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};
use untorn_sim::{CrashState, Rng, SimMedium, Verdict};

use crate::common::BOTH;

const PATH: &str = "/data";
const LEN: usize = 9000;
const NAME: &str = "replica";

/// So small that the log is full after a few commits.
const LIMIT: u64 = 24 << 10;

fn options() -> Options {
    options_with(CommitLog::new(LIMIT))
}

fn options_with(log: CommitLog) -> Options {
    Options::new()
        .engine(EngineKind::HybridLog)
        .durability(Durability::PerCommit)
        .commit_log(log.block(Duration::ZERO))
        .log_size(512 << 10)
        .checkpoint_threads(0)
        .max_len(64 << 10)
}

fn contents(file: &AtomicFile) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// What a crash must respect.
#[derive(Clone, Default)]
struct Expected {
    /// The file after each commit that the consumer was given, and where it was registered.
    given: BTreeMap<u64, Vec<u8>>,
    /// The last that was acknowledged; `None` before it was registered.
    acknowledged: Option<u64>,
}

struct Life {
    medium: SimMedium,
    file: Option<AtomicFile>,
    stream: Option<CommitStream>,
    expected: Arc<Mutex<Expected>>,
    states: Arc<Mutex<Vec<(CrashState, Expected)>>>,
}

impl Life {
    fn new(medium: SimMedium, expected: Expected) -> Self {
        let (expected, states) = (Arc::new(Mutex::new(expected)), Arc::new(Mutex::new(Vec::new())));
        let (seen, of) = (Arc::clone(&states), Arc::clone(&expected));
        medium.set_hook(Box::new(move |instant| {
            if instant.step.persists() || instant.step == untorn_sim::Step::Unlink {
                seen.lock().unwrap().push((instant.crash_state(), of.lock().unwrap().clone()));
            }
            Verdict::Allow
        }));
        Life { medium, file: None, stream: None, expected, states }
    }

    fn expected(&self) -> std::sync::MutexGuard<'_, Expected> {
        self.expected.lock().unwrap()
    }

    fn file(&self) -> &AtomicFile {
        self.file.as_ref().expect("the file is open")
    }

    /// Opens the file and the consumer's stream, which goes on where it was acknowledged, or after that.
    fn open(&mut self) -> Result<(), String> {
        let file = options().open_on(self.medium.clone(), PATH).map_err(|error| format!("opening: {error}"))?;
        let stream = file.consumer(NAME).map_err(|error| format!("the consumer: {error}"))?;
        let position = stream.acknowledged().ok_or("it is no consumer")?;
        let known = self.expected().acknowledged;
        match known {
            Some(acknowledged) if position < acknowledged => {
                return Err(format!("commit {acknowledged} was acknowledged, and the position is {position}"));
            }
            None => {
                let bytes = contents(&file)?;
                self.expected().given.entry(position).or_insert(bytes);
            }
            Some(_) => {}
        }
        self.expected().acknowledged = Some(position);
        self.file = Some(file);
        self.stream = Some(stream);
        Ok(())
    }

    /// Reads all that there is, from the position on: it leads to the file as it is.
    fn read_on(&mut self) -> Result<u64, String> {
        let stream = self.stream.as_mut().ok_or("there is no stream")?;
        let mut given = self.expected.lock().unwrap();
        let from = stream.position();
        let mut replica = given.given.get(&from).ok_or(format!("nobody knows the file at {from}"))?.clone();
        while let Some(commit) = stream.next().map_err(|error| format!("reading on: {error}"))? {
            replica.truncate(commit.shortest as usize);
            replica.resize(commit.len as usize, 0);
            for change in &commit.changes {
                replica[change.range.start as usize..change.range.end as usize].copy_from_slice(&change.bytes);
            }
            given.given.insert(commit.number, replica.clone());
        }
        drop(given);
        let now = contents(self.file.as_ref().ok_or("closed")?)?;
        let position = self.stream.as_ref().map_or(0, CommitStream::position);
        if replica != now {
            let known = self.expected().given.iter().find(|(_, bytes)| **bytes == now).map(|(number, _)| *number);
            return Err(format!("the stream from {from} to {position} is not the file, which is at {known:?}"));
        }
        Ok(position)
    }

    fn acknowledge(&mut self, number: u64) -> Result<(), String> {
        let stream = self.stream.as_mut().ok_or("there is no stream")?;
        stream.acknowledge(number).map_err(|error| format!("acknowledging: {error}"))?;
        self.expected().acknowledged = Some(number);
        Ok(())
    }

    /// One commit; a consumer that is behind gets on first. Returns whether it was.
    fn commit(&mut self, rng: &mut Rng) -> Result<bool, String> {
        let mut bytes = vec![0; 3000];
        rng.fill(&mut bytes);
        let offset = rng.below((LEN - bytes.len()) as u64);
        self.file().write_at(&bytes, offset).map_err(|error| error.to_string())?;
        let mut waited = false;
        loop {
            match self.file().sync() {
                Ok(_) => return Ok(waited),
                Err(Error::ConsumerBehind { acknowledged, .. }) if !waited => {
                    if Some(acknowledged) != self.expected().acknowledged {
                        return Err(format!("{acknowledged} is not what the consumer acknowledged"));
                    }
                    // What is not committed yet is in the file already.
                    let stream = self.stream.as_mut().ok_or("there is no stream")?;
                    let from = stream.position();
                    let mut given = self.expected.lock().unwrap();
                    let mut replica = given.given.get(&from).ok_or("nobody knows the start")?.clone();
                    while let Some(commit) = stream.next().map_err(|error| format!("getting on: {error}"))? {
                        for change in &commit.changes {
                            let range = change.range.start as usize..change.range.end as usize;
                            replica[range].copy_from_slice(&change.bytes);
                        }
                        given.given.insert(commit.number, replica.clone());
                    }
                    drop(given);
                    let last = self.stream.as_ref().map_or(0, CommitStream::position);
                    self.acknowledge(last)?;
                    waited = true;
                }
                Err(error) => return Err(format!("committing: {error}")),
            }
        }
    }

    fn script(&mut self, seed: u64, steps: u64) -> Result<u32, String> {
        let mut rng = Rng::new(seed);
        self.open()?;
        let mut waited = 0;
        for _ in 0..steps {
            waited += u32::from(self.commit(&mut rng)?);
            if rng.one_in(20) {
                let position = self.read_on()?;
                self.acknowledge(position)?;
            }
        }
        self.read_on().map(|_| waited)
    }
}

/// Crashes at recorded moments: the consumer goes on from what it acknowledged, and finds every commit since.
fn crash(life: &Life, seed: u64, one_in: u64) -> Result<(), String> {
    let states = std::mem::take(&mut *life.states.lock().unwrap());
    for (index, (state, expected)) in states.into_iter().enumerate() {
        let mut rng = Rng::new(seed ^ (index as u64) << 8);
        if !rng.one_in(one_in) || expected.acknowledged.is_none() {
            continue;
        }
        let choices = [state.everything(), state.nothing(), state.sample(&mut rng), state.sample(&mut rng)];
        let mut machines: Vec<SimMedium> = choices.iter().map(|choice| state.image(choice).boot()).collect();
        machines.push(state.killed());
        for (n, medium) in machines.into_iter().enumerate() {
            let mut after = Life::new(medium, expected.clone());
            let checked = after.open().and_then(|()| after.read_on());
            checked.map_err(|error| format!("crash {index}, image {n}: {error}"))?;
        }
    }
    Ok(())
}

/// A consumer is killed between the write of its position and the flush of it. The writer goes on, drops what the
/// position allows, and a power cut follows.
fn killed_consumer(class: MediumClass, muted: Option<Barrier>) -> Result<(), String> {
    let medium = SimMedium::new(class);
    medium.install(PATH, &[0; LEN]);
    let mut life = Life::new(medium, Expected::default());
    let mut rng = Rng::new(7);
    life.open()?;
    // More than a segment has, so that the next position lets one go.
    for _ in 0..9 {
        life.commit(&mut rng)?;
    }
    let before = life.expected().acknowledged;
    life.states.lock().unwrap().clear();
    let position = life.read_on()?;
    life.acknowledge(position)?;
    // The first flush since is that of the position.
    let (state, mut expected) = life.states.lock().unwrap().remove(0);
    expected.acknowledged = before;
    expected.given = life.expected().given.clone();
    let killed = state.killed();
    if let Some(barrier) = muted {
        killed.mutate(barrier);
    }
    let mut after = Life::new(killed, expected);
    let file = options().open_on(after.medium.clone(), PATH).map_err(|error| error.to_string())?;
    after.file = Some(file);
    for _ in 0..20 {
        let mut bytes = vec![0; 3000];
        rng.fill(&mut bytes);
        after.file().write_at(&bytes, 0).map_err(|error| error.to_string())?;
        if after.file().sync().is_err() {
            break;
        }
    }
    let state = after.medium.crash_state();
    let medium = state.image(&state.nothing()).boot();
    let mut last = Life::new(medium, after.expected().clone());
    last.open()?;
    last.read_on().map(drop)
}

/// Commits that await the consumer: none returns before the consumer has it, and after a crash its position is not
/// below any that has returned.
fn awaited(class: MediumClass, muted: Option<Barrier>) -> Result<(), String> {
    let medium = SimMedium::new(class);
    medium.install(PATH, &[0; LEN]);
    if let Some(barrier) = muted {
        medium.mutate(barrier);
    }
    let log = CommitLog::new(LIMIT).await_consumers();
    options_with(log).open_on(medium.clone(), PATH).and_then(AtomicFile::close).map_err(|error| error.to_string())?;
    let mut life = Life::new(medium, Expected::default());
    life.file = Some(options_with(log).open_on(life.medium.clone(), PATH).map_err(|error| error.to_string())?);
    let stream = life.file().consumer(NAME).map_err(|error| error.to_string())?;
    let (position, bytes) = (stream.position(), contents(life.file())?);
    life.expected().given.insert(position, bytes);
    life.expected().acknowledged = Some(position);
    life.stream = Some(stream);
    for round in 1..=6 {
        life.file().write_at(&[round; 3000], u64::from(round) * 500).map_err(|error| error.to_string())?;
        let told = life.file().sync();
        let last = life.file().last_commit().number;
        match told {
            Err(Error::NotAcknowledged { commit, .. }) if commit == last => {}
            other => return Err(format!("commit {last}, which nobody has acknowledged: {other:?}")),
        }
        let position = life.read_on()?;
        life.acknowledge(position)?;
        life.file().sync().map_err(|error| format!("an acknowledged commit: {error}"))?;
    }
    life.medium.clear_hook();
    crash(&life, 1, 1)
}

fn explored(class: MediumClass, muted: Option<Barrier>, seed: u64, one_in: u64) -> Result<u32, String> {
    let medium = SimMedium::new(class);
    medium.install(PATH, &[0; LEN]);
    if let Some(barrier) = muted {
        medium.mutate(barrier);
    }
    let mut life = Life::new(medium, Expected::default());
    let waited = life.script(seed, 24)?;
    life.medium.clear_hook();
    crash(&life, seed, one_in)?;
    Ok(waited)
}

#[test]
fn positions_of_consumers_survive_crashes() {
    for class in BOTH {
        let mut waited = 0;
        for seed in 0..untorn_testing::cases(2, 30) {
            waited += explored(class, None, seed, untorn_testing::cases(4, 1)).unwrap_or_else(|why| panic!("{why}"));
        }
        assert!(waited > 0, "no commit waited for the consumer");
        assert_eq!(killed_consumer(class, None), Ok(()));
        assert_eq!(awaited(class, None), Ok(()));
    }
}

#[test]
fn each_barrier_of_consumers_is_needed() {
    for barrier in consumer_barriers() {
        let killed = BOTH.into_iter().find_map(|class| killed_consumer(class, Some(barrier)).err());
        let mut tries = (0..3).flat_map(|seed| BOTH.map(|class| (class, seed)));
        let explored = || tries.find_map(|(class, seed)| explored(class, Some(barrier), seed, 2).err());
        let awaited = || BOTH.into_iter().find_map(|class| awaited(class, Some(barrier)).err());
        let convicted = killed.or_else(explored).or_else(awaited);
        assert!(convicted.is_some(), "no crash convicts a consumer without {}", barrier.name());
    }
}
