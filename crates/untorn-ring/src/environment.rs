//! Environment variables, and programs that must not believe them.
//!
//! A program with more rights than its caller (setuid, setgid, file capabilities) gets its environment from that
//! caller. untorn's variables name files and sockets, so such a program ignores them, as the dynamic linker ignores
//! `LD_PRELOAD` there.
//!
//! # Safety
//! One call that only reads a number.
#![allow(unsafe_code)]

use std::ffi::OsString;

/// Whether the kernel says that this program has more rights than its caller. Source: `getauxval(3)`, AT_SECURE.
pub fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: reads a number that the kernel passed to the program.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of an environment variable; `None` in a program with more rights than its caller.
pub fn variable(name: &str) -> Option<OsString> {
    variable_unless(has_more_rights_than_its_caller(), name)
}

fn variable_unless(secure: bool, name: &str) -> Option<OsString> {
    if secure { None } else { std::env::var_os(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_more_rights_ignores_variables() {
        // Every test has it.
        const SET: &str = "PATH";
        assert!(!has_more_rights_than_its_caller());
        assert!(variable(SET).is_some() && variable_unless(false, SET).is_some());
        assert_eq!(variable_unless(true, SET), None);
    }

    /// The part of the test below that runs with more rights than its caller.
    #[test]
    fn says_what_it_believes() {
        if std::env::var_os(ASKED).is_some() {
            println!("rights: {}, variable: {:?}", has_more_rights_than_its_caller(), variable(ASKED));
        }
    }

    const ASKED: &str = "UNTORN_RING_ASKED";

    #[test]
    fn a_setuid_program_ignores_variables() {
        untorn_testing::needs!("root");
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::process::CommandExt;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = dir.path().join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let test = "environment::tests::says_what_it_believes";
        let mut command = std::process::Command::new(&program);
        command.args(["--exact", test, "--nocapture"]).env(ASKED, "yes").uid(65_534).gid(65_534);
        let said = command.output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        if said.contains("rights: false") {
            untorn_testing::skip!("programs in {} get no rights of their owner", dir.path().display());
        }
        assert!(said.contains("rights: true, variable: None"), "{said}");
    }
}
