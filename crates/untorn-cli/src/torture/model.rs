//! The states that the file may have after a crash, derived from the acknowledgements before it.
//!
//! A thread runs its operations one after the other. Each operation writes at least one block that only this thread
//! writes. The state after a crash therefore shows, for each thread, the number k of its last operation that survived.
//! The model checks:
//!
//! - k lies between the last operation acknowledged as durable and the operation in flight (C2).
//! - The thread's own blocks are exactly as after its operations up to k (C1).
//! - A shared block holds some thread's last write to it among those operations.
//! - Two operations that both left data are in the same order in all blocks.
//! - If an operation survived, so did all operations that returned before it began (C1: a commit is the state of one
//!   instant).

use std::collections::BTreeMap;

use untorn::Durability;

use super::plan::{Plan, Stamp};
use super::report::Report;

/// The verified state, carried from crash to crash.
#[derive(Clone)]
pub(crate) struct Model {
    plan: Plan,
    durability: Durability,
    /// The stamp of each block after the last verified crash.
    base: Vec<Stamp>,
    /// The number of each thread's next operation. A number is never used twice. Otherwise a discarded write that
    /// reappears could pass for its repetition.
    next: Vec<u64>,
}

/// The reports of one run of the process.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    /// Each thread's last operation that returned.
    pub(crate) done: Vec<u64>,
    /// Each thread's last operation that a crash may not take back.
    pub(crate) durable: Vec<u64>,
    /// Blocks for which a read returned a mixture.
    pub(crate) mixtures: Vec<usize>,
    /// For each thread, its operations, each with every other thread's last operation that had returned before it.
    pub(crate) before: Vec<BTreeMap<u64, Vec<u64>>>,
}

impl Model {
    /// For a file of zeros.
    pub(crate) fn new(plan: Plan, durability: Durability) -> Self {
        let base = vec![Stamp::NONE; plan.blocks.len()];
        let next = vec![1; plan.threads()];
        Model { plan, durability, base, next }
    }

    /// The number of each thread's next operation.
    pub(crate) fn next(&self) -> &[u64] {
        &self.next
    }

    /// The layout.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The same file opened with another durability.
    pub(crate) fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    /// When a write becomes durable.
    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// The stamp of each block after the last verified crash.
    pub(crate) fn base(&self) -> &[Stamp] {
        &self.base
    }

    /// The model in the state given by [`base`](Model::base) and [`next`](Model::next); `None` if they don't fit this
    /// plan.
    pub(crate) fn restore(plan: Plan, durability: Durability, base: Vec<Stamp>, next: Vec<u64>) -> Option<Self> {
        let fits = base.len() == plan.blocks.len() && next.len() == plan.threads() && !next.contains(&0);
        fits.then_some(Model { plan, durability, base, next })
    }

    /// Derives the acknowledgements from the reports, in the order of their arrival.
    pub(crate) fn hear(&self, words: &[u64]) -> Heard {
        let before: Vec<u64> = self.next.iter().map(|next| next - 1).collect();
        let mut heard = Heard {
            done: before.clone(),
            durable: before.clone(),
            mixtures: Vec::new(),
            before: vec![BTreeMap::new(); self.plan.threads()],
        };
        let mut at_sync_start = vec![before; self.plan.threads()];
        for report in words.iter().filter_map(|&word| Report::decode(word)) {
            match report {
                Report::Done { thread, operation } => {
                    heard.done[thread] = operation;
                    // The next operation begins after this report, so after everything reported before it.
                    heard.before[thread].insert(operation + 1, heard.done.clone());
                    if self.durability == Durability::PerWrite {
                        heard.durable[thread] = operation;
                    }
                }
                Report::SyncStart { thread } => at_sync_start[thread].clone_from(&heard.done),
                // A sync covers everything that any thread had finished when the sync began.
                Report::SyncEnd { thread } => raise(&mut heard.durable, &at_sync_start[thread]),
                // C3: durable before visible, if every write is a commit.
                Report::Saw { stamp } if stamp != Stamp::NONE && self.durability == Durability::PerWrite => {
                    if let Some(durable) = heard.durable.get_mut(stamp.thread()) {
                        *durable = stamp.operation().max(*durable);
                    }
                }
                Report::Mixture { block } => heard.mixtures.push(block),
                Report::Ready | Report::Saw { .. } => {}
            }
        }
        heard
    }

