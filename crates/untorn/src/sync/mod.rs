//! The primitives that the threads of one process use to synchronize.
//!
//! Each but the [`pool`] of background threads is a plain word or an array of words without pointers, so that it can
//! move into memory shared by several processes. Each lock-free one has a model for `loom` (`cargo xtask loom`).
//!
//! Reading order: [`word_lock`], [`page_seqlock`], [`clean_bits`], [`slots`], [`writer_gate`], [`wake_flag`],
//! [`page_marks`], [`group_commit`], [`pool`].

pub(crate) mod clean_bits;
pub(crate) mod group_commit;
pub(crate) mod page_marks;
pub(crate) mod page_seqlock;
pub(crate) mod pool;
pub(crate) mod slots;
pub(crate) mod wake_flag;
pub(crate) mod word_lock;
pub(crate) mod writer_gate;
