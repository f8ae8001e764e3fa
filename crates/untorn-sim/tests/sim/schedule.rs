//! Virtual threads run in an order that follows from the seed.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use untorn::testing::storage::{Access, Medium, MediumClass, MediumFile};
use untorn_sim::{SimMedium, schedule};

/// The order in which two threads' calls reach the medium.
fn order(seed: u64) -> Vec<u8> {
    let medium = SimMedium::new(MediumClass::Block);
    medium.install("f", &[0; 8]);
    let order = Mutex::new(Vec::new());
    let task = |me: u8| -> Box<dyn FnOnce() + Send + '_> {
        let (medium, order) = (&medium, &order);
        Box::new(move || {
            let file = medium.open(Path::new("f"), Access::ReadWrite, 8).unwrap();
            for _ in 0..10 {
                file.write(0, &[me; 8]).unwrap();
                order.lock().unwrap().push(me);
            }
        })
    };
    schedule::run(seed, vec![task(1), task(2)]);
    order.into_inner().unwrap()
}

#[test]
fn a_seed_gives_one_order_and_seeds_give_many() {
    let orders: Vec<Vec<u8>> = (0..20).map(order).collect();
    assert!((0..20).all(|seed| order(seed) == orders[seed as usize]));
    let mut distinct = orders.clone();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() > 10, "{} orders of 20", distinct.len());
    assert!(orders.iter().all(|order| order.len() == 20));
}

#[test]
fn a_thread_that_waits_lets_the_other_in() {
    for seed in 0..10 {
        let medium = SimMedium::new(MediumClass::Block);
        let ready = AtomicBool::new(false);
        let wait: Box<dyn FnOnce() + Send + '_> = Box::new(|| {
            let mut round = 0;
            while !ready.load(Ordering::Relaxed) {
                medium.relax(round);
                round += 1;
            }
        });
        let signal: Box<dyn FnOnce() + Send + '_> = Box::new(|| {
            medium.exists(Path::new("f")).unwrap();
            ready.store(true, Ordering::Relaxed);
        });
        schedule::run(seed, vec![wait, signal]);
    }
}

#[test]
#[should_panic(expected = "all threads wait for each other")]
fn threads_that_wait_for_each_other_are_found() {
    let medium = SimMedium::new(MediumClass::Block);
    let task = || -> Box<dyn FnOnce() + Send + '_> {
        Box::new(|| {
            for round in 0.. {
                medium.relax(round);
            }
        })
    };
    schedule::run(1, vec![task(), task()]);
}
