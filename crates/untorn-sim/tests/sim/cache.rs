//! The write cache under the explorer: it acquits correct runs and convicts wrong ones.

use untorn_sim::explore::{Settings, cache, replay};

fn quiet(_: &str, _: u64, _: u64) {}

#[test]
fn unlogged_files_are_convicted_in_both_fault_models() {
    let canaries = cache::canary(&Settings::default());
    assert_eq!(canaries.len(), 2);
    for canary in canaries {
        let first = canary.conviction.unwrap_or_else(|| panic!("acquitted on {}", canary.medium));
        assert!(first.finding.contains("differs from"), "{first}");
        let again = replay(&first.replay).unwrap().unwrap();
        assert_eq!(again.to_string(), first.to_string());
    }
}

#[test]
fn the_write_cache_survives_a_bounded_exploration() {
    let states = untorn_testing::cases(1000, 3000);
    let settings = Settings { states, jobs: 1, ..Settings::default() };
    let outcome = cache::explore(&settings, &quiet);
    for violation in &outcome.violations {
        eprintln!("{violation}\n");
    }
    assert!(outcome.violations.is_empty());
    assert!(outcome.states >= states);
}
