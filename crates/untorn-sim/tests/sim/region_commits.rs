//! The commit log of a region in every crash state of a script: what the stream has given is never taken back, repeated
//! it gives the region at each commit, and it never begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use untorn::commits::CommitStream;
use untorn::options::Order;
use untorn::region::{Region, RegionStore, StoreOptions};
use untorn::testing::region_log_barriers;
use untorn::testing::storage::{Barrier, MediumClass};
use untorn_sim::{CrashState, Rng, SimMedium, Step, Verdict};

use crate::common::{BOTH, errno, watched};

const PATH: &str = "/store";

/// So small that segments are dropped, and large enough for each commit.
const LIMIT: u64 = 128 << 10;

type Stamps = BTreeMap<u64, u8>;

#[derive(Clone, Copy, Debug)]
struct Config {
    class: MediumClass,
    order: Order,
}

impl Config {
    fn all() -> impl Iterator<Item = Config> {
        let of = |class| [Order::OneFence, Order::TwoFence].map(move |order| Config { class, order });
        BOTH.into_iter().flat_map(of)
    }

    fn options(self) -> StoreOptions {
        StoreOptions::new().max_regions(2).background_scan(false).grow_by(64 << 10).order(self.order).commit_log(LIMIT)
    }
}

fn stamps(region: &Region) -> Result<Stamps, String> {
    let mut found = Stamps::new();
    let mut bytes = [0; 4096];
    for page in region.pages().map_err(|error| error.to_string())? {
        region.read_page(page, &mut bytes).map_err(|error| error.to_string())?;
        if bytes.iter().any(|&byte| byte != bytes[0]) {
            return Err(format!("page {page} is torn"));
        }
        found.insert(page, bytes[0]);
    }
    Ok(found)
}

/// Repeats what the stream has next on a replica. Returns the numbers.
fn follow(stream: &mut CommitStream, mut last: u64, replica: &mut Stamps) -> Result<Vec<(u64, Stamps)>, String> {
    let mut given = Vec::new();
    while let Some(commit) = stream.next().map_err(|error| format!("reading the stream: {error}"))? {
        if (commit.previous, commit.number) != (last, last + 1) {
            return Err(format!("commit {} after {}, which follows {last}", commit.number, commit.previous));
        }
        last = commit.number;
        commit.freed.iter().flat_map(|range| range.start / 4096..range.end / 4096).for_each(|page| {
            replica.remove(&page);
        });
        commit.allocated.iter().flat_map(|range| range.start / 4096..range.end / 4096).for_each(|page| {
            replica.insert(page, 0);
        });
        for change in &commit.changes {
            for (page, bytes) in (change.range.start / 4096..).zip(change.bytes.chunks_exact(4096)) {
                replica.insert(page, bytes[0]);
            }
        }
        given.push((last, replica.clone()));
    }
    Ok(given)
}

/// The commits that a crash must respect at one moment.
#[derive(Clone, Default)]
struct Expected {
    /// The commits that the reader has been given, with the region after each.
    given: Vec<(u64, Stamps)>,
    /// The states that the region may be in.
    allowed: Vec<Stamps>,
}

/// A machine with one region, its program, and a reader of its commits.
struct Life {
    config: Config,
    medium: SimMedium,
    open: Option<(Region, RegionStore)>,
    expected: Arc<Mutex<Expected>>,
    states: Arc<Mutex<Vec<(CrashState, Expected)>>>,
}

impl Life {
    fn new(config: Config, medium: SimMedium, expected: Expected) -> Self {
        let (expected, states) = (Arc::new(Mutex::new(expected)), Arc::default());
        let life = Life { config, medium, open: None, expected, states };
        life.watch(|_| false);
        life
    }

