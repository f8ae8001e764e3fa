//! Finds locks that a forked child could wait for forever.
//!
//! A forked child has only the thread that called `fork`. If another thread of the parent held a lock of the standard
//! library, or was making a value lazily under one, the child waits for that thread for ever.

use super::source::{in_identifier, words};
use super::{Finding, Tree};

/// The crates that a program links against.
const LIBRARIES: [&str; 2] = ["crates/untorn/src/", "crates/untorn-capi/src/"];

/// The types that contain a lock.
const WAITS: [&str; 6] = ["OnceLock", "LazyLock", "Once", "Mutex", "RwLock", "Condvar"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust() && LIBRARIES.iter().any(|at| file.path.starts_with(at)))
    {
        if file.path.ends_with("/tests.rs") || file.path.contains("/tests/") {
            continue;
        }
        let code = file.code_without_tests();
        for at in words(&code, "static") {
            // `&'static` is a lifetime.
            let declared = code[at + 6..].trim_start();
            if code[..at].ends_with('\'') || !declared.starts_with(in_identifier) {
                continue;
            }
            let declared = declared.split(['=', ';']).next().unwrap_or_default();
            let Some((_, kind)) = declared.split_once(':') else { continue };
            let kind = kind.trim();
            let name = kind.split(|c| !in_identifier(c) && c != ':').next().unwrap_or_default();
            if let Some(waits) = WAITS.iter().find(|waits| name.rsplit("::").next() == Some(**waits)) {
                let instead = "use `FirstUse`, `PerProcess` or `OnceForAll`";
                let message = format!("a forked child may wait forever for a static {waits}; {instead}");
                findings.push(Finding::new(file, file.line_of(at), message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_static_that_a_forked_child_may_wait_for_is_found() {
        let text = "static A: OnceLock<u8> = OnceLock::new();\n\
                    fn f() { static B: std::sync::Once = Once::new(); }\n\
                    pub(crate) static C: Mutex<\n Vec<u8>> = Mutex::new(Vec::new());\n\
                    static D: LazyLock<u8> = LazyLock::new(|| 1);\n";
        assert_eq!(lines("crates/untorn/src/a.rs", text), [1, 2, 3, 5]);
        assert_eq!(lines("crates/untorn-capi/src/a.rs", text), [1, 2, 3, 5]);
        assert!(lines("crates/untorn-cli/src/a.rs", text).is_empty());
    }

    #[test]
    fn statics_that_no_child_waits_for_are_fine() {
        let text = "static A: PerProcess<Mutex<u8>> = PerProcess::new();\n\
                    static B: FirstUse<u8> = FirstUse::new();\n\
                    fn f(a: &'static Mutex<u8>) -> MutexGuard<'static, u8> { a.lock() }\n\
                    struct S { a: Mutex<u8> }\n\
                    static C: OnceForAll = OnceForAll::new();\n\
                    #[cfg(test)]\nmod tests { static D: Mutex<u8> = Mutex::new(1); }\n";
        assert!(lines("crates/untorn/src/a.rs", text).is_empty());
        assert!(lines("crates/untorn/src/a/tests.rs", "static D: Mutex<u8> = Mutex::new(1);").is_empty());
    }
}
