//! Self-certifying records: their bytes and checksums, the lanes that hold them, and the sharing of device flushes.

pub(crate) mod group;
pub(crate) mod lane;
pub(crate) mod record;
pub(crate) mod sum;
