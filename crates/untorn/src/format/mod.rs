//! Bytes on the medium that several products share. `docs/format.md` gives the reasons.
//!
//! - [`record`]: self-certifying records, with [`checksum`]; [`lane`] is what holds them.
//! - [`sidecar`]: the file beside a data file: whose it is, where its areas are, how it was left.
//! - [`dual_copy`]: superblocks in two copies, for every product.
//! - [`magic`]: the first bytes by which one product knows another's file.
//!
//! What only one product writes is in its own room: `file/reflection/layout`, `file/hybrid_log/format`,
//! `region/engine/format`, `write_cache/engine/format`, `redundancy/format`.

pub(crate) mod checksum;
pub(crate) mod dual_copy;
pub(crate) mod lane;
pub(crate) mod magic;
pub(crate) mod record;
pub(crate) mod sidecar;
