//! Libraries of the system that are loaded at run time: nothing of them is compiled or linked. A function's type is
//! taken from the library's C header, and its name is looked up once.

use std::ffi::{CStr, CString, c_char, c_void};

/// A library that is loaded, and stays so until the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    handle: *mut c_void,
    name: &'static str,
}

impl Library {
    /// Loads the first of these that is installed.
    ///
    /// # Errors
    /// A text that says which libraries are missing, and what the loader said.
    pub(super) fn load(names: &[&'static str]) -> Result<Library, String> {
        let mut said = String::new();
        for name in names {
            let text = CString::new(*name).map_err(|error| error.to_string())?;
            // SAFETY: the name ends in a NUL. The library is one of the distribution, whose initialisers may run in
            // any thread.
            let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { handle, name });
            }
            said = last_error();
        }
        Err(format!("{} is not installed ({said})", names.first().unwrap_or(&"a library")))
    }

    /// The address of a function, as a pointer to a function of type `F`.
    ///
    /// # Errors
    /// A text that names the function and the library.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to a function with the C calling convention, and its arguments and result must
    /// be those of the function in the library's header.
    pub(super) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a pointer to a function") };
        let text = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the handle is that of a loaded library, and the name ends in a NUL.
        let address = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        if address.is_null() {
            return Err(format!("{} has no function {name}; it is too old or too new", self.name));
        }
        // SAFETY: the address is that of the function, which has this type, as the caller promises. Both are pointers.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

fn last_error() -> String {
    // SAFETY: the function takes nothing. Its text is this thread's until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    // SAFETY: it is null or ends in a NUL, as above.
    unsafe { text_of(text) }.unwrap_or_else(|| "no reason given".to_owned())
}

/// A copy of a C string; `None` for null.
///
/// # Safety
/// It is null or ends in a NUL, and nobody changes it meanwhile.
pub(super) unsafe fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it ends in a NUL, as the caller promises.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Declares a table of a library's functions, with the types of its header, and `load`, which fills it.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident from $libraries:expr; $($name:ident: $type:ty;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $table {
            $($name: $type,)*
        }

        impl $table {
            fn load() -> std::result::Result<Self, String> {
                let library = $crate::compare::rivals::loaded::Library::load($libraries)?;
                Ok($table {
                    $(
                        // SAFETY: the type is that of the function in the library's header.
                        $name: unsafe { library.function(stringify!($name)) }?,
                    )*
                })
            }
        }
    };
}
pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named() {
        let error = Library::load(&["libnever-installed.so.9"]).unwrap_err();
        assert!(error.starts_with("libnever-installed.so.9 is not installed ("), "{error}");
    }

    #[test]
    fn functions_are_found_by_their_names() {
        let library = Library::load(&["libnever-installed.so.9", "libc.so.6"]).unwrap();
        // SAFETY: the type is that of `getpid(2)`.
        let getpid = unsafe { library.function::<unsafe extern "C" fn() -> i32>("getpid") }.unwrap();
        // SAFETY: the function takes nothing and cannot fail.
        assert_eq!(unsafe { getpid() }.unsigned_abs(), std::process::id());
        // SAFETY: nothing is found, so nothing is called.
        let error = unsafe { library.function::<unsafe extern "C" fn()>("no_such_function") }.unwrap_err();
        assert!(error.contains("libc.so.6 has no function no_such_function"), "{error}");
    }
}
