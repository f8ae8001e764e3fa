//! The commit log of an atomic file behind a write cache, in every crash state of a script: the stream gives the file
//! at each commit, no commit comes twice or is missing, and each barrier is needed.

use std::path::Path;
use std::sync::{Arc, Mutex};

use untorn::commits::CommitStream;
use untorn::testing::storage::{Barrier, Medium, MediumClass};
use untorn::testing::{MediumDir, cached_commit_log_barriers, commits_on};
use untorn::write_cache::{BackingDir, CacheOptions, CachedFile, WriteCache};
use untorn::{Durability, Error};
use untorn_sim::{CrashState, Rng, SimMedium, Step, Verdict};

use crate::common::BOTH;

/// The names that the file may have, in two directories.
const NAMES: [&str; 2] = ["/data", "/dir/data"];
const LOG: &str = "/fast/log";
const BEFORE: usize = 200;

/// So small that segments are dropped, and large enough for the commits that a reader has still to be given.
const LIMIT: u64 = 16 << 10;

const SYNC: Barrier = Barrier::new("direct.sync");

type Bytes = Arc<Vec<u8>>;

#[derive(Clone, Copy, Debug)]
struct Config {
    class: MediumClass,
    durability: Durability,
}

impl Config {
    fn all() -> impl Iterator<Item = Config> {
        let both = [Durability::PerCommit, Durability::PerWrite];
        BOTH.into_iter().flat_map(move |class| both.map(move |durability| Config { class, durability }))
    }

    /// Entries of 64 bytes, so few that they are soon used again; writes of 128 bytes go to the spill file.
    fn options(self) -> CacheOptions {
        let size = 3 * 4096 + 4 * 8192 + 24 * 128;
        let options = CacheOptions::new().size(size).entry_size(64).max_files(4).durability(self.durability);
        options.background(false).batch(1, 4).spill_from(128)
    }
}

/// What a crash must respect at one moment.
#[derive(Clone, Default)]
struct Expected {
    /// The number of the commit that the stream begins behind; none until the log is there.
    base: Option<u64>,
    /// The file as it was, and after each commit, made or under way.
    commits: Vec<Bytes>,
    /// Commits that the reader has been given.
    given: usize,
    /// Commits that are durable.
    least: usize,
    /// The file is being renamed: a crash may leave its log behind, and readers are told so.
    moving: bool,
}

/// A machine with one file, its program, and a reader of its commits.
struct Life {
    config: Config,
    medium: SimMedium,
    open: Option<(WriteCache, CachedFile)>,
    name: usize,
    expected: Arc<Mutex<Expected>>,
    states: Arc<Mutex<Vec<(CrashState, Expected)>>>,
    /// What the program sees.
    now: Vec<u8>,
}

