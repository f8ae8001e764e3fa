//! Regions: named sets of pages in one store, each committed as a whole (the Region System paper).
//!
//! [`RegionStore`] and [`Region`] copy pages in and out, [`RegionMap`] is a region as plain memory of one process,
//! [`SharedRegion`] that of several. All three are faces of `engine`, which keeps the bytes.
//!
//! Reading order: `engine` (the invariants), `exclusion` (no process opens a store whose region is shared),
//! `options`, `store`, `map`, `shared`, `commits`. Each uses only those before it.
//!
//! Lock order: see `engine`.

mod commits;
pub(crate) mod engine;
mod exclusion;
pub(crate) mod map;
mod options;
pub(crate) mod shared;
mod store;

pub use self::commits::forget_consumer;
pub use self::engine::{Audit, RegionInfo, StoreInfo};
pub use self::map::{RegionMap, RegionMapOptions};
pub use self::options::StoreOptions;
pub use self::shared::SharedRegion;
pub use self::store::{Region, RegionSnapshot, RegionStore};
