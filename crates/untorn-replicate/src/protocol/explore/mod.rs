//! Every interleaving of the store's calls, over the real code of writers and readers.
//!
//! An actor is a script that calls the store. It runs anew for each step: the answers that it has got are given again,
//! and the first call without an answer ends the run. So one thread explores everything, and two orders that lead to
//! the same store and the same answers are explored once. A call may lose its request or its answer, be carried out
//! late or twice.
//!
//! # What must hold in every state
//!
//! 1. A restoration succeeds once a commit was acknowledged, and has each acknowledged commit with all before it.
//! 2. What a restoration or a follower has seen is the beginning of every later restoration.
//!
//! Without one of the [checks](Check) the explorer must find a state in which that does not hold.

mod bucket;
mod scripts;

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use self::bucket::{Bucket, Call, Reply, run};
use self::scripts::{Event, Script, history_of, restored};
use super::access::Check;

/// An actor in a state: the answers that it got, and what it does next.
#[derive(Clone)]
struct Actor {
    script: Script,
    replies: Vec<Arc<Reply>>,
    next: Option<Call>,
    events: usize,
}

#[derive(Clone)]
struct State {
    bucket: Bucket,
    actors: Vec<Actor>,
    /// Calls that will be carried out some time, although nobody waits for them.
    late: Vec<Call>,
    faults: u32,
    /// The state that the last restoration gave.
    restored: Vec<u32>,
    /// The longest history that was acknowledged.
    acknowledged: Vec<u32>,
}

/// The extent of an exploration.
#[derive(Debug, Default)]
struct Explored {
    states: usize,
    acknowledgements: usize,
    restorations: usize,
}

struct Explorer {
    muted: Option<Check>,
    seen: HashSet<u64>,
    explored: Explored,
}

type Verdict = Result<(), String>;

impl Explorer {
    /// Runs the actor until its next call, and judges what it has done. `changed` says whether the store may be another
    /// one than before.
    fn advance(&mut self, state: &mut State, index: usize, changed: bool) -> Verdict {
        let now = if changed {
            let now = restored(&state.bucket, self.muted)?;
            self.explored.restorations += usize::from(now.is_some());
            now.unwrap_or_default()
        } else {
            state.restored.clone()
        };
        let actor = &mut state.actors[index];
        let (next, events) = run(actor.script, &actor.replies, self.muted);
        let new = events[actor.events.min(events.len())..].to_vec();
        (actor.next, actor.events) = (next, events.len());
        for event in new {
            match event {
                Event::Acknowledged(history) => {
                    self.explored.acknowledgements += 1;
                    let (short, long) = match history.len() < state.acknowledged.len() {
                        true => (&history, &state.acknowledged),
                        false => (&state.acknowledged, &history),
                    };
                    if !long.starts_with(short) {
                        let other = &state.acknowledged;
                        return Err(format!("{history:?} and {other:?} were both acknowledged"));
                    }
                    state.acknowledged = long.clone();
                }
                Event::Observed(history) => {
                    if !now.starts_with(&history) {
                        return Err(format!("a follower has {history:?}, which is not restored"));
                    }
                }
                Event::Failed(what) => return Err(what),
                Event::Ready => {}
            }
        }
        if !now.starts_with(&state.restored) {
            return Err(format!("{:?} was restored before, and {now:?} later", state.restored));
        }
        if !now.starts_with(&state.acknowledged) {
            return Err(format!("{:?} was acknowledged, and {now:?} is restored", state.acknowledged));
        }
        state.restored = now;
        Ok(())
    }

    /// One more step in every way.
    fn explore(&mut self, state: &State) -> Verdict {
        let replies: Vec<_> = state.actors.iter().map(|actor| (&actor.replies, actor.script)).collect();
        let key = (&state.bucket, replies, &state.late, state.faults, &state.acknowledged);
        if !self.seen.insert(BuildHasherDefault::<DefaultHasher>::default().hash_one(key)) {
            return Ok(());
        }
        self.explored.states += 1;
        for (index, actor) in state.actors.iter().enumerate() {
            let Some(call) = &actor.next else { continue };
            for (executes, answers, later) in ways(call, state.faults) {
                let mut next = state.clone();
                next.faults -= u32::from(!(executes && answers && !later));
                let mut reply = if executes { next.bucket.execute(call) } else { Reply::Lost };
                if !answers {
                    reply = Reply::Lost;
                }
                if later {
                    next.late.push(call.clone());
                }
                next.actors[index].replies.push(Arc::new(reply));
                let changed = executes && call.is_write();
                self.step(&mut next, index, changed, &|| format!("{index}: {call:?} {executes} {answers} {later}"))?;
            }
        }
        for late in 0..state.late.len() {
            let mut next = state.clone();
            let call = next.late.remove(late);
            next.bucket.execute(&call);
            self.step(&mut next, 0, true, &|| format!("late: {call:?}"))?;
        }
        Ok(())
    }

