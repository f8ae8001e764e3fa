//! Region stores on the simulated media: a bounded exploration, what it must convict, what commits cost, and random
//! allocation with crashes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use untorn::Error;
use untorn::options::Order;
use untorn::region::{Region, RegionStore, StoreOptions};
use untorn::testing::storage::{Barrier, MediumClass};
use untorn_sim::explore::{Breach, Target};
use untorn_sim::{Rng, SimMedium, Step, Verdict};

use crate::common::{BOTH, errno, watched};
use crate::explore::{canary_is_convicted, survives};

#[test]
fn an_in_place_region_store_is_convicted_in_both_models() {
    canary_is_convicted(Target::Regions, Breach::Content);
}

#[test]
fn region_stores_survive_a_bounded_exploration() {
    survives(Target::Regions, untorn_testing::cases(1500, 4000), 2);
}

fn options() -> StoreOptions {
    StoreOptions::new().max_regions(2).background_scan(false)
}

#[test]
fn a_commit_costs_one_fence_or_one_flush_and_an_ordered_one_two() {
    for class in BOTH {
        for (order, fences) in [(Order::OneFence, 1), (Order::TwoFence, 2)] {
            let medium = SimMedium::new(class);
            let store = options().order(order).create_on(medium.clone(), "/store").unwrap();
            let region = store.create_region("r").unwrap();
            region.alloc_pages(100).unwrap();
            region.pmsync().unwrap();
            for round in 0..5_u8 {
                for page in 0..60 {
                    region.write_page(page, &[round; 4096]).unwrap();
                }
                region.free_page(90 + u64::from(round)).unwrap();
                region.alloc_at(100 + u64::from(round), 1).unwrap();
                let before = medium.counters();
                region.pmsync().unwrap();
                let after = medium.counters();
                assert_eq!(after.fences - before.fences, fences, "{class:?} {order:?}");
                assert_eq!((after.flushes, after.syncs), (before.flushes, before.syncs), "{class:?} {order:?}");
            }
        }
    }
}

#[test]
fn the_default_commit_order_follows_the_medium_class() {
    for (class, order) in BOTH.into_iter().zip([Order::TwoFence, Order::OneFence]) {
        let store = options().create_on(SimMedium::new(class), "/store").unwrap();
        assert_eq!(store.info().unwrap().order, order);
    }
}

#[test]
fn a_clean_close_waits_for_nothing() {
    for class in BOTH {
        let medium = SimMedium::new(class);
        let store = options().create_on(medium.clone(), "/store").unwrap();
        let region = store.create_region("r").unwrap();
        region.alloc_page().unwrap();
        region.write_page(0, &[1; 4096]).unwrap();
        region.pmsync().unwrap();
        drop(region);
        let before = medium.counters();
        store.close().unwrap();
        let after = medium.counters();
        assert_eq!((after.fences, after.syncs, after.dir_syncs), (before.fences, before.syncs, before.dir_syncs));
        assert!(!options().open_on(medium, "/store").unwrap().info().unwrap().recovered);
    }
}

type Stamps = BTreeMap<u64, u8>;

fn stamps(region: &Region) -> Stamps {
    let mut found = Stamps::new();
    let mut bytes = [0; 4096];
    for page in region.pages().unwrap() {
        region.read_page(page, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "page {page} is torn");
        found.insert(page, bytes[0]);
    }
    found
}

