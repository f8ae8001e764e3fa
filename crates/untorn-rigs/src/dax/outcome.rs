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
    /// From when the writer had got to work to the cut.
    pub life: Duration,
    /// Whether there was a second cut before recovery was done.
    pub recovery_cut: bool,
    /// Operations that had returned before the cut.
    pub operations: u64,
    /// Those of them that were acknowledged as durable.
    pub acknowledged: u64,
    /// What is wrong where nobody recovers; empty also where that was not tried.
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
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The kernel's name for itself.
    pub kernel: String,
    /// How many cuts were asked for.
    pub wanted: u64,
    /// The cuts made. In each the file was mapped with `MAP_SYNC`, before the cut and after it: a run in which it was not
    /// ends in an error.
    pub cycles: Vec<Cycle>,
    /// What convicted the recovery that is switched off; tried after each cut until it is.
    pub forgetful: Option<String>,
    /// What convicted the engine without atomicity.
    pub canary: Option<String>,
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

    /// Whether all is as it must be: every cut verified and something acknowledged before one, virtio-pmem not mistaken
    /// for persistent memory, and convicted what must be.
    pub fn clean(&self) -> bool {
        self.verified() as u64 == self.wanted
            && self.cycles.iter().any(|cycle| cycle.acknowledged > 0)
            && self.forgetful.is_some()
            && self.canary.is_some()
            && self.virtio_pmem.as_ref().is_some_and(Refusal::is_right)
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
        let verdict = |conviction: &Option<String>| if conviction.is_some() { "convicted" } else { "NOT CONVICTED" };
        write!(
            f,
            "kernel {}: {} of {} power cuts verified, each with MAP_SYNC mappings; {} operations, {} acknowledged; {} \
             recoveries cut; no recovery {}; canary {}; virtio-pmem {}",
            self.kernel,
            self.verified(),
            self.wanted,
            sum(|cycle| cycle.operations),
            sum(|cycle| cycle.acknowledged),
            self.cycles.iter().filter(|cycle| cycle.recovery_cut).count(),
            verdict(&self.forgetful),
            verdict(&self.canary),
            match &self.virtio_pmem {
                Some(refusal) if refusal.is_right() => "refused, served as block",
                Some(_) => "NOT REFUSED",
                None => "NOT TRIED",
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(violations: &[&str]) -> Cycle {
        Cycle {
            seed: 1,
            file_system: FileSystem::Ext4,
            durability: "write",
            life: Duration::ZERO,
            recovery_cut: false,
            operations: 3,
            acknowledged: 2,
            without_recovery: Vec::new(),
            violations: violations.iter().map(|&word| word.to_owned()).collect(),
        }
    }

    fn outcome(cycles: Vec<Cycle>) -> Outcome {
        let conviction = Some("torn".to_owned());
        let refused = Some("not mapped".to_owned());
        Outcome {
            kernel: "6.1".to_owned(),
            wanted: 2,
            cycles,
            forgetful: conviction.clone(),
            canary: conviction,
            virtio_pmem: Some(Refusal { medium: "block".to_owned(), refused, cycle: cycle(&[]) }),
            kept: None,
        }
    }

    #[test]
    fn only_a_run_that_verified_convicted_and_refused_is_clean() {
        let (good, bad) = (cycle(&[]), cycle(&["lost"]));
        let whole = outcome(vec![good.clone(), good.clone()]);
        assert!(whole.clean(), "{whole}");
        assert!(!outcome(vec![good.clone()]).clean(), "a cut is missing");
        assert!(!outcome(vec![good, bad]).clean(), "a violation");
        assert!(!Outcome { forgetful: None, ..whole.clone() }.clean());
        assert!(!Outcome { canary: None, ..whole.clone() }.clean());
        let mut mistaken = whole;
        mistaken.virtio_pmem.as_mut().unwrap().medium = "pmem".to_owned();
        assert!(!mistaken.clean() && mistaken.to_string().ends_with("NOT REFUSED"), "{mistaken}");
    }
}