    fn step(&mut self, next: &mut State, index: usize, changed: bool, what: &dyn Fn() -> String) -> Verdict {
        let verdict = self.advance(next, index, changed).and_then(|()| self.explore(next));
        verdict.map_err(|error| format!("{}\n{error}", what()))
    }
}

/// The ways in which a call may go: whether it is carried out, whether its answer arrives, whether it is carried out
/// (again) later.
fn ways(call: &Call, faults: u32) -> Vec<(bool, bool, bool)> {
    let mut ways = vec![(true, true, false)];
    if faults > 0 && call.is_write() {
        ways.extend([(true, false, false), (false, false, false), (false, false, true), (true, true, true)]);
    } else if faults > 0 {
        ways.push((false, false, false));
    }
    ways
}

/// Explores these scripts, after those that get ready have done so, one after the other.
fn explore(scripts: &[Script], faults: u32, muted: Option<Check>) -> Result<Explored, String> {
    let actor = |script: &Script| Actor { script: *script, replies: Vec::new(), next: None, events: 0 };
    let actors = scripts.iter().map(actor).collect();
    let (late, restored, acknowledged) = (Vec::new(), Vec::new(), Vec::new());
    let mut state = State { bucket: Bucket::default(), actors, late, faults, restored, acknowledged };
    let mut explorer = Explorer { muted, seen: HashSet::new(), explored: Explored::default() };
    for index in (0..scripts.len()).filter(|index| scripts[*index].gets_ready()) {
        loop {
            let actor = &state.actors[index];
            let (next, events) = run(actor.script, &actor.replies, muted);
            if events.contains(&Event::Ready) {
                break;
            }
            let call = next.ok_or("a script ended before it was ready")?;
            let reply = state.bucket.execute(&call);
            state.actors[index].replies.push(Arc::new(reply));
        }
    }
    for index in 0..scripts.len() {
        explorer.advance(&mut state, index, true)?;
    }
    assert_eq!(state.restored, history_of(0, 1));
    explorer.explore(&state).map(|()| explorer.explored)
}

/// The writers and readers that are explored together, and how many calls may fail.
const SCENES: &[(&[Script], u32)] = &[
    (&[Script::Writer, Script::TakeOver(1)], 0),
    (&[Script::Writer, Script::Restart], 0),
    (&[Script::Gone, Script::Restart, Script::TakeOver(1)], 0),
    (&[Script::Writer, Script::TakeOver(1), Script::Follower], 0),
    (&[Script::Writer, Script::Seize], 0),
    (&[Script::HandOver, Script::Seize], 0),
    (&[Script::HandOver, Script::TakeOver(1)], 0),
    (&[Script::Writer, Script::Restart], 1),
    (&[Script::Writer, Script::TakeOver(1)], 1),
];

#[test]
fn every_interleaving_keeps_every_acknowledged_commit() {
    for (scripts, faults) in SCENES {
        let since = std::time::Instant::now();
        let explored = explore(scripts, *faults, None).unwrap_or_else(|error| panic!("{scripts:?}:\n{error}"));
        println!("{scripts:?} with {faults} failed calls: {explored:?} in {:?}", since.elapsed());
        assert!(explored.states > 100 && explored.acknowledgements > 10, "{explored:?}");
    }
}

/// Each check that is left out does harm in one of the scenes.
fn convicts(check: Check) {
    let harm = SCENES.iter().find_map(|(scripts, faults)| explore(scripts, *faults, Some(check)).err());
    let harm = harm.unwrap_or_else(|| panic!("without {check:?} nothing goes wrong"));
    println!("without {check:?}: {}", harm.lines().last().unwrap_or_default());
}

#[test]
fn an_acknowledgement_without_a_second_read_is_convicted() {
    convicts(Check::Reread);
}

#[test]
fn a_deletion_before_the_record_allows_it_is_convicted() {
    convicts(Check::Publish);
}

#[test]
fn an_owner_without_compare_and_swap_is_convicted() {
    convicts(Check::Condition);
}

#[test]
fn an_epoch_that_is_not_sealed_is_convicted() {
    convicts(Check::Seal);
}

#[test]
fn a_reader_that_believes_a_stale_writer_is_convicted() {
    convicts(Check::Validate);
}

#[test]
fn parts_of_two_snapshots_with_one_name_are_convicted() {
    convicts(Check::Names);
}

#[test]
fn an_owner_that_lacks_commits_is_convicted() {
    convicts(Check::Descent);
}
