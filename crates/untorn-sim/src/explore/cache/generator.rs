//! Scripts of operations on files behind a log.

use untorn::Durability;

use super::epochs::ROOM;
use super::model::Model;
use super::ops::{DIRS, LENGTHS, NAMES, OFFSETS, Op};
use crate::rng::Rng;

/// Operations that are not synced, at most.
const MOST_UNSYNCED: usize = 5;

/// Draws operations that a cache must be able to do.
pub(in crate::explore) struct Generator {
    pub(super) rng: Rng,
    fails: bool,
    /// Whether files are written through.
    through: bool,
    theme: Theme,
    /// The step within a round of the theme, if it has rounds.
    step: u32,
}

/// The operations that a script has more of than others. A rare event must happen more than once in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    Anything,
    /// Files that fail while others go on.
    Stuck,
    /// Replays that fail.
    Kept,
    /// Names that are given to one new file after the other.
    Again,
    /// Files that are made and put over others.
    Moved,
    /// Files that are made shorter while the log still has a synced write beyond their end, but no longer the entries
    /// before it. A replay of that write without the others leaves zeros where there were bytes.
    Cut,
    /// Files that are synced after every write or two, as a process does by itself: it flushes what is not durable
    /// yet, and no more.
    Synced,
}

impl Generator {
    /// `fails` is whether flushes do now and then; `through`, whether files are written through; `shown`, whether the
    /// kernel may have what the log has not durably yet.
    pub(super) fn new(mut rng: Rng, fails: bool, through: bool, shown: bool) -> Self {
        let theme = match rng.below(if shown { 11 } else { 7 }) {
            0 | 1 if fails => Theme::Stuck,
            2 => Theme::Kept,
            3 if fails => Theme::Kept,
            5 if through => Theme::Again,
            6 => Theme::Moved,
            7 | 8 => Theme::Cut,
            9.. => Theme::Synced,
            _ => Theme::Anything,
        };
        Generator { rng, fails, through, theme, step: 0 }
    }

