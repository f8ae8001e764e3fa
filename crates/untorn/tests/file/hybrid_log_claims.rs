//! Who waits for an entry to be carried home must not take another one for it that has its place by then.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::common::counting::{Counting, Halfway};
use crate::common::{PAGE, pmem, scratch_holding};
use untorn::options::LogPolicy;
use untorn::testing::storage::Latched;
use untorn::{EngineKind, Options};

const UNITS: usize = 4;
const PAGES: usize = 64;
/// The block whose entry is carried, and one that gets an entry in the same place.
const CARRIED: usize = 0;
const NEXT: usize = 20;

type Action = Box<dyn FnOnce() + Send>;

/// What to do when the carried block is stored to at home, and when a thread waits for another.
#[derive(Default)]
struct Steps {
    at_store: Option<Action>,
    at_wait: Option<Action>,
}

fn hear(from: &Receiver<()>) {
    from.recv().expect("nobody came so far");
}

#[test]
fn an_entry_that_replaced_an_awaited_one_stays_in_the_log() {
    let path = scratch_holding(vec![1; PAGES * PAGE]);
    let steps: Arc<Mutex<Steps>> = Arc::default();
    let medium = Counting::new(Latched::new(pmem()));
    let (theirs, data) = (Arc::clone(&steps), path.clone());
    medium.halve(move |halfway| {
        let mut steps = theirs.lock().unwrap();
        let action = match halfway {
            Halfway::Write(path, offset) if path == data && offset as usize / PAGE == CARRIED => steps.at_store.take(),
            Halfway::Wait => steps.at_wait.take(),
            _ => None,
        };
        drop(steps);
        if let Some(action) = action {
            action();
        }
    });
    let options = Options::new().engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo).checkpoint_threads(0);
    let file = options.record_area(1, UNITS as u32).open_on(medium, &path).unwrap();
    let fill = |block: usize, value: u8| file.write_at(&[value; 100], (block * PAGE) as u64).unwrap();

    // A chunk that is full, the next one begun, and all of it durable.
    (CARRIED..=UNITS).for_each(|block| fill(block, 2));
    file.sync().unwrap();

    // Amid the checkpoint somebody writes to the first of these blocks, and waits for its entry to get home. He goes
    // on only when its place is another's.
    let (waits, waiting) = channel();
    let (go, gone) = channel();
    let (begun, writers) = channel();
    let (writer, theirs) = (file.clone(), Arc::clone(&steps));
    steps.lock().unwrap().at_store = Some(Box::new(move || {
        theirs.lock().unwrap().at_wait = Some(Box::new(move || {
            waits.send(()).unwrap();
            hear(&gone);
        }));
        let write = move || writer.write_at(&[3; 100], (CARRIED * PAGE) as u64).unwrap();
        begun.send(std::thread::spawn(write)).unwrap();
        hear(&waiting);
    }));
    file.reclaim().unwrap();
    // Memory likes to get the chunk back that it saw last; the other one was free before it.
    fill(NEXT, 4);
    go.send(()).unwrap();
    writers.recv().unwrap().join().unwrap();

    let at = NEXT * PAGE;
    assert_eq!(std::fs::read(&path).unwrap()[at], 1, "what nobody committed is in the file");
    let mut read = [0; 1];
    file.read_at(&mut read, at as u64).unwrap();
    assert_eq!(read, [4]);
    file.read_at(&mut read, (CARRIED * PAGE) as u64).unwrap();
    assert_eq!(read, [3]);
    // One entry in an epoch is all that a block has, so that the order of several tells nothing.
    fill(NEXT, 5);
    file.sync().unwrap();
    file.deploy(0, file.len()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[at], 5);
}
