//! The steps of the actors. The file of the model grows by a number with each commit, and the commit has the number of
//! its place.

use super::bucket::{Bucket, instant};
use crate::error::{Error, Result};
use crate::format::body::{Commit, Snapshot, encode_commits};
use crate::format::object::Kind;
use crate::protocol::access::{Access, Check};
use crate::protocol::chain::{Step, Target};
use crate::protocol::owner::{Claim, Owner, Position, Seized};
use crate::protocol::rebuild::{Image, apply, commits_of, rebuild};

/// An actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Script {
    /// The first owner. It is ready with one commit, and makes two more.
    Writer,
    /// The same, which is killed once it is ready.
    Gone,
    /// The same file after the first owner was killed: it has the three commits.
    Restart,
    /// Another machine: it restores, takes over, and makes a snapshot that makes all before it needless.
    TakeOver(u8),
    /// The first owner hands over after two more commits.
    HandOver,
    /// Another machine: it restores, takes the replica away from its owner, restores what came meanwhile, and owns it.
    Seize,
    /// A reader that follows. It is ready with what the first owner had then.
    Follower,
}

/// An actor's step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Ready,
    /// A commit was acknowledged: the file had this then.
    Acknowledged(Vec<u32>),
    /// A follower has this.
    Observed(Vec<u32>),
    /// Something that must not happen.
    Failed(String),
}

/// The file of a writer after so many commits.
pub(super) fn history_of(writer: u32, commits: u32) -> Vec<u32> {
    (1..=commits).map(|commit| 100 * writer + commit).collect()
}

impl Image for Vec<u8> {
    fn resize(&mut self, len: u64) -> Result<()> {
        Vec::resize(self, len as usize, 0);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

fn bytes_of(history: &[u32]) -> Vec<u8> {
    history.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|number| number.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte))).collect()
}

/// The state that a restoration gives; `None` if there is nothing yet.
pub(super) fn restored(bucket: &Bucket, muted: Option<Check>) -> std::result::Result<Option<Vec<u32>>, String> {
    let mut image = Vec::new();
    match rebuild(&instant(bucket, muted), Target::Latest, &mut image, &mut |_| Ok(())) {
        Ok(_) => Ok(Some(numbers(&image))),
        Err(Error::NotFound { what, .. }) if !what.contains("times") => Ok(None),
        Err(error) => Err(format!("a restoration fails: {error}")),
    }
}

fn commit(owner: &mut Owner, history: &[u32]) -> Result<()> {
    let (number, len) = (history.len() as u64, 4 * history.len() as u64);
    let changes = vec![(len - 4, history[history.len() - 1].to_le_bytes().to_vec())];
    let commit = Commit { number, time: number, len, shortest: len - 4, changes };
    owner.append((number, number), number, &encode_commits(&[commit]))
}

fn snapshot(owner: &mut Owner, history: &[u32], rebases: bool) -> Result<()> {
    let (attempt, number) = (owner.begin_snapshot(), history.len() as u64);
    owner.put_part(attempt, 0, &bytes_of(history))?;
    let snapshot = Snapshot { len: 4 * number, part: 1 << 20, rebases, attempt, parts: vec![0] };
    owner.put_snapshot(&snapshot, number, number, |_| true)
}

impl Script {
    pub(super) fn id(self) -> u8 {
        match self {
            Script::Writer | Script::Gone | Script::HandOver => 1,
            Script::Restart => 2,
            Script::Follower => 3,
            Script::Seize => 4,
            Script::TakeOver(number) => 10 + number,
        }
    }

    /// Whether it tells that it is ready.
    pub(super) fn gets_ready(self) -> bool {
        matches!(self, Script::Writer | Script::Gone | Script::HandOver | Script::Follower)
    }

    /// Plays the script. An error of the store ends it: the machine has gone, and what it did stays.
    pub(super) fn play(self, access: &Access, tell: &mut dyn FnMut(Event)) {
        let played = match self {
            Script::Writer => writer(access, 3, tell).map(|_| ()),
            Script::Gone => writer(access, 1, tell).map(|_| ()),
            Script::HandOver => writer(access, 2, tell).and_then(|mut owner| owner.release().map(|_| ())),
            Script::Seize => seize(access, tell),
            Script::Restart => restart(access, tell),
            Script::TakeOver(number) => take_over(access, number, tell),
            Script::Follower => follower(access, tell),
        };
        match played {
            Ok(()) | Err(Error::Store(_) | Error::Fenced { .. } | Error::NotDescendant { .. }) => {}
            Err(error) => tell(Event::Failed(format!("{self:?}: {error}"))),
        }
    }
}

