//! The effect of operations on files: their content, and what a crash may leave of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use untorn::Durability;

use super::config::Config;
use super::ops::{BEFORE, DIRS, Grown, NAMES, Op, State};

/// The change that an operation makes to files. A file has a number that it keeps whatever its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// With these bytes in it.
    Create(u32, u8, Vec<u8>),
    Write(u32, u64, Vec<u8>),
    SetLen(u32, u64),
    /// An epoch: the file has these bytes then, all of them at once.
    Commit(u32, Vec<u8>),
    Rename(u32, u8, u8),
    Unlink(u32, u8),
}

impl Effect {
    /// Whether this one, which is the later, cannot be without the other.
    fn needs(&self, earlier: &Effect) -> bool {
        match (self, earlier) {
            (Effect::Create(_, name, _), Effect::Rename(_, from, to)) => name == from || name == to,
            (Effect::Rename(_, from, to), Effect::Rename(_, before, name)) => {
                [from, to].into_iter().any(|own| own == before || own == name)
            }
            // The file that it replaces was made before, too.
            (Effect::Rename(file, _, to), Effect::Create(made, name, _)) => file == made || to == name,
            (Effect::Commit(file, _), Effect::Create(made, ..)) => file == made,
            _ => false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) names: BTreeMap<u8, u32>,
    pub(super) contents: BTreeMap<u32, Vec<u8>>,
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
            Effect::Commit(file, bytes) => {
                if let Some(content) = self.contents.get_mut(file) {
                    content.clone_from(bytes);
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

pub(super) fn parent(name: u8) -> Option<&'static Path> {
    Path::new(NAMES[usize::from(name)]).parent()
}

/// Files that are gone, and may be back after a crash: by name, with all that each may hold then.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaving(pub(super) Vec<(u8, Vec<Vec<u8>>)>);

impl Leaving {
    /// The name of the file that went last.
    pub(super) fn last(&self) -> Option<u8> {
        self.0.last().map(|(name, _)| *name)
    }

    /// Adds to states those in which some of them are back. A file cannot be back if another file has its name.
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

/// The content that the files must have.
#[derive(Clone, Debug)]
pub(in crate::explore) struct Model {
    pub(super) durability: Durability,
    /// Whether files are atomic.
    pub(super) atomic: bool,
    /// From which length on a write takes one entry for many bytes.
    pub(super) spills_from: Option<u64>,
    /// The bytes that files with an open epoch show, and the entries of these bytes.
    pub(super) open: BTreeMap<u32, (Vec<u8>, u64)>,
    pub(super) durable: Files,
    pub(super) unsynced: Vec<Effect>,
    pub(super) last: u32,
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
            atomic: false,
            spills_from: None,
            open: BTreeMap::new(),
            durable: Files::default(),
            unsynced: Vec::new(),
            last: 0,
            leaving: Leaving::default(),
            stuck: BTreeSet::new(),
            demoted: BTreeSet::new(),
        }
    }

    /// The model of files as they are.
    pub(super) fn of_state(durability: Durability, state: &State) -> Self {
        let mut model = Model::new(durability);
        for (name, content) in state {
            model.last += 1;
            model.durable.names.insert(*name, model.last);
            model.durable.contents.insert(model.last, content.clone());
        }
        model
    }

    /// Starts again with these files; files that may be back after a crash stay so.
    pub(super) fn restart(&mut self, state: &State) {
        let Model { atomic, spills_from, .. } = *self;
        let leaving = std::mem::take(&mut self.leaving);
        *self = Model { leaving, atomic, spills_from, ..Model::of_state(self.durability, state) };
    }

    /// The same model, of files that are behind the log like this.
    pub(super) fn like(self, config: &Config) -> Self {
        Model { atomic: config.is_atomic(), spills_from: config.spills_from(), ..self }
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

    /// The ranges by which writes that were not synced made each file longer.
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
        // A renamed file may have its old name.
        for effect in &self.unsynced {
            if let Effect::Rename(_, from, to) = effect {
                let both: Vec<_> =
                    [from, to].into_iter().filter_map(|name| grown.get(name)).flatten().cloned().collect();
                [from, to].into_iter().for_each(|name| drop(grown.insert(*name, both.clone())));
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
        self.shown().state()
    }

    fn shown(&self) -> Files {
        let mut files = self.files();
        for (file, (bytes, _)) in &self.open {
            files.apply(&Effect::Commit(*file, bytes.clone()));
        }
        files
    }

    /// The number of the file with this name; 0 without one.
    pub(super) fn of(&self, name: u8) -> u32 {
        self.files().names.get(&name).copied().unwrap_or(0)
    }

    /// The file's contents without its open epoch.
    pub(super) fn content(&self, file: u32) -> Vec<u8> {
        self.files().contents.get(&file).cloned().unwrap_or_default()
    }

    /// As they are without open epochs.
    pub(super) fn committed(&self) -> State {
        self.files().state()
    }

    /// All states that a crash may leave: any of the unsynced operations, each whole.
    pub(super) fn allowed(&self) -> Vec<State> {
        let mut states = Vec::new();
        for chosen in 0..1_u32 << self.unsynced.len() {
            let mut files = self.durable.clone();
            let chosen = self.with_needed((0..self.unsynced.len()).map(|n| chosen & 1 << n != 0).collect());
            for (effect, _) in self.unsynced.iter().zip(chosen).filter(|(_, chosen)| *chosen) {
                files.apply(effect);
            }
            let state = files.state();
            if !states.contains(&state) {
                states.push(state);
            }
        }
        self.leaving.or_back(&mut states);
        states
    }

    /// Adds to effects those that must have come before them: a name that another file has was given up first, and a
    /// renamed file was made first.
    fn with_needed(&self, mut chosen: Vec<bool>) -> Vec<bool> {
        for n in (0..chosen.len()).rev() {
            let needed = self.unsynced.iter().zip(&chosen).skip(n + 1).filter(|(_, chosen)| **chosen);
            chosen[n] |= needed.into_iter().any(|(later, _)| later.needs(&self.unsynced[n]));
        }
        chosen
    }

    /// A file is made, or gets a name, durably: so is what left its name before.
    pub(super) fn durably(&mut self, effect: &Effect) {
        let needed = self.unsynced.iter().map(|earlier| effect.needs(earlier)).collect();
        self.make_durable(self.with_needed(needed));
        self.durable.apply(effect);
    }

    pub(super) fn synced(&mut self) {
        if self.atomic {
            // A file of which the log has no commit, and no rename, is none of its business.
            let is_logged = |effect: &Effect| !matches!(effect, Effect::Create(..));
            self.make_durable(self.with_needed(self.unsynced.iter().map(is_logged).collect()));
        } else {
            self.durable = self.files();
            self.unsynced.clear();
        }
        // Once another file has a name durably, a file that had it before is never back.
        let names = &self.durable.names;
        self.leaving.0.retain(|(name, _)| !names.contains_key(name));
    }

    /// Makes one file durable as it is now, with its name.
    pub(super) fn file_synced(&mut self, file: u32) {
        let is_of = |effect: &Effect| match *effect {
            Effect::Create(of, ..) => of == file && !self.atomic,
            Effect::Write(of, ..) | Effect::SetLen(of, _) | Effect::Commit(of, _) | Effect::Rename(of, ..) => {
                of == file
            }
            Effect::Unlink(..) => false,
        };
        let chosen = self.with_needed(self.unsynced.iter().map(is_of).collect());
        self.make_durable(chosen);
        let names = &self.durable.names;
        self.leaving.0.retain(|(name, _)| names.get(name) != Some(&file));
    }

    /// All names in a directory now stand for their files durably: no file that had one of them before is back.
    pub(super) fn names_synced(&mut self, dir: &Path) {
        let is_here = |name: u8| parent(name) == Some(dir);
        let is_of = |effect: &Effect| match *effect {
            Effect::Create(_, name, _) | Effect::Unlink(_, name) => is_here(name),
            // A rename from one directory to another is durable when both are synced.
            Effect::Rename(_, from, to) => is_here(from) && is_here(to),
            Effect::Write(..) | Effect::SetLen(..) | Effect::Commit(..) => false,
        };
        let chosen = self.with_needed(self.unsynced.iter().map(is_of).collect());
        self.make_durable(chosen);
        self.leaving.0.retain(|(name, _)| !is_here(*name));
    }

    /// Applies some of the unsynced effects for good.
    fn make_durable(&mut self, chosen: Vec<bool>) {
        for (effect, chosen) in std::mem::take(&mut self.unsynced).into_iter().zip(chosen) {
            if chosen {
                self.durable.apply(&effect);
            } else {
                self.unsynced.push(effect);
            }
        }
    }

    /// Whether a rename of what has this name is not synced.
    pub(super) fn is_moving(&self, name: u8) -> bool {
        let file = self.files().names.get(&name).copied();
        self.unsynced.iter().any(|effect| matches!(effect, Effect::Rename(of, ..) if Some(*of) == file))
    }

    /// Changes, durably, the name of a file that was demoted before. This makes the whole file durable, and also the
    /// file that left the name before.
    pub(super) fn name(&mut self, file: u32, effect: &Effect) {
        let of = |effect: &Effect| match effect {
            Effect::Create(of, ..) | Effect::Write(of, ..) | Effect::SetLen(of, _) | Effect::Commit(of, _) => {
                *of == file
            }
            _ => false,
        };
        let chosen = self.with_needed(self.unsynced.iter().map(of).collect());
        self.make_durable(chosen);
        self.durably(effect);
    }

    pub(super) fn apply(&mut self, op: &Op) {
        if self.atomic {
            return self.apply_to_atomic(op);
        }
        match *op {
            Op::Demote(name) => drop(self.demoted.insert(name)),
            Op::Attach(name) | Op::Unlink(name) | Op::Leave(name) | Op::Remove(name) | Op::Rename(name, _) => {
                self.demoted.remove(&name);
            }
            Op::Move(_, to) => drop(self.demoted.remove(&to)),
            _ => {}
        }
        match *op {
            // Each makes all names durable.
            Op::Unlink(_) | Op::Rename(..) => self.leaving.0.clear(),
            // It does so in its directory.
            Op::Create(name, ..) => self.leaving.0.retain(|(other, _)| parent(*other) != parent(name)),
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
                self.durably(&Effect::Create(self.last, *name, vec![BEFORE.0; BEFORE.1 as usize]));
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
            Op::Move(from, to) => Effect::Rename(of(from), *from, *to),
            Op::Rename(from, to) => return self.name(of(from), &Effect::Rename(of(from), *from, *to)),
            Op::Unlink(name) | Op::Leave(name) | Op::Remove(name) => {
                return self.name(of(name), &Effect::Unlink(of(name), *name));
            }
            Op::Sync(name) => return self.file_synced(of(name)),
            Op::SyncAll | Op::Drain | Op::Reopen => return self.synced(),
            Op::SyncNames(dir) => return self.names_synced(Path::new(DIRS[usize::from(*dir)])),
            Op::MoveFails(..)
            | Op::HandOver(_)
            | Op::CommitLater(_)
            | Op::Abandon(_)
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
