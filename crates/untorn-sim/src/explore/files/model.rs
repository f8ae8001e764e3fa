//! The reference model: which states of a file are right after a crash.
//!
//! The model is durable linearizability. The operations of a phase took effect one at a time in some order. That
//! order respects real time (an operation that returned before another began came first), and explains every value
//! that a read returned. Each operation in flight at the crash took effect or not. Under per-write durability a crash
//! leaves the state after the last effect; under per-commit durability, the state at the last commit among them.

use twox_hash::XxHash3_64;
use untorn::{Durability, EngineKind};

use super::config::Config;
use crate::rng::mix;
use crate::script::{Bytes, Content, Op};

/// An operation as it ran, in model time: the clock ticks when an operation begins and when it returns.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) op: Op,
    pub(super) began: u32,
    pub(super) returned: Option<u32>,
    /// The bytes that a read returned.
    pub(super) value: Option<Vec<u8>>,
}

/// States a crash may leave.
#[derive(Clone, Debug, Default)]
pub(in crate::explore) struct Allowed {
    pub(super) states: Vec<Bytes>,
    /// Whether the file may not exist at all.
    pub(super) missing: bool,
    /// The number of the last commit is not below this.
    pub(super) commit: u64,
    /// The bytes of that commit, if they are known: under its number the file has no others.
    pub(super) stood: Option<Bytes>,
    digest: u64,
}

impl Allowed {
    pub(super) fn new(states: impl IntoIterator<Item = Bytes>, missing: bool) -> Self {
        let digest = u64::from(missing);
        let mut allowed = Allowed { states: Vec::new(), missing, commit: 0, stood: None, digest };
        for state in states {
            if !allowed.states.contains(&state) {
                allowed.digest = allowed.digest.wrapping_add(mix(XxHash3_64::oneshot(&state)));
                allowed.states.push(state);
            }
        }
        allowed
    }

    /// The same after commits up to this number.
    pub(super) fn after(mut self, commit: u64, stood: Option<Bytes>) -> Allowed {
        self.digest = self.digest.wrapping_add(mix(commit ^ u64::from(stood.is_some()) << 63));
        Allowed { commit, stood, ..self }
    }

    /// A number that tells this set from others.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// What is wrong with the number of the last commit of a file that was found with these bytes.
    pub(super) fn misnumbered(&self, commit: u64, found: &[u8]) -> Option<String> {
        if commit < self.commit {
            return Some(format!("the number of the last commit fell from {} to {commit}", self.commit));
        }
        let stood = self.stood.as_ref().filter(|stood| commit == self.commit && stood.as_slice() != found)?;
        let difference = Allowed::new([stood.clone()], false).difference(found).unwrap_or_default();
        Some(format!("two contents have the commit number {commit}: the file {difference}"))
    }

    /// The difference between the found bytes and the state that they are closest to: `None` if they are one of the
    /// states.
    pub(super) fn difference(&self, found: &[u8]) -> Option<String> {
        if self.states.iter().any(|state| state.as_slice() == found) {
            return None;
        }
        let describe = |state: &Bytes| {
            let first = state.iter().zip(found).position(|(one, two)| one != two);
            let count = state.iter().zip(found).filter(|(one, two)| one != two).count();
            (count, first)
        };
        let closest = self
            .states
            .iter()
            .enumerate()
            .min_by_key(|(_, state)| (describe(state).0, state.len().abs_diff(found.len())));
        let Some((index, state)) = closest else {
            return Some("matches nothing, because no state is allowed".to_owned());
        };
        let place = if self.states.len() == 1 {
            "the only allowed state".to_owned()
        } else {
            format!("allowed state {} of {}, the closest", index + 1, self.states.len())
        };
        Some(match describe(state) {
            (count, Some(first)) => {
                let show = |bytes: &[u8]| {
                    let end = (first + 8).min(bytes.len());
                    bytes[first..end].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
                };
                format!(
                    "differs from {place}, in {count} bytes, first at {first}: expected {}, found {}",
                    show(state),
                    show(found)
                )
            }
            (_, None) => format!("differs from {place} in length: expected {}, found {}", state.len(), found.len()),
        })
    }
}

/// The model of one file: every pair of states that what happened so far can have led to.
#[derive(Clone, Debug)]
pub(in crate::explore) struct Model {
    engine: EngineKind,
    durability: Durability,
    pub(super) pairs: Vec<Content>,
}

impl Model {
    pub(super) fn new(config: &Config, states: impl IntoIterator<Item = Bytes>) -> Self {
        let pairs = states.into_iter().map(Content::committed).collect();
        Model { engine: config.engine, durability: config.durability, pairs }
    }

    /// The states that a crash may leave with nothing in flight.
    pub(super) fn allowed(&self) -> Allowed {
        Allowed::new(self.pairs.iter().map(|pair| pair.kept.clone()), false)
    }

    /// The states that a crash at model time `clock` may leave.
    pub(super) fn allowed_at(&self, history: &[Vec<Event>], clock: u32) -> Allowed {
        Allowed::new(self.linearize(history, clock).into_iter().map(|pair| pair.kept), false)
    }

    /// The pairs that some order of the operations leads to, in which everything that returned before `clock` took
    /// effect, and of what began before it any part.
    pub(super) fn linearize(&self, history: &[Vec<Event>], clock: u32) -> Vec<Content> {
        let begun: Vec<&[Event]> = history
            .iter()
            .map(|events| {
                let count = events.iter().take_while(|event| event.began < clock).count();
                &events[..count]
            })
            .collect();
        let mut found = Vec::new();
        for pair in &self.pairs {
            self.extend(&begun, clock, &mut vec![0; begun.len()], pair.clone(), &mut found);
        }
        found
    }

    fn extend(&self, begun: &[&[Event]], clock: u32, next: &mut Vec<usize>, pair: Content, found: &mut Vec<Content>) {
        let returned = |event: &Event| event.returned.filter(|&at| at < clock);
        let done = begun
            .iter()
            .zip(next.iter())
            .all(|(events, &next)| events[next..].iter().all(|event| returned(event).is_none()));
        if done && !found.contains(&pair) {
            found.push(pair.clone());
        }
        for thread in 0..begun.len() {
            let Some(event) = begun[thread].get(next[thread]) else { continue };
            // Another thread's operation that returned before this one began must come first.
            let early = begun
                .iter()
                .zip(next.iter())
                .any(|(events, &next)| events.get(next).and_then(returned).is_some_and(|at| at < event.began));
            if early {
                continue;
            }
            let finished = returned(event).is_some();
            if let (true, Some(value), Op::Read { offset, len }) = (finished, &event.value, &event.op)
                && pair.now.get(*offset as usize..(*offset + *len) as usize) != Some(value.as_slice())
            {
                continue;
            }
            if let (true, Some(value), Op::Snapshot) = (finished, &event.value, &event.op)
                && pair.kept.as_slice() != value.as_slice()
            {
                continue;
            }
            next[thread] += 1;
            // An operation that failed took no effect, or did all the same.
            if event.returned.is_none() {
                self.extend(begun, clock, next, pair.clone(), found);
            }
            let after = pair.after(&event.op, self.engine, self.durability);
            self.extend(begun, clock, next, after, found);
            next[thread] -= 1;
        }
    }

    /// Keeps the pairs in which a program sees these bytes.
    pub(super) fn saw(&mut self, bytes: &[u8]) {
        self.pairs.retain(|pair| pair.now.as_slice() == bytes);
    }

    /// Every state a program may see now.
    pub(super) fn visible(&self) -> Allowed {
        Allowed::new(self.pairs.iter().map(|pair| pair.now.clone()), false)
    }
}