fn claim(token: u8, known: &[u8], position: Option<Position>) -> Claim {
    let known = known.iter().map(|token| [*token; 16]).collect();
    Claim { replica: [9; 16], token: [token; 16], name: token.to_string(), known, position }
}

fn writer(access: &Access, last: u32, tell: &mut dyn FnMut(Event)) -> Result<Owner> {
    let mut owner = Owner::acquire(access, &claim(1, &[], None))?;
    let mut history = history_of(0, 1);
    snapshot(&mut owner, &history, true)?;
    owner.acknowledge()?;
    tell(Event::Ready);
    for next in 2..=last {
        history = history_of(0, next);
        commit(&mut owner, &history)?;
        owner.acknowledge()?;
        tell(Event::Acknowledged(history.clone()));
        bundle(&mut owner);
    }
    Ok(owner)
}

/// As the thread beside the writer does.
fn bundle(owner: &mut Owner) {
    for bundle in owner.take_bundles() {
        // Nothing needs it.
        let _ = bundle.make(owner.access());
    }
}

fn restart(access: &Access, tell: &mut dyn FnMut(Event)) -> Result<()> {
    let mut owner = Owner::acquire(access, &claim(2, &[1], None))?;
    for next in owner.position().commit + 1..=3 {
        commit(&mut owner, &history_of(0, next as u32))?;
    }
    owner.acknowledge()?;
    tell(Event::Acknowledged(history_of(0, 3)));
    bundle(&mut owner);
    snapshot(&mut owner, &history_of(0, 3), false)?;
    owner.sweep().map(|_| ())
}

fn take_over(access: &Access, number: u8, tell: &mut dyn FnMut(Event)) -> Result<()> {
    let mut image = Vec::new();
    let rebuilt = rebuild(access, Target::Latest, &mut image, &mut |_| Ok(()))?;
    let mut history = numbers(&image);
    tell(Event::Observed(history.clone()));
    let position = Some(rebuilt.cursor.position());
    let mut owner = Owner::acquire(access, &claim(10 + number, &[], position))?;
    history.push(100 * u32::from(number) + 1);
    commit(&mut owner, &history)?;
    owner.acknowledge()?;
    tell(Event::Acknowledged(history.clone()));
    snapshot(&mut owner, &history, false)?;
    owner.sweep()?;
    history.push(100 * u32::from(number) + 2);
    commit(&mut owner, &history)?;
    owner.acknowledge()?;
    tell(Event::Acknowledged(history));
    bundle(&mut owner);
    Ok(())
}

fn seize(access: &Access, tell: &mut dyn FnMut(Event)) -> Result<()> {
    let mut image = Vec::new();
    let mut cursor = rebuild(access, Target::Latest, &mut image, &mut |_| Ok(()))?.cursor;
    tell(Event::Observed(numbers(&image)));
    let seized = Seized::take(access, &claim(4, &[], None), false)?;
    while cursor.position() != seized.position() {
        let Step::Objects(objects) = cursor.next(access, 1)? else { return Ok(()) };
        if objects.is_empty() {
            // Another owner has come, and has sealed the epoch of this one.
            return Ok(());
        }
        for object in objects.iter().filter(|object| object.header.kind == Kind::Commits) {
            commits_of(object)?.iter().try_for_each(|commit| apply(commit, &mut image))?;
        }
    }
    let mut history = numbers(&image);
    let mut owner = seized.own(&claim(4, &[], Some(cursor.position())))?;
    history.push(401);
    commit(&mut owner, &history)?;
    owner.acknowledge()?;
    tell(Event::Acknowledged(history));
    Ok(())
}

fn follower(access: &Access, tell: &mut dyn FnMut(Event)) -> Result<()> {
    let mut image = Vec::new();
    let mut cursor = rebuild(access, Target::Latest, &mut image, &mut |_| Ok(()))?.cursor;
    tell(Event::Ready);
    for _ in 0..2 {
        let Step::Objects(objects) = cursor.poll(access, 1)? else { return Ok(()) };
        for object in objects {
            // A snapshot repeats the state here.
            if object.header.kind == Kind::Commits {
                commits_of(&object)?.iter().try_for_each(|commit| apply(commit, &mut image))?;
            }
        }
        tell(Event::Observed(numbers(&image)));
    }
    Ok(())
}