    /// Checks the state after a crash against the reports, and adopts it. `read` reads one block. Returns the
    /// violations; `Err` is an error of `read`.
    pub(crate) fn verify<E>(
        &mut self,
        heard: &Heard,
        read: impl FnMut(usize, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Vec<String>, E> {
        let mut wrong = Vec::new();
        for &block in &heard.mixtures {
            wrong.push(format!("a read of {} returned a mixture of two writes before the kill (C1)", self.name(block)));
        }
        let found = self.stamps(read, &mut wrong)?;
        if wrong.is_empty() {
            let survived = self.survivors(&found);
            self.check_bounds(heard, &survived, &mut wrong);
            // If the numbers are out of bounds, there is no history to compare with.
            if wrong.is_empty() {
                self.check_history(&found, &survived, &mut wrong);
            }
        }
        self.base = found;
        self.next = heard.done.iter().map(|done| done + 2).collect();
        Ok(wrong)
    }

    /// Checks that the file is unchanged since the last verification.
    pub(crate) fn verify_unchanged<E>(
        &self,
        read: impl FnMut(usize, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Vec<String>, E> {
        let mut wrong = Vec::new();
        let found = self.stamps(read, &mut wrong)?;
        for (block, (found, base)) in found.iter().zip(&self.base).enumerate() {
            if wrong.is_empty() && found != base {
                let (found, base) = (describe(*found), describe(*base));
                wrong.push(format!("{} changed from {base} to {found} without a write (C1)", self.name(block)));
            }
        }
        Ok(wrong)
    }

    fn stamps<E>(
        &self,
        mut read: impl FnMut(usize, &mut Vec<u8>) -> Result<(), E>,
        wrong: &mut Vec<String>,
    ) -> Result<Vec<Stamp>, E> {
        let (mut bytes, mut scratch) = (Vec::new(), Vec::new());
        let mut stamps = Vec::with_capacity(self.plan.blocks.len());
        for block in 0..self.plan.blocks.len() {
            read(block, &mut bytes)?;
            let stamp = self.plan.stamp_of(block, &bytes, &mut scratch);
            if stamp.is_none() {
                wrong.push(format!("{} holds a mixture of two writes (C1)", self.name(block)));
            }
            stamps.push(stamp.unwrap_or(Stamp::NONE));
        }
        Ok(stamps)
    }

    /// For each thread, its last new operation that left data in a block of its own.
    fn survivors(&self, found: &[Stamp]) -> Vec<u64> {
        let mut survived: Vec<u64> = self.next.iter().map(|next| next - 1).collect();
        for (block, stamp) in self.plan.blocks.iter().zip(found) {
            if let Some(owner) = block.owner
                && *stamp != Stamp::NONE
            {
                survived[owner] = survived[owner].max(stamp.operation());
            }
        }
        survived
    }

    fn check_bounds(&self, heard: &Heard, survivors: &[u64], wrong: &mut Vec<String>) {
        for (thread, &survived) in survivors.iter().enumerate() {
            let (durable, done) = (heard.durable[thread], heard.done[thread]);
            if survived < durable {
                wrong.push(format!(
                    "operation {durable} of thread {thread} was acknowledged as durable, but only operations up to \
                     {survived} survived (C2)"
                ));
            }
            if survived > done + 1 {
                wrong.push(format!("operation {survived} of thread {thread} is in the file, but it never began (C1)"));
            }
            for (other, &before) in heard.before[thread].get(&survived).into_iter().flatten().enumerate() {
                if survived >= self.next[thread] && other != thread && survivors[other] < before {
                    wrong.push(format!(
                        "operation {survived} of thread {thread} survived, but not operation {before} of thread \
                         {other}, \
                         which had returned before it began (C1)"
                    ));
                }
            }
        }
    }

    fn check_history(&self, found: &[Stamp], survived: &[u64], wrong: &mut Vec<String>) {
        // Each thread's last operation on each block, among the surviving operations of this run.
        let mut last = vec![vec![None; self.plan.blocks.len()]; survived.len()];
        for (thread, &survived) in survived.iter().enumerate() {
            for number in self.next[thread]..=survived {
                for block in self.plan.operation(thread, number).blocks {
                    last[thread][block] = Some(number);
                }
            }
        }
        // Pairs of operations; the first is known to have happened before the second.
        let mut order: Vec<(Stamp, Stamp)> = Vec::new();
        for (block, &stamp) in found.iter().enumerate() {
            let writers: Vec<Stamp> = last
                .iter()
                .enumerate()
                .filter_map(|(thread, last)| last[block].map(|number| Stamp::new(thread, number)))
                .collect();
            let expected = if writers.is_empty() { &[self.base[block]][..] } else { &writers[..] };
            if expected.contains(&stamp) {
                order.extend(writers.iter().filter(|&&other| other != stamp).map(|&other| (other, stamp)));
            } else {
                let expected: Vec<String> = expected.iter().map(|&stamp| describe(stamp)).collect();
                let (name, found) = (self.name(block), describe(stamp));
                wrong.push(format!("{name} holds {found} instead of {} (C1)", expected.join(" or ")));
            }
        }
        if let Some((one, other)) = contradiction(&order) {
            wrong.push(format!(
                "{} and {} are in opposite orders in different blocks (C1)",
                describe(one),
                describe(other)
            ));
        }
    }

    fn name(&self, block: usize) -> String {
        let place = self.plan.blocks[block];
        let whose = place.owner.map_or("shared".to_owned(), |owner| format!("of thread {owner}"));
        format!("block {block} ({whose}, {} bytes at {})", place.len, place.offset)
    }
}

fn raise(numbers: &mut [u64], to: &[u64]) {
    for (number, to) in numbers.iter_mut().zip(to) {
        *number = (*number).max(*to);
    }
}

fn describe(stamp: Stamp) -> String {
    match stamp {
        Stamp::NONE => "zeros".to_owned(),
        stamp => format!("operation {} of thread {}", stamp.operation(), stamp.thread()),
    }
}

/// Finds two contradicting orders: `a < b` and `c < d`, where `d` is `a` or an earlier operation of the same thread,
/// and `b` is `c` or an earlier one.
fn contradiction(order: &[(Stamp, Stamp)]) -> Option<(Stamp, Stamp)> {
    let not_after = |x: Stamp, y: Stamp| x.thread() == y.thread() && x.operation() <= y.operation();
    for &(a, b) in order {
        if order.iter().any(|&(c, d)| not_after(d, a) && not_after(b, c)) {
            return Some((a, b));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const SEED: u64 = 11;

    /// The blocks after some operations, in this order.
    fn state(plan: &Plan, operations: &[(usize, u64)]) -> Vec<Stamp> {
        let mut state = vec![Stamp::NONE; plan.blocks.len()];
        for &(thread, number) in operations {
            for block in plan.operation(thread, number).blocks {
                state[block] = Stamp::new(thread, number);
            }
        }
        state
    }

    fn verdict(durability: Durability, words: &[Report], state: &[Stamp]) -> Vec<String> {
        let plan = Plan::new(SEED, 2);
        let mut model = Model::new(plan.clone(), durability);
        let words: Vec<u64> = words.iter().map(|report| report.encode()).collect();
        let heard = model.hear(&words);
        let read = |block: usize, bytes: &mut Vec<u8>| -> Result<(), Infallible> {
            plan.content(block, state[block], bytes);
            Ok(())
        };
        match model.verify(&heard, read) {
            Ok(wrong) => wrong,
            Err(never) => match never {},
        }
    }

    fn done(thread: usize, operation: u64) -> Report {
        Report::Done { thread, operation }
    }

    #[test]
    fn the_last_acknowledged_state_and_the_one_in_flight_are_right() {
        let plan = Plan::new(SEED, 2);
        let heard = [Report::Ready, done(0, 1), done(0, 2), done(1, 1)];
        for state in [
            state(&plan, &[(0, 1), (0, 2), (1, 1)]),
            state(&plan, &[(1, 1), (0, 1), (0, 2)]),
            state(&plan, &[(0, 1), (0, 2), (1, 1), (0, 3)]),
            state(&plan, &[(0, 1), (1, 1), (0, 2), (1, 2)]),
        ] {
            assert_eq!(verdict(Durability::PerWrite, &heard, &state), Vec::<String>::new());
        }
    }

    #[test]
    fn a_lost_acknowledged_write_is_a_violation() {
        let plan = Plan::new(SEED, 2);
        let lost = state(&plan, &[(0, 1)]);
        let wrong = verdict(Durability::PerWrite, &[done(0, 1), done(0, 2)], &lost);
        assert!(wrong.len() == 1 && wrong[0].contains("(C2)"), "{wrong:?}");
        // Without a sync, an epoch may be lost.
        assert!(verdict(Durability::PerCommit, &[done(0, 1), done(0, 2)], &lost).is_empty());
        // A sync of the other thread covers what was done when it began, and no more.
        let start = Report::SyncStart { thread: 1 };
        let end = Report::SyncEnd { thread: 1 };
        assert!(!verdict(Durability::PerCommit, &[done(0, 1), done(0, 2), start, end], &lost).is_empty());
        assert!(verdict(Durability::PerCommit, &[done(0, 1), start, done(0, 2), end], &lost).is_empty());
    }

    #[test]
    fn bytes_returned_by_a_read_survive_if_each_write_commits() {
        let saw = Report::Saw { stamp: Stamp::new(1, 1) };
        let plan = Plan::new(SEED, 2);
        assert!(!verdict(Durability::PerWrite, &[saw], &state(&plan, &[])).is_empty());
        assert!(verdict(Durability::PerWrite, &[saw], &state(&plan, &[(1, 1)])).is_empty());
        assert!(verdict(Durability::PerCommit, &[saw], &state(&plan, &[])).is_empty());
    }

    #[test]
    fn half_an_operation_is_a_violation() {
        let plan = Plan::new(SEED, 2);
        let number = (1..).find(|&number| plan.operation(0, number).blocks.len() > 2).unwrap_or(1);
        let before: Vec<(usize, u64)> = (1..number).map(|number| (0, number)).collect();
        let mut torn = state(&plan, &before);
        let whole = state(&plan, &[&before[..], &[(0, number)]].concat());
        let reports: Vec<Report> = before.iter().map(|&(thread, operation)| done(thread, operation)).collect();
        assert!(verdict(Durability::PerWrite, &reports, &torn).is_empty());
        assert!(verdict(Durability::PerWrite, &reports, &whole).is_empty());
        let own = plan.operation(0, number).blocks.into_iter().find(|&block| plan.blocks[block].owner.is_some());
        torn[own.unwrap_or(0)] = Stamp::new(0, number);
        assert!(!verdict(Durability::PerWrite, &reports, &torn).is_empty());
    }

    #[test]
    fn an_operation_survives_only_with_those_returned_before_it() {
        let plan = Plan::new(SEED, 2);
        let heard = [done(0, 1), done(1, 1), done(0, 2)];
        // Thread 0's operation 2 began before thread 1's operation 1 was reported, its operation 3 after that.
        assert!(verdict(Durability::PerCommit, &heard, &state(&plan, &[(0, 1), (0, 2)])).is_empty());
        let wrong = verdict(Durability::PerCommit, &heard, &state(&plan, &[(0, 1), (0, 2), (0, 3)]));
        assert!(wrong.len() == 1 && wrong[0].contains("which had returned before"), "{wrong:?}");
        assert!(verdict(Durability::PerCommit, &heard, &state(&plan, &[(0, 1), (0, 2), (1, 1), (0, 3)])).is_empty());
    }

    #[test]
    fn an_operation_from_the_future_is_a_violation() {
        let plan = Plan::new(SEED, 2);
        let future = state(&plan, &[(0, 1), (0, 2), (0, 3)]);
        assert!(!verdict(Durability::PerWrite, &[done(0, 1)], &future).is_empty());
    }

    #[test]
    fn two_orders_at_once_are_a_violation() {
        let stamp = Stamp::new;
        let order = [(stamp(0, 5), stamp(1, 3)), (stamp(1, 4), stamp(0, 2))];
        assert!(contradiction(&order).is_some());
        assert!(contradiction(&[(stamp(0, 5), stamp(1, 3)), (stamp(1, 4), stamp(0, 6))]).is_none());
        assert!(contradiction(&[(stamp(0, 5), stamp(1, 3)), (stamp(1, 3), stamp(0, 5))]).is_some());
    }
}
