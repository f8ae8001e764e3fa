//! Operations on files behind a log, what they make of them, and scripts of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use untorn::Durability;

use crate::rng::Rng;

/// Names that files have, by number.
pub(super) const NAMES: [&str; 3] = ["/a", "/b", "/c"];
const OFFSETS: [u64; 5] = [0, 60, 100, 200, 4050];
/// In entries of 64 bytes, of which one write may have six: the longest goes past the log.
const LENGTHS: [u64; 6] = [1, 64, 70, 200, 300, 500];
/// What a file has that the log is put in front of: bytes of this kind, not synced.
pub(super) const BEFORE: (u8, u64) = (254, 10);
/// Operations that are not synced, at most.
const MOST_UNSYNCED: usize = 5;

/// All files there are, by name.
pub(super) type State = BTreeMap<u8, Vec<u8>>;

/// Ranges of files, by name.
pub(super) type Grown = BTreeMap<u8, Vec<Range<usize>>>;

/// One operation. Files are named by a name's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A file that others wrote to before, and the first write behind the log: so long, of this byte, at its end.
    Create(u8, u64, u8),
    /// A new file and the first write to it, whose name nobody syncs.
    Make(u8, u64, u8),
    Write(u8, u64, u64, u8),
    Append(u8, u64, u8),
    SetLen(u8, u64),
    Rename(u8, u8),
    Unlink(u8),
    /// An unlink that is not synced, of a file that is not demoted before.
    Leave(u8),
    /// An unlink of which the log is not told, of a file that it has let go of: it is all there, and closed.
    Remove(u8),
    Sync(u8),
    SyncAll,
    HandOver(u8),
    Demote(u8),
    Attach(u8),
    Drain,
    DrainSome,
    /// A drain during which this flush fails.
    DrainFails(u32),
    Reopen,
    /// The first flush from here fails while the log is opened.
    ReopenFails(u32),
    /// A replay that does not find this file, before one that does.
    ReopenMissing(u8),
}

impl Op {
    /// The file that it writes to past the log: then it is durable when it returns, and not atomic. That the log is full of what a
    /// file has that failed is not known here: `seen` says that it went past.
    pub(super) fn goes_past(&self, model: &Model, seen: bool) -> Option<u8> {
        match *self {
            Op::Create(file, ..) | Op::Make(file, ..) => Some(file),
            Op::Write(file, _, len, _) | Op::Append(file, len, _) => {
                (seen || len > 6 * 64 || model.demoted.contains(&file)).then_some(file)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |number: u8| NAMES[usize::from(number)];
        match *self {
            Op::Create(file, len, tag) => write!(f, "create {}, append {len} bytes {tag}", name(file)),
            Op::Make(file, len, tag) => write!(f, "make {}, append {len} bytes {tag}", name(file)),
            Op::Write(file, at, len, tag) => write!(f, "write {len} bytes {tag} at {at} to {}", name(file)),
            Op::Append(file, len, tag) => write!(f, "append {len} bytes {tag} to {}", name(file)),
            Op::SetLen(file, len) => write!(f, "resize {} to {len}", name(file)),
            Op::Rename(from, to) => write!(f, "rename {} to {}", name(from), name(to)),
            Op::Unlink(file) => write!(f, "unlink {}", name(file)),
            Op::Leave(file) => write!(f, "let {} leave", name(file)),
            Op::Remove(file) => write!(f, "drain, close and remove {}", name(file)),
            Op::Sync(file) => write!(f, "sync {}", name(file)),
            Op::SyncAll => write!(f, "sync all"),
            Op::HandOver(file) => write!(f, "hand {} over", name(file)),
            Op::Demote(file) => write!(f, "demote {}", name(file)),
            Op::Attach(file) => write!(f, "close {}, attach it", name(file)),
            Op::Drain => write!(f, "drain"),
            Op::DrainSome => write!(f, "drain some"),
            Op::DrainFails(nth) => write!(f, "drain while flush {nth} fails"),
            Op::Reopen => write!(f, "drop, open"),
            Op::ReopenFails(nth) => write!(f, "drop, open while flush {nth} fails"),
            Op::ReopenMissing(file) => write!(f, "drop, replay while {} is not there", name(file)),
        }
    }
}

/// What an operation does to files, told by a number that a file keeps whatever its name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// With these bytes in it.
    Create(u32, u8, Vec<u8>),
    Write(u32, u64, Vec<u8>),
    SetLen(u32, u64),
    Rename(u32, u8, u8),
    Unlink(u32, u8),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Files {
    names: BTreeMap<u8, u32>,
    contents: BTreeMap<u32, Vec<u8>>,
}

impl Files {
    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Create(file, name, bytes) => {
                self.names.insert(*name, *file);
                self.contents.insert(*file, bytes.clone());
            }
            Effect::Write(file, at, bytes) => {
                if let Some(content) = self.contents.get_mut(file) {
                    let end = *at as usize + bytes.len();
                    content.resize(content.len().max(end), 0);
                    content[*at as usize..end].copy_from_slice(bytes);
                }
            }
            Effect::SetLen(file, len) => {
                if let Some(content) = self.contents.get_mut(file) {
                    content.resize(*len as usize, 0);
                }
            }
            Effect::Rename(file, from, to) => {
                if self.names.get(from) == Some(file) {
                    self.names.remove(from);
                    self.names.insert(*to, *file);
                }
            }
            Effect::Unlink(file, name) => {
                if self.names.get(name) == Some(file) {
                    self.names.remove(name);
                }
            }
        }
    }

