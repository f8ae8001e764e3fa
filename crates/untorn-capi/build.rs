//! Gives the shared library its SONAME: `libuntorn.so`, or what `UNTORN_SONAME` says, for packages that install it
//! under a versioned name. And it stays loaded once it is: the process may come to its handler of SIGBUS at any time.

use std::path::Path;

/// In the repository `include` is a link to the directory at its root; a package has the files themselves.
const HEADER: &str = "include/untorn.h";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={HEADER}");
    assert!(Path::new(HEADER).is_file(), "the C headers are missing: {HEADER}");
    println!("cargo::rerun-if-env-changed=UNTORN_SONAME");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // For `cargo cinstall`, which names the library itself.
    if std::env::var_os("CARGO_FEATURE_CAPI").is_some() {
        return;
    }
    let soname = std::env::var("UNTORN_SONAME").unwrap_or_else(|_| "libuntorn.so".to_owned());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
}
