//! How a medium over another one passes calls on.

/// Implements methods of `Medium`, `Names` and `MediumFile`: each calls the same method of a field. A medium over
/// another one lists the calls that it passes on, and writes those that it changes.
///
/// With `after`, the named method of `self` comes first, and its error ends the call. The place of use imports the
/// types of the signatures.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward {
    ($to:ident: $($method:ident),+) => { $crate::__forward!(@each [$to] $($method),+); };
    ($to:ident after $($check:ident).+: $($method:ident),+) => {
        $crate::__forward!(@each [$to $($check).+] $($method),+);
    };
    (@each $by:tt $($method:ident),+) => { $($crate::__forward!(@$method $by);)+ };

    (@class $by:tt) => { $crate::__forward!(@fn $by class() -> MediumClass); };
    (@order $by:tt) => { $crate::__forward!(@fn $by order() -> ()); };
    (@makes_check $by:tt) => { $crate::__forward!(@fn $by makes_check(check: Barrier) -> bool); };
    (@unique $by:tt) => { $crate::__forward!(@fn $by unique() -> Result<[u8; 16]>); };
    (@commit_time $by:tt) => { $crate::__forward!(@fn $by commit_time() -> u64); };
    (@now $by:tt) => { $crate::__forward!(@fn $by now() -> u64); };
    (@booted $by:tt) => { $crate::__forward!(@fn $by booted() -> u64); };
    (@relax $by:tt) => { $crate::__forward!(@fn $by relax(round: u32) -> ()); };

    (@exists $by:tt) => { $crate::__forward!(@fn $by exists(path: &Path) -> Result<bool>); };
    (@list $by:tt) => { $crate::__forward!(@fn $by list(dir: &Path) -> Result<Vec<OsString>>); };

    (@len $by:tt) => { $crate::__forward!(@fn $by len() -> u64); };
    (@identity $by:tt) => { $crate::__forward!(@fn $by identity() -> Result<Identity>); };
    (@descriptor $by:tt) => { $crate::__forward!(@fn $by descriptor() -> Option<BorrowedFd<'_>>); };
    (@is_removed $by:tt) => { $crate::__forward!(@fn $by is_removed() -> Result<bool>); };
    (@changed_by_others $by:tt) => { $crate::__forward!(@fn $by changed_by_others() -> ()); };
    (@stamp $by:tt) => { $crate::__forward!(@fn $by stamp() -> Result<Stamp>); };
    (@begin_own_changes $by:tt) => { $crate::__forward!(@fn $by begin_own_changes() -> Result<()>); };
    (@is_disturbed $by:tt) => { $crate::__forward!(@fn $by is_disturbed() -> Result<bool>); };
    (@notes_stores $by:tt) => { $crate::__forward!(@fn $by notes_stores() -> bool); };
    (@mark $by:tt) => { $crate::__forward!(@fn $by mark() -> Result<MarkState>); };
    (@set_mark $by:tt) => { $crate::__forward!(@fn $by set_mark(mark: Option<Mark>) -> Result<()>); };
    (@commit_note $by:tt) => { $crate::__forward!(@fn $by commit_note() -> Result<Option<CommitNote>>); };
    (@set_commit_note $by:tt) => { $crate::__forward!(@fn $by set_commit_note(note: CommitNote) -> Result<()>); };
    (@try_lock $by:tt) => { $crate::__forward!(@fn $by try_lock(kind: LockKind) -> Result<bool>); };

    (@read $by:tt) => { $crate::__forward!(@reads $by read -> Result<()>); };
    (@try_read $by:tt) => { $crate::__forward!(@reads $by try_read -> bool); };
    (@read_stored $by:tt) => { $crate::__forward!(@reads $by read_stored -> Result<()>); };
    (@read_unless_bad $by:tt) => { $crate::__forward!(@reads $by read_unless_bad -> Result<bool>); };
    (@read_stored_unless_bad $by:tt) => { $crate::__forward!(@reads $by read_stored_unless_bad -> Result<bool>); };

    (@write $by:tt) => { $crate::__forward!(@writes $by write -> Result<()>); };
    (@store $by:tt) => { $crate::__forward!(@writes $by store -> Result<()>); };
    (@write_unpromised $by:tt) => { $crate::__forward!(@writes $by write_unpromised -> Result<()>); };
    (@write_anew $by:tt) => { $crate::__forward!(@writes $by write_anew -> Result<()>); };
    (@write_anew_unless_bad $by:tt) => { $crate::__forward!(@writes $by write_anew_unless_bad -> Result<bool>); };
    (@write_parts $by:tt) => { $crate::__forward!(@fn $by write_parts(offset: u64, parts: &[&[u8]]) -> Result<()>); };
    (@write_lines $by:tt) => {
        $crate::__forward!(@fn $by write_lines(offset: u64, src: &[u8], lines: u64) -> Result<()>);
    };
    (@prefetch $by:tt) => { $crate::__forward!(@fn $by prefetch(offset: u64) -> ()); };
    (@prefetch_to_store $by:tt) => { $crate::__forward!(@fn $by prefetch_to_store(offset: u64) -> ()); };
    (@start_writeback $by:tt) => { $crate::__forward!(@fn $by start_writeback(offset: u64, len: u64) -> ()); };
    (@flush $by:tt) => { $crate::__forward!(@fn $by flush(barrier: Barrier, offset: u64, len: u64) -> ()); };

    (@data_from $by:tt) => { $crate::__forward!(@fn $by data_from(offset: u64) -> Result<Option<Range<u64>>>); };
    (@next_data $by:tt) => { $crate::__forward!(@fn $by next_data(offset: u64) -> Option<u64>); };
    (@set_len $by:tt) => { $crate::__forward!(@fn $by set_len(len: u64) -> Result<()>); };
    (@allocate $by:tt) => { $crate::__forward!(@fn $by allocate(offset: u64, len: u64) -> Result<()>); };
    (@own_space $by:tt) => { $crate::__forward!(@fn $by own_space(offset: u64, len: u64) -> u64); };
    (@punch $by:tt) => { $crate::__forward!(@fn $by punch(offset: u64, len: u64) -> Result<()>); };
    (@sync $by:tt) => { $crate::__forward!(@fn $by sync(barrier: Barrier) -> Result<()>); };
    (@distrust_cache $by:tt) => {
        $crate::__forward!(@fn $by distrust_cache(barrier: Barrier, offset: u64, len: u64) -> Result<()>);
    };

    (@reads $by:tt $method:ident -> $gives:ty) => {
        $crate::__forward!(@fn $by $method(offset: u64, dst: &mut [u8]) -> $gives);
    };
    (@writes $by:tt $method:ident -> $gives:ty) => {
        $crate::__forward!(@fn $by $method(offset: u64, src: &[u8]) -> $gives);
    };
    (@fn [$to:ident $($($check:ident).+)?] $method:ident($($given:ident: $of:ty),*) -> $gives:ty) => {
        #[inline(always)]
        fn $method(&self, $($given: $of),*) -> $gives {
            $(self.$($check).+()?;)?
            self.$to.$method($($given),*)
        }
    };
}

pub use __forward as forward;
