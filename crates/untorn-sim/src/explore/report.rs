//! The findings of an exploration.

use std::fmt;

/// What a violation breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breach {
    /// The content is none that is allowed.
    Content,
    /// Redundancy reports damage, or a write of others, where there was none.
    Accusation,
    /// Anything else: an error, a panic, a rule of the medium.
    Other,
}

/// A state after a crash that breaks the contract, with all that is needed to see it again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The argument of `cargo xtask explore --replay` that runs into it again.
    pub replay: String,
    /// The configuration.
    pub config: String,
    /// The operations up to the crash, from the start, one life after another.
    pub operations: Vec<String>,
    /// The crash: which operation was under way, before which call of the medium.
    pub instant: String,
    /// The pending effects that survived, one line for each call.
    pub choice: String,
    /// What it breaks.
    pub breach: Breach,
    /// The difference: expected and found.
    pub finding: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "violation: {}", self.finding)?;
        writeln!(f, "  configuration: {}", self.config)?;
        writeln!(f, "  operations:")?;
        for line in &self.operations {
            writeln!(f, "    {line}")?;
        }
        if !self.instant.is_empty() {
            writeln!(f, "  crash: {}", self.instant)?;
        }
        if !self.choice.is_empty() {
            writeln!(f, "  kept of the pending writes:")?;
            for line in self.choice.lines() {
                writeln!(f, "    {line}")?;
            }
        }
        write!(f, "  replay: cargo xtask explore --replay {}", self.replay)
    }
}

/// The result of one barrier mutant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Mutant {
    /// The barrier that was made to do nothing.
    pub barrier: &'static str,
    /// The violation that convicts it.
    pub conviction: Option<Violation>,
    /// Whether any run passed the barrier at all.
    pub reached: bool,
    /// Runs it took, or all that were made.
    pub cases: u64,
}

/// Whether the engine that is known to be wrong was found out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Canary {
    /// The fault model.
    pub medium: &'static str,
    /// The violation that convicts it.
    pub conviction: Option<Violation>,
}

/// The result of an exploration.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// Distinct crash images recovered from and checked.
    pub states: u64,
    /// All recoveries, those of known images under other expectations included.
    pub recoveries: u64,
    /// Operation sequences run.
    pub cases: u64,
    /// Violations found, at most one a case.
    pub violations: Vec<Violation>,
    /// The mutants, if they were run.
    pub mutants: Vec<Mutant>,
    /// The canary in each fault model.
    pub canaries: Vec<Canary>,
}

impl Outcome {
    /// Mutants that were convicted.
    pub fn convicted(&self) -> usize {
        self.mutants.iter().filter(|mutant| mutant.conviction.is_some()).count()
    }

    /// Whether the canary was convicted in every fault model it ran in.
    pub fn canary_convicted(&self) -> bool {
        !self.canaries.is_empty() && self.canaries.iter().all(|canary| canary.conviction.is_some())
    }

    /// Whether there is nothing to complain about: no violation, every mutant and the canary convicted.
    pub fn clean(&self) -> bool {
        self.violations.is_empty() && self.convicted() == self.mutants.len() && self.canary_convicted()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "explored {} states, {} violations; mutants convicted {}/{}; canary {}",
            self.states,
            self.violations.len(),
            self.convicted(),
            self.mutants.len(),
            if self.canary_convicted() { "convicted" } else { "acquitted" }
        )
    }
}
