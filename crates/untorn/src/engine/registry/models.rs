//! Every interleaving of threads that open and give up one file.

use loom::thread;

use super::*;
use crate::engine::{Close, EngineKind, Info, Piece};
use crate::options::Durability;
use crate::sys::sync::{AtomicU64, model};

/// What an engine has of a file: it may be had by one only. No atomic addition, so that whoever opens the file has to
/// have seen all that the last one did.
#[derive(Default)]
struct Storage {
    live: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

struct Fake(Arc<Storage>);

impl Fake {
    fn open(storage: &Arc<Storage>) -> Result<Box<dyn Engine>> {
        assert_eq!(storage.live.load(Ordering::Relaxed), 0, "two engines over one file");
        storage.live.store(1, Ordering::Relaxed);
        add(&storage.opened);
        Ok(Box::new(Fake(Arc::clone(storage))))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.0.live.store(0, Ordering::Relaxed);
    }
}

impl Engine for Fake {
    fn path(&self) -> &Path {
        Path::new("f")
    }
    fn len(&self) -> u64 {
        0
    }
    fn identity(&self) -> Result<Identity> {
        Ok(Identity::default())
    }
    fn writable(&self) -> Result<()> {
        Ok(())
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn write(&self, _: &[Piece<'_>]) -> Result<()> {
        Ok(())
    }
    fn deploy(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn sync(&self) -> Result<u64> {
        Ok(0)
    }
    fn resize(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn reclaim(&self) -> Result<u64> {
        Ok(0)
    }
    fn info(&self) -> Info {
        Info {
            engine: EngineKind::Passthrough,
            len: 0,
            commit: 0,
            committed: None,
            durability: Durability::PerWrite,
            layout: None,
            sidecar: None,
            reflected_pages: 0,
            reflected_slices: 0,
            recovery: Default::default(),
        }
    }
    fn accepts(&self, options: &Options) -> bool {
        !options.read_only
    }
    fn close(&self, _how: Close) -> Result<()> {
        add(&self.0.closed);
        Ok(())
    }
    fn settle(&self) -> Result<()> {
        self.close(Close::Plain)
    }
}

/// A registry and the one file in it.
#[derive(Default)]
struct House {
    registry: Registry,
    storage: Arc<Storage>,
}

impl House {
    fn new() -> Arc<Self> {
        let registry = Registry { process: incarnation(), ..Registry::default() };
        Arc::new(House { registry, storage: Arc::default() })
    }

    fn open_with(&self, options: &Options) -> Result<Arc<Shared>> {
        self.registry.shared(Path::new("f"), Identity::default(), options, || Fake::open(&self.storage))
    }

    fn open(&self) -> Arc<Shared> {
        self.open_with(&Options::new()).unwrap()
    }
}

/// What a handle does at last: closes the file if it is the only one.
fn close(shared: Arc<Shared>) -> bool {
    Shared::into_sole(shared).is_some_and(|sole| sole.engine.close(Close::AsAsked).is_ok())
}

fn spawn<T: 'static>(house: &Arc<House>, body: impl FnOnce(&House) -> T + 'static) -> thread::JoinHandle<T> {
    let house = Arc::clone(house);
    thread::spawn(move || body(&house))
}

#[test]
fn two_threads_share_one_engine() {
    model("registry: two threads open one file", None, || {
        let house = House::new();
        let other = spawn(&house, House::open);
        let (mine, theirs) = (house.open(), other.join().unwrap());
        assert!(std::ptr::eq(&*mine, &*theirs));
        assert_eq!(house.storage.opened.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn opening_waits_for_the_last_handle_to_go() {
    model("registry: two threads open and drop one file", Some(3), || {
        let house = House::new();
        let other = spawn(&house, |house| drop(house.open()));
        drop(house.open());
        other.join().unwrap();
        assert_eq!(house.storage.live.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn opening_waits_for_the_file_to_be_closed() {
    model("registry: two threads open and close one file", Some(3), || {
        let house = House::new();
        let other = spawn(&house, |house| close(house.open()));
        let mine = close(house.open());
        let closed = u64::from(mine) + u64::from(other.join().unwrap());
        // Both had it at once and the second closed it, or each had it for itself.
        let storage = &house.storage;
        assert_eq!(storage.opened.load(Ordering::Relaxed), closed);
        assert_eq!(storage.closed.load(Ordering::Relaxed), closed);
    });
}

#[test]
fn exactly_one_of_two_handles_closed_at_once_is_the_last() {
    model("registry: two handles given up, a third refused", Some(2), || {
        let house = House::new();
        let (mine, theirs) = (house.open(), house.open());
        let other = spawn(&house, |_| close(theirs));
        let refused = spawn(&house, |house| {
            // Refused while the file is open, and else the opener of it.
            match house.open_with(&Options::new().read_only(true)) {
                Ok(shared) => close(shared),
                Err(error) => !matches!(error, Error::InUse { .. }),
            }
        });
        let closed = [close(mine), other.join().unwrap()].map(u64::from).iter().sum::<u64>();
        assert_eq!(closed, 1, "nobody was the last, or more than one");
        let reopened = u64::from(refused.join().unwrap());
        assert_eq!(house.storage.opened.load(Ordering::Relaxed), 1 + reopened);
    });
}
