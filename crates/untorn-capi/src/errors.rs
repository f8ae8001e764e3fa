//! Errors as C programs see them: a number, and the last failure's text for each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use untorn_core::Error;
use untorn_core::testing::FirstUse;

use crate::abi::{self, untorn_error};

/// Why a call failed: the code it returns and the text for `untorn_error`.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Failure { code: code as c_int, message: message.into() }
    }

    /// An argument that no file could satisfy.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Failure::new(abi::UNTORN_EINVAL, message)
    }

    /// A failed system call about `what`.
    pub(crate) fn system(what: &str, error: &std::io::Error) -> Self {
        Failure::new(-i64::from(error.raw_os_error().unwrap_or(libc::EIO)), format!("{what}: {error}"))
    }

    /// The errno for functions that set one, where `abi` has a code no errno expresses.
    pub(crate) fn errno(&self) -> c_int {
        match i64::from(self.code) {
            abi::UNTORN_EPOISONED | abi::UNTORN_EINTERNAL => libc::EIO,
            abi::UNTORN_ESIDECAR_MISSING
            | abi::UNTORN_ESIDECAR_MISMATCH
            | abi::UNTORN_EMIXED_USE
            | abi::UNTORN_ESNAPSHOT
            | abi::UNTORN_ECOMMITS => libc::ESTALE,
            abi::UNTORN_ETXOPEN => libc::EBUSY,
            _ => -self.code,
        }
    }
}

/// The code of an error.
pub(crate) fn code_of(error: &Error) -> i64 {
    match error {
        Error::Poisoned { .. } => abi::UNTORN_EPOISONED,
        Error::SidecarMissing { .. } => abi::UNTORN_ESIDECAR_MISSING,
        Error::SidecarMismatch { .. } => abi::UNTORN_ESIDECAR_MISMATCH,
        Error::ModifiedExternally { .. } => abi::UNTORN_EMIXED_USE,
        Error::SnapshotEnded { .. } => abi::UNTORN_ESNAPSHOT,
        Error::CommitsMissing { .. } => abi::UNTORN_ECOMMITS,
        _ => -i64::from(error.errno()),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(code_of(&error), error.to_string())
    }
}

impl untorn_error {
    /// The struct with this code and as much of the message as fits, cut between characters.
    pub(crate) fn new(code: c_int, message: &str) -> Self {
        let mut error = untorn_error { code, message: [0; abi::UNTORN_MESSAGE_SIZE as usize] };
        let room = message.len().min(error.message.len() - 1);
        let fits = (0..=room).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        for (to, from) in error.message.iter_mut().zip(message[..fits].bytes()) {
            *to = from as c_char;
        }
        error
    }
}

thread_local! {
    static LAST: RefCell<untorn_error> = RefCell::new(untorn_error::new(0, ""));
}

/// Remembers the failure for `untorn_last_error` in this thread.
pub(crate) fn remember(failure: &Failure) {
    // A thread that is ending has no place for it any more; the code is still returned.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = untorn_error::new(failure.code, &failure.message);
        }
    });
}

/// The last failure of this thread.
pub(crate) fn last() -> untorn_error {
    LAST.try_with(|last| *last.borrow()).unwrap_or_else(|_| untorn_error::new(0, ""))
}

/// The text of this thread's last failure, which the next one replaces.
pub(crate) fn last_text() -> *const c_char {
    // The text ends with a zero and stays where it is as long as the thread lives.
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.message.as_ptr())).unwrap_or(c"".as_ptr())
}

/// The text of a code; it lives as long as the process.
pub(crate) fn text(code: c_int) -> &'static CStr {
    static SYSTEM: FirstUse<Vec<CString>> = FirstUse::new();
    let system = || {
        (0..256)
            .map(|errno| {
                let text = std::io::Error::from_raw_os_error(errno).to_string();
                let text = text.rsplit_once(" (os error").map_or(text.as_str(), |(text, _)| text);
                CString::new(text).unwrap_or_default()
            })
            .collect()
    };
    match i64::from(code) {
        0 => c"Success",
        abi::UNTORN_EFAULT => c"The range is not within the file",
        abi::UNTORN_EBUSY => c"The file is in use",
        abi::UNTORN_EROFS => c"The file is open read-only",
        abi::UNTORN_EOPNOTSUPP => c"This version does not know the format, feature or option",
        abi::UNTORN_EBADMSG => c"A sidecar, log, store or redundancy file is damaged",
        abi::UNTORN_EUCLEAN => c"The file was not closed cleanly and needs recovery",
        abi::UNTORN_EOWNERDEAD => c"The handle belongs to the process that opened it, not to its forked child",
        abi::UNTORN_EINTERNAL => c"Internal error in untorn; please report it",
        abi::UNTORN_EPOISONED => c"An earlier flush failed or a page was lost; close the file and open it again",
        abi::UNTORN_ESIDECAR_MISSING => c"The sidecar that holds committed bytes is missing",
        abi::UNTORN_ESIDECAR_MISMATCH => c"The sidecar does not belong to the file",
        abi::UNTORN_EMIXED_USE => c"Another program changed the file while its sidecar held committed bytes",
        abi::UNTORN_ESNAPSHOT => c"The snapshot has ended; take a new one",
        abi::UNTORN_ECOMMITS => c"Commits are not in the commit log; go on from a backup",
        abi::UNTORN_ETIMEDOUT => c"The commit is made, and the consumers of the commit log have not acknowledged it",
        abi::UNTORN_EAGAIN => c"The commit log is full until a consumer gets on; commit again",
        abi::UNTORN_ETXOPEN => c"Transactions of this handle are still open; end them first",
        code => usize::try_from(-code)
            .ok()
            .and_then(|errno| SYSTEM.get(system).get(errno))
            .map_or(c"Not an error code of untorn", CString::as_c_str),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let error = untorn_error::new(-5, &"ü".repeat(400));
        let bytes: Vec<u8> = error.message.iter().map(|&byte| byte as u8).collect();
        assert_eq!(&bytes[504..], &[0xc3, 0xbc, 0, 0]);
    }

    #[test]
    fn every_code_has_a_text_and_an_errno() {
        for &(name, code) in abi::CONSTANTS.iter().filter(|&&(_, code)| code < 0) {
            assert!(!text(code as c_int).is_empty(), "{name}");
            assert!((1..4096).contains(&Failure::new(code, "").errno()), "{name}");
        }
        assert_eq!(text(5), c"Not an error code of untorn");
        assert_eq!(text(c_int::MIN), c"Not an error code of untorn");
        assert_eq!(text(-libc::ENOENT), c"No such file or directory");
    }
}
