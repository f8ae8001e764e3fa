//! What redundancy costs, counted and not timed: space for holes, and reads of a scrub.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use untorn::Options;
use untorn::redundancy::{Damage, StripeLayout};
use untorn::testing::storage::PageCache;

use crate::common::PAGE;
use crate::common::counting::Counting;
use crate::fixture::{PAGE_LEN, Place, by_hand, page};

const LAYOUTS: [StripeLayout; 2] = [StripeLayout::Consecutive, StripeLayout::Spread];
/// Of a file that is almost all hole, and ends in the middle of a page.
const LEN: u64 = (32 << 20) + 100;
/// Its pages that are none.
const DATA: [u64; 3] = [0, 3_000, LEN / PAGE_LEN];

/// Bytes that a file has on the disk.
fn space(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// Two copies of a checksum for each page and for each stripe, with what goes with them.
fn space_of_tables(stripe: u64) -> u64 {
    let pages = LEN.div_ceil(PAGE_LEN);
    2 * PAGE_LEN * (pages.div_ceil(500) + pages.div_ceil(stripe).div_ceil(500))
}

fn sparse() -> Place {
    let place = Place::empty();
    File::create(&place.path).unwrap().set_len(LEN).unwrap();
    for data in DATA {
        place.write((data * PAGE_LEN) as usize, &[data as u8 | 1; 100]);
    }
    place
}

#[test]
fn holes_take_no_space_and_are_protected_all_the_same() {
    for layout in LAYOUTS {
        let place = sparse();
        let before = space(&place.path);
        by_hand().stripe(4).layout(layout).open(&place.path).unwrap().close().unwrap();
        assert_eq!(space(&place.path), before, "{layout}: protecting a hole filled it");
        // A page of parity for each page with data, and what a file system adds.
        let most = space_of_tables(4) + (1 << 20);
        assert!(space(&place.companion()) < most, "{layout}: {} of {most} bytes", space(&place.companion()));
        let scrubbed = place.scrub();
        assert_eq!((scrubbed.checked, scrubbed.damage), (LEN.div_ceil(PAGE_LEN), vec![]), "{layout}");

        // A store to a hole gets its parity.
        let protected = by_hand().open(&place.path).unwrap();
        place.store(&protected, 2_000 * PAGE, &[7; 3 * PAGE]);
        protected.sync().unwrap();
        place.store(&protected, 4_000 * PAGE + 1000, &[8; 10]);
        protected.close().unwrap();
        let hit = [2_001, 4_000, 5_000];
        place.rot(hit[0] * PAGE + 5, &[1]);
        place.rot(hit[1] * PAGE + 1003, &[1]);
        // One that no store ever came to.
        place.rot(hit[2] * PAGE + 3, &[1]);
        // By stripe, not by place.
        let mut damage = place.damage();
        damage.sort_unstable_by_key(|damage| match damage {
            Damage::Page(range) => range.offset,
            _ => u64::MAX,
        });
        assert_eq!(damage, hit.map(|at| Damage::Page(page(at))), "{layout}");
        assert_eq!(place.repair().repaired.len(), hit.len(), "{layout}");
        assert_eq!(place.damage(), vec![], "{layout}");
        let bytes = place.bytes();
        let at = |number: usize| &bytes[number * PAGE..(number + 1) * PAGE];
        assert!(at(hit[0]).iter().all(|byte| *byte == 7) && at(hit[2]).iter().all(|byte| *byte == 0));
        assert!(at(hit[1])[1000..1010].iter().all(|byte| *byte == 8));
    }
}

/// A store is announced before it is made, and the space that its parity needs is had by then.
#[test]
fn a_full_disk_refuses_the_announcement_of_a_store_to_a_hole() {
    let place = sparse();
    let medium = Counting::new(PageCache::new());
    let protected = by_hand().open_on(medium.clone(), &place.path).unwrap();
    protected.sync().unwrap();
    medium.refuse_space_to(Some(&fs::canonicalize(place.companion()).unwrap()));
    let refused = protected.announce(6_000 * PAGE_LEN..6_001 * PAGE_LEN).unwrap_err();
    assert_eq!(refused.errno(), 28, "{refused}");
    // Nothing else fails for that, and nothing was marked.
    protected.announce(0..10).unwrap().cover().unwrap();
    assert_eq!(protected.coverage().unwrap().uncovered, 0);
    medium.refuse_space_to(None);
    let stores = protected.announce(6_000 * PAGE_LEN..6_001 * PAGE_LEN).unwrap();
    place.write(6_000 * PAGE, &[9; PAGE]);
    stores.cover().unwrap();
    protected.close().unwrap();
    place.rot(6_000 * PAGE, &[1]);
    assert_eq!(place.repair().repaired, [page(6_000)]);
}

#[test]
fn holes_of_a_file_with_an_engine_take_no_space_either() {
    for engine in untorn::testing::ENGINES {
        for was_protected in [false, true] {
            let what = format!("{engine}, protected before: {was_protected}");
            let place = sparse();
            if was_protected {
                by_hand().stripe(4).open(&place.path).unwrap().close().unwrap();
            }
            let file = Options::new().engine(engine).redundancy(by_hand().stripe(4)).open(&place.path).unwrap();
            let of_sidecar = place.companion().with_extension("sidecar-redundancy");
            // A page of parity for each page with data, or 64 where a store came, and what a file system adds.
            let most = 2 * space_of_tables(4) + (1 << 20);
            let takes = |path: &Path| if path.exists() { space(path) } else { 0 };
            let total = || takes(&place.companion()) + takes(&of_sidecar);
            assert!(total() < most, "{what}: {} of {most} bytes", total());
            file.write_at(&[7; 3 * PAGE], 2_000 * PAGE_LEN).unwrap();
            file.sync().unwrap();
            file.sync_redundancy().unwrap();
            assert!(total() < most + (1 << 20), "{what}: {} of {most} bytes, after a store", total());
            file.resize(2 * LEN).unwrap();
            file.sync().unwrap();
            file.write_at(&[8; PAGE], LEN + 5_000 * PAGE_LEN).unwrap();
            file.sync().unwrap();
            file.sync_redundancy().unwrap();
            assert!(total() < 2 * most + (2 << 20), "{what}: {} of {most} bytes, of another length", total());
            file.close().unwrap();
            assert_eq!(place.damage(), [], "{what}");
            place.rot(2_001 * PAGE + 5, &[1]);
            assert_eq!(place.repair().repaired, [page(2_001)], "{what}");
        }
    }
}

/// The write that first fills a hole fails before it changes anything, and nothing else does. What an engine commits
/// needs no more space for its parity, through another length, a close that keeps the sidecar, and the next open.
#[test]
fn a_full_disk_is_an_error_of_the_write_that_fills_a_hole() {
    for engine in untorn::testing::ENGINES {
        let place = sparse();
        let medium = Counting::new(PageCache::new());
        let options = Options::new().engine(engine).redundancy(by_hand().stripe(4)).keep_sidecar(true);
        let file = options.open_on(medium.clone(), &place.path).unwrap();
        file.sync_redundancy().unwrap();
        let companion = fs::canonicalize(place.companion()).unwrap();
        let is_full = |full: bool| medium.refuse_space_to(Some(companion.as_path()).filter(|_| full));
        is_full(true);
        let refused = file.write_at(&[9; PAGE], 6_000 * PAGE_LEN).unwrap_err();
        assert_eq!(refused.errno(), 28, "{engine}: {refused}");
        let mut bytes = [1; PAGE];
        file.read_at(&mut bytes, 6_000 * PAGE_LEN).unwrap();
        assert!(bytes == [0; PAGE], "{engine}: the refused write is there");
        // The handle goes on.
        file.write_at(&[4; 100], 3_000 * PAGE_LEN).unwrap();
        file.sync().unwrap();
        is_full(false);
        file.write_at(&[9; PAGE], 6_000 * PAGE_LEN).unwrap();
        file.sync().unwrap();
        is_full(true);
        file.sync_redundancy().unwrap();
        is_full(false);
        // To a redundancy file for another length the space comes along.
        file.resize(LEN + PAGE_LEN).unwrap();
        file.sync().unwrap();
        is_full(true);
        file.write_at(&[8; PAGE], 6_000 * PAGE_LEN).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
        // The medium also refuses to allocate what has its space: so space is compared.
        is_full(false);
        let claimed = space(&companion);
        let file = options.keep_sidecar(false).open_on(medium.clone(), &place.path).unwrap();
        file.deploy(0, LEN).unwrap();
        file.sync().unwrap();
        file.sync_redundancy().unwrap();
        file.close().unwrap();
        assert_eq!(space(&companion), claimed, "{engine}: bringing home takes space");
        place.rot(6_000 * PAGE, &[1]);
        assert_eq!(place.repair().repaired, [page(6_000)], "{engine}");
    }
}

/// Nothing of a hole is read, of the file or of its parity.
#[test]
fn a_scrub_of_a_hole_reads_nothing_of_it() {
    for layout in LAYOUTS {
        let place = sparse();
        let medium = Counting::new(PageCache::new());
        let bytes = medium.bytes_read();
        let protected = by_hand().stripe(4).layout(layout).open_on(medium.clone(), &place.path).unwrap();
        protected.sync().unwrap();
        assert_eq!(protected.scrub().unwrap().checked, LEN.div_ceil(PAGE_LEN), "{layout}");
        let read = medium.bytes_read() - bytes;
        // The tables, in both copies, as often as they are read; and what is read ahead.
        let most = 6 * space_of_tables(4) + (8 << 20);
        assert!(read < most, "{layout}: {read} of {most} bytes");
        protected.close().unwrap();
    }
}

#[test]
fn a_scrub_reads_a_megabyte_at_once() {
    const PAGES: usize = 3000;
    for layout in LAYOUTS {
        let place = Place::new(&vec![5; PAGES * PAGE - 10]);
        let medium = Counting::new(PageCache::new());
        let protected = by_hand().stripe(4).layout(layout).open_on(medium.clone(), &place.path).unwrap();
        protected.sync().unwrap();
        let (bytes, reads) = (medium.bytes_read(), medium.counts().reads);
        assert_eq!(protected.scrub().unwrap().checked, PAGES as u64);
        let (bytes, reads) = (medium.bytes_read() - bytes, medium.counts().reads - reads);
        assert!(bytes >= (PAGES * PAGE) as u64);
        // 256 pages are a megabyte; then there are ends, and superblocks.
        let most = (PAGES / 128 + 20) as u64;
        assert!(reads < most, "{layout}: {reads} reads for {PAGES} pages");
        protected.close().unwrap();
    }
}

/// A pass over stores all over a file flushes three times for each batch: the file, then checksums and parity, then the
/// cleared marks. Whatever the batches are, each page is covered, and a damaged page beside a store is put back first.
#[test]
fn a_pass_flushes_for_each_batch_and_covers_whatever_they_are() {
    const PAGES: u64 = 96;
    for layout in LAYOUTS {
        for batch in [1, 4, 6, 7, 32, 96, 1000] {
            let what = format!("{layout}, batches of {batch}");
            let place = Place::new(&crate::common::pattern(PAGES as usize * PAGE, batch));
            by_hand().stripe(4).layout(layout).open(&place.path).unwrap().close().unwrap();
            let medium = Counting::new(PageCache::new());
            let protected = by_hand().batch(batch).open_on(medium.clone(), &place.path).unwrap();
            // Every second page, and with it two of each stripe in either layout.
            let stored: Vec<u64> = (0..PAGES).filter(|number| number / 2 % 2 == 0).collect();
            for number in &stored {
                place.store(&protected, *number as usize * PAGE, b"stored");
            }
            assert_eq!(protected.coverage().unwrap().uncovered, stored.len() as u64, "{what}");
            let before = medium.counts();
            protected.sync().unwrap();
            let spent = medium.counts() - before;
            assert_eq!(protected.coverage().unwrap().uncovered, 0, "{what}");
            // A batch covers whole stripes, so up to four pages for each that it takes.
            let (batches, pages) = (spent.syncs, stored.len() as u64);
            let (least, most) = (pages.div_ceil(4 * batch), pages.div_ceil(batch));
            assert!((least..=most).contains(&batches), "{what}: {batches} of {least} to {most}");
            assert_eq!(spent.fences, 2 * batches, "{what}");
            // Damage beside a page that was announced and not changed: the old parity still fits. The pass puts the
            // damaged page back, which takes flushes of its own, before it makes the parity anew.
            let beside = if layout == StripeLayout::Consecutive { 2 } else { PAGES as usize / 4 };
            place.rot(beside * PAGE + 77, b"damage");
            drop(protected.announce(0..1).unwrap());
            let before = medium.counts();
            protected.sync().unwrap();
            let spent = medium.counts() - before;
            assert!(spent.syncs >= 2 && spent.fences >= 3, "{what}: {spent:?}");
            assert!(protected.coverage().unwrap().lost.is_empty(), "{what}");
            protected.close().unwrap();
            assert_eq!(place.damage(), vec![], "{what}");
            let here = beside * PAGE + 77..(beside + 1) * PAGE;
            let expected = crate::common::pattern(PAGES as usize * PAGE, batch);
            assert!(place.bytes()[here.clone()] == expected[here], "{what}: damage was covered");
        }
    }
}