    /// Notes the states that a crash may leave, and refuses what is to be refused.
    fn watch(&self, mut refuses: impl FnMut(&untorn_sim::Instant<'_>) -> bool + Send + 'static) {
        let (seen, of) = (Arc::clone(&self.states), Arc::clone(&self.expected));
        self.medium.set_hook(Box::new(move |instant| {
            if instant.step.persists() || instant.step == Step::Unlink {
                seen.lock().unwrap().push((instant.crash_state(), of.lock().unwrap().clone()));
            }
            if refuses(instant) { Verdict::Refuse(errno(instant, 5)) } else { Verdict::Allow }
        }));
    }

    fn expect(&self, allowed: impl IntoIterator<Item = Stamps>) {
        self.expected.lock().unwrap().allowed = allowed.into_iter().collect();
    }

    fn region(&self) -> &Region {
        &self.open.as_ref().expect("the script opens the region first").0
    }

    fn committed(&self) -> Stamps {
        self.expected.lock().unwrap().given.last().map(|(_, stamps)| stamps.clone()).unwrap_or_default()
    }

    /// Opens the region, which must hold something that is allowed, and brings the reader up to date.
    fn open(&mut self) -> Result<(), String> {
        let store = self.config.options().open_on(self.medium.clone(), PATH);
        let store = store.map_err(|error| format!("opening: {error}"))?;
        let region = store.open_region("r").map_err(|error| format!("opening the region: {error}"))?;
        let found = stamps(&region)?;
        if !self.expected.lock().unwrap().allowed.contains(&found) {
            return Err("the region is at no commit that is allowed".to_owned());
        }
        self.open = Some((region, store));
        self.read_on(&found)?;
        // A log that began anew at the reader's very commit would go unnoticed otherwise.
        if let [.., (before, _), _] = &self.expected.lock().unwrap().given[..] {
            self.region().commits(*before).map_err(|error| format!("the last commit is gone: {error}"))?;
        }
        self.expect([found]);
        Ok(())
    }

    /// Reads on from where the reader stopped: the replica must be what is committed.
    fn read_on(&self, committed: &Stamps) -> Result<(), String> {
        let (from, mut replica) = self.expected.lock().unwrap().given.last().cloned().unwrap_or_default();
        let mut stream = self.region().commits(from).map_err(|error| format!("the stream after {from}: {error}"))?;
        let given = follow(&mut stream, from, &mut replica)?;
        self.expected.lock().unwrap().given.extend(given);
        if replica == *committed { Ok(()) } else { Err("the stream, repeated, is not the region".to_owned()) }
    }

    /// Changes pages at random. Returns what they are then.
    fn change(&self, rng: &mut Rng) -> Result<Stamps, String> {
        let mut now = self.committed();
        let region = self.region();
        let failed = |error: untorn::Error| format!("changing: {error}");
        for _ in 0..=rng.below(4) {
            let stamp = 1 + rng.below(255) as u8;
            let known: Vec<u64> = now.keys().copied().collect();
            if known.len() > 2 && rng.one_in(4) {
                let page = known[rng.below(known.len() as u64) as usize];
                region.free_page(page).map_err(failed)?;
                now.remove(&page);
            } else if known.len() < 12 {
                let page = region.alloc_page().map_err(failed)?;
                now.insert(page, 0);
                if rng.one_in(2) {
                    region.write_page(page, &[stamp; 4096]).map_err(failed)?;
                    now.insert(page, stamp);
                }
            } else {
                let page = known[rng.below(known.len() as u64) as usize];
                region.write_page(page, &[stamp; 4096]).map_err(failed)?;
                now.insert(page, stamp);
            }
        }
        Ok(now)
    }

    fn commit(&self, rng: &mut Rng) -> Result<(), String> {
        let (before, next) = (self.committed(), self.change(rng)?);
        self.expect([before, next.clone()]);
        self.region().pmsync().map_err(|error| format!("committing: {error}"))?;
        self.expect([next.clone()]);
        self.read_on(&next)
    }

    /// A commit that fails once its record is in the log: the store is of no further use, and the next open decides.
    fn refused(&mut self, rng: &mut Rng) -> Result<(), String> {
        let (before, next) = (self.committed(), self.change(rng)?);
        self.expect([before.clone(), next]);
        let mut recorded = false;
        self.watch(move |instant| {
            let is_log = instant.path.to_string_lossy().contains(".commits");
            recorded |= is_log && instant.step == Step::Fence;
            recorded && !is_log && matches!(instant.step, Step::Write | Step::Store)
        });
        let failed = self.region().pmsync();
        self.watch(|_| false);
        if failed.is_ok() {
            return Err("a commit succeeded whose record could not be written".to_owned());
        }
        self.open = None;
        self.expect([before]);
        self.open()
    }

    fn let_go(&mut self, close: bool) -> Result<(), String> {
        if let Some((region, store)) = self.open.take() {
            drop(region);
            if close {
                store.close().map_err(|error| format!("closing: {error}"))?;
            }
        }
        self.open()
    }

    fn script(&mut self, seed: u64, steps: u64) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        self.open()?;
        for _ in 0..steps {
            match rng.below(9) {
                0..=5 => self.commit(&mut rng)?,
                6 => self.let_go(true)?,
                7 => self.let_go(false)?,
                _ => self.refused(&mut rng)?,
            }
        }
        self.let_go(true)
    }
}

