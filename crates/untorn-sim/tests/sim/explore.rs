//! The explorer convicts wrong engines and acquits correct ones.

use untorn::EngineKind;
use untorn_sim::explore::{self, Breach, Settings, Target};

fn quiet(_: &str, _: u64, _: u64) {}

/// Each canary is convicted in both fault models, and its token finds the same violation again.
pub(crate) fn canary_is_convicted(target: Target, breach: Breach) {
    let canaries = explore::canary(&Settings { target, ..Settings::default() });
    assert_eq!(canaries.len(), 2);
    for canary in canaries {
        let first = canary.conviction.unwrap_or_else(|| panic!("acquitted on {}", canary.medium));
        assert!(first.config.starts_with(canary.medium));
        assert_eq!(first.breach, breach, "{first}");
        let again = explore::replay(&first.replay).unwrap().unwrap();
        assert_eq!(again.to_string(), first.to_string());
    }
}

/// So many states are explored, and all are right.
pub(crate) fn survives(target: Target, states: u64, jobs: usize) {
    let outcome = explore::explore(&Settings { target, states, jobs, ..Settings::default() }, &quiet);
    for violation in &outcome.violations {
        eprintln!("{violation}\n");
    }
    assert!(outcome.violations.is_empty());
    assert!(outcome.states >= states);
}

#[test]
fn the_canary_is_convicted_in_both_fault_models() {
    canary_is_convicted(Target::Files(EngineKind::Reflection), Breach::Content);
}

/// Cases that once found a violation.
const FOUND_BEFORE: &[&str] = &[
    "block/cache-through/fsync:seed-51898462678087",
    // A replay that was cut short had the log forget an undone rename, and not that a file was to leave for it.
    "block/cache-through/write:seed-257566063972973",
];

#[test]
fn cases_that_found_violations_find_none_any_more() {
    for token in FOUND_BEFORE {
        let violation = explore::replay(token).unwrap();
        assert!(violation.is_none(), "{}", violation.unwrap());
    }
}

#[test]
fn a_token_that_names_nothing_is_refused() {
    for token in [
        "",
        "pmem",
        "pmem/passthrough/write/one-fence/dense/gather/1:short-9999999",
        "a/b/c/d/e/f/g:seed-1",
        "pmem/snapshot/one-fence",
        "disk/snapshot/one-fence:seed-1",
        "pmem/in-place/one-fence:seed-x",
        "pmem/redundancy/announced",
        "disk/redundancy/announced/spread:seed-1",
        "pmem/careless/guessed/spread:seed-1",
        "pmem/redundancy/tracked/spread:seed-x",
        "pmem/covered/reflection/write/announced",
        "disk/covered/reflection/write/announced/spread:seed-1",
        "pmem/untold/reflection/write/guessed/spread:seed-1",
        "pmem/covered/hybrid-log/commit/synchronous/spread:seed-x",
    ] {
        assert!(explore::replay(token).is_err(), "{token}");
    }
}

#[test]
fn an_exploration_stops_at_the_first_violations_it_may_report() {
    let target = Target::Files(EngineKind::Passthrough);
    let settings = Settings { target, max_violations: 3, states: 100_000, ..Settings::default() };
    let outcome = explore::explore(&settings, &quiet);
    assert_eq!(outcome.violations.len(), 3);
    assert!(!outcome.clean());
}

#[test]
fn the_reflection_engine_survives_a_bounded_exploration() {
    survives(Target::Files(EngineKind::Reflection), untorn_testing::cases(1500, 5000), 2);
}

#[test]
fn the_hybrid_log_survives_a_bounded_exploration() {
    survives(Target::Files(EngineKind::HybridLog), untorn_testing::cases(1500, 5000), 2);
}

#[test]
fn the_shadow_engine_survives_a_bounded_exploration() {
    survives(Target::Files(EngineKind::Shadow), untorn_testing::cases(1500, 5000), 2);
}

#[test]
fn unlogged_files_are_convicted_in_both_fault_models() {
    canary_is_convicted(Target::Cache, Breach::Content);
}

#[test]
fn the_write_cache_survives_a_bounded_exploration() {
    survives(Target::Cache, untorn_testing::cases(1000, 3000), 1);
}

#[test]
fn stores_past_the_engine_are_convicted_in_both_fault_models() {
    canary_is_convicted(Target::Covered, Breach::Accusation);
}

#[test]
fn redundancy_beside_engines_survives_a_bounded_exploration() {
    survives(Target::Covered, untorn_testing::cases(500, 1000), 2);
}
