//! How long data lasts with redundancy, and the battery that covers what is left when the power fails.
//!
//! Source: Vilamb, §4.7 (battery) and §4.8 (mean time to data loss).

use std::time::Duration;

use super::Coverage;

/// The power of a server in the paper's analysis, in watts.
pub const SERVER_WATTS: f64 = 500.0;

/// The price of ultracapacitors in the paper's analysis, in US dollars for a kilojoule.
pub const ULTRACAPACITOR_DOLLARS: f64 = 2.85;

/// The price of lithium-ion batteries in the paper's analysis, in US dollars for a kilojoule.
pub const LITHIUM_ION_DOLLARS: f64 = 0.02;

impl Coverage {
    /// The mean time to data loss, in the unit of `page_mttf`, the mean time until a page is damaged: page_mttf / (V ·
    /// N), for V vulnerable stripes and N pages in a stripe, parity included. A page that is damaged in another stripe
    /// can be repaired. `None` if no stripe is vulnerable: then one damaged page loses nothing.
    ///
    /// The paper has no number for `page_mttf`, and neither has untorn: it depends on the device. A device with a mean
    /// time of `t` until any of its `n` pages is damaged has a `page_mttf` of `t · n`.
    ///
    /// V changes while a program stores. The paper uses its mean over a run, as `untorn bench vilamb-mttdl` does.
    pub fn mttdl(&self, page_mttf: f64) -> Option<f64> {
        let pages = self.pages_at_risk();
        (pages > 0).then(|| page_mttf / pages as f64)
    }

    /// The same for these pages without redundancy: page_mttf / P, for P pages in total. P includes parity pages, so
    /// that [`mttdl`](Coverage::mttdl) is [`mttdl_gain`](Coverage::mttdl_gain) times as long.
    pub fn mttdl_without(&self, page_mttf: f64) -> f64 {
        page_mttf / self.pages_in_total() as f64
    }
}

/// The energy that covering takes after a power failure. untorn covers everything then if a signal asks for it, see
/// [`cover_on_signal`](crate::redundancy::cover_on_signal).
///
/// ```
/// use untorn::redundancy::Battery;
/// // A server that covers 200,000 pages a second.
/// let battery = Battery::new(200_000.0);
/// assert_eq!(battery.joules(100_000), 250.0);
/// // A battery of 1 kJ: use this as the cap on uncovered pages.
/// assert_eq!(battery.max_uncovered(1000.0), 400_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Battery {
    /// The power of the machine, in watts.
    pub watts: f64,
    /// Pages that a pass covers in a second; see
    /// [`CoveringPace::last_pass`](crate::redundancy::CoveringPace::last_pass).
    pub pages_per_second: f64,
}

impl Battery {
    /// A machine of [`SERVER_WATTS`].
    pub fn new(pages_per_second: f64) -> Self {
        Battery { watts: SERVER_WATTS, pages_per_second }
    }

    /// The time that it takes to cover these pages, in seconds.
    pub fn seconds(&self, pages: u64) -> f64 {
        pages as f64 / self.pages_per_second
    }

    /// The energy that it takes to cover these pages.
    pub fn joules(&self, pages: u64) -> f64 {
        joules(self.watts, self.seconds(pages))
    }

    /// The most pages that this energy covers. The cap is soft: leave room for the excess that
    /// [`ProtectOptions::max_uncovered`](crate::redundancy::ProtectOptions::max_uncovered) describes.
    pub fn max_uncovered(&self, joules: f64) -> u64 {
        (joules / self.watts * self.pages_per_second) as u64
    }
}

/// The energy that a machine of so many watts takes in a time.
fn joules(watts: f64, seconds: f64) -> f64 {
    watts * seconds
}

/// The energy in joules that a server of [`SERVER_WATTS`] takes for a pass of this length.
pub fn pass_joules(pass: Duration) -> f64 {
    joules(SERVER_WATTS, pass.as_secs_f64())
}

/// The price in US dollars of this energy, at a price for a kilojoule.
pub fn dollars(joules: f64, dollars_per_kilojoule: f64) -> f64 {
    joules / 1000.0 * dollars_per_kilojoule
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(left: f64, right: f64, by: f64) -> bool {
        (left - right).abs() <= by
    }

    /// §4.7: the time of a pass, its energy in kilojoules, and what this costs as ultracapacitors and as lithium-ion
    /// batteries. The paper rounds to what is given here: 2.5 kJ at $2.85 are $7.125, and it has $7.2.
    #[test]
    fn the_energy_and_the_prices_are_those_of_the_paper() {
        for (milliseconds, kilojoules, capacitors, lithium) in [(5000, 2.5, 7.2, 0.05), (4500, 2.25, 6.4, 0.04)] {
            let energy = pass_joules(Duration::from_millis(milliseconds));
            assert_eq!(energy, 1000.0 * kilojoules);
            assert!(near(dollars(energy, ULTRACAPACITOR_DOLLARS), capacitors, 0.08), "{milliseconds} ms");
            assert!(near(dollars(energy, LITHIUM_ION_DOLLARS), lithium, 0.005 + 1e-9), "{milliseconds} ms");
        }
        // Redis, YCSB-A, with a period of 1 and 10 seconds.
        for milliseconds in [143, 562] {
            let energy = pass_joules(Duration::from_millis(milliseconds));
            assert!(energy < 1000.0);
            assert!(dollars(energy, ULTRACAPACITOR_DOLLARS) < 2.85 && dollars(energy, LITHIUM_ION_DOLLARS) < 0.02);
        }
        assert_eq!(pass_joules(Duration::from_millis(143)), 71.5);
        // "never exceeds $10".
        assert!(dollars(pass_joules(Duration::from_secs(5)), ULTRACAPACITOR_DOLLARS) < 10.0);
    }

    #[test]
    fn a_battery_and_the_cap_that_it_allows_agree() {
        let battery = Battery { watts: 250.0, pages_per_second: 1000.0 };
        assert_eq!((battery.seconds(500), battery.joules(500), battery.max_uncovered(125.0)), (0.5, 125.0, 500));
        assert_eq!(battery.max_uncovered(0.0), 0);
        assert_eq!(Battery::new(1.0).watts, SERVER_WATTS);
    }
}
