//! Redundancy on the simulated media: a bounded exploration, what it must convict, and calls that fail.

use untorn_sim::explore::{self, Settings, redundancy};

fn quiet(_: &str, _: u64, _: u64) {}

#[test]
fn a_program_that_stores_without_telling_is_convicted_in_both_fault_models() {
    for canary in redundancy::canary(&Settings::default()) {
        let first = canary.conviction.unwrap_or_else(|| panic!("acquitted on {}", canary.medium));
        assert!(first.finding.contains("accused") || first.finding.contains("unknown"), "{first}");
        let again = explore::replay(&first.replay).unwrap().unwrap();
        assert_eq!(again.to_string(), first.to_string());
    }
}

#[test]
fn redundancy_survives_a_bounded_exploration() {
    let settings = Settings { states: 2000, jobs: 2, ..Settings::default() };
    let outcome = redundancy::explore(&settings, &quiet);
    for violation in &outcome.violations {
        eprintln!("{violation}\n");
    }
    assert!(outcome.violations.is_empty());
    assert!(outcome.states >= 2000);
}

#[test]
fn tokens_that_name_nothing_are_refused() {
    for token in [
        "pmem/redundancy/announced",
        "disk/redundancy/announced/spread:seed-1",
        "pmem/careless/guessed/spread:seed-1",
        "pmem/redundancy/tracked/spread:seed-x",
    ] {
        assert!(explore::replay(token).is_err(), "{token}");
    }
}