fn said<T>(what: &str, result: untorn::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
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
        Life { config, medium, open: None, name: 0, expected, states, now: Vec::new() }
    }

    fn file(&self) -> &CachedFile {
        &self.open.as_ref().expect("the script opens the file first").1
    }

    fn cache(&self) -> &WriteCache {
        &self.open.as_ref().expect("the script opens the log first").0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; 1 << 14];
        let len = said("reading", self.file().read_at(&mut bytes, 0))?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Opens the log and the file. Returns how many commits the file has.
    fn open(&mut self) -> Result<(), String> {
        self.open = None;
        let place = Arc::new(MediumDir(self.medium.clone()));
        let options = self.config.options();
        let cache = match said("looking for the log", self.medium.exists(Path::new(LOG)))? {
            true => options.open_on(self.medium.clone(), place.clone(), LOG),
            false => options.create_on(self.medium.clone(), place.clone(), LOG),
        };
        let cache = said("opening the log", cache)?;
        let mut found = None;
        for (name, path) in NAMES.iter().enumerate() {
            if let Some(file) = said("looking for the file", place.open(Path::new(path)))? {
                found = Some((name, file));
            }
        }
        let Some((name, file)) = found else { return Err("the file is gone".to_owned()) };
        self.name = name;
        let file = cache.attach_atomic_with_commit_log(file, Path::new(NAMES[name]), LIMIT);
        self.open = Some((cache, said("attaching the file", file)?));
        self.now = self.bytes()?;
        let mut expected = self.expected.lock().unwrap();
        if expected.base.is_none() {
            let begun = match commits_on(self.medium.clone(), Path::new(NAMES[name]), 0) {
                Ok(_) => 0,
                Err(Error::CommitsMissing { oldest: Some(oldest), .. }) => oldest,
                Err(error) => return Err(format!("the start of the stream: {error}")),
            };
            expected.base = Some(begun);
        }
        drop(expected);
        let now = Arc::new(self.now.clone());
        self.begun_anew(&now);
        let through = self.read_on()?;
        let mut expected = self.expected.lock().unwrap();
        if through < expected.least {
            return Err(format!("{} commits are durable, and the stream has {through}", expected.least));
        }
        if expected.commits[through] != now {
            let is = expected.commits.iter().position(|bytes| *bytes == now);
            return Err(format!("the stream has {through} commits, and the file {is:?}: {} bytes", now.len()));
        }
        expected.commits.truncate(through + 1);
        (expected.least, expected.moving) = (through, false);
        Ok(())
    }

    /// Goes on from the commit that the file is at, if a crash amid a rename has left its log behind.
    fn begun_anew(&self, now: &Bytes) {
        let from = self.expected.lock().unwrap().given;
        let Err(Error::CommitsMissing { oldest: Some(oldest), .. }) = self.stream(from) else { return };
        let mut expected = self.expected.lock().unwrap();
        if expected.moving
            && let Some(at) = expected.commits.iter().rposition(|bytes| bytes == now)
        {
            (expected.base, expected.given) = (Some(oldest - at as u64), at);
        }
    }

    fn stream(&self, from: usize) -> untorn::Result<CommitStream> {
        let base = self.expected.lock().unwrap().base.unwrap_or(0);
        commits_on(self.medium.clone(), Path::new(NAMES[self.name]), base + from as u64)
    }

    /// Reads on from where the reader stopped: each commit must be the next one. Returns the last of the stream.
    fn read_on(&self) -> Result<usize, String> {
        let from = self.expected.lock().unwrap().given;
        let mut stream = said("the stream", self.stream(from))?;
        let mut expected = self.expected.lock().unwrap();
        let mut replica = expected.commits[from].to_vec();
        while let Some(commit) = said("reading the stream", stream.next())? {
            let at = expected.given + 1;
            let base = expected.base.unwrap_or(0);
            if (commit.number, commit.previous) != (base + at as u64, base + at as u64 - 1) {
                return Err(format!("commit {} after {} is number {at}", commit.number, commit.previous));
            }
            replica.resize((commit.shortest as usize).min(replica.len()), 0);
            replica.resize(commit.len as usize, 0);
            for change in &commit.changes {
                replica[change.range.start as usize..change.range.end as usize].copy_from_slice(&change.bytes);
            }
            match expected.commits.get(at) {
                Some(bytes) if **bytes == replica => expected.given = at,
                Some(_) => return Err(format!("the stream, repeated, is not what commit {at} left")),
                None => return Err(format!("the stream has commit {at}, which was not made")),
            }
        }
        Ok(expected.given)
    }

    fn commit(&mut self, durable: bool) -> Result<(), String> {
        if !self.file().has_open_epoch() {
            return Ok(());
        }
        self.expected.lock().unwrap().commits.push(Arc::new(self.now.clone()));
        let done = if durable { self.file().commit() } else { self.file().commit_later() };
        said("committing", done)?;
        if durable {
            let mut expected = self.expected.lock().unwrap();
            expected.least = expected.commits.len() - 1;
        }
        Ok(())
    }

    /// A write or a length for which the log has no room takes the epoch back.
    fn change(&mut self, done: untorn::Result<()>, next: Vec<u8>) -> Result<(), String> {
        match done {
            Ok(()) => self.now = next,
            Err(error) if error.errno() == 28 => {
                said("abandoning", self.file().abandon())?;
                self.now = self.bytes()?;
            }
            Err(error) => return Err(format!("writing: {error}")),
        }
        Ok(())
    }

    fn write(&mut self, rng: &mut Rng) -> Result<(), String> {
        let len = [1, 40, 64, 100, 300][rng.below(5) as usize];
        let at = rng.below(self.now.len() as u64 + 60) as usize;
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        let mut next = self.now.clone();
        next.resize(next.len().max(at + len), 0);
        next[at..at + len].copy_from_slice(&bytes);
        let done = self.file().write_at(&bytes, at as u64);
        self.change(done, next)
    }

    fn set_len(&mut self, len: usize) -> Result<(), String> {
        let mut next = self.now.clone();
        next.resize(len, 0);
        let done = self.file().set_len(len as u64);
        self.change(done, next)
    }

    fn drain(&mut self, all: bool) -> Result<(), String> {
        said("draining", if all { self.cache().drain() } else { self.cache().drain_some() })?;
        let through = self.read_on()?;
        let expected = self.expected.lock().unwrap();
        if all && through + 1 != expected.commits.len() {
            return Err(format!("{} commits were drained, and the stream has {through}", expected.commits.len() - 1));
        }
        Ok(())
    }

    /// Gives the file its other name, in the other directory.
    fn rename(&mut self) -> Result<(), String> {
        let to = 1 - self.name;
        self.expected.lock().unwrap().moving = true;
        if !said("announcing a rename", self.file().begin_rename(Path::new(NAMES[to])))? {
            self.expected.lock().unwrap().moving = false;
            return Ok(());
        }
        said("renaming", self.medium.rename(Path::new(NAMES[self.name]), Path::new(NAMES[to])))?;
        said("ending a rename", self.file().end_rename(true))?;
        self.name = to;
        self.expected.lock().unwrap().moving = false;
        self.read_on().map(drop)
    }

    /// The process ends: in order, or without a drain.
    fn end(&mut self, drains: bool) -> Result<(), String> {
        if drains {
            self.drain(true)?;
        }
        self.now = self.expected.lock().unwrap().commits.last().map(|bytes| bytes.to_vec()).unwrap_or_default();
        self.open = None;
        self.open()?;
        Ok(())
    }

    fn script(&mut self, seed: u64, steps: u64) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        self.open()?;
        for _ in 0..steps {
            match rng.below(16) {
                0..=5 => {
                    for _ in 0..=rng.below(3) {
                        self.write(&mut rng)?;
                    }
                    self.commit(rng.one_in(2))?;
                }
                6 => self.set_len(rng.below(500) as usize)?,
                7 => {
                    self.set_len(rng.below(200) as usize)?;
                    self.write(&mut rng)?;
                    self.set_len(300)?;
                    self.commit(true)?;
                }
                8..=10 => self.drain(false)?,
                11 => self.drain(true)?,
                12 => self.end(true)?,
                13 => self.end(false)?,
                _ => {
                    self.rename()?;
                    self.drain(true)?;
                }
            }
        }
        self.commit(true)?;
        self.drain(true)
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

