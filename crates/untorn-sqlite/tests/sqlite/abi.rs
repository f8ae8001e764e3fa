//! The layout of SQLite's interface.

use untorn_testing::needs;
use untorn_testing::programs::succeed;

/// A C compiler finds each routine where `src/abi.rs` has it.
#[test]
fn routines_are_where_the_header_has_them() {
    needs!("cc");
    if !std::path::Path::new("/usr/include/sqlite3ext.h").exists() {
        untorn_testing::skip!("SQLite's header sqlite3ext.h is missing; it is in the package libsqlite3-dev");
    }
    let dir = tempfile::tempdir().unwrap();
    let program = r#"
        #include <sqlite3ext.h>
        #include <stddef.h>
        #define AT(name, place) \
            _Static_assert(offsetof(sqlite3_api_routines, name) == (place) * sizeof(void *), #name)
        AT(libversion_number, 67); AT(mprintf, 69); AT(vfs_find, 141); AT(vfs_register, 142);
        AT(log, 167); AT(uri_parameter, 189); AT(database_file_object, 251);
        _Static_assert(offsetof(sqlite3_vfs, xOpen) == 40, "xOpen");
        _Static_assert(offsetof(sqlite3_io_methods, xShmUnmap) == 17 * sizeof(void *) - sizeof(void *) , "xShmUnmap");
    "#;
    let source = dir.path().join("layout.c");
    std::fs::write(&source, program).unwrap();
    succeed(std::process::Command::new("cc").args(["-c", "-o", "/dev/null"]).arg(&source));
}
