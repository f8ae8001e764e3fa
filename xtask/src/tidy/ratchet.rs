//! Limits that only go down: so many violations of a rule there still are, and no more may come.

use super::Finding;

/// The number of violations of one rule that there may be.
pub(super) struct Ratchet {
    /// The things that are counted, in the plural.
    pub(super) what: &'static str,
    /// The file of this repository in which the limit stands.
    pub(super) at: &'static str,
    /// Today's number. Lower it when it has become smaller, and never raise it.
    pub(super) limit: usize,
}

impl Ratchet {
    /// Findings of `count` violations: warnings up to the limit, failures beyond it. A limit that is too high is a
    /// warning itself.
    pub(super) fn hold(&self, count: usize, findings: Vec<Finding>) -> Vec<Finding> {
        let mut findings: Vec<Finding> =
            findings.into_iter().map(|finding| finding.failing_if(count > self.limit)).collect();
        if count < self.limit {
            let message = format!("{count} {} are left; lower the limit of {} to that", self.what, self.limit);
            findings.push(Finding::at(self.at, 1, message).warning());
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(count: usize) -> Vec<Finding> {
        let ratchet = Ratchet { what: "long names", at: "names.rs", limit: 2 };
        ratchet.hold(count, (0..count).map(|line| Finding::at("a.rs", line, "long")).collect())
    }

    #[test]
    fn violations_up_to_the_limit_are_warnings() {
        let found = hold(2);
        assert!(found.len() == 2 && found.iter().all(|finding| !finding.fails), "{found:?}");
    }

    #[test]
    fn violations_beyond_the_limit_all_fail() {
        let found = hold(3);
        assert!(found.len() == 3 && found.iter().all(|finding| finding.fails), "{found:?}");
    }

    #[test]
    fn a_limit_that_is_too_high_is_a_warning() {
        let found = hold(0);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "names.rs:1: warning: 0 long names are left; lower the limit of 2 to that");
    }
}
