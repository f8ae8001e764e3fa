//! The table of steps.

mod ci;
mod nightly;

use std::io;

use super::runner::{Context, Outcome};

/// A loop of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loop {
    Quick,
    Ci,
    Nightly,
}

/// A part of a step.
pub(super) enum Work {
    /// Cargo with these arguments.
    Cargo(&'static [&'static str]),
    /// Cargo with a variable in its environment.
    CargoWith(&'static str, &'static str, &'static [&'static str]),
    /// Another verb of this program.
    Xtask(&'static [&'static str]),
    /// The tool, in its release build.
    Tool(&'static [&'static str]),
    /// The tool's torture, which must convict: exit code 1.
    ToolFails(&'static [&'static str]),
    /// A check that is more than a command.
    Call(fn(&Context<'_>) -> io::Result<Outcome>),
}

pub(super) struct Step {
    pub(super) name: &'static str,
    /// Its work, in a few words.
    pub(super) does: &'static str,
    pub(super) loops: &'static [Loop],
    /// Programs that it needs, and how to get each.
    pub(super) needs: &'static [(&'static str, &'static str)],
    pub(super) work: &'static [Work],
}

/// Steps beside which no other runs: those that find most mistakes soonest, and the tests, many of which run threads
/// and processes against each other. Compiling leaves processors idle while everything waits for one crate, so the two
/// steps that compile what others use run beside each other.
pub(super) const ALONE: &[&str] = &["format", "tidy", "unit-tests", "tests", "tests-long"];

/// Every step of every loop, in the order in which they start.
pub(super) fn all() -> impl Iterator<Item = &'static Step> {
    ci::STEPS.iter().chain(nightly::STEPS)
}

#[cfg(test)]
mod tests {
    use super::Work::{Cargo, Xtask};
    use super::*;

    #[test]
    fn ci_runs_the_two_commands_of_the_readme() {
        let ci: Vec<_> = all().filter(|step| step.loops.contains(&Loop::Ci)).collect();
        let tests = |work: &Work| matches!(work, Cargo(["test", "--workspace"]));
        assert!(ci.iter().any(|step| step.work.iter().any(tests)));
        assert!(ci.iter().any(|step| step.name == "demo"));
    }

    #[test]
    fn every_step_has_a_name_of_its_own_and_work() {
        let mut names: Vec<_> = all().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        assert!(all().all(|step| !step.work.is_empty() && !step.loops.is_empty()));
    }

    #[test]
    fn only_the_loop_for_each_change_leaves_buckets_out() {
        for step in all() {
            for work in step.work {
                if let Xtask(arguments @ ["dist", ..]) = work {
                    let is_without = arguments.contains(&"--without-buckets");
                    assert_eq!(is_without, step.loops.contains(&Loop::Ci), "{}", step.name);
                }
            }
        }
    }

    #[test]
    fn the_nightly_loop_explores_more_states_than_ci() {
        let explored = |which: Loop| {
            let steps = all().filter(move |step| step.loops.contains(&which));
            let work = steps.flat_map(|step| step.work).filter_map(|work| match work {
                Xtask(["explore", "--engine", engine, "--states", states, ..]) => {
                    Some((*engine, states.parse::<u64>().unwrap()))
                }
                _ => None,
            });
            work.collect::<std::collections::BTreeMap<_, _>>()
        };
        let (ci, nightly) = (explored(Loop::Ci), explored(Loop::Nightly));
        assert!(ci.len() == 7 && ci.iter().all(|(engine, states)| nightly[engine] > *states));
    }
}
