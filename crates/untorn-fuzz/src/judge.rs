//! Opens any file, and checks untorn against what it then says.

use std::path::Path;

use untorn::testing::storage::{Access, Barrier, Medium, MediumFile};
use untorn::{AtomicFile, Options, Result};
use untorn_sim::{Rng, SimMedium};

use crate::input::Input;
use crate::pair::PATH;

/// Makes what a target itself changed durable.
pub(crate) const LEAVE: Barrier = Barrier::new("fuzz.leave");

/// How a machine is left before the file is opened again.
#[derive(Clone, Copy)]
enum End {
    Closed,
    Dropped,
    Killed,
    PowerCut,
}

const ENDS: [End; 4] = [End::Closed, End::Dropped, End::Killed, End::PowerCut];

/// The whole file. It is `None` if it cannot be read, which forged bytes may cause.
fn contents(file: &AtomicFile) -> Option<Vec<u8>> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).ok().map(|()| bytes)
}

/// The machine after this end, or `None` if closing failed: then nothing is promised.
fn end(end: End, medium: &SimMedium, file: AtomicFile, rng: &mut Rng) -> Option<SimMedium> {
    match end {
        End::Closed => file.close().ok().map(|()| medium.clone()),
        End::Dropped => {
            drop(file);
            Some(medium.clone())
        }
        End::Killed => Some(medium.crash_state().killed()),
        End::PowerCut => {
            let state = medium.crash_state();
            Some(state.image(&state.sample(rng)).boot())
        }
    }
}

/// Opens the file of a machine. An error is a right answer. A file that opens can be read up to the length that it
/// reports. It holds the same bytes when it is opened again, however it was left, and this holds once more after it
/// was changed. Unless it `agrees` with itself over time, the judge only asks that nothing panics.
pub(crate) fn judge(medium: SimMedium, options: &Options, agrees: bool, input: &mut Input<'_>) {
    let mut rng = Rng::new(u64::from(input.byte()));
    let first = *input.pick(&ENDS);
    let Ok(file) = options.open_on(medium.clone(), PATH) else {
        // Refused means: not changed either, so it is refused again.
        assert!(
            options.open_on(medium, PATH).is_err(),
            "an open was refused, but a later one succeeded without a change in between"
        );
        return;
    };
    let Some(before) = contents(&file) else { return };
    if !agrees {
        drop(change(&file, before, input));
        if let Some(medium) = end(first, &medium, file, &mut rng) {
            drop(options.open_on(medium, PATH).map(|file| contents(&file)));
        }
        return;
    }
    let Some(medium) = end(first, &medium, file, &mut rng) else { return };
    let file = open_again(&medium, options);
    assert!(contents(&file).as_deref() == Some(&before[..]), "two opens of the same file show different contents");
    let Ok(expected) = change(&file, before, input) else { return };
    let last = *input.pick(&ENDS);
    let Some(medium) = end(last, &medium, file, &mut rng) else { return };
    let file = open_again(&medium, options);
    assert!(contents(&file) == Some(expected), "after reopening, a read returned other bytes than written");
}

fn open_again(medium: &SimMedium, options: &Options) -> AtomicFile {
    options
        .open_on(medium.clone(), PATH)
        .unwrap_or_else(|error| panic!("the file was opened once, but the next open failed: {error}"))
}

/// Changes the file in every way, and returns its contents. An error may come from forged bytes, and the contents are
/// then unknown.
fn change(file: &AtomicFile, mut expected: Vec<u8>, input: &mut Input<'_>) -> Result<Vec<u8>> {
    let len = expected.len();
    let at = input.below(len as u64 + 1) as usize;
    let bytes = vec![input.byte(); 200.min(len - at)];
    file.write_at(&bytes, at as u64)?;
    expected[at..at + bytes.len()].copy_from_slice(&bytes);
    file.sync()?;
    let new_len = input.below(8 * 4096);
    file.resize(new_len)?;
    // When the file grows, it shows the bytes that a forged sidecar holds beyond its end.
    expected.truncate(new_len as usize);
    file.deploy(0, new_len / 2)?;
    file.reclaim()?;
    file.sync()?;
    drop(file.info());
    let mut bytes = vec![0; new_len as usize];
    file.read_at(&mut bytes, 0)?;
    assert!(bytes.starts_with(&expected), "a read returned other bytes than written");
    Ok(bytes)
}

/// The data file's bytes below untorn.
pub(crate) fn plain(medium: &SimMedium) -> Result<Vec<u8>> {
    let file = medium.open(Path::new(PATH), Access::Read, 0)?;
    let mut bytes = vec![0; file.len() as usize];
    file.read(0, &mut bytes)?;
    Ok(bytes)
}

/// Runs a target with as many inputs of `len` made-up bytes each.
#[cfg(test)]
pub(crate) fn judge_made_up(cases: u64, len: usize, run: fn(&[u8])) {
    for seed in 0..cases {
        let mut bytes = vec![0; len];
        Rng::new(seed).fill(&mut bytes);
        assert!(std::panic::catch_unwind(|| run(&bytes)).is_ok(), "seed {seed}");
    }
}
