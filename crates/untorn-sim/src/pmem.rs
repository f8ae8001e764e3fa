//! Persistent memory: eight-byte words, cache lines, fences of one thread.

use crate::effects::{Effect, Log, What};

/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;

/// A write-back of cache lines that was started and not yet fenced.
#[derive(Clone, Debug)]
pub(crate) struct Flush {
    thread: u64,
    first: u64,
    last: u64,
    call: u64,
}

/// In place of a thread's number: the store has left its thread's buffers, and any thread's fence covers it.
const ANY: u64 = u64::MAX;

/// Splits a store into the units that do not tear: whole aligned words; at ragged ends single bytes, for nothing is
/// known of how a copy routine cuts those.
pub(crate) fn push(log: &mut Log, call: u64, thread: u64, cached: bool, at: u64, src: &[u8]) {
    let mut done = 0;
    while done < src.len() {
        let here = at + done as u64;
        let left = src.len() - done;
        let len = if here.is_multiple_of(8) && left >= 8 { 8 } else { 1 };
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&src[done..done + len]);
        log.push(call, What::Word { at: here, len: len as u8, bytes, thread, cached });
        done += len;
    }
}

/// The write-back of the lines of a range, by one thread.
pub(crate) fn flush(thread: u64, call: u64, at: u64, len: u64) -> Option<Flush> {
    (len > 0).then(|| Flush { thread, first: at / LINE, last: (at + len - 1) / LINE, call })
}

/// Whether a flush of these lines at this call covers the effect.
pub(crate) fn flushes(flush: &Flush, effect: &Effect) -> bool {
    match effect.what {
        What::Word { at, cached: true, .. } => {
            let line = at / LINE;
            flush.first <= line && line <= flush.last && effect.call < flush.call
        }
        _ => false,
    }
}

/// Whether a fence of this thread makes the effect certain: its own non-temporal words, and the cached ones it flushed.
/// A prefix of a line is flushed whole, so program order within the line holds by itself.
pub(crate) fn fences(thread: u64, pending: &[Flush], effect: &Effect) -> bool {
    match effect.what {
        What::Word { cached: false, thread: by, .. } => by == thread || by == ANY,
        What::Word { cached: true, .. } => pending.iter().any(|flush| flush.thread == thread && flushes(flush, effect)),
        _ => false,
    }
}

/// Whether the end of a process makes the effect certain. Leaving user mode for good drains the write-combining
/// buffers and completes flushes that were started; lines that no thread flushed stay in the cache.
pub(crate) fn drained(pending: &[Flush], effect: &Effect) -> bool {
    match effect.what {
        What::Word { cached: false, .. } => true,
        What::Word { cached: true, .. } => pending.iter().any(|flush| flushes(flush, effect)),
        _ => false,
    }
}

/// Forgets the flushes a fence of this thread has completed.
pub(crate) fn forget(thread: u64, pending: &mut Vec<Flush>) {
    pending.retain(|flush| flush.thread != thread);
}

impl Flush {
    /// Cache lines it covers.
    pub(crate) fn lines(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// Whether the effect is a non-temporal word of another thread.
pub(crate) fn buffered_elsewhere(thread: u64, effect: &Effect) -> bool {
    matches!(effect.what, What::Word { cached: false, thread: by, .. } if by != thread && by != ANY)
}

/// Takes the streaming stores of a thread out of its buffers.
pub(crate) fn order(log: &mut Log, thread: u64) {
    for effect in &mut log.effects {
        match &mut effect.what {
            What::Word { cached: false, thread: by, .. } if *by == thread => *by = ANY,
            _ => {}
        }
    }
}