    fn state(&self) -> State {
        self.names.iter().filter_map(|(name, file)| Some((*name, self.contents.get(file)?.clone()))).collect()
    }
}

/// Files that are gone, and may be back after a crash: by name, with all that each may hold then.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaving(Vec<(u8, Vec<Vec<u8>>)>);

impl Leaving {
    /// Adds to states those in which some of them are back. What another file has the name of cannot be.
    pub(super) fn or_back(&self, states: &mut Vec<State>) {
        for (name, contents) in &self.0 {
            for state in states.clone().into_iter().filter(|state| !state.contains_key(name)) {
                for content in contents {
                    let mut with = state.clone();
                    with.insert(*name, content.clone());
                    states.push(with);
                }
            }
        }
    }
}

/// What the files must hold.
#[derive(Clone, Debug)]
pub(super) struct Model {
    durability: Durability,
    durable: Files,
    unsynced: Vec<Effect>,
    last: u32,
    pub(super) leaving: Leaving,
    /// Names whose file has failed: nothing more is done with it before the log is opened anew.
    pub(super) stuck: BTreeSet<u8>,
    /// Names whose file goes past the log.
    pub(super) demoted: BTreeSet<u8>,
}

impl Model {
    pub(super) fn new(durability: Durability) -> Self {
        Model {
            durability,
            durable: Files::default(),
            unsynced: Vec::new(),
            last: 0,
            leaving: Leaving::default(),
            stuck: BTreeSet::new(),
            demoted: BTreeSet::new(),
        }
    }

    /// That of files as they are.
    pub(super) fn of(durability: Durability, state: &State) -> Self {
        let mut model = Model::new(durability);
        for (name, content) in state {
            model.last += 1;
            model.durable.names.insert(*name, model.last);
            model.durable.contents.insert(model.last, content.clone());
        }
        model
    }

    /// The same files from now on, whatever else may be back after a crash.
    pub(super) fn restart(&mut self, state: &State) {
        let leaving = std::mem::take(&mut self.leaving);
        *self = Model { leaving, ..Model::of(self.durability, state) };
    }

