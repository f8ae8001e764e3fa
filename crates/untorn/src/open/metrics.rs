//! Counts what engines and media do, in a build with the feature `metrics`.

use std::path::Path;

use crate::engine::Engine;
use crate::engine::metered::Metered;
use crate::storage::Medium;
use crate::storage::counted::Counted;

/// A medium whose work for a data file is counted.
pub(super) fn counted<M: Medium>(medium: M, path: &Path) -> Counted<M> {
    Counted::new(medium, path)
}

/// An engine whose work is counted.
pub(super) fn metered(engine: Box<dyn Engine>) -> Box<dyn Engine> {
    Box::new(Metered::new(engine))
}
