//! Bundles of objects: a writer makes them beside its work, and a reader takes them in place of the objects.
//!
//! # Invariants
//!
//! 1. A bundle has the bytes of objects that its writer has created, all of one epoch and in order. Objects never
//!    change, so a reader believes an object of a bundle as it believes the object itself, by the same checks.
//! 2. Nothing needs a bundle: one that is missing costs requests only.
//! 3. A bundle is deleted with the last of its objects.

use super::access::Access;
use crate::error::Result;
use crate::format::Place;
use crate::format::bundle::{bundle_name, decode, encode};

/// Levels of bundles. Those of each level have as many of the level below as these have objects.
const LEVELS: u32 = 2;

/// Bytes of the objects of a bundle at most, by level. A run of longer objects takes few requests without bundles.
const MOST: [u64; LEVELS as usize] = [4 << 20, 32 << 20];

/// The objects of a bundle of this level; 0 if there are no bundles.
fn span(access: &Access, level: u32) -> u64 {
    access.group.saturating_pow(level)
}

/// The bundles that end among these numbers of an epoch's objects.
pub(crate) fn names_within(access: &Access, epoch: u64, numbers: std::ops::Range<u64>) -> Vec<String> {
    let of_level = |level| {
        let span = span(access, level).max(1);
        let indices = numbers.start.div_ceil(span).saturating_sub(1)..numbers.end.saturating_sub(1) / span;
        let indices = if access.group > 0 && !numbers.is_empty() { indices } else { 0..0 };
        indices.map(move |index| bundle_name(epoch, level, index))
    };
    (1..=LEVELS).flat_map(of_level).collect()
}

/// Collects what a writer has created.
#[derive(Default)]
pub(crate) struct Bundler {
    objects: Vec<Vec<u8>>,
    bytes: u64,
}

impl Bundler {
    /// Adds the object at this place, which follows the one before it. Returns the bundle that it completes.
    pub(crate) fn add(&mut self, access: &Access, place: Place, object: Vec<u8>) -> Option<Bundle> {
        if access.group == 0 {
            return None;
        }
        self.bytes += object.len() as u64;
        if self.bytes <= MOST[0] {
            self.objects.push(object);
        } else {
            self.objects.clear();
        }
        if !place.seq.is_multiple_of(access.group) {
            return None;
        }
        let objects = std::mem::take(&mut self.objects);
        self.bytes = 0;
        (objects.len() as u64 == access.group).then_some(Bundle { end: place, objects })
    }
}

/// A bundle of level 1 that can be made.
pub(crate) struct Bundle {
    /// The place of its last object.
    end: Place,
    objects: Vec<Vec<u8>>,
}

impl Bundle {
    pub(crate) fn end(&self) -> Place {
        self.end
    }

    /// Makes it, and the one of the next level that it completes. Nothing may wait for that: it can be many requests.
    ///
    /// # Errors
    /// Those of the store. Nothing needs what was not made.
    pub(crate) fn make(&self, access: &Access) -> Result<()> {
        let (epoch, count) = (self.end.epoch, self.end.seq / access.group);
        put(access, &bundle_name(epoch, 1, count - 1), &self.objects)?;
        if !count.is_multiple_of(access.group) {
            return Ok(());
        }
        let (mut all, mut bytes) = (Vec::new(), 0);
        for below in count - access.group..count {
            let name = bundle_name(epoch, 1, below);
            let Some(found) = access.get(&name)? else { return Ok(()) };
            bytes += found.bytes.len() as u64;
            if bytes > MOST[1] {
                return Ok(());
            }
            all.extend(decode(&name, &found.bytes)?);
        }
        put(access, &bundle_name(epoch, 2, count / access.group - 1), &all)
    }
}

fn put(access: &Access, name: &str, objects: &[Vec<u8>]) -> Result<()> {
    // An earlier writer of this epoch cannot have made it, and one that is there is as good.
    access.create(name, &encode(name, objects, &access.nonce()?)).map(drop)
}

/// Objects that a reader got ahead.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead {
    /// The place of the first one.
    first: Place,
    objects: Vec<Vec<u8>>,
    /// A bundle was looked for.
    has_looked: bool,
}

