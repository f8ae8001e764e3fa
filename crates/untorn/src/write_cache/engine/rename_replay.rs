//! File names after a replay: it repeats the renames that the file system lost, in their order, and gives files that
//! were created again their names.
//!
//! One of these shows that a rename was done: an entry in the log; the file itself, under the new name; or a later file
//! that could not otherwise have the old name, or replace this one. Otherwise the file has its old name.
//!
//! A file that got its new name by `link` and lost the other by `unlink` may have both: the other one is removed.
//!
//! A file is renamed when it durably has all its operations in the log, because the file that it replaces goes last.
//!
//! # Invariants
//! A replay that is cut short decides nothing that the next one decides in another way:
//!
//! 1. The line of a file has both names until the file is whole. So [`judge`](super::changed) stores its lines before
//!    names are settled.
//! 2. A rename that was not done replaces nothing, and its line alone says that the file at the new name stays. The log
//!    durably says so in the line of that file, in both copies, before it forgets the rename. Otherwise the next replay
//!    takes a file that a crash took for a removed one.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::barriers;
use super::format::{Kind, TableLine};
use super::names::parent;
use super::recreate;
use super::replay::{ReplayOutcome, Replayer, Target, is_same};
use super::scan::Operation;
use crate::error::Result;
use crate::storage::{Barrier, Identity, Medium};