    /// Files that are not there any more may be back after a crash, with all that one of these states has of each.
    pub(super) fn may_be_back(&mut self, states: &[State]) {
        let visible = self.visible();
        let absent: BTreeSet<u8> = states.iter().flatten().map(|(name, _)| *name).collect();
        for name in absent.into_iter().filter(|name| !visible.contains_key(name)) {
            let contents: BTreeSet<Vec<u8>> = states.iter().filter_map(|state| state.get(&name).cloned()).collect();
            self.leaving.0.push((name, contents.into_iter().collect()));
        }
    }

    /// Where writes that were not synced made each file longer.
    pub(super) fn grown(&self) -> Grown {
        let mut grown = Grown::new();
        let mut files = self.durable.clone();
        for effect in &self.unsynced {
            let before = files.state();
            files.apply(effect);
            for (name, content) in files.state() {
                let was = before.get(&name).map_or(0, Vec::len);
                if was < content.len() {
                    grown.entry(name).or_default().push(was..content.len());
                }
            }
        }
        grown
    }

    fn files(&self) -> Files {
        let mut files = self.durable.clone();
        self.unsynced.iter().for_each(|effect| files.apply(effect));
        files
    }

    /// As the program sees them.
    pub(super) fn visible(&self) -> State {
        self.files().state()
    }

    /// All that a crash may leave: of what was not synced, anything, each operation whole.
    pub(super) fn allowed(&self) -> Vec<State> {
        let mut states = Vec::new();
        for chosen in 0..1_u32 << self.unsynced.len() {
            let mut files = self.durable.clone();
            for (n, effect) in self.unsynced.iter().enumerate() {
                if chosen & 1 << n != 0 {
                    files.apply(effect);
                }
            }
            let state = files.state();
            if !states.contains(&state) {
                states.push(state);
            }
        }
        self.leaving.or_back(&mut states);
        states
    }

    pub(super) fn synced(&mut self) {
        self.durable = self.files();
        self.unsynced.clear();
        // Where another file has its name for good, nothing of one that had it before is ever back.
        let names = &self.durable.names;
        self.leaving.0.retain(|(name, _)| !names.contains_key(name));
    }

    /// A name is changed, durably, of a file that was demoted before: which brings all of it there.
    fn name(&mut self, file: u32, effect: &Effect) {
        let of = |effect: &Effect| matches!(effect, Effect::Create(of, ..) | Effect::Write(of, ..) | Effect::SetLen(of, _) if *of == file);
        let (of_file, others) = std::mem::take(&mut self.unsynced).into_iter().partition(of);
        self.unsynced = others;
        let of_file: Vec<Effect> = of_file;
        of_file.iter().for_each(|effect| self.durable.apply(effect));
        self.durable.apply(effect);
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Demote(name) => drop(self.demoted.insert(name)),
            Op::Attach(name) | Op::Unlink(name) | Op::Leave(name) | Op::Remove(name) | Op::Rename(name, _) => {
                self.demoted.remove(&name);
            }
            _ => {}
        }
        match *op {
            // Each makes all names durable.
            Op::Create(..) | Op::Unlink(_) | Op::Rename(..) => self.leaving.0.clear(),
            Op::Leave(name) | Op::Remove(name) => {
                if matches!(op, Op::Remove(_)) {
                    self.synced();
                }
                let contents: BTreeSet<Vec<u8>> =
                    self.allowed().iter().filter_map(|state| state.get(&name).cloned()).collect();
                self.leaving.0.push((name, contents.into_iter().collect()));
            }
            _ => {}
        }
        if *op == Op::Reopen {
            self.demoted.clear();
        }
        let files = self.files();
        let of = |name: &u8| files.names.get(name).copied().unwrap_or(0);
        let content = |name: &u8| files.contents.get(&of(name)).map_or(0, Vec::len) as u64;
        let effect = match op {
            Op::Create(name, len, tag) => {
                self.last += 1;
                self.durable.apply(&Effect::Create(self.last, *name, vec![BEFORE.0; BEFORE.1 as usize]));
                Effect::Write(self.last, BEFORE.1, vec![*tag; *len as usize])
            }
            Op::Make(name, len, tag) => {
                self.last += 1;
                self.unsynced.push(Effect::Create(self.last, *name, Vec::new()));
                Effect::Write(self.last, 0, vec![*tag; *len as usize])
            }
            Op::Write(name, at, len, tag) => Effect::Write(of(name), *at, vec![*tag; *len as usize]),
            Op::Append(name, len, tag) => Effect::Write(of(name), content(name), vec![*tag; *len as usize]),
            Op::SetLen(name, len) => Effect::SetLen(of(name), *len),
            Op::Rename(from, to) => return self.name(of(from), &Effect::Rename(of(from), *from, *to)),
            Op::Unlink(name) | Op::Leave(name) | Op::Remove(name) => {
                return self.name(of(name), &Effect::Unlink(of(name), *name));
            }
            Op::Sync(_) | Op::SyncAll | Op::Drain | Op::Reopen => return self.synced(),
            Op::HandOver(_)
            | Op::Demote(_)
            | Op::Attach(_)
            | Op::DrainSome
            | Op::DrainFails(_)
            | Op::ReopenFails(_)
            | Op::ReopenMissing(_) => return,
        };
        self.unsynced.push(effect);
        if self.durability == Durability::PerWrite {
            self.synced();
        }
    }
}