/// Allocates and frees in random order, with crashes before random fences; each leaves a commit, and every page has one
/// owner or is free.
fn storm(class: MediumClass, order: Order, seed: u64) {
    let medium = SimMedium::new(class);
    let options = options().order(order).grow_by(16 * 4096);
    let mut rng = Rng::new(seed);
    let store = options.create_on(medium.clone(), "/store").unwrap();
    let region = store.create_region_of("r", 1000).unwrap();
    let (mut now, mut committed) = (Stamps::new(), Stamps::new());
    let mut checked = 0;
    for step in 0..untorn_testing::cases(1000, 4000_u64) {
        if now.is_empty() || now.len() < 150 && rng.below(100) < 55 {
            let page = region.alloc_page().unwrap();
            let stamp = 1 + (step % 255) as u8;
            region.write_page(page, &[stamp; 4096]).unwrap();
            assert!(now.insert(page, stamp).is_none());
        } else {
            let page = *now.keys().nth(rng.below(now.len() as u64) as usize).unwrap();
            region.free_page(page).unwrap();
            now.remove(&page);
        }
        if !rng.one_in(100) {
            continue;
        }
        let flushes = |step| matches!(step, Step::Fence | Step::Sync);
        let (_, states) = watched(&medium, flushes, || region.pmsync().unwrap());
        for (_, state) in states {
            let choices = [state.everything(), state.nothing(), state.sample(&mut rng), state.sample(&mut rng)];
            for choice in choices {
                let store = options.open_on(state.image(&choice).boot(), "/store").unwrap();
                let found = stamps(&store.open_region("r").unwrap());
                assert!(found == committed || found == now, "neither the last commit nor the one in flight");
                store.scan().unwrap();
                check(&store, found.len());
                checked += 1;
            }
        }
        committed = now.clone();
    }
    assert!(checked > untorn_testing::cases(25, 100), "{checked} crashes");
}

fn check(store: &RegionStore, pages: usize) {
    let audit = store.audit().unwrap();
    assert_eq!(audit.findings, Vec::<String>::new());
    assert_eq!((audit.lost_pages, audit.data_pages), (0, pages as u64));
    let info = store.info().unwrap();
    assert_eq!(info.used_pages + info.free_pages, info.len / 4096);
}

#[test]
fn no_crash_of_random_allocation_loses_or_shares_a_page() {
    for class in BOTH {
        for order in [Order::OneFence, Order::TwoFence] {
            storm(class, order, 7);
        }
    }
}

/// A store with a commit behind it and another one to come, which needs new leaves, more space and old pages.
fn about_to_commit(medium: &SimMedium, options: StoreOptions) -> (RegionStore, Region, Stamps, Stamps) {
    let store = options.create_on(medium.clone(), "/store").unwrap();
    let region = store.create_region_of("r", 1 << 20).unwrap();
    let put = |now: &mut Stamps, page: u64, stamp: u8| {
        if !now.contains_key(&page) {
            region.alloc_at(page, 1).unwrap();
        }
        region.write_page(page, &[stamp; 4096]).unwrap();
        now.insert(page, stamp);
    };
    let mut now = Stamps::new();
    (0..6).for_each(|page| put(&mut now, page, 1));
    region.pmsync().unwrap();
    put(&mut now, 2, 2);
    region.free_page(5).unwrap();
    now.remove(&5);
    region.pmsync().unwrap();
    let committed = now.clone();
    for page in [0, 3, 200, 201, 70_000] {
        put(&mut now, page, 3);
    }
    region.free_page(1).unwrap();
    now.remove(&1);
    (store, region, committed, now)
}

/// Fails the `nth` call of a commit that changes something, in whole or after `bytes` of it.
fn fail(medium: &SimMedium, nth: u32, code: i32, bytes: Option<usize>) -> Arc<Mutex<Option<Step>>> {
    let failed: Arc<Mutex<Option<Step>>> = Arc::default();
    let (theirs, mut calls) = (failed.clone(), 0);
    medium.set_hook(Box::new(move |instant| {
        calls += u32::from(instant.step.changes());
        if calls != nth || !instant.step.changes() || theirs.lock().unwrap().is_some() {
            return Verdict::Allow;
        }
        *theirs.lock().unwrap() = Some(instant.step);
        let error = errno(instant, code);
        match bytes {
            Some(bytes) if instant.step == Step::Write => Verdict::WriteSome { bytes, error },
            _ => Verdict::Refuse(error),
        }
    }));
    failed
}

