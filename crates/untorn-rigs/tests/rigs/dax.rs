//! The DAX rig on a machine that may lack everything it needs. The cuts themselves are `cargo xtask dax`.

use untorn_rigs::Error;
use untorn_rigs::dax::{self, Kernel};

#[test]
fn missing_dax_tools_are_named_with_the_way_to_get_them() {
    for error in dax::missing() {
        let Error::Missing { what, remedy } = &error else { panic!("not a missing tool: {error}") };
        assert!(!what.is_empty() && remedy.contains("apt-get install"), "{error}");
        let said = error.to_string();
        assert!(said.contains(what.as_str()) && said.contains(remedy.as_str()), "{error}");
    }
}

#[test]
fn a_missing_kernel_is_named_with_the_way_to_get_one() {
    let cache = tempfile::tempdir().unwrap();
    let error = Kernel::find(Some("0.99"), cache.path()).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    assert!(error.to_string().contains("--kernel"), "{error}");
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0, "something was left in the cache");
}