/// Crashes at recorded moments; what a crash leaves is opened, and goes on for one more commit.
fn crash(life: &Life, seed: u64, effort: Effort, depth: u32) -> Result<(), String> {
    let states = std::mem::take(&mut *life.states.lock().unwrap());
    for (index, (state, expected)) in states.into_iter().enumerate() {
        let mut rng = Rng::new(seed ^ (index as u64) << 8);
        if expected.base.is_none() || !rng.one_in(effort.one_in) {
            continue;
        }
        let fixed = [state.everything(), state.nothing()];
        let choices: Vec<_> = fixed.into_iter().chain((0..effort.samples).map(|_| state.sample(&mut rng))).collect();
        let mut machines: Vec<SimMedium> = choices.iter().map(|choice| state.image(choice).boot()).collect();
        // A process that is killed leaves its page cache.
        machines.push(state.killed());
        for (n, medium) in machines.into_iter().enumerate() {
            let mut after = Life::new(life.config, medium, expected.clone());
            let what = |error: String| format!("{:?}, crash {index}, image {n}, depth {depth}: {error}", life.config);
            after.open().map_err(what)?;
            after.write(&mut rng).and_then(|()| after.commit(true)).map_err(what)?;
            after.drain(true).map_err(what)?;
            if depth > 0 && rng.one_in(if n == choices.len() { 3 } else { 25 }) {
                crash(&after, rng.next_u64(), effort, 0).map_err(what)?;
            }
        }
    }
    Ok(())
}

