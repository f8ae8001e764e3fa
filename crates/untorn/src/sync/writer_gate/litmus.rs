//! The order of a store before a load, which no loom model here convicts: every outcome that two machines allow.
//!
//! A *machine* executes a thread's instructions one by one, each at one instant for all threads, in any order that it
//! may give them. x86-TSO lets a load go before earlier stores. ARMv8 lets any two accesses change places, unless an
//! acquire, a release, a fence or a branch is between them; a load may go before the branch that leads to it. No
//! thread loads what it stores itself, so store buffers need no more than that.
//!
//! `membarrier(2)` interrupts each thread, and an interrupt is precise: all instructions before it are done, and none
//! behind it. So it happens only where that is so of each other thread.
//!
//! What is checked is invariant 1 of [`snapshot`](crate::engine::snapshot): each write has ended before the gate was
//! closed, or finds what was done while it was. Each instruction names the line of the code that it stands for.

use std::collections::HashSet;

const CLOSED: usize = 0;
const BUSY: usize = 1;
/// What the closer changes while it is alone: that a snapshot is held.
const HELD: usize = 2;
/// What a thread inside changes.
const WRITTEN: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Store {
        at: usize,
        value: u8,
        release: bool,
    },
    Load {
        at: usize,
        acquire: bool,
    },
    /// A branch: the thread goes on only if the load of this word gave this value.
    Only {
        at: usize,
        value: u8,
    },
    Fence,
    /// All threads execute a barrier.
    Barrier,
}

use Step::{Barrier, Fence, Load, Only, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    Tso,
    Arm,
}

impl Machine {
    /// Whether a later instruction of a thread may take effect before an earlier one.
    fn may_pass(self, earlier: Step, later: Step) -> bool {
        match (earlier, later) {
            (Fence | Barrier, _) | (_, Fence | Barrier) => false,
            // The branch knows what it waits for; behind it a load may have been made already.
            (Load { at, .. }, Only { at: on, .. }) => at != on,
            (_, Only { .. }) => true,
            (Only { .. }, Store { .. }) => false,
            (Only { .. }, Load { .. }) => self == Machine::Arm,
            (Store { at: one, .. } | Load { at: one, .. }, Store { at: two, .. } | Load { at: two, .. })
                if one == two =>
            {
                false
            }
            (Store { .. }, Load { .. }) => true,
            _ if self == Machine::Tso => false,
            (Load { acquire, .. }, Load { .. }) => !acquire,
            (Load { acquire, .. }, Store { release, .. }) => !acquire && !release,
            (Store { .. }, Store { release, .. }) => !release,
        }
    }
}

/// A writer and a closer, by their instructions.
#[derive(Clone)]
struct Program {
    threads: [Vec<Step>; 2],
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct State {
    memory: [u8; 4],
    /// The instructions of each thread that took effect, by their bits.
    done: [u32; 2],
    /// What each thread's loads gave, by their word.
    loaded: [[Option<u8>; 4]; 2],
}

impl Program {
    fn is_done(&self, state: &State, thread: usize) -> bool {
        state.done[thread].count_ones() as usize == self.threads[thread].len()
    }

    /// The state after an instruction; `None` if it may not take effect now.
    fn after(&self, machine: Machine, state: &State, thread: usize, index: usize) -> Option<State> {
        let steps = &self.threads[thread];
        let step = steps[index];
        let pending = |earlier: &usize| state.done[thread] & 1 << earlier == 0;
        if !pending(&index) || !(0..index).filter(pending).all(|earlier| machine.may_pass(steps[earlier], step)) {
            return None;
        }
        let mut next = state.clone();
        next.done[thread] |= 1 << index;
        match step {
            Store { at, value, .. } => next.memory[at] = value,
            Load { at, .. } => next.loaded[thread][at] = Some(state.memory[at]),
            Only { at, value } if state.loaded[thread][at] != Some(value) => return None,
            Only { .. } | Fence => {}
            Barrier => {
                let other = state.done[1 - thread];
                if !(other + 1).is_power_of_two() {
                    return None;
                }
            }
        }
        Some(next)
    }

