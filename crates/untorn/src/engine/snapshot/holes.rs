//! Which bytes of an engine's file need not be read, because they are zeros.
//!
//! # Invariants
//!
//! 1. The pages are looked over for bytes that are not at home first, and the holes of the data file are asked for
//!    afterwards. A page that is wholly at home stays so until it is written to, so at the second look its home tells
//!    all of it.
//! 2. What came home between the two looks is data at the second one.

use std::ops::Range;

use super::PAGE;
use crate::error::Result;

/// The first range at `offset` or behind it, up to `len`, that may hold other bytes than zeros. `home` asks for that
/// in the data file alone, and `elsewhere` for the first run of pages, among those of a range, with bytes that are not
/// at home or are just changing.
///
/// # Errors
/// Those of `home`.
pub(crate) fn data_from(
    offset: u64,
    len: u64,
    home: impl Fn(u64) -> Result<Option<Range<u64>>>,
    elsewhere: impl Fn(Range<u64>) -> Option<Range<u64>>,
) -> Result<Option<Range<u64>>> {
    if offset >= len {
        return Ok(None);
    }
    let home = || Ok(home(offset)?.filter(|found| found.start < len).unwrap_or(len..len));
    let bytes = PAGE as u64;
    let first = home()?;
    // The rest of the look is only as long as the hole.
    let pages = offset / bytes..first.start.div_ceil(bytes);
    let found = match elsewhere(pages) {
        Some(pages) if pages.start * bytes < first.start => {
            (pages.start * bytes).max(offset)..(pages.end * bytes).min(len)
        }
        _ => first,
    };
    let second = home()?;
    let found = if second.start < found.start { second } else { found };
    Ok((found.start < len).then(|| found.start..found.end.min(len)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LEN: u64 = 100 * PAGE as u64;

    /// Bytes of pages.
    fn bytes(pages: Range<u64>) -> Range<u64> {
        pages.start * PAGE as u64..pages.end * PAGE as u64
    }

    #[test]
    fn the_nearer_of_home_and_elsewhere_is_found() {
        for (home, other, found) in [
            (None, None, None),
            (Some(3..5), None, Some(3..5)),
            (None, Some(7..8), Some(7..8)),
            (Some(3..5), Some(2..3), Some(2..3)),
            (Some(3..5), Some(4..9), Some(3..5)),
            (Some(90..200), None, Some(90..100)),
            (Some(100..200), None, None),
        ] {
            let got = data_from(0, LEN, |_| Ok(home.clone().map(bytes)), |_| other.clone()).unwrap();
            assert_eq!(got, found.clone().map(bytes), "{home:?} {other:?}");
        }
        assert_eq!(data_from(LEN, LEN, |_| Ok(None), |_| None).unwrap(), None);
        let within = data_from(5000, LEN, |_| Ok(None), |pages| Some(pages.start..pages.start + 2)).unwrap();
        assert_eq!(within, Some(5000..3 * PAGE as u64));
    }

    /// A page that leaves the sidecar between the look at the pages and the look at the file.
    #[test]
    fn a_page_that_comes_home_in_between_is_found() {
        let is_home = Cell::new(false);
        let home = |_| Ok(is_home.get().then(|| bytes(4..5)));
        let elsewhere = |_| {
            is_home.set(true);
            None
        };
        assert_eq!(data_from(0, LEN, home, elsewhere).unwrap(), Some(bytes(4..5)));
    }
}