fn explored(config: Config, muted: Option<Barrier>, seed: u64, effort: Effort) -> Result<(), String> {
    let medium = SimMedium::new(config.class);
    for dir in ["/fast", "/dir"] {
        said("making a directory", medium.create_dir(Path::new(dir)))?;
    }
    said("syncing", medium.sync_dir(SYNC, Path::new("/")))?;
    medium.install(NAMES[0], &[1; BEFORE]);
    if let Some(barrier) = muted {
        medium.mutate(barrier);
    }
    let first = Expected { commits: vec![Arc::new(vec![1; BEFORE])], ..Expected::default() };
    let mut life = Life::new(config, medium, first);
    life.script(seed, effort.steps)?;
    life.medium.clear_hook();
    crash(&life, seed, effort, 1)
}

#[test]
fn the_stream_of_a_cached_file_survives_crashes() {
    for config in Config::all() {
        for seed in 0..untorn_testing::cases(2, 60) {
            let effort = Effort { steps: 14, samples: 2, one_in: untorn_testing::cases(6, 1) };
            let explored = explored(config, None, 0x5eed + seed, effort);
            assert_eq!(explored, Ok(()), "seed {seed}");
        }
    }
}

#[test]
fn each_barrier_of_a_cached_files_stream_is_needed() {
    // A Commit that is not durable before its record is one that a crash takes back from readers.
    let durable_before = Barrier::new("cache.drain.epoch");
    for barrier in cached_commit_log_barriers().into_iter().chain([durable_before]) {
        let tries = (0..12).flat_map(|seed| Config::all().map(move |config| (config, seed)));
        let effort = Effort { steps: 14, samples: 2, one_in: 2 };
        let mut tries = tries.map(|(config, seed)| explored(config, Some(barrier), seed, effort));
        let convicted = tries.find_map(Result::err);
        assert!(convicted.is_some(), "no crash convicts a stream without {}", barrier.name());
    }
}

/// A machine with the file and its log, opened.
fn begun(config: Config) -> Life {
    let medium = SimMedium::new(config.class);
    for dir in ["/fast", "/dir"] {
        medium.create_dir(Path::new(dir)).unwrap();
    }
    medium.sync_dir(SYNC, Path::new("/")).unwrap();
    medium.install(NAMES[0], &[1; BEFORE]);
    let first = Expected { commits: vec![Arc::new(vec![1; BEFORE])], ..Expected::default() };
    let mut life = Life::new(config, medium, first);
    life.open().unwrap();
    life
}

