//! Writes the initial inputs of every fuzz target: `cargo run -p untorn-fuzz --example seed_corpus -- DIR`.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: seed_corpus DIR"))?);
    for target in untorn_fuzz::TARGETS {
        let directory = corpus.join(target.name);
        fs::create_dir_all(&directory)?;
        for (n, seed) in (target.seeds)().iter().enumerate() {
            fs::write(directory.join(format!("seed-{n:02}")), seed)?;
        }
    }
    Ok(())
}