impl Ahead {
    /// The bytes of the object at this place, if they are here.
    pub(crate) fn object(&self, place: Place) -> Option<&[u8]> {
        let index = place.seq.checked_sub(self.first.seq).filter(|_| place.epoch == self.first.epoch)?;
        self.objects.get(usize::try_from(index).ok()?).map(Vec::as_slice)
    }

    /// Gets the longest bundle that begins at this place, or the first time has it, and ends, as the epoch does, at
    /// `end` at the latest.
    ///
    /// # Errors
    /// Those of the store, and of a bundle that is damaged.
    pub(crate) fn fetch(&mut self, access: &Access, place: Place, end: u64) -> Result<()> {
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        for level in (1..=LEVELS).rev() {
            let (span, before) = (span(access, level), place.seq - 1);
            let Some(index) = before.checked_div(span) else { return Ok(()) };
            let begins = before.is_multiple_of(span);
            if !(begins || is_first) || index.saturating_add(1).saturating_mul(span) > end {
                continue;
            }
            let name = bundle_name(place.epoch, level, index);
            if let Some(found) = access.get(&name)? {
                self.first = Place { seq: index * span + 1, ..place };
                self.objects = decode(&name, &found.bytes)?;
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::DirectoryStore;

    fn access(dir: &tempfile::TempDir) -> Access {
        Access { group: 4, ..Access::new(Arc::new(DirectoryStore::new(dir.path()))) }
    }

    fn object(seq: u64) -> Vec<u8> {
        vec![seq as u8; seq as usize]
    }

    #[test]
    fn a_reader_gets_the_longest_bundle_that_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let (access, mut bundler) = (access(&dir), Bundler::default());
        // The store makes its directory for the record alone.
        access.create("owner", b"{}").unwrap();
        for seq in 1..=23 {
            if let Some(bundle) = bundler.add(&access, Place { epoch: 3, seq }, object(seq)) {
                bundle.make(&access).unwrap();
            }
        }
        let found = |seq, end| {
            let mut ahead = Ahead::default();
            ahead.fetch(&access, Place { epoch: 3, seq }, end).unwrap();
            (seq..).take_while(|seq| ahead.object(Place { epoch: 3, seq: *seq }) == Some(&object(*seq))).count()
        };
        assert_eq!((found(1, u64::MAX), found(17, u64::MAX), found(21, u64::MAX)), (16, 4, 0));
        // Not one that goes beyond the end of the epoch. A reader may begin within one.
        assert_eq!((found(1, 16), found(1, 15), found(1, 3), found(2, 100)), (16, 4, 0, 15));
        for name in names_within(&access, 3, 1..17) {
            assert!(access.get(&name).unwrap().is_some(), "{name}");
            access.delete(&name).unwrap();
        }
        assert_eq!((found(1, u64::MAX), found(17, u64::MAX)), (0, 4));
    }

    #[test]
    fn bundles_go_with_their_last_objects() {
        let dir = tempfile::tempdir().unwrap();
        let access = access(&dir);
        let names = |numbers| names_within(&access, 1, numbers);
        assert_eq!(names(1..4), Vec::<String>::new());
        assert_eq!(names(1..5), [bundle_name(1, 1, 0)]);
        assert_eq!(names(5..5), Vec::<String>::new());
        assert_eq!(
            names(5..17),
            [bundle_name(1, 1, 1), bundle_name(1, 1, 2), bundle_name(1, 1, 3), bundle_name(1, 2, 0)]
        );
        assert!(names_within(&Access { group: 0, ..access.clone() }, 1, 1..100).is_empty());
    }

    #[test]
    fn long_objects_are_in_no_bundle() {
        let dir = tempfile::tempdir().unwrap();
        let (access, mut bundler) = (access(&dir), Bundler::default());
        access.create("owner", b"{}").unwrap();
        for seq in 1..=8 {
            let len = if seq == 2 { MOST[0] as usize } else { 10 };
            if let Some(bundle) = bundler.add(&access, Place { epoch: 1, seq }, vec![0; len]) {
                bundle.make(&access).unwrap();
            }
        }
        let is_there = |index| access.get(&bundle_name(1, 1, index)).unwrap().is_some();
        assert_eq!((is_there(0), is_there(1)), (false, true));
    }
}
