//! Golden files of redundancy: a companion file that the first version wrote is understood by every later one, and this
//! one writes the same bytes.
//!
//! `UNTORN_BLESS=1 cargo test -p untorn --test redundancy golden` writes them anew, which only a change of the format's
//! version may ask for. What differs from machine to machine is kept as zeros: whose companion file it is.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_64;
use untorn::redundancy::{Checksum, Damage, StripeLayout};

use crate::common::{PAGE, pattern};
use crate::fixture::{Place, by_hand, page};

/// Five pages and a bit, so that the last page is short and the last stripe, too.
const LEN: usize = 5 * PAGE + 100;
/// Both superblocks, two copies of two table blocks, three parity pages.
const SIDE_LEN: usize = (2 + 4 + 3) * PAGE;
const IDENTITY: std::ops::Range<usize> = 64..96;
const UUID: std::ops::Range<usize> = 40..56;

struct Case {
    name: &'static str,
    layout: StripeLayout,
    checksum: Checksum,
    /// Closed; else left while page 1 was being stored to.
    clean: bool,
}

const CASES: [Case; 2] = [
    Case { name: "redundancy-closed", layout: StripeLayout::Consecutive, checksum: Checksum::Crc32c, clean: true },
    Case { name: "redundancy-storing", layout: StripeLayout::Spread, checksum: Checksum::Xxh3, clean: false },
];

fn modified() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789)
}

fn set_modified(path: &Path) {
    File::options().write(true).open(path).unwrap().set_modified(modified()).unwrap();
}

fn seal(page: &mut [u8]) {
    let check = XxHash3_64::oneshot(&page[..4088]);
    page[4088..].copy_from_slice(&check.to_le_bytes());
}

/// Makes it the companion file of the data file with this inode number.
fn give_to(side: &mut [u8], inode: u64) {
    for superblock in side[..2 * PAGE].chunks_exact_mut(PAGE) {
        superblock[IDENTITY].fill(0);
        superblock[IDENTITY][8..16].copy_from_slice(&inode.to_le_bytes());
        seal(superblock);
    }
}

/// Gives it this UUID, and the table blocks with it.
fn name(side: &mut [u8], uuid: &[u8]) {
    let (superblocks, rest) = side.split_at_mut(2 * PAGE);
    for superblock in superblocks.chunks_exact_mut(PAGE) {
        superblock[UUID].copy_from_slice(uuid);
        seal(superblock);
    }
    for block in rest[..4 * PAGE].chunks_exact_mut(PAGE) {
        block[16..24].copy_from_slice(&uuid[..8]);
        seal(block);
    }
}

impl Case {
    fn kept(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{}.companion", self.name))
    }

    fn data(&self) -> Vec<u8> {
        let mut data = pattern(LEN, 1);
        if !self.clean {
            data[PAGE..PAGE + 6].copy_from_slice(b"stored");
        }
        data
    }

    /// What is written today, as it is kept.
    fn written(&self) -> Vec<u8> {
        let place = Place::new(&pattern(LEN, 1));
        set_modified(&place.path);
        let options = by_hand().stripe(2).layout(self.layout).checksum(self.checksum);
        let protected = options.open(&place.path).unwrap();
        // What the kernel did not let go of just then was written again, with another time, which the open noted.
        // What follows writes both copies of the superblock anew.
        set_modified(&place.path);
        protected.sync().unwrap();
        if self.clean {
            protected.close().unwrap();
        } else {
            let _stores = protected.announce(PAGE as u64..PAGE as u64 + 6).unwrap();
            place.write(PAGE, b"stored");
        }
        let mut side = fs::read(place.companion()).unwrap();
        assert_eq!(side.len(), SIDE_LEN);
        give_to(&mut side, 0);
        side
    }

    fn load(&self) -> Vec<u8> {
        let path = self.kept();
        let side = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(side.len(), SIDE_LEN, "{}", path.display());
        side
    }

    /// Puts the data file and its companion into a directory.
    fn place(&self) -> Place {
        let place = Place::new(&self.data());
        let (companion, mut side) = (place.companion(), self.load());
        fs::create_dir(companion.parent().unwrap()).unwrap();
        give_to(&mut side, fs::metadata(&place.path).unwrap().ino());
        fs::write(companion, &side).unwrap();
        set_modified(&place.path);
        place
    }
}

#[test]
fn golden_companions_are_understood() {
    for case in &CASES {
        if std::env::var_os("UNTORN_BLESS").is_some() {
            fs::write(case.kept(), case.written()).unwrap();
        }
        let place = case.place();
        let coverage = place.coverage();
        assert!(coverage.believed, "{}", case.name);
        assert_eq!((coverage.pages, coverage.stripe, coverage.stripes), (6, 2, 3), "{}", case.name);
        assert_eq!((coverage.layout, coverage.checksum), (case.layout, case.checksum), "{}", case.name);
        assert_eq!(coverage.uncovered, u64::from(!case.clean), "{}", case.name);
        let report = place.scrub();
        assert!(report.is_clean(), "{}: {report:?}", case.name);

        // Of a page that no stripe shares with the one that is uncovered.
        place.rot(2 * PAGE, b"damage");
        let report = place.repair();
        assert_eq!(report.scrub.damage, [Damage::Page(page(2))], "{}", case.name);
        assert_eq!(report.repaired, [page(2)], "{}", case.name);
        assert!(place.bytes() == case.data(), "{}", case.name);
        assert_eq!(place.coverage().history.repaired, 1, "{}", case.name);
    }
}

#[test]
fn todays_redundancy_file_equals_the_golden_one() {
    for case in &CASES {
        let (golden, mut written) = (case.load(), case.written());
        name(&mut written, &golden[UUID]);
        let differs = (0..SIDE_LEN).find(|&at| golden[at] != written[at]);
        assert_eq!(differs, None, "{}: the first byte that differs", case.name);
    }
}
