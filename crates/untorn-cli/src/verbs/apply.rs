//! `untorn apply`: JSON lines as one transaction.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use untorn::Error;

use super::{change, info};
use crate::cli::Apply;
use crate::exit::{Exit, Failure, Result};
use crate::output;

/// One line of input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    offset: u64,
    hex: String,
}

/// One write, and the number of its line.
#[derive(Debug, PartialEq, Eq)]
struct Write {
    line: usize,
    offset: u64,
    bytes: Vec<u8>,
}

/// Applies all lines of standard input, or none.
pub(crate) fn run(args: &Apply) -> Result<Exit> {
    // Inspect the file first, so that a wrong name fails before any input is read. Open it last, so that a bad line
    // never finds it open.
    let len = info::settled_len(&args.file)?;
    let input = change::take_input(u64::MAX)?;
    let writes =
        parse(&input).map_err(|message| Failure::usage_at(&args.file, format!("{message}; nothing was applied")))?;
    // Refuse what can be refused without opening the file, so that a plain file doesn't get a sidecar for nothing.
    if let Some(file_len) = len {
        for write in &writes {
            check_range(&args.file, write, file_len)?;
        }
    }
    let commit = change::with_file(&args.file, &args.sharing, &args.keep, |file| {
        let mut transaction = file.transaction();
        for write in &writes {
            transaction.write_at(&write.bytes, write.offset).map_err(|error| of_line(write, error))?;
        }
        transaction.commit()?;
        Ok(file.sync()?)
    })?;
    let durable = change::durable(&args.file)?;
    let bytes: u64 = writes.iter().map(|write| write.bytes.len() as u64).sum();
    let object = json!({
        "path": args.file.display().to_string(),
        "writes": writes.len(),
        "bytes": bytes,
        "commit": commit,
        "durable": durable,
    });
    output::report(args.form.json, &object, || {
        let writes = output::count(writes.len() as u64, "write", "writes");
        let (bytes, note) = (output::count(bytes, "byte", "bytes"), change::durability_note(durable));
        format!("commit {commit}: {writes}, {bytes}{note}\n")
    })?;
    Ok(Exit::Clean)
}

fn check_range(path: &Path, write: &Write, file_len: u64) -> Result<()> {
    let len = write.bytes.len() as u64;
    match write.offset.checked_add(len) {
        Some(end) if end <= file_len => Ok(()),
        _ => {
            let error = Error::OutOfRange { path: path.to_owned(), offset: write.offset, len, file_len };
            Err(of_line(write, error))
        }
    }
}

/// Adds the line that caused an error.
fn of_line(write: &Write, error: Error) -> Failure {
    let failure = Failure::from(error);
    Failure { message: format!("line {}: {}; nothing was applied", write.line, failure.message), ..failure }
}

fn parse(input: &[u8]) -> std::result::Result<Vec<Write>, String> {
    let mut writes = Vec::new();
    for (index, text) in input.split(|&byte| byte == b'\n').enumerate() {
        let line = index + 1;
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let wanted = r#"each line must be {"offset":N,"hex":"..."}"#;
        let parsed: Line =
            serde_json::from_slice(text).map_err(|error| format!("line {line}: {}; {wanted}", cause(&error)))?;
        let bytes = unhex(&parsed.hex).map_err(|what| format!("line {line}: {what}"))?;
        writes.push(Write { line, offset: parsed.offset, bytes });
    }
    Ok(writes)
}

/// The parser's message with "at line 1 column N" reduced to the column. Each line is parsed separately, so the
/// parser's line number is always 1.
fn cause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&position) {
        Some(what) => format!("column {}: {what}", error.column()),
        None => text,
    }
}

fn unhex(text: &str) -> std::result::Result<Vec<u8>, String> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    if let Some(at) = text.bytes().position(|byte| digit(byte).is_none()) {
        return Err(format!("character {} of \"hex\" is not a hexadecimal digit", at + 1));
    }
    if !text.len().is_multiple_of(2) {
        return Err(format!("\"hex\" has {} digits; the number must be even, with two digits per byte", text.len()));
    }
    let pairs = text.as_bytes().chunks_exact(2);
    Ok(pairs.filter_map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_writes_and_blank_ones_are_skipped() {
        let input = b"{\"offset\":1,\"hex\":\"00fF\"}\n\n  \r\n{\"hex\":\"\",\"offset\":9}\r\n";
        let expected =
            vec![Write { line: 1, offset: 1, bytes: vec![0x00, 0xff] }, Write { line: 4, offset: 9, bytes: vec![] }];
        assert_eq!(parse(input), Ok(expected));
    }

    #[test]
    fn the_error_names_the_line() {
        for (input, want) in [
            ("{\"offset\":1,\"hex\":\"0\"}", "line 1: \"hex\" has 1 digits"),
            ("\n{\"offset\":1,\"hex\":\"0g\"}", "line 2: character 2"),
            ("{\"offset\":1}", "line 1: column 12: missing field `hex`"),
            ("{\"offset\":-1,\"hex\":\"\"}", "line 1: column 12: invalid value"),
            ("{\"offset\":1,\"hex\":\"\",\"len\":2}", "unknown field `len`"),
            ("nonsense", "line 1: column 2"),
            ("{\"offset\":1,\"hex\":\"\"} {}", "trailing characters"),
            ("{\"offset\":1,\"hex\":\"é\"}", "character 1"),
        ] {
            let error = parse(input.as_bytes()).expect_err(input);
            assert!(error.contains(want), "{input}: {error}");
        }
    }
}
