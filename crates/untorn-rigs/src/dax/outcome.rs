//! What a run of the rig found.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::image::FileSystem;

/// One power cut and its verification.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// Every choice of the cycle, the instant of the cut apart, follows from it.
    pub seed: u64,
    /// What the file was on.
    pub file_system: FileSystem,
    /// Its durability, as the tool calls it.
    pub durability: &'static str,
    /// From the opening of the file to the cut.
    pub life: Duration,
    /// Whether a recovery was cut as well.
    pub recovery_cut: bool,
    /// Operations that had returned before the cut.
    pub operations: u64,
    /// Those of them that were acknowledged as durable.
    pub acknowledged: u64,
    /// What is wrong with the file where nobody recovers it: the state that recovery had to mend.
    pub without_recovery: Vec<String>,
    /// What is wrong after recovery.
    pub violations: Vec<String>,
}

/// What became of memory that has DAX, but no `MAP_SYNC`.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What `untorn doctor` took it for.
    pub medium: String,
    /// Why a writer that insists on `MAP_SYNC` was refused; `None` if it was not.
    pub refused: Option<String>,
    /// The cut of a machine that wrote there all the same, through the page cache.
    pub cycle: Cycle,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The kernel's name for itself.
    pub kernel: String,
    /// How many cuts were asked for.
    pub wanted: u64,
    /// The cuts made. In each the file was mapped with `MAP_SYNC`, before the cut and after it: a run in which it was not
    /// ends in an error.
    pub cycles: Vec<Cycle>,
    /// The other kind of memory.
    pub virtio_pmem: Option<Refusal>,
    /// Where the files of the first violation are.
    pub kept: Option<PathBuf>,
}

impl Outcome {
    /// Cuts after which everything was as promised.
    pub fn verified(&self) -> usize {
        self.cycles.iter().filter(|cycle| cycle.violations.is_empty()).count()
    }

    /// Cuts after which a build without recovery would have been convicted.
    pub fn convicted(&self) -> usize {
        self.cycles.iter().filter(|cycle| !cycle.without_recovery.is_empty()).count()
    }

    /// Whether all is as it must be: every cut verified, the missing recovery noticed, virtio-pmem not mistaken for
    /// persistent memory, and something acknowledged to lose.
    pub fn clean(&self) -> bool {
        let refused = self.virtio_pmem.as_ref().is_none_or(Refusal::is_right);
        self.verified() as u64 == self.wanted
            && self.convicted() > 0
            && self.cycles.iter().any(|cycle| cycle.acknowledged > 0)
            && refused
    }
}

impl Refusal {
    /// Whether it was served as what it is.
    pub fn is_right(&self) -> bool {
        self.medium == "block" && self.refused.is_some() && self.cycle.violations.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Cycle) -> u64| self.cycles.iter().map(of).sum::<u64>();
        let recoveries = self.cycles.iter().filter(|cycle| cycle.recovery_cut).count();
        write!(
            f,
            "kernel {}: {} of {} power cuts verified, each over MAP_SYNC mappings; {} operations, {} acknowledged; {} \
             recoveries cut; without recovery {} convicted",
            self.kernel,
            self.verified(),
            self.wanted,
            sum(|cycle| cycle.operations),
            sum(|cycle| cycle.acknowledged),
            recoveries,
            self.convicted()
        )?;
        match &self.virtio_pmem {
            None => Ok(()),
            Some(refusal) if refusal.is_right() => write!(f, "; virtio-pmem refused, served as {}", refusal.medium),
            Some(_) => write!(f, "; virtio-pmem NOT REFUSED"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(violations: &[&str], without_recovery: &[&str]) -> Cycle {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Cycle {
            seed: 1,
            file_system: FileSystem::Ext4,
            durability: "write",
            life: Duration::ZERO,
            recovery_cut: false,
            operations: 3,
            acknowledged: 2,
            without_recovery: owned(without_recovery),
            violations: owned(violations),
        }
    }

    fn outcome(cycles: Vec<Cycle>, medium: &str) -> Outcome {
        let refused = Some("not mapped".to_owned());
        let refusal = Refusal { medium: medium.to_owned(), refused, cycle: cycle(&[], &[]) };
        Outcome { kernel: "6.1".to_owned(), wanted: 2, cycles, virtio_pmem: Some(refusal), kept: None }
    }

    #[test]
    fn only_a_run_that_verified_convicted_and_refused_is_clean() {
        let (good, blind, bad) = (cycle(&[], &["torn"]), cycle(&[], &[]), cycle(&["lost"], &["torn"]));
        assert!(outcome(vec![good.clone(), blind.clone()], "block").clean());
        assert!(!outcome(vec![good.clone()], "block").clean(), "a cut is missing");
        assert!(!outcome(vec![good.clone(), bad], "block").clean(), "a violation");
        assert!(!outcome(vec![blind.clone(), blind], "block").clean(), "recovery had nothing to do");
        let mistaken = outcome(vec![good.clone(), good], "pmem");
        assert!(!mistaken.clean() && mistaken.to_string().ends_with("NOT REFUSED"), "{mistaken}");
    }
}
