//! The check of the book: mdBook makes it without a warning.

use std::io;
use std::process::Command;

use super::runner::{Context, Outcome};

/// Makes the book's pages. `cargo xtask tidy` checks its links and blocks, also on machines without mdBook.
pub(super) fn pages(context: &Context<'_>) -> io::Result<Outcome> {
    let mut mdbook = Command::new("mdbook");
    mdbook.current_dir(context.root).args(["build", "book", "--dest-dir"]);
    let output = mdbook.arg(crate::target(context.root, "book")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    print!("{}{said}", String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        return Ok(Outcome::Failed(format!("mdbook build: {}", output.status)));
    }
    Ok(said.lines().find(|line| line.contains("WARN")).map_or(Outcome::Passed, |line| Outcome::Failed(line.to_owned())))
}
