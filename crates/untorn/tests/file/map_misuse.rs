//! [`AtomicMap`] where the world around it is unkind: locked memory, few descriptors, growths that are taken back.

use crate::common::system::in_forked_child;
use crate::common::{PAGE, alone, methods, names, new_map, scratch, truncate};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use untorn::{Error, Options};

/// Nothing was written behind the end, so the log need hold no zeros for it.
#[test]
fn a_growth_that_was_taken_back_takes_no_log() {
    for method in methods() {
        let options = Options::new().dirty_tracking(method).log_size(4 << 20).record_area(16, 64);
        let (path, mut map) = new_map(&options, 100);
        map[99] = 1;
        map.commit().unwrap();
        for byte in 2..5 {
            map.resize(64 << 20).unwrap();
            assert!(map[100..1 << 20].iter().all(|byte| *byte == 0), "{method}");
            map[99..1 << 16].fill(byte);
            map.rollback().unwrap();
            assert_eq!((map.len(), map[99]), (100, 1), "{method}");
        }
        map.resize(64 << 20).unwrap();
        map[32 << 20] = 6;
        map.commit().unwrap();
        map.close().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let stored: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        assert_eq!((bytes.len(), stored), (64 << 20, vec![99, 32 << 20]), "{method}");
    }
}

#[test]
fn locked_memory_is_given_back_too() {
    alone!(60, "locked memory");
    let limit = getrlimit(Resource::Memlock).current.filter(|_| !rustix::process::geteuid().is_root());
    if let Some(limit) = limit.filter(|limit| *limit < 64 << 20) {
        untorn_testing::skip!("this user may lock only {limit} bytes of memory");
    }
    for method in methods() {
        let path = scratch("data");
        let child = in_forked_child(|| {
            if let Err(errno) = mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
                untorn_testing::skipped!("no memory may be locked here: {errno}");
                return 0;
            }
            let options = Options::new().dirty_tracking(method).max_len(1 << 20);
            let mut map = options.create_map(&path, 8 * PAGE as u64).unwrap();
            map.fill(1);
            map.commit().unwrap();
            assert!(map.uncommitted().unwrap().is_empty(), "what is committed counts as stored to");
            map[0] = 2;
            map.rollback().unwrap();
            assert_eq!(map[0], 1);
            map.resize(PAGE as u64).unwrap();
            map.commit().unwrap();
            map.resize(8 * PAGE as u64).unwrap();
            assert!(map[PAGE..].iter().all(|byte| *byte == 0));
            0
        });
        assert_eq!(child.wait(), Some(0), "{method}");
    }
}

#[test]
fn a_file_that_cannot_be_mapped_is_not_left_behind() {
    alone!(60, "few descriptors");
    for method in methods() {
        let path = scratch("data");
        let child = in_forked_child(|| {
            let maximum = getrlimit(Resource::Nofile).maximum;
            for limit in 3..1000 {
                setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
                let Err(error) = Options::new().dirty_tracking(method).create_map(&path, PAGE as u64) else {
                    return 0;
                };
                assert!(!path.exists(), "{limit} descriptors: {error}");
                let sidecars = names(&path.dir().join(".untorn"));
                let whole = sidecars.iter().any(|name| !name.ends_with(".new"));
                assert!(!whole, "{limit} descriptors: {error}: {sidecars:?}");
            }
            1
        });
        assert_eq!(child.wait(), Some(0), "{method}");
    }
}

#[test]
fn a_lost_page_is_an_error_of_the_last_call_too() {
    for method in methods() {
        let (path, map) = new_map(&Options::new().dirty_tracking(method), 8 * PAGE as u64);
        truncate(&path, PAGE);
        assert_eq!(map[5 * PAGE], 0);
        // The page is lost, and the length tells of another program.
        let error = map.discard().unwrap_err();
        let is_told = matches!(error, Error::ModifiedExternally { .. }) || error.to_string().contains("lost");
        assert!(is_told, "{method}: {error}");
    }
}
