//! Virtual threads: operating-system threads of which one runs at a time, in an order that follows from a seed.
//!
//! A thread started by [`run`] holds a token while it runs. At every call of a simulated medium it may hand the token
//! to another, and whenever it waits ([`Medium::relax`](untorn::testing::storage::Medium::relax)) it does. An
//! interleaving at the granularity of medium calls is therefore a function of the seed and can be run again.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::rng::Rng;

/// Waits in a row, by all threads together, after which they wait for something that will not come.
const MAX_WAITS: u32 = 200_000;

struct Table {
    rng: Rng,
    running: usize,
    alive: Vec<bool>,
    /// A call hands the token over once in this many times.
    stickiness: u64,
    waits: u32,
}

struct Schedule {
    table: Mutex<Table>,
    turns: Vec<Condvar>,
}

thread_local! {
    static SEAT: RefCell<Option<(Arc<Schedule>, usize)>> = const { RefCell::new(None) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

/// The number of the calling thread, never used for another: fences on persistent memory cover one thread's stores.
pub(crate) fn thread() -> u64 {
    THREAD.with(|cell| {
        if cell.get() == 0 {
            cell.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        cell.get()
    })
}

/// A place where another virtual thread may be let in. The call does nothing on a thread that is not virtual.
pub(crate) fn point() {
    SEAT.with_borrow(|seat| {
        if let Some((schedule, me)) = seat {
            schedule.step(*me);
        }
    });
}

/// A wait for another thread: always lets another in.
///
/// # Panics
/// Panics if there is no thread to wait for: every thread waits, or there is no other. The engine then has a
/// deadlock.
pub(crate) fn relax(round: u32) {
    SEAT.with_borrow(|seat| match seat {
        Some((schedule, me)) => schedule.wait(*me),
        None => {
            assert!(round < 1 << 22, "waits for a thread that never signals it");
            // A thread that is not running now may have to wait for a CPU, so it gets minutes before it counts as one
            // that never comes.
            if round < 1 << 12 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
        }
    });
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, me: usize) {
        let mut table = self.lock();
        table.waits = 0;
        let stickiness = table.stickiness;
        if table.rng.one_in(stickiness) {
            self.write_to_kernel(table, me);
        }
    }

    fn wait(&self, me: usize) {
        let mut table = self.lock();
        table.waits += 1;
        if table.waits > MAX_WAITS {
            drop(table);
            panic!("deadlock: all threads wait for each other");
        }
        self.write_to_kernel(table, me);
    }

    /// Lets another live thread run, if there is one, and returns when it is this one's turn again.
    fn write_to_kernel(&self, mut table: MutexGuard<'_, Table>, me: usize) {
        let others: Vec<usize> = (0..table.alive.len()).filter(|&seat| seat != me && table.alive[seat]).collect();
        if others.is_empty() {
            return;
        }
        let next = *table.rng.pick(&others);
        table.running = next;
        self.turns[next].notify_one();
        self.sit(table, me);
    }

    fn sit<'a>(&'a self, mut table: MutexGuard<'a, Table>, me: usize) {
        while table.running != me {
            let (back, timeout) =
                self.turns[me].wait_timeout(table, Duration::from_secs(600)).unwrap_or_else(PoisonError::into_inner);
            table = back;
            if timeout.timed_out() && table.running != me {
                drop(table);
                panic!("the running thread blocks outside the medium, so the schedule cannot continue");
            }
        }
    }

    fn leave(&self, me: usize) {
        let mut table = self.lock();
        table.alive[me] = false;
        table.waits = 0;
        if let Some(next) = table.alive.iter().position(|&alive| alive) {
            table.running = next;
            self.turns[next].notify_one();
        }
    }
}

/// Runs the tasks as virtual threads under the schedule that follows from `seed`, and returns what they return. A panic
/// in a task is passed on once all have ended.
pub fn run<T: Send>(seed: u64, tasks: Vec<Box<dyn FnOnce() -> T + Send + '_>>) -> Vec<T> {
    let mut rng = Rng::derive(seed, 0x7363_6865);
    // From a switch at every other call to long runs of one thread: both find their own mistakes.
    let stickiness = 1 << (1 + rng.below(5));
    let running = rng.below(tasks.len().max(1) as u64) as usize;
    let schedule = Arc::new(Schedule {
        turns: tasks.iter().map(|_| Condvar::new()).collect(),
        table: Mutex::new(Table { rng, running, alive: vec![true; tasks.len()], stickiness, waits: 0 }),
    });
    std::thread::scope(|scope| {
        let threads: Vec<_> = tasks
            .into_iter()
            .enumerate()
            .map(|(me, task)| {
                let schedule = schedule.clone();
                scope.spawn(move || {
                    let result = catch_unwind(AssertUnwindSafe(|| {
                        schedule.sit(schedule.lock(), me);
                        SEAT.set(Some((schedule.clone(), me)));
                        task()
                    }));
                    SEAT.set(None);
                    schedule.leave(me);
                    result
                })
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().and_then(|result| result)).collect();
        results.into_iter().map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Whether the calling thread is one of [`run`]'s.
pub fn is_virtual() -> bool {
    SEAT.with_borrow(Option::is_some)
}
