//! The disk's requests, in order.

/// An instant in a log: the number of events before it. Each write, discard and flush has two events, its begin and its
/// end, because a device may execute several at once.
pub type Position = u64;

/// A kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Store bytes.
    Write {
        /// The offset in bytes from the start of the disk.
        offset: u64,
        /// The bytes.
        bytes: Box<[u8]>,
    },
    /// Make a range read as zeros: a discard or "write zeroes".
    Zero {
        /// The offset in bytes from the start of the disk.
        offset: u64,
        /// The length in bytes.
        len: u64,
    },
    /// Make completed requests durable.
    Flush,
}

/// A request and when it was served.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    /// The number of the event with which it began.
    pub(crate) begin: Position,
    /// The number of the event with which it ended; `None` if it was still in progress.
    pub(crate) end: Option<Position>,
}

/// All requests in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: Vec<Entry>,
    events: Position,
}

impl Log {
    /// Notes that a request arrived. Returns its number, for [`end`](Log::end).
    pub(crate) fn begin(&mut self, request: Request) -> usize {
        self.entries.push(Entry { request, begin: self.events, end: None });
        self.events += 1;
        self.entries.len() - 1
    }

    /// Notes that request `number` is complete. Call it before replying to the kernel: a request that the kernel knows
    /// to be complete must be complete in the log, or the log would let a crash undo it.
    pub(crate) fn end(&mut self, number: usize) {
        if let Some(entry) = self.entries.get_mut(number) {
            entry.end = Some(self.events);
            self.events += 1;
        }
    }

    /// The instant after everything in the log.
    pub fn position(&self) -> Position {
        self.events
    }

    /// The number of flushes.
    pub fn flushes(&self) -> usize {
        self.entries.iter().filter(|entry| entry.request == Request::Flush).count()
    }

    /// The number of writes and discards.
    pub fn writes(&self) -> usize {
        self.entries.len() - self.flushes()
    }

    /// The requests that had begun at an instant, oldest first.
    pub(crate) fn before(&self, at: Position) -> &[Entry] {
        &self.entries[..self.entries.partition_point(|entry| entry.begin < at)]
    }
}
