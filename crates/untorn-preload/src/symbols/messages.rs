//! Messages that hand descriptors to other processes, which may not have the layer.

use core::ffi::{c_int, c_uint};
use core::mem::size_of;

use libc::{cmsghdr, mmsghdr, msghdr, ssize_t};

use super::calls;
use crate::layer::{boosts, demoted};
use crate::settings::seen;

/// Control messages begin at multiples of this.
const ALIGNED: usize = size_of::<usize>();

/// Makes the files of descriptors that a message hands on plain ones, where files are boosted. What the call fails
/// with, if that fails.
///
/// # Safety
/// `message` is null or points to a message of the program's.
pub(super) unsafe fn passing(message: *const msghdr) -> Option<i64> {
    if !seen() || !boosts() {
        return None;
    }
    // SAFETY: the caller's.
    let message = unsafe { message.as_ref() }?;
    let header = size_of::<cmsghdr>();
    let mut at = 0_usize;
    while !message.msg_control.is_null() && at.checked_add(header)? <= message.msg_controllen {
        // SAFETY: within the control messages, whose length the program gave.
        let control = unsafe { message.msg_control.wrapping_byte_add(at).cast::<cmsghdr>().read_unaligned() };
        let len = control.cmsg_len.min(message.msg_controllen - at);
        if len < header {
            return None;
        }
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for number in 0..(len - header) / size_of::<c_int>() {
                let place = message.msg_control.wrapping_byte_add(at + header).cast::<c_int>().wrapping_add(number);
                // SAFETY: within the control message.
                let failed = demoted(c"sendmsg", &[unsafe { place.read_unaligned() }]);
                if failed.is_some() {
                    return failed;
                }
            }
        }
        at = at.checked_add(len.next_multiple_of(ALIGNED))?;
    }
    None
}

/// The same of several.
///
/// # Safety
/// `messages` points to `count` of them.
unsafe fn passing_any(messages: *const mmsghdr, count: c_uint) -> Option<c_int> {
    if !seen() || !boosts() || messages.is_null() {
        return None;
    }
    (0..count as usize).find_map(|number| {
        // A message of several begins with a message.
        let message = messages.wrapping_add(number).cast::<msghdr>();
        // SAFETY: the caller's.
        let failed = unsafe { passing(message) };
        failed.map(|failed| failed as c_int)
    })
}

// SAFETY (of both): the program's messages.
calls! {
    [sendmsg](socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t =
        // SAFETY: see above.
        unsafe { passing(message) }.map(|failed| failed as ssize_t);
    [sendmmsg](socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int =
        // SAFETY: see above.
        unsafe { passing_any(messages, count) };
}