    /// Whether some execution has a writer inside that neither ended before nor finds the snapshot.
    fn is_convicted(&self, machine: Machine) -> bool {
        let (mut seen, mut open) = (HashSet::new(), vec![State::default()]);
        let mut ends = 0;
        while let Some(state) = open.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            if self.is_done(&state, WRITER) && self.is_done(&state, CLOSER) {
                ends += 1;
                let ended_before = state.loaded[CLOSER][WRITTEN] == Some(1);
                let finds_it = state.loaded[WRITER][HELD] == Some(1);
                if !ended_before && !finds_it {
                    return true;
                }
            }
            for thread in [WRITER, CLOSER] {
                let steps = 0..self.threads[thread].len();
                open.extend(steps.filter_map(|index| self.after(machine, &state, thread, index)));
            }
        }
        assert!(ends > 0, "no execution comes to its end");
        false
    }

    fn without(&self, thread: usize, step: Step) -> Program {
        let mut program = self.clone();
        let at = program.place_of(thread, step);
        program.threads[thread].remove(at);
        program
    }

    fn with(&self, thread: usize, step: Step, instead: Step) -> Program {
        let mut program = self.clone();
        let at = program.place_of(thread, step);
        program.threads[thread][at] = instead;
        program
    }

    fn place_of(&self, thread: usize, step: Step) -> usize {
        self.threads[thread].iter().position(|found| *found == step).expect("an instruction of the program")
    }
}

const WRITER: usize = 0;
const CLOSER: usize = 1;

const ANNOUNCE: Step = Store { at: BUSY, value: 1, release: false };
const LOOK: Step = Load { at: CLOSED, acquire: true };
const LEAVE: Step = Store { at: BUSY, value: 0, release: true };
const AWAIT: Step = Load { at: BUSY, acquire: true };
const OPEN: Step = Store { at: CLOSED, value: 0, release: true };

/// A writer that gets in, and the lines of the code.
fn writer(fence: bool) -> Vec<(Step, &'static str)> {
    let fence = fence.then_some((Fence, "fence(Ordering::SeqCst)\n"));
    let before = [(ANNOUNCE, "slot.busy.store(1, Ordering::Relaxed);")];
    let behind = [
        (LOOK, "let open = self.notice.closed.load(Ordering::Acquire) == 0;"),
        (Only { at: CLOSED, value: 0 }, "if !open {"),
        // Inside: a write looks whether a snapshot is held, and stores.
        (Load { at: HELD, acquire: false }, ""),
        (Store { at: WRITTEN, value: 1, release: false }, ""),
        (LEAVE, "Inside::Owner(busy) => busy.store(0, Ordering::Release),"),
    ];
    before.into_iter().chain(fence).chain(behind).collect()
}

/// A closer: of its wait for the writer, the load that ends it.
fn closer(barrier: bool) -> Vec<(Step, &'static str)> {
    let barrier = barrier.then_some((Barrier, "barrier_of_all_threads::execute()"));
    let before = [
        // `SeqCst` orders it before no load of another order, so it counts as a release here.
        (Store { at: CLOSED, value: 1, release: true }, "self.notice.closed.store(1, Ordering::SeqCst);"),
        (Fence, "fence(Ordering::SeqCst);\n"),
    ];
    let behind = [
        (AWAIT, "while slot.busy.load(Ordering::Acquire) != 0 {"),
        (Only { at: BUSY, value: 0 }, ""),
        // Alone: it looks at what was written, and holds a snapshot.
        (Load { at: WRITTEN, acquire: false }, ""),
        (Store { at: HELD, value: 1, release: false }, ""),
        (OPEN, "self.0.notice.closed.store(0, Ordering::Release);"),
    ];
    before.into_iter().chain(barrier).chain(behind).collect()
}

