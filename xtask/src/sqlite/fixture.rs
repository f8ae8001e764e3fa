//! SQLite's testfixture with the VFS as the default one.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::programs::quiet;

/// Loads the extension before a test script. SQLite makes its own VFS the default one whenever it starts anew, so the
/// extension is loaded after each start, in the interpreters that tests make, too. The tests expect the locks of
/// SQLite's own VFS, which readers with snapshots do not take, so there are none.
const PRELUDE: &str = r#"
proc load_untorn {} {
  sqlite3 untorn_loader :memory: -vfs unix
  untorn_loader enable_load_extension 1
  untorn_loader eval {SELECT load_extension($::env(UNTORN_SQLITE))}
  untorn_loader close
}
set untorn_start {
  rename sqlite3_initialize untorn_initialize
  proc sqlite3_initialize {} {
    set code [untorn_initialize]
    if {$code eq "SQLITE_OK"} { load_untorn }
    return $code
  }
}
eval $untorn_start
rename load_testfixture_extensions untorn_extensions
proc load_testfixture_extensions {name} {
  untorn_extensions $name
  interp eval $name [list proc load_untorn {} [info body load_untorn]]
  interp eval $name $::untorn_start
}
# Tests start further processes of this program.
rename open untorn_open
proc open {what args} {
  set own "[info nameofexec] "
  if {[regexp {^\| *} $what pipe] && [string first $own $what] == [string length $pipe]} {
    set rest [string range $what [string length $pipe$own] end]
    set what "|$own$::untorn_prelude $rest"
  }
  uplevel 1 [list untorn_open $what {*}$args]
}
rename exec untorn_exec
proc exec {args} {
  if {[lindex $args 0] eq [info nameofexec]} { set args [linsert $args 1 $::untorn_prelude] }
  uplevel 1 [list untorn_exec {*}$args]
}
set untorn_prelude [file normalize [info script]]
load_untorn
set argv0 [lindex $argv 0]
set argv [lrange $argv 1 end]
info script $argv0
source $argv0
"#;

/// Runs test scripts; whether SQLite found no error.
pub(super) fn run(root: &Path, library: &Path, fixture: &Path, tests: &[String]) -> io::Result<bool> {
    let at = crate::target(root, "sqlite-fixture");
    std::fs::create_dir_all(&at)?;
    let prelude = at.join("untorn.tcl");
    std::fs::write(&prelude, PRELUDE)?;
    let mut command: Command = quiet(&fixture.to_string_lossy());
    command.current_dir(&at).arg(&prelude).args(tests).env("UNTORN_SQLITE", library).env("SQLITE_UNTORN_DEFAULT", "1");
    command.env("SQLITE_UNTORN_SNAPSHOT", "off");
    Ok(command.status()?.success())
}
