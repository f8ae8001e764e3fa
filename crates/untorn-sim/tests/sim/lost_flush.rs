//! A flush that fails as writeback does: its bytes are neither on the disk nor dirty any more, but still in the
//! cache.

use std::path::Path;

use untorn::testing::storage::{Access, Barrier, Medium, MediumClass, MediumFile};
use untorn_sim::{SimFile, SimMedium, Step, Verdict};

use crate::common::errno;

const B: Barrier = Barrier::new("test.barrier");

fn block(bytes: &[u8]) -> (SimMedium, SimFile) {
    let medium = SimMedium::new(MediumClass::Block);
    medium.install("f", bytes);
    let file = medium.open(Path::new("f"), Access::ReadWrite, 1 << 20).unwrap();
    (medium, file)
}

/// Fails the next flush as writeback does, on sectors that the seed loses.
fn fail_flush(medium: &SimMedium, file: &SimFile, seed: u64) {
    medium.set_hook(Box::new(move |instant| match instant.step {
        Step::Fence => Verdict::LoseDirty { seed, error: errno(instant, 5) },
        _ => Verdict::Allow,
    }));
    assert!(medium.fence(B, &[file]).is_err());
    medium.clear_hook();
}

/// The first byte of each sector.
fn sectors(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(512).map(|sector| sector[0]).collect()
}

/// A file of sixteen sectors of ones, twos in the cache: what a failed flush left durable of it.
fn after_a_failed_flush(seed: u64) -> (SimMedium, SimFile, Vec<u8>) {
    let (medium, file) = block(&[1; 8192]);
    file.write(0, &[2; 8192]).unwrap();
    fail_flush(&medium, &file, seed);
    // The next flush takes along the sectors that stayed dirty; it succeeds and proves nothing for the rest.
    file.sync(B).unwrap();
    let state = medium.crash_state();
    assert_eq!(state.pending(), 0);
    let durable = sectors(&state.image(&state.nothing()).boot().peek("f").unwrap());
    (medium, file, durable)
}

#[test]
fn later_flushes_skip_the_pages_of_a_failed_flush() {
    for seed in 0..8 {
        let (medium, file, durable) = after_a_failed_flush(seed);
        assert_eq!(sectors(&medium.peek("f").unwrap()), [2; 16], "reads go on as if nothing had happened");
        assert!(durable.contains(&1) && durable.contains(&2), "{durable:?}");
        // The process ends, and nothing changes.
        let after = medium.crash_state().killed();
        assert_eq!(after.peek("f"), medium.peek("f"));
        // A store into a sector takes all of it along.
        file.write(10, &[3]).unwrap();
        medium.fence(B, &[&file]).unwrap();
        let state = medium.crash_state();
        let bytes = state.image(&state.nothing()).boot().peek("f").unwrap();
        assert_eq!((bytes[0], bytes[10]), (2, 3));
        assert_eq!(sectors(&bytes)[1..], durable[1..]);
    }
}

#[test]
fn a_distrusted_cache_shows_what_is_durable() {
    let (mut dropped, mut written) = (0, 0);
    for seed in 0..16 {
        let (medium, file, durable) = after_a_failed_flush(seed);
        file.distrust_cache(B, 0, 8192).unwrap();
        let seen = medium.peek("f").unwrap();
        let state = medium.crash_state();
        assert_eq!(state.image(&state.nothing()).boot().peek("f").unwrap(), seen);
        for page in 0..2 {
            let range = page * 8..page * 8 + 8;
            let whole = sectors(&seen)[range.clone()] == [2; 8];
            assert!(whole || sectors(&seen)[range.clone()] == durable[range]);
            dropped += u32::from(!whole);
            written += u32::from(whole);
        }
    }
    assert!(dropped > 0 && written > 0);
    let (medium, file, _) = after_a_failed_flush(1);
    medium.mutate(B);
    file.distrust_cache(B, 0, 8192).unwrap();
    assert_eq!(sectors(&medium.peek("f").unwrap()), [2; 16], "muted, it does nothing");
}

#[test]
fn a_hole_or_a_shrink_takes_what_was_forgotten_with_it() {
    for seed in 0..8 {
        let (medium, file, _) = after_a_failed_flush(seed);
        file.punch(100, 4000).unwrap();
        file.set_len(6000).unwrap();
        file.sync(B).unwrap();
        let state = medium.crash_state();
        let bytes = state.image(&state.nothing()).boot().peek("f").unwrap();
        assert_eq!(bytes.len(), 6000);
        assert!(bytes[..100].iter().all(|&byte| byte == 2) && bytes[100..4100].iter().all(|&byte| byte == 0));
        assert!(bytes[5632..].iter().all(|&byte| byte == 2), "the sector the new end cuts is written");
    }
}