/// The two ways in which the gate orders the writer's store before its load.
fn programs() -> [(&'static str, Program); 2] {
    let steps = |lines: Vec<(Step, &str)>| lines.into_iter().map(|(step, _)| step).collect();
    let both = |fence, barrier| Program { threads: [steps(writer(fence)), steps(closer(barrier))] };
    [("two fences", both(true, false)), ("a barrier of all threads", both(false, true))]
}

#[test]
fn a_write_ends_before_or_finds_the_snapshot() {
    for (name, program) in programs() {
        for machine in [Machine::Tso, Machine::Arm] {
            assert!(!program.is_convicted(machine), "{name} on {machine:?}");
        }
    }
}

/// Each order that the code asks for is needed: on both machines, or on ARM only.
#[test]
fn each_missing_order_is_convicted() {
    use Machine::{Arm, Tso};
    let [(_, fences), (_, barrier)] = programs();
    // Without `compiler_fence`, the compiler may have the load before the store.
    let swapped = barrier.with(WRITER, ANNOUNCE, Fence).with(WRITER, LOOK, ANNOUNCE).with(WRITER, Fence, LOOK);
    let relaxed = |step| match step {
        Load { at, .. } => Load { at, acquire: false },
        Store { at, value, .. } => Store { at, value, release: false },
        other => other,
    };
    for (mutant, program, machines) in [
        ("no fence of the writer", fences.without(WRITER, Fence), &[Tso, Arm][..]),
        ("no fence of the closer", fences.without(CLOSER, Fence), &[Tso, Arm]),
        ("no barrier of all threads", barrier.without(CLOSER, Barrier), &[Tso, Arm]),
        ("a load that the compiler moves", swapped, &[Tso, Arm]),
        ("a look without acquire", barrier.with(WRITER, LOOK, relaxed(LOOK)), &[Arm]),
        ("a leave without release", barrier.with(WRITER, LEAVE, relaxed(LEAVE)), &[Arm]),
        ("a wait without acquire", barrier.with(CLOSER, AWAIT, relaxed(AWAIT)), &[Arm]),
        ("an opening without release", barrier.with(CLOSER, OPEN, relaxed(OPEN)), &[Arm]),
    ] {
        for machine in [Tso, Arm] {
            assert_eq!(program.is_convicted(machine), machines.contains(&machine), "{mutant} on {machine:?}");
        }
    }
}

/// The lines are in the code, in this order.
#[test]
fn the_programs_are_those_of_the_code() {
    let code = include_str!("mod.rs");
    let function = |name: &str| {
        let (_, body) = code.split_once(name).expect("a function of the gate");
        body.split_once("\n    }\n").expect("its end").0
    };
    for (name, lines) in [("fn announce(", writer(true)), ("fn close(", closer(true))] {
        let mut rest = function(name);
        for (_, line) in lines {
            // To leave and to open are in `drop`.
            if line.contains("store(0, Ordering::Release)") {
                assert!(code.contains(line), "{line}");
                continue;
            }
            let (_, behind) = rest.split_once(line).unwrap_or_else(|| panic!("{name} lacks, or has earlier: {line}"));
            rest = behind;
        }
    }
    assert!(function("fn announce(").contains("compiler_fence(Ordering::SeqCst)"));
}

/// The two classic programs, whose outcomes are known. Source: Sewell et al., "x86-TSO"; Pulte et al., "Simplifying
/// ARM Concurrency".
#[test]
fn the_machines_allow_what_is_known() {
    let (x, y) = (CLOSED, BUSY);
    let store = |at| Store { at, value: 1, release: false };
    let load = |at| Load { at, acquire: false };
    let allows = |machine, threads: [Vec<Step>; 2], wanted: &dyn Fn(&State) -> bool| {
        let program = Program { threads };
        let (mut seen, mut open) = (HashSet::new(), vec![State::default()]);
        let mut allowed = false;
        while let Some(state) = open.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            allowed |= program.is_done(&state, 0) && program.is_done(&state, 1) && wanted(&state);
            for (thread, steps) in program.threads.iter().enumerate() {
                open.extend((0..steps.len()).filter_map(|index| program.after(machine, &state, thread, index)));
            }
        }
        allowed
    };
    let neither = |state: &State| state.loaded[0][y] == Some(0) && state.loaded[1][x] == Some(0);
    let late = |state: &State| state.loaded[1][y] == Some(1) && state.loaded[1][x] == Some(0);
    for machine in [Machine::Tso, Machine::Arm] {
        let weak = machine == Machine::Arm;
        assert!(allows(machine, [vec![store(x), load(y)], vec![store(y), load(x)]], &neither), "store buffering");
        let fenced = [vec![store(x), Fence, load(y)], vec![store(y), Fence, load(x)]];
        assert!(!allows(machine, fenced, &neither), "store buffering with fences");
        let passing = [vec![store(x), store(y)], vec![load(y), load(x)]];
        assert_eq!(allows(machine, passing, &late), weak, "message passing");
        let released =
            [vec![store(x), Store { at: y, value: 1, release: true }], vec![Load { at: y, acquire: true }, load(x)]];
        assert!(!allows(machine, released, &late), "message passing with release and acquire");
        let branched = [
            vec![store(x), Store { at: y, value: 1, release: true }],
            vec![load(y), Only { at: y, value: 1 }, load(x)],
        ];
        assert_eq!(allows(machine, branched, &late), weak, "a branch orders no load");
    }
}
