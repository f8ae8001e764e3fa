//! Redundancy of files with engines on the simulated media: a bounded exploration, and what it must convict.

use untorn_sim::explore::{self, Settings, covered};

fn quiet(_: &str, _: u64, _: u64) {}

#[test]
fn stores_past_the_engine_are_convicted_in_both_fault_models() {
    for canary in covered::canary(&Settings::default()) {
        let first = canary.conviction.unwrap_or_else(|| panic!("acquitted on {}", canary.medium));
        let again = explore::replay(&first.replay).unwrap().unwrap();
        assert_eq!(again.to_string(), first.to_string());
    }
}

#[test]
fn redundancy_beside_engines_survives_a_bounded_exploration() {
    let states = untorn_testing::cases(500, 1000);
    let settings = Settings { states, jobs: 2, ..Settings::default() };
    let outcome = covered::explore(&settings, &quiet);
    for violation in &outcome.violations {
        eprintln!("{violation}\n");
    }
    assert!(outcome.violations.is_empty());
    assert!(outcome.states >= states);
}

#[test]
fn tokens_that_name_nothing_are_refused() {
    for token in [
        "pmem/covered/reflection/write/announced",
        "disk/covered/reflection/write/announced/spread:seed-1",
        "pmem/untold/reflection/write/guessed/spread:seed-1",
        "pmem/covered/hybrid-log/commit/synchronous/spread:seed-x",
    ] {
        assert!(explore::replay(token).is_err(), "{token}");
    }
}
