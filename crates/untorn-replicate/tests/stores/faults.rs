//! Stores that fail: the replica gets over it, or the message says what to do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use untorn_replicate::{Replica, look, store};
use untorn_testing::test_name;

use crate::life::{Ledger, options, restore_all};
use crate::mini::{Act, Mini};
use crate::{run_again, says, url};

#[test]
fn lost_answers_to_writes_lose_and_repeat_nothing() {
    let Some(url) = url() else {
        // Every third write loses its answer.
        let writes = AtomicUsize::new(0);
        let mini = Mini::start(move |_, request| {
            let is_lost = request.is_put() && writes.fetch_add(1, Ordering::Relaxed) % 3 == 2;
            if is_lost { Act::Lose } else { Act::Answer }
        });
        return run_again(test_name!(), &mini.store);
    };
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::create(dir.path(), "ledger");
    ledger.commit();
    let replica = Replica::attach(&ledger.file, &url, options()).unwrap();
    replica.sync_replicated().unwrap();
    for _ in 0..8 {
        let commit = ledger.commit();
        assert_eq!(replica.sync_replicated().unwrap(), commit);
    }
    let status = replica.detach().unwrap();
    assert_eq!(status.epoch, 1, "a lost answer was taken for another writer");
    restore_all(&url, dir.path(), &ledger.states);
}

#[test]
fn throttling_and_conflicts_pass() {
    if let Some(url) = url() {
        return store::probe(&*store::open(&url).unwrap()).unwrap();
    }
    for (status, code) in [(503, "SlowDown"), (429, "TooManyRequests"), (409, "ConditionalRequestConflict")] {
        // Two of three requests, so that each succeeds at the third try.
        let mini = Mini::start(move |number, request| {
            let fails = number % 3 != 0 && (request.is_put() || status != 409);
            if fails { Act::Fail(status, code) } else { Act::Answer }
        });
        run_again(test_name!(), &mini.store);
        let puts = mini.log().iter().filter(|request| request.is_put()).count();
        assert!(puts > 4, "nothing was repeated");
    }
}

#[test]
fn failures_that_stay_say_what_to_do() {
    const ADVICE: &str = "UNTORN_TEST_STORE_ADVICE";
    if let Some(url) = url() {
        return says(look(&url).map(|_| ()), &std::env::var(ADVICE).unwrap());
    }
    for (status, code, advice) in [
        (403, "RequestTimeTooSkewed", "set the clock"),
        (403, "ExpiredToken", "check AWS_ACCESS_KEY_ID"),
        (403, "AccessDenied", "s3:ListBucket"),
        (301, "PermanentRedirect", "set AWS_REGION"),
        (507, "XMinioStorageFull", "make room"),
        (503, "SlowDown", "fewer requests"),
    ] {
        let mut mini = Mini::start(move |_, _| Act::Fail(status, code));
        mini.store.variables.push((ADVICE, advice));
        run_again(test_name!(), &mini.store);
    }
}

#[test]
fn an_idle_replication_makes_no_request_and_nothing_lists() {
    let Some(url) = url() else {
        let mini = Mini::start(|_, _| Act::Answer);
        run_again(test_name!(), &mini.store);
        let log = mini.log();
        assert!(log.len() > 10 && log.iter().all(|request| !request.target.contains("list-type")), "{log:?}");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::create(dir.path(), "ledger");
    ledger.commit();
    let replica = Replica::attach(&ledger.file, &url, options()).unwrap();
    replica.sync_replicated().unwrap();
    let before = replica.status().requests;
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(replica.status().requests, before);
    ledger.commit();
    replica.sync_replicated().unwrap();
    let made = replica.status().requests - before;
    assert_eq!((made.puts, made.deletes, made.lists, made.others), (1, 0, 0, 0), "{made:?}");
    assert!((1..=2).contains(&made.gets), "{made:?}");
    replica.detach().unwrap();
    restore_all(&url, dir.path(), &ledger.states);
}