/// Draws operations that a cache must be able to do.
pub(super) struct Generator {
    pub(super) rng: Rng,
    fails: bool,
    /// Whether files are written through.
    through: bool,
    theme: Theme,
    /// How far a round of the theme is, where it has rounds.
    step: u32,
}

/// What a script has more of than others: what seldom happens has to happen more than once in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    Anything,
    /// Files that fail while others go on.
    Stuck,
    /// Replays that fail.
    Kept,
    /// Names that are given to one new file after the other.
    Again,
    /// Files that are made shorter while the log still has a write beyond their end, which was synced, and no longer what was before
    /// that: a replay of the one without the other leaves zeros where there were bytes.
    Cut,
}

impl Generator {
    /// `fails` is whether flushes do now and then; `through`, whether files are written through; `cuts`, whether one may be shorter
    /// before the log has that.
    pub(super) fn new(mut rng: Rng, fails: bool, through: bool, cuts: bool) -> Self {
        let theme = match rng.below(if cuts { 8 } else { 6 }) {
            0 | 1 if fails => Theme::Stuck,
            2 => Theme::Kept,
            3 if fails => Theme::Kept,
            5 if through => Theme::Again,
            6.. => Theme::Cut,
            _ => Theme::Anything,
        };
        Generator { rng, fails, through, theme, step: 0 }
    }

    /// What the theme asks for now, if anything.
    fn on_theme(&mut self, model: &Model, there: &[u8], absent: &[u8]) -> Option<Op> {
        let file = *self.rng.pick(there);
        let (healthy, tag) = (model.stuck.is_empty(), 1 + self.rng.below(200) as u8);
        match self.theme {
            Theme::Anything => None,
            Theme::Again => Some(match self.rng.below(6) {
                0 if healthy => Op::DrainSome,
                1 | 2 if !absent.is_empty() => Op::Make(*self.rng.pick(absent), *self.rng.pick(&[1, 70, 200]), tag),
                3 if healthy => Op::Remove(file),
                _ => Op::Leave(file),
            }),
            Theme::Cut => {
                // Each round is of one file.
                let file = there[0];
                self.step += 1;
                Some(match self.step % 5 {
                    1 => Op::Write(file, 0, 200, tag),
                    // From here on the log has nothing of that.
                    2 if healthy => Op::Drain,
                    3 => Op::Write(file, *self.rng.pick(&[200, 4050]), 64, tag),
                    4 if healthy => Op::SyncAll,
                    _ => Op::SetLen(file, *self.rng.pick(&[0, 60, 100])),
                })
            }
            _ if there.len() < 2 && healthy && !absent.is_empty() => Some(Op::Create(*self.rng.pick(absent), 1, tag)),
            Theme::Stuck if healthy && self.rng.one_in(2) => Some(Op::DrainFails(1 + self.rng.below(2) as u32)),
            Theme::Kept if self.rng.one_in(3) => Some(match self.rng.below(3) {
                0 if self.fails => Op::ReopenFails(1),
                1 if self.fails => Op::ReopenFails(2 + self.rng.below(3) as u32),
                _ => Op::ReopenMissing(file),
            }),
            Theme::Stuck | Theme::Kept => Some(Op::Write(file, *self.rng.pick(&OFFSETS), 200, tag)),
        }
    }

