//! Damage to protected files, in small. `cargo xtask inject` does it by the thousand.

use std::time::Duration;

use untorn_rigs::injection::{self, Kind, Part, Place, Settings};

#[test]
fn injected_damage_is_repaired_and_nothing_else_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let cases = untorn_testing::cases(1, 4);
    let settings = Settings { cases, seed: 1, dir: dir.path().to_owned(), pages: 60, watch: Duration::ZERO, jobs: 2 };
    let outcome = injection::run(&settings, &|row| println!("{row}")).unwrap();
    assert_eq!(outcome.rows.len(), Place::ALL.len() * Part::ALL.len() * Kind::ALL.len());
    for row in &outcome.rows {
        assert!(row.clean(), "{row}");
        assert!(row.injected == cases, "{row}");
    }
    assert_eq!(outcome.watches.len(), 3 * Place::ALL.len());
    for watch in &outcome.watches {
        assert_eq!(watch.alarms, 0, "{watch:?}");
        assert!(watch.stores >= 100 && watch.scrubs >= 1, "{watch:?}");
    }
    assert!(outcome.clean());
}
