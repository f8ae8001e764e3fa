//! A disk that is full: at every amount of room that a script of operations may find, and when the log has to grow.

use std::path::Path;
use std::sync::{Arc, Mutex};

use untorn::options::LogPolicy;
use untorn::testing::storage::Medium;
use untorn::{AtomicFile, EngineKind, Options};
use untorn_sim::script::{Bytes, Content};
use untorn_sim::{CrashState, Rng, SimMedium, Step, Verdict};

use crate::common::{BOTH, errno};
use crate::faults::Setup;
use crate::faults::machine::{Machine, PATH, read_all};
use crate::faults::script::script;

const PAGE: u64 = 4096;
const BLOCKS: u64 = 400;

fn options() -> Options {
    let options = Options::new().engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo).record_area(1, 16);
    options.checkpoint_threads(0).durability(untorn::Durability::PerCommit)
}

fn read(file: &AtomicFile) -> Vec<u8> {
    let mut bytes = vec![0; (BLOCKS * PAGE) as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// A log should grow: the disk changes its length, but gives no space. The log is then as long as before, and
/// recovery finds the committed content, whatever a crash kept of the growth.
#[test]
fn a_log_that_could_not_grow_opens_after_a_crash() {
    for class in BOTH {
        let medium = SimMedium::new(class);
        let file = options().create_on(medium.clone(), Path::new(PATH), BLOCKS * PAGE).unwrap();
        // The first write makes the log.
        file.write_at(&[1; PAGE as usize], 0).and_then(|()| file.sync()).unwrap();
        let (states, refused): (Arc<Mutex<Vec<CrashState>>>, Arc<Mutex<u64>>) = Default::default();
        let (seen, count) = (states.clone(), refused.clone());
        let mut is_longer = false;
        medium.set_hook(Box::new(move |instant| {
            let mut count = count.lock().unwrap();
            // An allocation after a change of the sidecar's length is for the part by which it grew.
            let sidecar = instant.path != Path::new(PATH);
            is_longer |= sidecar && instant.step == Step::SetLen;
            if sidecar && instant.step == Step::Allocate && std::mem::take(&mut is_longer) {
                *count += 1;
                return Verdict::Refuse(errno(instant, 28));
            }
            if *count > 0 && instant.step.persists() {
                seen.lock().unwrap().push(instant.crash_state());
            }
            Verdict::Allow
        }));
        let mut commits = vec![read(&file)];
        for block in 1..BLOCKS {
            file.write_at(&[block as u8 | 1; PAGE as usize], block * PAGE)
                .unwrap_or_else(|error| panic!("{class:?}, block {block}: {error}"));
            if block % 8 == 7 {
                file.sync().unwrap();
                commits.push(read(&file));
            }
        }
        medium.clear_hook();
        assert!(*refused.lock().unwrap() > 0, "{class:?}: the log was never to be longer");
        let states = std::mem::take(&mut *states.lock().unwrap());
        let mut rng = Rng::new(7);
        for state in states.iter().step_by(states.len().div_ceil(40)) {
            for choice in [state.nothing(), state.everything(), state.sample(&mut rng), state.sample(&mut rng)] {
                let left = state.image(&choice).boot();
                let found = options().open_on(left, Path::new(PATH));
                let found = found.unwrap_or_else(|error| panic!("{class:?}: {error}; {}", state.describe(&choice)));
                assert!(commits.contains(&read(&found)), "{class:?}: {}", state.describe(&choice));
            }
        }
    }
}

/// A machine on which the script runs with so many pages of room.
struct Small {
    machine: Machine,
    model: Option<Content>,
}

impl Small {
    /// On the full disk the file can be read, opened, and let go of, after a kill and after power cuts, and it is at
    /// its last commit. It is a plain file as soon as nobody needs its sidecar.
    fn has_no_dead_end(&self, kept: &[Bytes]) -> std::result::Result<(), String> {
        let (state, mut rng) = (self.machine.medium.crash_state(), Rng::new(7));
        let choices = [state.nothing(), state.everything(), state.sample(&mut rng)];
        let machines = choices.iter().map(|choice| state.image(choice).boot()).chain([state.killed()]);
        for (number, medium) in machines.enumerate() {
            let told = |what: &str, error: untorn::Error| format!("machine {number}: {what}: {error}");
            if !medium.exists(Path::new(PATH)).unwrap() && kept.iter().any(|bytes| bytes.is_empty()) {
                continue;
            }
            medium.leave_room(Some(0));
            let reader = self.machine.open(&medium, true).map_err(|error| told("it cannot be read", error))?;
            let seen = read_all(&reader).map_err(|what| format!("machine {number}: {what}"))?;
            drop(reader);
            if !kept.iter().any(|bytes| **bytes == seen) {
                return Err(format!("machine {number}: a reader finds what was not committed"));
            }
            let file = match self.machine.open(&medium, false) {
                // A plain file, which can be read, and has no sidecar yet.
                Err(_) if medium.refused_new() => continue,
                opened => opened.map_err(|error| told("it does not open", error))?,
            };
            let again = read_all(&file).map_err(|what| format!("machine {number}: recovered: {what}"))?;
            if again != seen {
                return Err(format!("machine {number}: a reader finds another commit than recovery"));
            }
            file.settle().map_err(|error| told("it cannot be settled", error))?;
            if medium.peek(PATH).as_ref() != Some(&seen) {
                return Err(format!("machine {number}: settled, it is another file"));
            }
        }
        Ok(())
    }

    /// Runs the script. An operation that finds no room is tried again when the disk has some. Returns whether any did.
    fn play(&mut self, room: u64) -> std::result::Result<bool, String> {
        self.machine.medium.leave_room(Some(room));
        let mut was_full = false;
        for (number, op) in script().into_iter().enumerate() {
            let told = |what: String| format!("operation {number}, {op:?}: {what}");
            let empty = Content::committed(Bytes::default());
            let before = self.model.clone().unwrap_or(empty);
            let fit = op.clone().fit(before.now.len() as u64);
            let after = self.machine.setup.after(&before, &fit);
            if let Err(error) = self.machine.operate(&fit) {
                if error.errno() != 28 {
                    return Err(told(format!("another error than that of a full disk: {error}")));
                }
                was_full = true;
                let mut kept = vec![before.kept.clone()];
                // A file that is being created may be there, and be empty or all zeros.
                kept.extend(self.model.is_none().then(|| after.kept.clone()));
                self.has_no_dead_end(&kept).map_err(told)?;
                self.machine.medium.leave_room(None);
                if self.machine.file.is_none() && self.machine.medium.exists(Path::new(PATH)).unwrap() {
                    // An operation that ended the handle, or made the file, may have failed in the open that follows.
                    let file = self
                        .machine
                        .open(&self.machine.medium, false)
                        .map_err(|error| told(format!("again: {error}")))?;
                    self.machine.file = Some(file);
                } else {
                    self.machine.operate(&fit).map_err(|error| told(format!("with room: {error}")))?;
                }
            }
            match self.machine.file.as_ref().map(read_all) {
                Some(Ok(seen)) if seen == *after.now => {}
                Some(Err(what)) => return Err(told(what)),
                _ => return Err(told("the handle shows something else".to_owned())),
            }
            self.model = Some(after);
        }
        Ok(was_full)
    }
}

/// Everything acknowledged can be read, the file opens, and work goes on when the disk has room: whatever room each
/// engine finds.
#[test]
fn every_amount_of_room_leaves_no_dead_end() {
    let mut findings = Vec::new();
    let mut rooms = 0;
    for setup in Setup::all() {
        for room in (0..).step_by(untorn_testing::cases(7, 1)) {
            let mut small = Small { machine: Machine::new(setup), model: None };
            match small.play(room) {
                Ok(true) => rooms += 1,
                // There is room for all of it.
                Ok(false) => break,
                Err(what) => findings.push(format!("{setup}, room for {room} pages: {what}")),
            }
            assert!(room < 400, "{setup} takes no end of room");
        }
    }
    println!("{rooms} amounts of room were not enough");
    let shown = findings.iter().take(60).cloned().collect::<Vec<_>>().join("\n");
    assert!(findings.is_empty(), "{} of {rooms}:\n{shown}", findings.len());
}
