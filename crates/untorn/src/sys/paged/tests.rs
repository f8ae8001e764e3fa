//! Pages that are opened and closed, with guards and by protection, also where the kernel refuses.

use std::mem::ManuallyDrop;

use rustix::mm::{MapFlags, ProtFlags};

use super::*;
use crate::sys::in_forked_child;

fn both() -> [Paged; 2] {
    [Closing::Auto, Closing::Protection].map(new)
}

fn new(closing: Closing) -> Paged {
    Paged::new("t", 1 << 32, LostPage::Fail, closing, DirtyTracking::Auto).unwrap()
}

/// Whether a byte can be read, as a system call finds out.
fn can_be_read(memory: &Paged, page: u64) -> bool {
    let file = tempfile::tempfile().unwrap();
    // SAFETY: the kernel refuses memory that is not there.
    let written = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&file), memory.address(page).cast(), 1) };
    written == 1
}

fn open(memory: &Paged, pages: Range<u64>, byte: u8) {
    let mut opening = memory.opening();
    for run in opening.closed(pages) {
        let bytes = vec![byte; ((run.end - run.start) * PAGE) as usize];
        opening.check_exclusion(run.start, &bytes).unwrap();
    }
}

/// Has the kernel refuse this thread, from now on, to keep accesses from the page at an address, as it does where
/// that would take a mapping more than it grants. False if it takes no orders of that kind here.
pub(crate) fn refuse_to_close(page: *const u8) -> bool {
    refuse(libc::SYS_mprotect, page, libc::PROT_NONE)
}

/// Has the kernel refuse this thread, from now on, a call about the memory at an address, by its third argument.
fn refuse(call: libc::c_long, page: *const u8, third: libc::c_int) -> bool {
    let (low, high) = (page.addr() as u32, (page.addr() >> 32) as u32);
    // Load a word of the call's description, go on if it is this one, else let the call pass.
    let load = |at: u32| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: at };
    let is = |word: u32, to_the_end: u8| libc::sock_filter { code: 0x15, jt: 0, jf: to_the_end, k: word };
    let end = |verdict: u32| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: verdict };
    let mut filter = [
        load(0),
        is(call as u32, 7),
        load(16),
        is(low, 5),
        load(20),
        is(high, 3),
        load(32),
        is(third as u32, 1),
        end(libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: it concerns this thread alone.
    let sworn = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64) } == 0;
    let mode = u64::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: as above; the program is read while the call runs.
    sworn && unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) } == 0
}

#[test]
fn a_page_can_be_touched_from_its_opening_to_its_closing() {
    for mut memory in both() {
        assert!(!can_be_read(&memory, 5) && memory.bytes(&(5 * PAGE..6 * PAGE)).is_none());
        open(&memory, 5..6, 7);
        assert!(can_be_read(&memory, 5) && !can_be_read(&memory, 4) && !can_be_read(&memory, 6));
        open(&memory, 4..7, 8);
        let bytes = memory.bytes_mut(&(4 * PAGE..7 * PAGE)).unwrap();
        assert_eq!([bytes[0], bytes[4096], bytes[8192]], [8, 7, 8]);
        bytes[4096] = 9;
        memory.close(5..6).unwrap();
        assert!(!can_be_read(&memory, 5) && can_be_read(&memory, 4) && can_be_read(&memory, 6));
        assert!(memory.bytes(&(4 * PAGE..7 * PAGE)).is_none());
        open(&memory, 5..6, 0);
        assert_eq!(memory.bytes(&(5 * PAGE..6 * PAGE)).unwrap(), [0; 4096], "it holds what it was opened with");
        assert_eq!(memory.all_open(), [4, 5, 6]);
    }
}

#[test]
fn bytes_survive_settling_and_not_restoring() {
    for mut memory in both() {
        open(&memory, 0..2, 1);
        memory.bytes_mut(&(0..PAGE)).unwrap()[3] = 2;
        memory.settle(0..2).unwrap();
        assert_eq!(memory.bytes(&(0..4)).unwrap(), [1, 1, 1, 2]);
        memory.bytes_mut(&(0..PAGE)).unwrap()[3] = 3;
        memory.restore(0, &[4; 4096]).unwrap();
        assert_eq!(memory.bytes(&(0..4)).unwrap(), [4; 4]);
    }
}