/// Crashes at recorded moments; what a crash leaves is opened, and now and then goes on.
fn crash(life: &Life, seed: u64, (samples, one_in): (u32, u64), depth: u32) -> Result<u64, String> {
    let states = std::mem::take(&mut *life.states.lock().unwrap());
    let mut tried = 0;
    for (index, (state, expected)) in states.into_iter().enumerate() {
        let mut rng = Rng::new(seed ^ (index as u64) << 8);
        if !rng.one_in(one_in) {
            continue;
        }
        let fixed = [state.everything(), state.nothing()];
        let choices: Vec<_> = fixed.into_iter().chain((0..samples).map(|_| state.sample(&mut rng))).collect();
        let mut machines: Vec<SimMedium> = choices.iter().map(|choice| state.image(choice).boot()).collect();
        // A process that is killed leaves its page cache.
        machines.push(state.killed());
        for (n, medium) in machines.into_iter().enumerate() {
            let what = |error: String| format!("{:?}, crash {index}, image {n}, depth {depth}: {error}", life.config);
            let mut after = Life::new(life.config, medium, expected.clone());
            after.open().map_err(what)?;
            after.commit(&mut rng).map_err(what)?;
            after.let_go(false).map_err(what)?;
            tried += 1;
            if depth > 0 && rng.one_in(25) {
                tried += crash(&after, rng.next_u64(), (samples, one_in), 0).map_err(what)?;
            }
        }
    }
    Ok(tried)
}

fn explored(config: Config, muted: Option<Barrier>, seed: u64, effort: (u32, u64)) -> Result<u64, String> {
    let medium = SimMedium::new(config.class);
    if let Some(barrier) = muted {
        medium.mutate(barrier);
    }
    let store = config.options().create_on(medium.clone(), PATH).map_err(|error| error.to_string())?;
    drop(store.create_region_of("r", 1 << 20).map_err(|error| error.to_string())?);
    drop(store);
    let first = Expected { given: vec![(0, Stamps::new())], allowed: vec![Stamps::new()] };
    let mut life = Life::new(config, medium, first);
    life.script(seed, 8)?;
    life.medium.clear_hook();
    crash(&life, seed, effort, 1)
}

