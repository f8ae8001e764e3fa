//! The C library's own functions, for what is not managed.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, found when it is first needed and kept.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Real { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The function's address, null if the C library has none of that name.
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends in a zero. Where it is found nothing is allocated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the C library's function of a name: `real!(read(fd: c_int) -> ssize_t)`. Without one: -1 and ENOSYS.
macro_rules! real {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty) => {{
        #[cfg(all(feature = "oracle", target_arch = "x86_64"))]
        let _pass = $crate::oracle::Pass::new();
        $crate::real::watched!($name($($argument: $type),*) -> $result)
    }};
}
pub(crate) use real;

/// The same, where a test build is to see what the function does to managed descriptors.
macro_rules! watched {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty) => {{
        static REAL: $crate::real::Real = {
            const NAME: &str = concat!(stringify!($name), "\0");
            match core::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                Ok(name) => $crate::real::Real::new(name),
                Err(_) => panic!("a name"),
            }
        };
        let address = REAL.address();
        if address.is_null() {
            $crate::layer::fail(libc::ENOSYS) as $result
        } else {
            // SAFETY: the C library's function of that name has this signature.
            let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { core::mem::transmute(address) };
            // SAFETY: the caller's arguments, handed on.
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use watched;
