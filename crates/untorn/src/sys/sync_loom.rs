//! The same names as `sync.rs`, for models: every operation is a point at which loom may switch threads, and every load
//! returns each value in turn that the memory model allows.
//!
//! Loom's atomics are no plain words, so tables of them are built value by value and not out of zeros. Loom has no
//! weak references, so [`Arc`] is the standard library's with a count beside it that loom sees, changed and read in
//! the orders in which the standard library changes and reads its own.

use std::cell::Cell;
pub(crate) use std::default::Default as Zeroed;
use std::io;
use std::ops::Deref;
use std::sync as real;
use std::time::Duration;

use loom::sync::Condvar;
use loom::sync::atomic::AtomicUsize;
pub(crate) use loom::sync::atomic::{Ordering, fence};
pub(crate) use loom::sync::{Mutex, MutexGuard};

loom::thread_local! {
    static NUMBER: Cell<usize> = Cell::new(usize::MAX);
}

loom::lazy_static! {
    static ref NEXT: AtomicUsize = AtomicUsize::new(0);
}

/// This thread's number: threads count up from 0 in the order in which they first ask.
pub(crate) fn thread_number() -> usize {
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// Loom's atomic word, and a mark that every access of it leaves.
///
/// Of the accesses that a store may collide with, loom remembers the last only, and takes a thread's own load for it:
/// of a word that is loaded and then exchanged, as every lock here is, it would never try the exchange before another
/// thread's earlier load. Notifying a condition that nobody waits for collides with its like and orders nothing, so
/// with one before each access loom tries them all.
#[derive(Debug)]
pub(crate) struct AtomicU64 {
    word: loom::sync::atomic::AtomicU64,
    accessed: Condvar,
}

/// Accesses that leave the mark, then go to the word.
macro_rules! accesses {
    ($($method:ident($($given:ident: $of:ty),+) -> $gives:ty;)+) => {
        $(pub(crate) fn $method(&self, $($given: $of),+) -> $gives {
            self.word().$method($($given),+)
        })+
    };
}

impl Default for AtomicU64 {
    fn default() -> Self {
        AtomicU64::new(0)
    }
}

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        AtomicU64 { word: loom::sync::atomic::AtomicU64::new(value), accessed: Condvar::new() }
    }

    fn word(&self) -> &loom::sync::atomic::AtomicU64 {
        self.accessed.notify_one();
        &self.word
    }

    accesses! {
        load(order: Ordering) -> u64;
        store(value: u64, order: Ordering) -> ();
        swap(value: u64, order: Ordering) -> u64;
        fetch_add(value: u64, order: Ordering) -> u64;
        fetch_sub(value: u64, order: Ordering) -> u64;
        fetch_or(value: u64, order: Ordering) -> u64;
        fetch_max(value: u64, order: Ordering) -> u64;
        fetch_and(value: u64, order: Ordering) -> u64;
        compare_exchange(old: u64, new: u64, yes: Ordering, no: Ordering) -> Result<u64, u64>;
        compare_exchange_weak(old: u64, new: u64, yes: Ordering, no: Ordering) -> Result<u64, u64>;
    }
}

/// Time does not pass in a model; another thread's turn does.
pub(crate) fn sleep(_: Duration) {
    loom::thread::yield_now();
}

/// Values as they are made, where the real one is made of zeros.
pub(crate) struct ZeroedArray<T>(Box<[T]>);

impl<T: Default> ZeroedArray<T> {
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        Ok(ZeroedArray((0..len).map(|_| T::default()).collect()))
    }
}

impl<T> Deref for ZeroedArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// One value of the kind.
pub(crate) struct ZeroedBox<T>(Box<T>);

impl<T: Default> ZeroedBox<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(ZeroedBox(Box::default()))
    }
}

impl<T> Deref for ZeroedBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A value of its own as it is made.
#[cfg(test)]
pub(crate) fn zeroed<T: Zeroed>() -> T {
    T::default()
}

/// Shared ownership. Loom switches threads before it changes the count, never between that and the real change.
pub(crate) struct Arc<T> {
    /// Taken when this handle goes.
    value: Option<real::Arc<T>>,
    strong: real::Arc<AtomicU64>,
}

/// A reference that keeps nothing alive.
pub(crate) struct Weak<T> {
    value: real::Weak<T>,
    /// None for one that never led anywhere.
    strong: Option<real::Arc<AtomicU64>>,
}

impl<T> Arc<T> {
    pub(crate) fn new(value: T) -> Self {
        Arc { value: Some(real::Arc::new(value)), strong: real::Arc::new(AtomicU64::new(1)) }
    }

    pub(crate) fn strong_count(this: &Self) -> u64 {
        this.strong.load(Ordering::Relaxed)
    }

    pub(crate) fn downgrade(this: &Self) -> Weak<T> {
        let value = this.value.as_ref().map(real::Arc::downgrade).unwrap_or_default();
        Weak { value, strong: Some(this.strong.clone()) }
    }

    pub(crate) fn into_inner(mut this: Self) -> Option<T> {
        this.let_go().and_then(real::Arc::into_inner)
    }

    /// Gives up this handle's share; the value if it was the last.
    fn let_go(&mut self) -> Option<real::Arc<T>> {
        let value = self.value.take()?;
        if self.strong.fetch_sub(1, Ordering::Release) != 1 {
            return None;
        }
        fence(Ordering::Acquire);
        Some(value)
    }
}

impl<T: Default> Default for Arc<T> {
    fn default() -> Self {
        Arc::new(T::default())
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        self.strong.fetch_add(1, Ordering::Relaxed);
        Arc { value: self.value.clone(), strong: self.strong.clone() }
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a handle that went cannot be looked through")
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        drop(self.let_go());
    }
}

impl<T> Weak<T> {
    pub(crate) fn strong_count(&self) -> u64 {
        self.strong.as_ref().map_or(0, |strong| strong.load(Ordering::Relaxed))
    }

    pub(crate) fn upgrade(&self) -> Option<Arc<T>> {
        let strong = self.strong.clone()?;
        let mut count = strong.load(Ordering::Relaxed);
        while count != 0 {
            match strong.compare_exchange_weak(count, count + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Arc { value: Some(self.value.upgrade()?), strong }),
                Err(now) => count = now,
            }
        }
        None
    }
}

impl<T> Default for Weak<T> {
    fn default() -> Self {
        Weak { value: real::Weak::new(), strong: None }
    }
}

/// Waits in a model as [`Medium::relax`](crate::storage::Medium::relax) does in earnest. Of two threads that wait for
/// a third, each could be given the other's turn for ever, which no real scheduler does: who has waited this long
/// gets no further choices, and the rest of the run takes turns fairly. It still has to end.
#[cfg(test)]
pub(crate) fn relax(round: u32) {
    if round >= 2 {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// Runs a model through its interleavings and says how many there were. `preemptions` bounds how often a thread may be
/// interrupted where it would not have waited; without it, all interleavings are run.
#[cfg(test)]
pub(crate) fn model(name: &str, preemptions: Option<usize>, body: impl Fn() + Send + Sync + 'static) {
    let runs = real::Arc::new(real::atomic::AtomicU64::new(0));
    let start = std::time::Instant::now();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    let counter = real::Arc::clone(&runs);
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        body();
    });
    let bound = builder.preemption_bound.map_or(String::new(), |bound| format!(" with up to {bound} preemptions"));
    let (runs, seconds) = (runs.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
    println!("model {name}: {runs} interleavings{bound}, {seconds:.1} s");
}
