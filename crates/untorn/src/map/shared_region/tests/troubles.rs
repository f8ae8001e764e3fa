//! What becomes of a shared region when the store behind it fails, or somebody else gets hold of it.

use super::*;
use crate::sys::ring::FAIL;

const MODULE: &str = "map::shared_region::tests::troubles";

#[test]
fn after_a_failed_flush_nothing_is_rolled_back_or_committed() {
    const TEST: &str = "after_a_failed_flush_nothing_is_rolled_back_or_committed";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let region = share(&dir.join("store"));
        assert_eq!(region.alloc_pages(2).unwrap(), 0);
        (0..2).for_each(|page| word(&region, page).store(1, SeqCst));
        assert_eq!(region.pmsync().unwrap(), 1);
        (0..2).for_each(|page| word(&region, page).store(2, SeqCst));
        FAIL.store(true, SeqCst);
        let first = region.pmsync().unwrap_err();
        assert!(matches!(first, Error::Io { .. }), "{first}");
        FAIL.store(false, SeqCst);
        for refused in [region.rollback().err(), region.pmsync().err()] {
            assert!(matches!(refused, Some(Error::Poisoned { .. })), "{refused:?}");
        }
        assert_eq!([0, 1].map(|page| word(&region, page).load(SeqCst)), [2, 2]);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    assert!(command_in(MODULE, TEST, dir.path(), 0, None).status().unwrap().success());
    let found = committed(&path);
    assert!([1, 2].iter().any(|value| found == BTreeMap::from([(0, *value), (1, *value)])), "{found:?}");
}
