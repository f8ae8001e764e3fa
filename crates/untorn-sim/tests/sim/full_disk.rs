//! A disk that has no more room for the log.

use std::path::Path;
use std::sync::{Arc, Mutex};

use untorn::options::LogPolicy;
use untorn::{AtomicFile, EngineKind, Options};
use untorn_sim::{CrashState, Rng, SimMedium, Step, Verdict};

use crate::common::{BOTH, errno};

const PATH: &str = "/data";
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
