//! The content of one file: copy-on-write pages, a length, a mark.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use twox_hash::XxHash3_64;
use untorn::testing::storage::{CommitNote, Mark};

use crate::rng::mix;

/// Bytes of a page: the unit of copying on write and of allocation.
pub(crate) const PAGE: u64 = 4096;

/// One page and, once someone asked, its hash. Zero stands for "not computed", so a page that hashes to zero is hashed
/// again each time, which is harmless.
#[derive(Debug)]
struct Page {
    bytes: [u8; PAGE as usize],
    hash: AtomicU64,
}

impl Clone for Page {
    fn clone(&self) -> Self {
        Page { bytes: self.bytes, hash: AtomicU64::new(0) }
    }
}

static ZERO: LazyLock<Arc<Page>> =
    LazyLock::new(|| Arc::new(Page { bytes: [0; PAGE as usize], hash: AtomicU64::new(0) }));

impl Page {
    fn hash(&self) -> u64 {
        match self.hash.load(Ordering::Relaxed) {
            0 => {
                let hash = XxHash3_64::oneshot(&self.bytes);
                self.hash.store(hash, Ordering::Relaxed);
                hash
            }
            hash => hash,
        }
    }
}

/// Bytes, holes, length and mark of a file in one view of it. A clone shares all pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// `None` is a hole: it reads as zeros and has no space of its own. Pages may lie beyond the length in the durable
    /// view, where a store outran the length that reaches it.
    pages: Arc<Vec<Option<Arc<Page>>>>,
    /// Length in bytes.
    pub(crate) len: u64,
    /// The mark.
    pub(crate) mark: Option<Mark>,
    /// The note of the last commit.
    pub(crate) note: Option<CommitNote>,
}

/// The parts of a byte range that lie in one page each: page index, range within the page.
fn by_page(at: u64, len: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = at + len;
    let mut next = at;
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let page = next / PAGE;
        let stop = ((page + 1) * PAGE).min(end);
        let range = (next - page * PAGE) as usize..(stop - page * PAGE) as usize;
        next = stop;
        Some((page as usize, range))
    })
}

impl Content {
    /// A hole of `len` bytes.
    pub(crate) fn hole(len: u64) -> Self {
        Content { pages: Arc::default(), len, mark: None, note: None }
    }

    pub(crate) fn read(&self, at: u64, dst: &mut [u8]) {
        let mut done = 0;
        for (index, range) in by_page(at, dst.len() as u64) {
            let part = &mut dst[done..done + range.len()];
            done += range.len();
            match self.pages.get(index) {
                Some(Some(page)) => part.copy_from_slice(&page.bytes[range]),
                _ => part.fill(0),
            }
        }
    }

    fn page_mut(&mut self, index: usize) -> &mut [u8; PAGE as usize] {
        let pages = Arc::make_mut(&mut self.pages);
        if pages.len() <= index {
            pages.resize(index + 1, None);
        }
        let page = Arc::make_mut(pages[index].get_or_insert_with(|| ZERO.clone()));
        *page.hash.get_mut() = 0;
        &mut page.bytes
    }

    /// Stores bytes, giving space to holes.
    pub(crate) fn write(&mut self, at: u64, src: &[u8]) {
        let mut done = 0;
        for (index, range) in by_page(at, src.len() as u64) {
            let part = &src[done..done + range.len()];
            done += range.len();
            self.page_mut(index)[range].copy_from_slice(part);
        }
    }

    /// The first offset of a range that has no space, if any.
    pub(crate) fn unallocated(&self, at: u64, len: u64) -> Option<u64> {
        by_page(at, len)
            .find(|(index, _)| !matches!(self.pages.get(*index), Some(Some(_))))
            .map(|(index, range)| index as u64 * PAGE + range.start as u64)
    }

    /// Pages that have space.
    pub(crate) fn allocated(&self) -> u64 {
        self.pages.iter().filter(|page| page.is_some()).count() as u64
    }

