//! Self-certifying records: their bytes, the lanes that hold them, and the sharing of device flushes.

pub(crate) mod group;
pub(crate) mod lane;
pub(crate) mod record;
