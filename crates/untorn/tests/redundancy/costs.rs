//! What redundancy costs, counted and not timed.

use untorn::redundancy::StripeLayout;
use untorn::testing::storage::PageCache;

use crate::common::PAGE;
use crate::common::counting::Counting;
use crate::fixture::{Place, by_hand};

const LAYOUTS: [StripeLayout; 2] = [StripeLayout::Consecutive, StripeLayout::Spread];

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