    /// Pages of a range that have none.
    pub(crate) fn lacking(&self, at: u64, len: u64) -> u64 {
        by_page(at, len).filter(|(index, _)| !matches!(self.pages.get(*index), Some(Some(_)))).count() as u64
    }

    /// Whether a page has space of its own.
    pub(crate) fn has_page(&self, index: u64) -> bool {
        matches!(self.pages.get(index as usize), Some(Some(_)))
    }

    /// Gives space to every page a range touches.
    pub(crate) fn allocate(&mut self, at: u64, len: u64) {
        if self.unallocated(at, len).is_none() {
            return;
        }
        let pages = Arc::make_mut(&mut self.pages);
        for (index, _) in by_page(at, len) {
            if pages.len() <= index {
                pages.resize(index + 1, None);
            }
            pages[index].get_or_insert_with(|| ZERO.clone());
        }
    }

    /// Makes a range read as zeros; whole pages in it give their space back.
    pub(crate) fn punch(&mut self, at: u64, len: u64) {
        let known = self.pages.len() as u64 * PAGE;
        let len = len.min(known.saturating_sub(at));
        for (index, range) in by_page(at, len) {
            if !matches!(self.pages.get(index), Some(Some(_))) {
                continue;
            }
            if range.len() as u64 == PAGE {
                Arc::make_mut(&mut self.pages)[index] = None;
            } else {
                self.page_mut(index)[range].fill(0);
            }
        }
    }

    /// Changes the length. Bytes beyond it are gone, also when the file grows again.
    pub(crate) fn set_len(&mut self, len: u64) {
        self.len = len;
        self.cut();
    }

    /// Drops what lies beyond the length.
    pub(crate) fn cut(&mut self) {
        let keep = self.len.div_ceil(PAGE) as usize;
        if self.pages.len() > keep {
            Arc::make_mut(&mut self.pages).truncate(keep);
        }
        let tail = (self.len % PAGE) as usize;
        if tail != 0
            && self.pages.len() == keep
            && let Some(Some(page)) = self.pages.last()
            && page.bytes[tail..].iter().any(|&byte| byte != 0)
        {
            self.page_mut(keep - 1)[tail..].fill(0);
        }
    }

    /// Takes the pages of another view, keeping length and mark.
    pub(crate) fn take_pages(&mut self, other: &Content) {
        self.pages = other.pages.clone();
    }

    /// A hash of bytes, length, mark and of which pages have space.
    pub(crate) fn digest(&self) -> u64 {
        let mut sum = mix(self.len ^ 0x6c65_6e67);
        if let Some(mark) = &self.mark {
            sum = sum.wrapping_add(XxHash3_64::oneshot(mark));
        }
        if let Some(note) = &self.note {
            sum = sum.wrapping_add(XxHash3_64::oneshot_with_seed(1, note));
        }
        for (index, page) in self.pages.iter().enumerate() {
            if let Some(page) = page {
                sum = sum.wrapping_add(mix(page.hash() ^ mix(index as u64 + 1)));
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shrink_forgets_what_lay_beyond() {
        let mut content = Content::hole(10_000);
        content.write(4090, &[7; 20]);
        content.set_len(4100);
        content.set_len(10_000);
        let mut read = [1; 20];
        content.read(4090, &mut read);
        assert_eq!(read, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_clone_is_another_file_and_a_digest_is_of_the_bytes() {
        let mut one = Content::hole(8192);
        one.write(5000, b"abc");
        let mut two = one.clone();
        assert_eq!(one.digest(), two.digest());
        two.write(5000, b"abd");
        assert_ne!(one.digest(), two.digest());
        two.write(5000, b"abc");
        two.allocate(0, 8192);
        assert_ne!(one.digest(), two.digest());
        two.punch(4096, 4096);
        assert_eq!(two.unallocated(0, 8192), Some(4096));
        let mut read = [1; 3];
        two.read(5000, &mut read);
        assert_eq!(read, [0; 3]);
    }
}