/// The kernel has made a rename when the owner of the log dies, and the next owner's commit needs the new name.
#[test]
fn a_rename_before_a_kill_outlives_the_next_power_cut() {
    for (config, changed) in Config::all().flat_map(|config| [true, false].map(|changed| (config, changed))) {
        let mut life = begun(config);
        let mut rng = Rng::new(1);
        life.write(&mut rng).unwrap();
        if changed {
            life.commit(true).and_then(|()| life.drain(true)).unwrap();
        }
        assert!(life.file().begin_rename(Path::new(NAMES[1])).unwrap());
        life.medium.rename(Path::new(NAMES[0]), Path::new(NAMES[1])).unwrap();
        let killed = life.medium.crash_state().killed();
        let mut after = Life::new(config, killed, Expected { moving: true, ..life.expected.lock().unwrap().clone() });
        after.open().unwrap();
        after.write(&mut rng).and_then(|()| after.commit(true)).unwrap();
        let state = after.medium.crash_state();
        let cut = state.image(&state.nothing()).boot();
        let mut last = Life::new(config, cut, after.expected.lock().unwrap().clone());
        last.open().unwrap_or_else(|error| panic!("{config:?}, {changed}: {error}"));
        assert_eq!(last.now, after.now, "{config:?}, {changed}");
    }
}

/// A replay that cannot open the commit log brings the file its commits all the same. Readers learn that these are
/// missing.
#[test]
fn a_commit_log_that_cannot_be_opened_begins_behind_the_replay() {
    for config in Config::all() {
        let mut life = begun(config);
        let mut rng = Rng::new(1);
        for _ in 0..2 {
            life.write(&mut rng).and_then(|()| life.commit(true)).unwrap();
        }
        let killed = life.medium.crash_state().killed();
        killed.set_hook(Box::new(|instant| {
            let is_log = instant.path.to_string_lossy().contains("commits");
            let error = || Error::io("open", instant.path, std::io::Error::from_raw_os_error(5));
            if is_log { Verdict::Refuse(error()) } else { Verdict::Allow }
        }));
        let place = Arc::new(MediumDir(killed.clone()));
        let cache = config.options().open_on(killed.clone(), place.clone(), LOG).unwrap();
        killed.clear_hook();
        let file = place.open(Path::new(NAMES[0])).unwrap().unwrap();
        let file = cache.attach_atomic_with_commit_log(file, Path::new(NAMES[0]), LIMIT).unwrap();
        let mut bytes = vec![0; life.now.len()];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        assert_eq!(bytes, life.now, "{config:?}");
        let stream = commits_on(killed, Path::new(NAMES[0]), 0).map(drop);
        assert!(matches!(stream, Err(Error::CommitsMissing { oldest: Some(2), .. })), "{config:?}: {stream:?}");
    }
}

/// Flushes and fences of a script without a commit log, and of the same with one.
#[test]
fn a_file_without_a_stream_pays_nothing_for_it() {
    for config in Config::all() {
        let count = |logged: bool| {
            let medium = SimMedium::new(config.class);
            medium.create_dir(Path::new("/fast")).unwrap();
            medium.install(NAMES[0], &[1; BEFORE]);
            let place = Arc::new(MediumDir(medium.clone()));
            let cache = config.options().create_on(medium.clone(), place.clone(), LOG).unwrap();
            let file = place.open(Path::new(NAMES[0])).unwrap().unwrap();
            let file = match logged {
                true => cache.attach_atomic_with_commit_log(file, Path::new(NAMES[0]), LIMIT).unwrap(),
                false => cache.attach_atomic(file, Path::new(NAMES[0])).unwrap(),
            };
            let mut touched = 0;
            let reached = medium.reached().len();
            for round in 0..4 {
                file.write_at(&[round; 40], 10).unwrap();
                file.commit().unwrap();
                cache.drain().unwrap();
            }
            let new = medium.reached();
            touched += new.iter().skip(reached).filter(|barrier| barrier.name().starts_with("commits.")).count();
            (touched, medium.exists(Path::new("/.untorn")).unwrap())
        };
        assert_eq!(count(false), (0, false), "{config:?}");
        let (touched, is_there) = count(true);
        assert!(touched > 0 && is_there, "{config:?}");
    }
}