    /// The operation that the theme asks for now, if any.
    fn on_theme(&mut self, model: &Model, there: &[u8], absent: &[u8]) -> Option<Op> {
        let file = *self.rng.pick(there);
        let (healthy, tag) = (model.stuck.is_empty(), 1 + self.rng.below(200) as u8);
        // A removed file may be back under the name to which another file is moved.
        if self.theme == Theme::Moved
            && let Some(to) = model.leaving.last().filter(|to| absent.contains(to))
            && self.rng.one_in(2)
        {
            return self.moving_to(model, file, to);
        }
        match self.theme {
            Theme::Anything => None,
            Theme::Again => Some(match self.rng.below(8) {
                0 if healthy => Op::DrainSome,
                6.. if healthy => self.sync_names(),
                1 | 2 if !absent.is_empty() => Op::Make(*self.rng.pick(absent), *self.rng.pick(&[1, 70, 200]), tag),
                3 if healthy => Op::Remove(file),
                _ => Op::Leave(file),
            }),
            Theme::Moved => Some(match self.rng.below(10) {
                0 if healthy => Op::DrainSome,
                8.. if healthy => self.sync_names(),
                1 if healthy => Op::Drain,
                2 | 3 if self.through && !absent.is_empty() => {
                    Op::Make(*self.rng.pick(absent), *self.rng.pick(&[1, 70]), tag)
                }
                4 => Op::Write(file, *self.rng.pick(&OFFSETS), 70, tag),
                5 if healthy && self.rng.one_in(2) => Op::Remove(file),
                5 => Op::Leave(file),
                _ => self.moving(model, file)?,
            }),
            Theme::Cut => {
                // Each round is of one file.
                let file = there[0];
                self.step += 1;
                Some(match self.step % 5 {
                    1 => Op::Write(file, 0, 200, tag),
                    // From here on the log has no entry of that write.
                    2 if healthy => Op::Drain,
                    3 => Op::Write(file, *self.rng.pick(&[200, 4050]), 64, tag),
                    4 if healthy => Op::SyncAll,
                    _ => Op::SetLen(file, *self.rng.pick(&[0, 60, 100])),
                })
            }
            Theme::Synced => Some(match self.rng.below(8) {
                0..=2 => Op::Sync(file),
                3 => Op::SetLen(file, *self.rng.pick(&OFFSETS)),
                4 => self.moving(model, file)?,
                5 => Op::Append(file, *self.rng.pick(&[1, 70]), tag),
                _ => Op::Write(file, *self.rng.pick(&OFFSETS), 70, tag),
            }),
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

    fn sync_names(&mut self) -> Op {
        Op::SyncNames(self.rng.below(DIRS.len() as u64) as u8)
    }

    /// A rename of a file, to a name that is free or that of a file which has not failed.
    fn moving(&mut self, model: &Model, file: u8) -> Option<Op> {
        let to = self.rng.below(NAMES.len() as u64) as u8;
        self.moving_to(model, file, to)
    }

    fn moving_to(&mut self, model: &Model, file: u8, to: u8) -> Option<Op> {
        if to == file || model.stuck.contains(&to) || model.demoted.contains(&file) {
            return None;
        }
        Some(if self.rng.one_in(4) { Op::MoveFails(file, to) } else { Op::Move(file, to) })
    }

    pub(super) fn next(&mut self, model: &Model) -> Op {
        let op = if model.atomic { self.draw_atomic(model) } else { self.draw(model) };
        let renamed = |name: u8| model.durability == Durability::PerCommit && model.is_moving(name);
        match op {
            // If a crash leaves one change and loses the other, the model has no name for the file.
            Op::Leave(name) | Op::Remove(name) | Op::Unlink(name) | Op::Rename(name, _) if renamed(name) => {
                if model.stuck.is_empty() { Op::SyncAll } else { Op::Reopen }
            }
            op => op,
        }
    }

    /// An operation on atomic files, in a log that is always about to be full.
    fn draw_atomic(&mut self, model: &Model) -> Op {
        let healthy = model.stuck.is_empty();
        let visible = model.visible();
        let there: Vec<u8> = visible.keys().copied().filter(|name| !model.stuck.contains(name)).collect();
        let absent: Vec<u8> = (0..NAMES.len() as u8).filter(|name| !visible.contains_key(name)).collect();
        if model.unsynced.len() >= MOST_UNSYNCED || there.is_empty() && (absent.is_empty() || !healthy) {
            return match there.first() {
                _ if healthy => Op::SyncAll,
                Some(name) if self.rng.one_in(2) => Op::Sync(*name),
                _ => Op::Reopen,
            };
        }
        if !model.leaving.0.is_empty() && self.rng.one_in(6) {
            return Op::Reopen;
        }
        let (len, tag) = (*self.rng.pick(&LENGTHS), 1 + self.rng.below(200) as u8);
        let fits = |len: u64| model.claims() + 2 * model.entries(len) < ROOM;
        if there.is_empty() || healthy && !absent.is_empty() && self.rng.one_in(8) {
            let name = *self.rng.pick(&absent);
            return match self.rng.one_in(2) {
                _ if !fits(len) => Op::SyncAll,
                true => Op::Make(name, len, tag),
                false => Op::Create(name, len, tag),
            };
        }
        let file = *self.rng.pick(&there);
        let op = match self.rng.below(48) {
            0..=8 => Op::Write(file, *self.rng.pick(&OFFSETS), len, tag),
            9..=12 => Op::Append(file, len, tag),
            13..=15 => Op::SetLen(file, *self.rng.pick(&OFFSETS)),
            16..=20 => Op::Sync(file),
            21..=25 => Op::CommitLater(file),
            26 => Op::Abandon(file),
            27 => Op::Attach(file),
            28..=30 => self.moving(model, file).unwrap_or(Op::Append(file, len, tag)),
            31 => Op::Leave(file),
            32 => Op::Unlink(file),
            33 if !absent.is_empty() => Op::Rename(file, *self.rng.pick(&absent)),
            34 if healthy => Op::Drain,
            35..=37 => Op::DrainSome,
            38 => Op::HandOver(file),
            39 | 40 if self.fails && healthy => Op::DrainFails(1 + self.rng.below(3) as u32),
            41 if self.fails => Op::ReopenFails(1 + self.rng.below(5) as u32),
            42 => Op::ReopenMissing(file),
            43 => Op::Reopen,
            44 if healthy => self.sync_names(),
            45 if healthy => Op::Remove(file),
            46 if healthy => Op::SyncAll,
            _ => Op::Write(file, *self.rng.pick(&OFFSETS), 1 + len % 64, tag),
        };
        match op {
            // Seldom, to see it refused.
            Op::Write(_, _, len, _) | Op::Append(_, len, _) if !fits(len) && !self.rng.one_in(6) => {
                let open = there.iter().copied().find(|name| model.is_open(*name));
                let file = open.unwrap_or(file);
                if self.rng.one_in(2) { Op::Sync(file) } else { Op::CommitLater(file) }
            }
            op => op,
        }
    }

    fn draw(&mut self, model: &Model) -> Op {
        if model.unsynced.len() >= MOST_UNSYNCED {
            // A sync of all says so if there is a file that failed.
            let healthy = model.visible().into_keys().find(|name| !model.stuck.contains(name));
            return match healthy {
                _ if model.stuck.is_empty() => Op::SyncAll,
                // The other files may have more unsynced operations.
                Some(name) if !model.demoted.contains(&name) && self.rng.one_in(2) => Op::Sync(name),
                _ => Op::Reopen,
            };
        }
        let visible = model.visible();
        let absent: Vec<u8> = (0..NAMES.len() as u8).filter(|name| !visible.contains_key(name)).collect();
        if let Some(name) = model.demoted.first().filter(|_| model.durability == Durability::PerCommit) {
            return Op::Attach(*name);
        }
        // Only the next session shows what became of a name that may be back.
        if !model.leaving.0.is_empty()
            && self.rng.one_in(if matches!(self.theme, Theme::Again | Theme::Moved) { 40 } else { 4 })
        {
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
        match self.rng.below(31) {
            30 if model.stuck.is_empty() => self.sync_names(),
            0..=10 => Op::Write(file, *self.rng.pick(&OFFSETS), len, tag),
            11 => Op::Leave(file),
            12..=14 => Op::Append(file, len, tag),
            15..=16 => Op::SetLen(file, *self.rng.pick(&OFFSETS)),
            17 if !absent.is_empty() => Op::Rename(file, *self.rng.pick(&absent)),
            17..=18 => self.moving(model, file).unwrap_or(Op::Append(file, len, tag)),
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
