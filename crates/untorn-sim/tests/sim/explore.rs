//! The explorer convicts wrong engines and acquits correct ones.

use untorn::EngineKind;
use untorn_sim::explore::{self, Settings};

fn quiet(_: &str, _: u64, _: u64) {}

#[test]
fn the_canary_is_convicted_in_both_fault_models() {
    let canaries = explore::canary(&Settings::default());
    assert_eq!(canaries.len(), 2);
    for canary in canaries {
        let violation = canary.conviction.unwrap_or_else(|| panic!("acquitted on {}", canary.medium));
        assert!(violation.config.starts_with(canary.medium));
        assert!(violation.finding.contains("differs from"), "{violation}");
    }
}

#[test]
fn a_violation_is_found_again_by_its_token() {
    for canary in explore::canary(&Settings::default()) {
        let first = canary.conviction.unwrap();
        let again = explore::replay(&first.replay).unwrap().unwrap();
        assert_eq!(again.to_string(), first.to_string());
    }
}

#[test]
fn a_token_that_names_nothing_is_refused() {
    for token in ["", "pmem", "pmem/passthrough/write/one-fence/dense/gather/1:short-9999999", "a/b/c/d/e/f/g:seed-1"] {
        assert!(explore::replay(token).is_err(), "{token}");
    }
}

#[test]
fn an_exploration_stops_at_the_first_violations_it_may_report() {
    let settings =
        Settings { engine: EngineKind::Passthrough, max_violations: 3, states: 100_000, ..Settings::default() };
    let outcome = explore::explore(&settings, &quiet);
    assert_eq!(outcome.violations.len(), 3);
    assert!(!outcome.clean());
}

#[test]
fn the_reflection_engine_survives_a_bounded_exploration() {
    let states = untorn_testing::cases(1500, 5000);
    let settings = Settings { states, jobs: 2, ..Settings::default() };
    let outcome = explore::explore(&settings, &quiet);
    for violation in &outcome.violations {
        eprintln!("{violation}\n");
    }
    assert!(outcome.violations.is_empty());
    assert!(outcome.states >= states);
}

#[test]
fn the_hybrid_log_survives_a_bounded_exploration() {
    let states = untorn_testing::cases(1500, 5000);
    let settings = Settings { engine: EngineKind::HybridLog, states, jobs: 2, ..Settings::default() };
    let outcome = explore::explore(&settings, &quiet);
    for violation in &outcome.violations {
        eprintln!("{violation}\n");
    }
    assert!(outcome.violations.is_empty());
    assert!(outcome.states >= states);
}
