//! The C programs of the README and of the book compile without warnings, and do their work.

use std::process::Command;

use untorn_testing::documents::documents;

use crate::common::{Link, compile, succeed};

#[test]
fn programs_of_the_documents_run() {
    let mut count = 0;
    for document in documents() {
        for block in document.blocks.iter().filter(|block| block.is("c")) {
            let dir = tempfile::tempdir().unwrap();
            let source = dir.path().join(format!("line_{}.c", block.line));
            std::fs::write(&source, &block.code).unwrap();
            println!("{}:{}", document.path, block.line);
            let program = compile(&source, Link::Static, dir.path());
            succeed(Command::new(program).current_dir(dir.path()));
            count += 1;
        }
    }
    assert!(count > 0, "the documents have no C programs");
}