    pub(super) fn next(&mut self, model: &Model) -> Op {
        if model.unsynced.len() >= MOST_UNSYNCED {
            // A sync of all says so if there is a file that failed.
            let healthy = model.visible().into_keys().find(|name| !model.stuck.contains(name));
            return match healthy {
                _ if model.stuck.is_empty() => Op::SyncAll,
                Some(name) if !model.demoted.contains(&name) => Op::Sync(name),
                _ => Op::Reopen,
            };
        }
        let visible = model.visible();
        let absent: Vec<u8> = (0..NAMES.len() as u8).filter(|name| !visible.contains_key(name)).collect();
        if let Some(name) = model.demoted.first().filter(|_| model.durability == Durability::PerCommit) {
            return Op::Attach(*name);
        }
        // What becomes of a name that may be back shows only in the next session.
        if !model.leaving.0.is_empty() && self.rng.one_in(if self.theme == Theme::Again { 40 } else { 4 }) {
            return Op::Reopen;
        }
        let there: Vec<u8> = visible.keys().copied().filter(|name| !model.stuck.contains(name)).collect();
        if there.is_empty() && absent.is_empty() {
            return Op::Reopen;
        }
        if there.is_empty() || !absent.is_empty() && self.theme != Theme::Again && self.rng.one_in(6) {
            let (name, len) = (*self.rng.pick(&absent), *self.rng.pick(&LENGTHS));
            let tag = 1 + self.rng.below(200) as u8;
            return if self.through && self.rng.one_in(2) {
                Op::Make(name, len, tag)
            } else {
                Op::Create(name, len, tag)
            };
        }
        if self.theme != Theme::Anything
            && !self.rng.one_in(4)
            && let Some(op) = self.on_theme(model, &there, &absent)
        {
            return op;
        }
        let file = *self.rng.pick(&there);
        let tag = 1 + self.rng.below(200) as u8;
        let len = *self.rng.pick(&LENGTHS);
        match self.rng.below(30) {
            0..=10 => Op::Write(file, *self.rng.pick(&OFFSETS), len, tag),
            11 => Op::Leave(file),
            12..=14 => Op::Append(file, len, tag),
            15..=16 => Op::SetLen(file, *self.rng.pick(&OFFSETS)),
            17..=18 if !absent.is_empty() => Op::Rename(file, *self.rng.pick(&absent)),
            19 => Op::Unlink(file),
            20..=21 => Op::Sync(file),
            22 => Op::HandOver(file),
            23 if model.demoted.contains(&file) => Op::Attach(file),
            23 => Op::Demote(file),
            // A drain of all says so if there is a file that failed.
            24 if model.stuck.is_empty() => Op::Drain,
            25..=26 => Op::DrainSome,
            27 if self.fails && model.stuck.is_empty() => Op::DrainFails(1 + self.rng.below(3) as u32),
            28 if self.fails => Op::ReopenFails(1 + self.rng.below(5) as u32),
            28..=29 => Op::Reopen,
            _ => Op::Write(file, *self.rng.pick(&OFFSETS), len, tag),
        }
    }
}