/// With every mark that a tracker leaves: on a page that was stored to, that was given back, that is stored to again.
#[test]
fn closing_comes_to_an_end_whatever_was_marked() {
    for mut memory in both() {
        for round in 0..4 {
            open(&memory, 0..3, 1);
            for rest in 0..round {
                memory.bytes_mut(&(0..PAGE)).unwrap()[0] = 2;
                let extents = memory.extents();
                let (stored, all) = memory.tracking().take_stored(&extents, &super::super::runs::Runs::new());
                assert!(all.is_ok() && !stored.is_empty());
                if rest % 2 == 1 {
                    memory.settle(0..2).unwrap();
                }
            }
            memory.close(0..3).unwrap();
            assert!(!can_be_read(&memory, 0));
        }
    }
}

/// Every second page over a span for which protection alone would need more mappings than the kernel grants.
#[test]
fn alternate_pages_take_no_mappings_with_guards() {
    let memory = new(Closing::Auto);
    if !memory.has_guards() {
        untorn_testing::skip!("this kernel has no guards (Linux 6.15)");
    }
    for page in (0..1 << 18).step_by(2) {
        open(&memory, page..page + 1, 0);
    }
    assert!(can_be_read(&memory, (1 << 18) - 2) && !can_be_read(&memory, (1 << 18) - 1));
    assert_eq!(memory.extents(), [Range { start: 0, end: 1 << 30 }]);
}

/// Where the kernel refuses to let accesses through, as it does when a process has all the mappings it may have. Here
/// it is because another file is mapped over the pages, one that cannot be written to.
#[test]
fn a_page_that_could_not_be_opened_leaves_nothing_behind() {
    let readable = tempfile::NamedTempFile::new().unwrap();
    let obstacle = std::fs::File::open(readable.path()).unwrap();
    for closing in [Closing::Auto, Closing::Protection] {
        let memory = Paged::new("test", 1 << 30, LostPage::Fail, closing, DirtyTracking::PageTable).unwrap();
        let cover = |file: &dyn AsFd, flags: MapFlags| {
            // SAFETY: over two chunks of the test's own reservation, of which no page is open.
            let mapped = unsafe {
                let (at, len) = (memory.address(0).cast(), (2 * CHUNK * PAGE) as usize);
                rustix::mm::mmap(at, len, ProtFlags::empty(), flags | MapFlags::FIXED, file.as_fd(), 0)
            };
            mapped.unwrap();
        };
        cover(&obstacle, MapFlags::SHARED);
        let pages = CHUNK - 1..CHUNK + 1;
        assert!(memory.opening().check_exclusion(pages.start, &[7; 2 * PAGE as usize]).is_err());
        assert_eq!(memory.all_open(), [0_u64; 0]);
        cover(&memory.file, MapFlags::PRIVATE | MapFlags::NORESERVE);
        open(&memory, pages.clone(), 0);
        let bytes = memory.bytes(&(pages.start * PAGE..pages.end * PAGE)).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{closing:?}: it holds what it was opened with");
    }
}

#[test]
fn a_page_whose_memory_is_not_let_go_of_is_open_still() {
    // In a thread of its own, which takes what the kernel was told with it.
    let body = || {
        let mut memory = new(Closing::Protection);
        open(&memory, 0..3, 7);
        if !refuse(libc::SYS_madvise, memory.address(1), libc::MADV_DONTNEED) {
            untorn_testing::skip!("no system call can be made to fail here");
        }
        assert!(memory.close(1..2).is_err());
        assert_eq!(memory.all_open(), [0, 1, 2]);
        assert!(can_be_read(&memory, 1));
        assert_eq!(memory.bytes(&(PAGE..PAGE + 2)).unwrap(), [7, 7]);
    };
    std::thread::spawn(body).join().unwrap();
}

/// As far as the kernel came they had guards by then.
#[test]
fn pages_that_cannot_all_be_closed_are_all_open() {
    // In a process of its own: no other thread gets memory in the hole that is made here.
    let told = in_forked_child(|| {
        let mut memory = ManuallyDrop::new(new(Closing::Auto));
        if !memory.has_guards() {
            return 0;
        }
        open(&memory, 0..3, 7);
        // SAFETY: a page that nothing refers to.
        unsafe { rustix::mm::munmap(memory.address(1).cast(), PAGE as usize) }.unwrap();
        let Paged { memory: pages, open, .. } = &mut *memory;
        open.get_mut().unwrap().hide(pages, 0..3).unwrap_err();
        i32::from(!(memory.has(&(0..PAGE)) && can_be_read(&memory, 0) && can_be_read(&memory, 2)))
    });
    assert_eq!(told, Some(0));
}