impl<M: Medium> Replayer<'_, M> {
    /// Notes of each file with two names the one from before, by which it may be found, too.
    pub(super) fn note_names(&mut self) {
        let before = |line: &TableLine| line.before.as_ref().map(|before| (line.uid, before.path.clone()));
        self.others = self.lines().filter_map(before).collect();
    }

    /// Decides of each file with two names which one it is to have.
    pub(super) fn settle_renames(&mut self, operations: &[Operation]) {
        let moves = operations.iter().filter(|operation| operation.kind == Kind::Move);
        let done: HashSet<(u64, u64)> = moves.map(|operation| (operation.uid, operation.value)).collect();
        let is_done = |uid: &u64| {
            let Some((_, _, line)) = self.scan.table.get(uid) else { return false };
            line.replayed || done.contains(&(*uid, line.named)) || self.must_be_renamed(line) || self.is_renamed(line)
        };
        let renamed = self.lines().filter(|line| line.before.is_some()).map(|line| line.uid);
        let not_done: Vec<u64> = renamed.filter(|uid| !is_done(uid)).collect();
        for uid in not_done {
            if let Some((_, _, line)) = self.scan.table.get_mut(&uid) {
                let said = line.clone();
                let Some(before) = line.before.take() else { continue };
                self.undone.insert(uid, said);
                (line.parents, line.named) = (before.parents, before.named);
                let to = std::mem::replace(&mut line.path, before.path);
                if let Some(over) = before.over {
                    self.not_replaced(&to, &over);
                }
                self.others.insert(uid, to);
            }
        }
    }

    /// A file that was to be replaced was not, and does not leave: if a crash took it, it was not for that.
    fn not_replaced(&mut self, path: &Path, over: &Identity) {
        for (_, _, line) in self.scan.table.values_mut() {
            if line.path == path && is_same(&line.identity, over) && line.leaving {
                line.leaving = false;
                self.stay.push(line.uid);
            }
        }
    }

    /// Has the log say durably of files that were not replaced that they stay (2), and of their names what it said.
    pub(super) fn keep_not_replaced(&mut self, barrier: Barrier) -> Result<()> {
        let mut stay = std::mem::take(&mut self.stay);
        if stay.is_empty() {
            return Ok(());
        }
        stay.sort_unstable();
        // In both copies, the first before the second.
        for _ in 0..2 {
            for uid in &stay {
                let Some((slot, copy, line)) = self.scan.table.get_mut(uid) else { continue };
                line.seq += 1;
                *copy = 1 - *copy;
                let mut said = line.clone();
                if let Some(TableLine { path, parents, named, before, .. }) = self.undone.get(uid).cloned() {
                    (said.path, said.parents, said.named, said.before) = (path, parents, named, before);
                }
                said.write(self.log, self.scan.checksum_seed, *slot, *copy)?;
            }
            self.medium.fence(barrier, &[self.log])?;
        }
        Ok(())
    }

    /// Whether a later file has the name from before, or was to be put over this one where this one has its new name.
    fn must_be_renamed(&self, line: &TableLine) -> bool {
        let Some(before) = &line.before else { return false };
        let over = |other: &TableLine| other.before.as_ref().and_then(|before| before.over);
        let put_over = |other: &TableLine| {
            other.path == line.path && over(other).is_some_and(|over| is_same(&over, &line.identity))
        };
        let later = |other: &&TableLine| other.uid != line.uid;
        self.lines().filter(later).any(|other| {
            // What was to be put over this one by its old name found it there.
            let found_here = over(other).is_some_and(|over| is_same(&over, &line.identity));
            put_over(other) || !found_here && recreate::had_later(other, &before.path, line.rank())
        })
    }

    /// Whether a file is found by its new name. If it cannot be looked for, that is said where it is to be replayed.
    fn is_renamed(&self, line: &TableLine) -> bool {
        self.search(line).is_ok_and(|found| found.is_some_and(|(path, _)| path == line.path))
    }

    /// Gives files their names, durably: those that were found may have them only until the next crash, those that
    /// were made again get them, once they are whole and the log knows them, and those that were renamed have them
    /// again.
    pub(super) fn name_files(&mut self) -> Result<()> {
        let is_made = |uid: &u64| self.targets.get(uid).is_some_and(|target| target.made);
        let made: Vec<u64> = self.replayed().filter(is_made).collect();
        if !made.is_empty() {
            self.know_again(&made)?;
        }
        self.put_in_place();
        self.remove_given_up();
        let replayed: Vec<u64> = self.replayed().collect();
        let line = |uid: &u64| self.scan.table.get(uid).map(|(_, _, line)| line);
        let is_new = |uid: &u64| line(uid).is_some_and(|line| line.new.is_some());
        let is_moved = |uid: &u64| line(uid).is_some_and(|line| line.before.is_some());
        let new: Vec<u64> = replayed.iter().filter(|uid| is_new(uid)).copied().collect();
        let moved: Vec<u64> = replayed.iter().filter(|uid| is_moved(uid) && !is_new(uid)).copied().collect();
        self.sync_dirs_of(&new, barriers::NAMED_AGAIN);
        self.sync_dirs_of(&moved, barriers::RENAMED_AGAIN);
        Ok(())
    }

    /// Files of which the log has two names and no operation: their owner died amid a rename that the kernel has made,
    /// and the next log knows one name only. So the rename must be durable, as that of a file with operations.
    pub(super) fn note_renamed_without_operations(&mut self) {
        let renamed = self.lines().filter(|line| line.before.is_some() && !line.replayed);
        let unknown: Vec<u64> = renamed.map(|line| line.uid).filter(|uid| !self.targets.contains_key(uid)).collect();
        for uid in unknown {
            let Some((_, _, line)) = self.scan.table.get(&uid) else { continue };
            let mut target = Target::of(line);
            match self.search(line) {
                Ok(Some((path, _))) => target.path = path,
                // It is gone, and the log has nothing for it.
                Ok(None) => continue,
                Err(error) => target.fate = ReplayOutcome::Failed(error.to_string()),
            }
            self.targets.insert(uid, target);
        }
    }

    /// Files that are whole now.
    fn replayed(&self) -> impl Iterator<Item = u64> {
        self.targets.iter().filter(|(_, target)| target.fate == ReplayOutcome::Replayed).map(|(&uid, _)| uid)
    }

    /// Has the log take files that were made again, and are synced, for those that are gone.
    fn know_again(&mut self, made: &[u64]) -> Result<()> {
        self.sync_dirs_of(made, barriers::AGAIN);
        self.keep_not_replaced(barriers::KNOWN_AGAIN)?;
        for uid in made {
            let slow = self.targets.get(uid).and_then(|target| target.slow.clone());
            if let (Some(slow), Some((_, _, line))) = (slow, self.scan.table.get_mut(uid)) {
                line.identity = slow.identity()?;
            }
        }
        // In both copies, the first before the second.
        for _ in 0..2 {
            made.iter().try_for_each(|&uid| self.write_line(uid))?;
            self.medium.fence(barriers::KNOWN_AGAIN, &[self.log])?;
        }
        Ok(())
    }

    /// Renames files, those first that got their names first: each finds its name free then, or what it was put over.
    fn put_in_place(&mut self) {
        let rank = |uid: &u64| self.scan.table.get(uid).map(|(_, _, line)| line.rank());
        let mut waiting: Vec<u64> = self.replayed().collect();
        waiting.sort_by_key(rank);
        for uid in waiting {
            let (Some((_, _, line)), Some(target)) = (self.scan.table.get(&uid), self.targets.get(&uid)) else {
                continue;
            };
            let Some(so_far) = &target.so_far else { continue };
            let placed = match self.at(so_far, &line.identity) {
                Ok(Some(_)) => recreate::put_in_place(self.place, line, so_far, &self.all_lines()),
                // Another file of a forged log came between, or somebody did: the name is not to be taken from what
                // has it now.
                Ok(None) => Ok(Err(ReplayOutcome::Missing(recreate::ANOTHER.to_owned()))),
                Err(error) => Err(error),
            };
            let Some(target) = self.targets.get_mut(&uid) else { continue };
            match placed {
                Ok(Ok(in_sidecar_page)) => {
                    target.moved_aside = in_sidecar_page.beside;
                    self.renamed_too(&in_sidecar_page.renamed);
                }
                Ok(Err(fate)) => target.fate = fate,
                Err(error) => target.fate = ReplayOutcome::Failed(error.to_string()),
            }
        }
    }

    /// Removes names that were given up for another one that the file has, too. The syncs of the renamed come next.
    fn remove_given_up(&mut self) {
        let given_up = |uid: u64| {
            let (_, _, line) = self.scan.table.get(&uid)?;
            let before = line.before.as_ref()?;
            let is_own = before.over.is_some_and(|over| is_same(&over, &line.identity));
            is_own.then(|| (uid, line.identity, line.path.clone(), before.path.clone()))
        };
        let names: Vec<_> = self.replayed().filter_map(given_up).collect();
        for (uid, identity, path, before) in names {
            let has = |path: &Path| self.at(path, &identity).map(|found| found.is_some());
            let removed = match (has(&path), has(&before)) {
                (Ok(true), Ok(true)) => self.place.remove(&before),
                (Ok(_), Ok(_)) => Ok(()),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            if let Err(error) = removed {
                self.fail(uid, &error);
            }
        }
    }

    /// Of files that were renamed because they were in the way the log may have nothing else.
    fn renamed_too(&mut self, files: &[u64]) {
        for uid in files {
            if let Some((_, _, line)) = self.scan.table.get(uid) {
                let target = self.targets.entry(*uid).or_insert_with(|| Target::of(line));
                target.so_far = None;
            }
        }
    }

    /// Makes names durable in the directories of files.
    fn sync_dirs_of(&mut self, files: &[u64], barrier: Barrier) {
        let mut dirs: BTreeMap<PathBuf, Vec<u64>> = BTreeMap::new();
        for &uid in files {
            let path = self.targets.get(&uid).map(|target| &target.path);
            let dir_of = |path: &PathBuf| parent(path).to_owned();
            for dir in path.into_iter().chain(self.others.get(&uid)).map(dir_of) {
                dirs.entry(dir).or_default().push(uid);
            }
        }
        for (dir, files) in dirs {
            if let Err(error) = self.place.sync_dir(barrier, Path::new(&dir)) {
                files.into_iter().for_each(|uid| self.fail(uid, &error));
            }
        }
    }
}