#[test]
fn any_call_of_a_commit_may_fail_and_nothing_is_torn_or_lost() {
    let mut rng = Rng::new(11);
    let mut tried = 0;
    for class in BOTH {
        for order in [Order::OneFence, Order::TwoFence] {
            for (code, bytes) in [(5, None), (28, None), (28, Some(24)), (5, Some(1000))] {
                for nth in 1.. {
                    let medium = SimMedium::new(class);
                    let options = options().order(order).grow_by(4096);
                    let (store, region, committed, now) = about_to_commit(&medium, options);
                    let failed = fail(&medium, nth, code, bytes);
                    let result = region.pmsync();
                    medium.clear_hook();
                    let Some(step) = *failed.lock().unwrap() else {
                        assert!(result.is_ok(), "no call failed and yet the commit did");
                        break;
                    };
                    tried += 1;
                    let what = format!("{class:?} {order:?}: {step:?}, call {nth}, errno {code}, {bytes:?}");
                    // A file that cannot grow amply may still grow enough.
                    let got_over = matches!(step, Step::SetLen | Step::Allocate) && result.is_ok();
                    assert!(got_over || result.is_err(), "{what}: the commit succeeded");
                    assert_eq!(stamps(&region), now, "{what}: what was not committed is gone");
                    // If the store goes on, the commit is known not to be there.
                    let poisoned = matches!(region.free_page(999), Err(Error::Poisoned { .. }));
                    let possible = |found: &Stamps| match poisoned || got_over {
                        true => *found == committed || *found == now,
                        false => *found == committed,
                    };
                    for choice in [medium.crash_state().sample(&mut rng), medium.crash_state().everything()] {
                        let store = options.open_on(medium.crash_state().image(&choice).boot(), "/store").unwrap();
                        let found = stamps(&store.open_region("r").unwrap());
                        assert!(possible(&found), "{what}: another state after a crash");
                        store.scan().unwrap();
                        check(&store, found.len());
                    }
                    // Either it goes on, or it says that it cannot.
                    match region.pmsync() {
                        Ok(_) => {
                            assert!(!poisoned, "{what}: a poisoned store commits");
                            check(&store, now.len());
                            drop(region);
                            store.close().unwrap();
                        }
                        Err(error) => {
                            assert!(matches!(error, Error::Poisoned { .. }), "{what}: then {error}");
                            drop((region, store));
                        }
                    }
                    let store = options.open_on(medium.clone(), "/store").unwrap();
                    let found = stamps(&store.open_region("r").unwrap());
                    assert!(found == now || poisoned && found == committed, "{what}: another state at the next open");
                    store.scan().unwrap();
                    check(&store, found.len());
                }
            }
        }
    }
    assert!(tried > 200, "{tried} cases");
}

/// Four pages change twice under a snapshot of their first commit. The costs of both commits, and whether it changed.
fn commits_under_a_snapshot(held: usize, keeps_back: bool) -> (Vec<u64>, bool) {
    let medium = SimMedium::new(MediumClass::Block);
    if !keeps_back {
        medium.mutate(Barrier::new("snapshot.keep-back"));
    }
    let store = options().create_on(medium.clone(), "/store").unwrap();
    let region = store.create_region("r").unwrap();
    region.alloc_pages(4).unwrap();
    let write = |byte: u8| {
        (0..4).for_each(|page| region.write_page(page, &[byte; 4096]).unwrap());
        let before = medium.counters();
        region.pmsync().unwrap();
        let after = medium.counters();
        [after.fences - before.fences, after.flushes - before.flushes, after.syncs - before.syncs]
    };
    write(1);
    let snapshots: Vec<_> = (0..held).map(|_| region.snapshot().unwrap()).collect();
    let costs = [write(2), write(3)].concat();
    let mut bytes = [0; 4 * 4096];
    let changed = snapshots.iter().any(|snapshot| {
        snapshot.read_at(&mut bytes, 0).unwrap();
        bytes != [1; 4 * 4096]
    });
    (costs, changed)
}

#[test]
fn a_commit_costs_the_same_under_snapshots() {
    let (none, _) = commits_under_a_snapshot(0, true);
    for held in [1, 8] {
        assert_eq!(commits_under_a_snapshot(held, true), (none.clone(), false), "{held} held");
    }
    assert!(commits_under_a_snapshot(1, false).1, "the mutant reuses the pages");
}

#[test]
fn the_explorer_convicts_a_page_that_is_not_kept_back() {
    let token = "pmem/snapshot/one-fence:seed-51354408199909:mute-snapshot.keep-back";
    let violation = untorn_sim::explore::replay(token).unwrap();
    assert!(violation.is_some_and(|violation| violation.to_string().contains("a snapshot of tall")));
}
