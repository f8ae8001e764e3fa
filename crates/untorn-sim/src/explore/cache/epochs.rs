//! The effect of operations on atomic files: an epoch is durable whole, with its commit.

use std::collections::BTreeSet;
use std::path::Path;

use untorn::Durability;

use super::model::{Effect, Model, parent};
use super::ops::{BEFORE, DIRS, Op, State};

/// Entries that the log of every run has for changes.
pub(super) const ROOM: u64 = 18;

/// Chunks of the spill file of which an entry tells.
const CHUNKS: u64 = 3;

impl Model {
    /// Entries that the open epochs have claimed: two for each, and one for each commit.
    pub(super) fn claims(&self) -> u64 {
        self.open.values().map(|(_, parts)| 2 * parts + 1).sum()
    }

    /// Entries of a write.
    pub(super) fn entries(&self, len: u64) -> u64 {
        let (mut left, mut entries) = (len, 0);
        while let Some(chunk) = self.spills_from.filter(|chunk| left >= *chunk) {
            left -= left.min(CHUNKS * chunk);
            entries += 1;
        }
        entries + left.div_ceil(64)
    }

    /// Whether the file of this name has an open epoch.
    pub(super) fn is_open(&self, name: u8) -> bool {
        self.open.contains_key(&self.of(name))
    }

    /// Changes the content of a file in its open epoch.
    fn stage(&mut self, file: u32, parts: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let (mut content, before) = match self.open.remove(&file) {
            Some(open) => open,
            None => (self.content(file), 0),
        };
        change(&mut content);
        self.open.insert(file, (content, before + parts));
    }

    fn close(&mut self, file: u32) {
        if let Some((content, _)) = self.open.remove(&file) {
            self.unsynced.push(Effect::Commit(file, content));
        }
    }

    fn close_all(&mut self) {
        for file in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(file);
        }
    }

    /// A new file that no commit covers is none of the log's business: until something syncs its name, a crash may take
    /// it, though a killed process left it to the next one.
    pub(super) fn may_be_gone(&mut self, states: &[State]) {
        if !self.atomic {
            return;
        }
        for (name, content) in self.visible() {
            if content.is_empty() && states.iter().any(|state| !state.contains_key(&name)) {
                let file = self.of(name);
                self.durable.names.remove(&name);
                self.durable.contents.remove(&file);
                self.unsynced.push(Effect::Create(file, name, content));
            }
        }
    }

    /// The commit of an operation is not durable yet.
    pub(super) fn close_by(&mut self, op: &Op) {
        match *op {
            Op::Sync(name) | Op::CommitLater(name) | Op::Rename(name, _) => self.close(self.of(name)),
            Op::SyncAll => self.close_all(),
            _ => {}
        }
    }

    /// Every handle is dropped.
    pub(super) fn drop_open(&mut self) {
        self.open.clear();
    }

    /// The log had no room for a change, and the epoch was abandoned.
    pub(super) fn refuse(&mut self, name: u8) {
        self.open.remove(&self.of(name));
    }

    pub(super) fn apply_to_atomic(&mut self, op: &Op) {
        match *op {
            Op::Create(name, len, tag) => {
                self.leaving.0.retain(|(other, _)| parent(*other) != parent(name));
                self.last += 1;
                self.durably(&Effect::Create(self.last, name, vec![BEFORE.0; BEFORE.1 as usize]));
                self.append(self.last, len, tag);
            }
            Op::Make(name, len, tag) => {
                self.last += 1;
                self.unsynced.push(Effect::Create(self.last, name, Vec::new()));
                self.append(self.last, len, tag);
            }
            Op::Write(name, at, len, tag) => self.stage(self.of(name), self.entries(len), |content| {
                let (at, end) = (at as usize, (at + len) as usize);
                content.resize(content.len().max(end), 0);
                content[at..end].fill(tag);
            }),
            Op::Append(name, len, tag) => self.append(self.of(name), len, tag),
            Op::SetLen(name, len) => self.stage(self.of(name), 1, |content| content.resize(len as usize, 0)),
            Op::Sync(name) => {
                let file = self.of(name);
                self.close(file);
                self.file_synced(file);
            }
            Op::CommitLater(name) => self.close(self.of(name)),
            Op::Abandon(name) | Op::Attach(name) => drop(self.open.remove(&self.of(name))),
            Op::SyncAll => {
                self.close_all();
                self.synced();
            }
            Op::Drain => self.synced(),
            Op::Reopen => {
                self.drop_open();
                self.synced();
            }
            Op::SyncNames(dir) => self.names_synced(Path::new(DIRS[usize::from(dir)])),
            Op::Move(from, to) => {
                self.open.remove(&self.of(to));
                let effect = Effect::Rename(self.of(from), from, to);
                match self.durability {
                    Durability::PerWrite => self.durably(&effect),
                    Durability::PerCommit => self.unsynced.push(effect),
                }
            }
            Op::Rename(from, to) => {
                self.leaving.0.clear();
                let file = self.of(from);
                self.close(file);
                self.name(file, &Effect::Rename(file, from, to));
            }
            Op::Unlink(name) => {
                self.leaving.0.clear();
                self.unlink(name);
            }
            Op::Leave(name) | Op::Remove(name) => {
                if matches!(op, Op::Remove(_)) {
                    self.synced();
                }
                let states = self.allowed();
                let contents: BTreeSet<Vec<u8>> = states.iter().filter_map(|state| state.get(&name).cloned()).collect();
                self.leaving.0.push((name, contents.into_iter().collect()));
                self.unlink(name);
            }
            Op::MoveFails(..)
            | Op::HandOver(_)
            | Op::Demote(_)
            | Op::DrainSome
            | Op::DrainFails(_)
            | Op::ReopenFails(_)
            | Op::ReopenMissing(_) => {}
        }
    }

    fn append(&mut self, file: u32, len: u64, tag: u8) {
        self.stage(file, self.entries(len), |content| content.resize(content.len() + len as usize, tag));
    }

    fn unlink(&mut self, name: u8) {
        let file = self.of(name);
        self.open.remove(&file);
        self.name(file, &Effect::Unlink(file, name));
    }
}
