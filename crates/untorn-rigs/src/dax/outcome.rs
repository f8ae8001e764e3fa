//! The results of a run of the rig.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::image::FileSystem;

/// One power cut and its verification.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// The seed of all choices of the cycle except the instant of the cut.
    pub seed: u64,
    /// The file system of the file.
    pub file_system: FileSystem,
    /// Its durability, as named by the tool.
    pub durability: &'static str,
    /// The time between the writer's first reports and the cut.
    pub life: Duration,
    /// Whether there was a second cut during recovery.
    pub recovery_cut: bool,
    /// Operations that had returned before the cut.
    pub operations: u64,
    /// Operations acknowledged as durable.
    pub acknowledged: u64,
    /// The violations without recovery; also empty if that was not tried.
    pub without_recovery: Vec<String>,
    /// The violations after recovery.
    pub violations: Vec<String>,
}

/// The results for memory with DAX but without `MAP_SYNC`.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The medium that `untorn doctor` reported.
    pub medium: String,
    /// Why a writer that requires `MAP_SYNC` was refused; `None` if it was not.
    pub refused: Option<String>,
    /// The cut of a machine that wrote there through the page cache.
    pub cycle: Cycle,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The kernel's release name.
    pub kernel: String,
    /// The requested number of cuts.
    pub wanted: u64,
    /// The cuts made. In each, the file was mapped with `MAP_SYNC` before and after the cut; otherwise the run ends
    /// with an error.
    pub cycles: Vec<Cycle>,
    /// The violation that convicted a run without recovery; tried after each cut until there is one.
    pub forgetful: Option<String>,
    /// The violation that convicted the engine without atomicity.
    pub canary: Option<String>,
    /// The other kind of memory.
    pub virtio_pmem: Option<Refusal>,
    /// The directory with the files of the first violation.
    pub kept: Option<PathBuf>,
}

impl Outcome {
    /// The number of cuts without a violation.
    pub fn verified(&self) -> usize {
        self.cycles.iter().filter(|cycle| cycle.violations.is_empty()).count()
    }

    /// Whether the run passed: every cut is verified, some operation was acknowledged before a cut, virtio-pmem was not
    /// mistaken for persistent memory, and both canaries were convicted.
    pub fn clean(&self) -> bool {
        self.verified() as u64 == self.wanted
            && self.cycles.iter().any(|cycle| cycle.acknowledged > 0)
            && self.forgetful.is_some()
            && self.canary.is_some()
            && self.virtio_pmem.as_ref().is_some_and(Refusal::is_right)
    }
}

impl Refusal {
    /// Whether it was treated as a block medium.
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