#[test]
fn a_stream_gives_a_region_at_each_commit_through_crashes() {
    let mut tried = 0;
    for config in Config::all() {
        for seed in 0..untorn_testing::cases(2, 60) {
            match explored(config, None, 0x5eed + seed, (2, untorn_testing::cases(5, 1))) {
                Ok(crashes) => tried += crashes,
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    println!("{tried} crashes");
    assert!(tried > 200, "{tried} crashes");
}

#[test]
fn a_region_log_needs_its_record_and_its_confirmation() {
    for name in ["commits.record", "commits.confirmed"] {
        let tries = (0..6).flat_map(|seed| Config::all().map(move |config| (config, seed)));
        let mut tries = tries.map(|(config, seed)| explored(config, Some(Barrier::new(name)), seed, (2, 3)));
        assert!(tries.any(|tried| tried.is_err()), "no crash convicts a log without {name}");
    }
}

/// A crash comes between a record and its commit. The next commit has another size, so that its record goes to another
/// segment, and a second crash takes its confirmation back.
fn record_of_no_commit(config: Config, muted: Option<Barrier>) -> Result<(), String> {
    let medium = SimMedium::new(config.class);
    let store = config.options().create_on(medium.clone(), PATH).unwrap();
    let region = store.create_region_of("r", 1 << 20).unwrap();
    region.alloc_pages(20).unwrap();
    (0..6).for_each(|page| region.write_page(page, &[1; 4096]).unwrap());
    region.pmsync().unwrap();
    region.write_page(3, &[2; 4096]).unwrap();
    let (result, states) = watched(&medium, Step::changes, || region.pmsync());
    assert_eq!(result.unwrap(), 2);
    let recorded = states.iter().rposition(|(name, _)| *name == "commits.record").unwrap();
    let (_, state) = &states[recorded + 1];
    let medium = state.image(&state.everything()).boot();
    if let Some(barrier) = muted {
        medium.mutate(barrier);
    }
    let store = config.options().open_on(medium.clone(), PATH).unwrap();
    let region = store.open_region("r").unwrap();
    assert_eq!(region.info().unwrap().commit, 1, "the commit of the record was not made");
    let mut stream = region.commits(1).map_err(|error| error.to_string())?;
    if stream.next().map_err(|error| error.to_string())?.is_some() {
        return Err("the stream gives a commit that was not made".to_owned());
    }
    (0..15).for_each(|page| region.write_page(page, &[3; 4096]).unwrap());
    assert_eq!(region.pmsync().unwrap(), 2);
    let state = medium.crash_state();
    let medium = state.image(&state.nothing()).boot();
    let store = config.options().open_on(medium, PATH).unwrap();
    let region = store.open_region("r").unwrap();
    let mut replica: Stamps = (0..20).map(|page| (page, u8::from(page < 6))).collect();
    let mut stream = region.commits(1).map_err(|error| error.to_string())?;
    let given = follow(&mut stream, 1, &mut replica)?;
    if (given.len(), &replica) == (1, &stamps(&region)?) { Ok(()) } else { Err("it is not the commit".to_owned()) }
}

#[test]
fn a_record_whose_commit_was_not_made_is_taken_back() {
    let mutants = || [region_log_barriers(), vec![Barrier::new("commits.abort")]].concat();
    let mut convicted = BTreeSet::new();
    for config in Config::all() {
        assert_eq!(record_of_no_commit(config, None), Ok(()), "{config:?}");
        for barrier in mutants() {
            if record_of_no_commit(config, Some(barrier)).is_err() {
                convicted.insert(barrier.name());
            }
        }
    }
    assert_eq!(convicted, mutants().into_iter().map(Barrier::name).collect());
}

#[test]
fn a_commit_with_a_log_costs_one_fence_more() {
    for config in Config::all() {
        let costs = [0, LIMIT].map(|limit| {
            let medium = SimMedium::new(config.class);
            let store = config.options().commit_log(limit).create_on(medium.clone(), PATH).unwrap();
            let region = store.create_region("r").unwrap();
            region.alloc_pages(4).unwrap();
            region.pmsync().unwrap();
            let before = medium.counters();
            region.write_page(1, &[7; 4096]).unwrap();
            region.pmsync().unwrap();
            let after = medium.counters();
            (after.fences - before.fences, after.syncs - before.syncs, after.dir_syncs - before.dir_syncs)
        });
        let [(fences, syncs, dir_syncs), logged] = costs;
        assert_eq!(logged, (fences + 1, syncs, dir_syncs), "{config:?}");
    }
}
