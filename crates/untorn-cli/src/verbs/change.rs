//! `untorn create`, `write` and `resize`.

use std::io::{self, Read};
use std::path::Path;

use serde_json::json;
use untorn::{AtomicFile, Options};

use super::info;
use crate::cli;
use crate::exit::{Exit, Failure, Result};
use crate::{output, progress, size};

/// Creates a file.
pub(crate) fn create(args: &cli::Create) -> Result<Exit> {
    args.log.require(&[args.engine])?;
    let options = Options::new().engine(args.engine).layout(args.layout).keep_sidecar(args.keep.keep_sidecar);
    let mut options = progress::attach(args.log.apply(options));
    if let Some(durability) = args.durability {
        options = options.durability(durability);
    }
    if let Some(limit) = args.commit_log {
        options = options.commit_log(limit);
    }
    let file = options.create(&args.file, args.len)?;
    let info = file.info();
    file.close()?;
    let durable = durable(&args.file)?;
    let object = json!({
        "path": args.file.display().to_string(),
        "engine": info.engine.as_str(),
        "len": info.len,
        "commit": info.commit,
        "durability": info.durability.as_str(),
        "durable": durable,
        "layout": info.layout.map(untorn::options::Layout::as_str),
    });
    output::report(args.form.json, &object, || {
        let (path, len, engine, each) = (args.file.display(), size::show(info.len), info.engine, info.durability);
        let (made, then) = match args.keep.keep_sidecar {
            true => (format!("created {path}: {len}, engine {engine}"), format!("durable at each {each}")),
            false => (format!("created {path}: {len}, a plain file"), "each open chooses its engine".to_owned()),
        };
        if durable {
            return format!("{made}; {then}\n");
        }
        format!("{made}; NOT durable: a commit survives a killed process, not a power cut (`untorn doctor` says why)\n")
    })?;
    Ok(Exit::Clean)
}

/// Writes standard input as one commit.
pub(crate) fn write(args: &cli::Write) -> Result<Exit> {
    // Read standard input before opening the file, so that `untorn read f | ... | untorn write f` doesn't find the file
    // in use. Never read more than fits, so that an endless input ends.
    let len = info::settled_len(&args.file)?;
    let room = match len {
        Some(len) if args.offset > len => {
            let message = format!(
                "offset {} is past the end of the file (length {len}); nothing was written; run `untorn resize` first",
                args.offset
            );
            return Err(Failure::usage_at(&args.file, message));
        }
        Some(len) => len - args.offset,
        None => u64::MAX - 1,
    };
    let bytes = take_input(room + 1)?;
    if bytes.len() as u64 > room {
        let message = format!(
            "standard input holds more than the {room} bytes between offset {} and the end of the file; nothing was \
             written; run `untorn resize` first",
            args.offset
        );
        return Err(Failure::usage_at(&args.file, message));
    }
    let commit = with_file(&args.file, &args.sharing, &args.keep, |file| {
        file.write_at(&bytes, args.offset)?;
        Ok(file.sync()?)
    })?;
    let durable = durable(&args.file)?;
    let object = json!({
        "path": args.file.display().to_string(),
        "offset": args.offset,
        "bytes": bytes.len(),
        "commit": commit,
        "durable": durable,
    });
    output::report(args.form.json, &object, || {
        let count = output::count(bytes.len() as u64, "byte", "bytes");
        format!("commit {commit}: {count} at offset {}{}\n", args.offset, durability_note(durable))
    })?;
    Ok(Exit::Clean)
}

/// Changes the length.
pub(crate) fn resize(args: &cli::Resize) -> Result<Exit> {
    let (old, info) = with_file(&args.file, &args.sharing, &args.keep, |file| {
        let old = file.len();
        file.resize(args.len)?;
        Ok((old, file.info()))
    })?;
    let durable = durable(&args.file)?;
    let object = json!({
        "path": args.file.display().to_string(),
        "old_len": old,
        "len": info.len,
        "commit": info.commit,
        "durable": durable,
    });
    output::report(args.form.json, &object, || {
        let (old, new) = (size::show(old), size::show(info.len));
        format!("{}: from {old} to {new}{}\n", args.file.display(), durability_note(durable))
    })?;
    Ok(Exit::Clean)
}

/// Whether commits to a file survive a power cut.
pub(crate) fn durable(path: &Path) -> Result<bool> {
    Ok(untorn::testing::storage::is_durable(path)?)
}

/// The note on the line about a commit that a power cut takes.
pub(crate) fn durability_note(durable: bool) -> &'static str {
    if durable { "" } else { " (NOT durable: it survives a killed process, not a power cut)" }
}

/// Opens a file for writing, with a progress bar if it needs recovery first.
pub(crate) fn open(path: &Path) -> Result<AtomicFile> {
    Ok(progress::attach(Options::new()).open(path)?)
}

/// Opens a file, changes it, and closes it cleanly, also after an error: a refused request must not leave the file in
/// need of recovery.
pub(crate) fn with_file<T>(
    path: &Path,
    sharing: &cli::Sharing,
    keep: &cli::Keep,
    change: impl FnOnce(&AtomicFile) -> Result<T>,
) -> Result<T> {
    let options = Options::new().shared(sharing.shared).keep_sidecar(keep.keep_sidecar);
    let file = progress::attach(options).open(path)?;
    let result = change(&file);
    let closed = file.close();
    // If both failed, the first error is the cause.
    let value = result?;
    closed?;
    Ok(value)
}

/// Reads at most `limit` bytes of standard input.
pub(crate) fn take_input(limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::io("cannot read standard input", &error))?;
    Ok(bytes)
}
