//! A connection of SQLite in a process of its own.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use sqllogictest::{ColumnType, DB, DBOutput, DefaultColumnType};

use super::{Engine, LABEL};

/// The text of an error of SQLite, or why there is no answer.
#[derive(Debug)]
pub(super) struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// The state that the connections of a script share with the one who runs it.
#[derive(Default)]
pub(super) struct Shared {
    /// The types of the next record's columns; `None` for a statement.
    pub(super) types: Option<String>,
    /// Failures, whatever the script expects.
    pub(super) failures: Vec<String>,
    /// A sum of the database at the end of each connection.
    pub(super) contents: Vec<String>,
}

#[derive(Clone, Default)]
pub(super) struct Board(Arc<Mutex<Shared>>);

impl Board {
    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().expect("no thread panics with it")
    }
}

pub(super) struct Session {
    child: Child,
    answers: BufReader<ChildStdout>,
    board: Board,
}

impl Session {
    /// Connects to a database. Names in the script are relative to its directory.
    pub(super) fn start(engine: &Engine, database: &Path, board: Board) -> Result<Self, Refused> {
        let mut python = Command::new(&engine.python);
        python.args(["-c", include_str!("session.py")]);
        match &engine.library {
            Some(library) => python.arg(library).arg("untorn"),
            None => python.args(["", "unix"]),
        };
        python.arg(database).current_dir(database.parent().unwrap_or(Path::new("/")));
        let child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| Refused(format!("cannot start {}: {error}", engine.python.display())))?;
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self { child, answers, board })
    }

    fn exchange(&mut self, request: &Value) -> io::Result<Value> {
        let input = self.child.stdin.as_mut().expect("it is piped");
        input.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// A process that does not answer has failed, also where the script expects an error.
    fn ask(&mut self, request: &Value) -> Result<Value, Refused> {
        let answer = self.exchange(request).map_err(|error| {
            let refused = format!("the process of a connection gives no answer: {error}");
            self.board.lock().failures.push(refused.clone());
            Refused(refused)
        })?;
        match answer["error"].as_str() {
            Some(error) => Err(Refused(error.to_owned())),
            None => Ok(answer),
        }
    }

    /// Checks and closes the database. Returns a sum of what is in it.
    fn end(&mut self) -> Result<String, Refused> {
        let answer = self.ask(&json!([]))?;
        drop(self.child.stdin.take());
        let status = self.child.wait().map_err(|error| Refused(error.to_string()))?;
        match answer["check"].as_str() {
            Some("ok") if status.success() => Ok(answer["content"].to_string()),
            Some("ok") => Err(Refused(format!("the process of a connection ended with {status}"))),
            check => Err(Refused(format!("PRAGMA integrity_check: {}", check.unwrap_or_default()))),
        }
    }
}

impl DB for Session {
    type Error = Refused;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Refused> {
        let types = self.board.lock().types.clone();
        let mut answer = self.ask(&json!([types, sql]))?;
        let Some(types) = types else {
            return Ok(DBOutput::StatementComplete(answer["count"].as_u64().unwrap_or_default()));
        };
        let types = types.chars().filter_map(DefaultColumnType::from_char).collect();
        let rows = serde_json::from_value(answer["rows"].take()).map_err(|error| Refused(error.to_string()))?;
        Ok(DBOutput::Rows { types, rows })
    }

    fn shutdown(&mut self) {
        let end = self.end();
        let mut board = self.board.lock();
        match end {
            Ok(content) => board.contents.push(content),
            Err(refused) => board.failures.push(format!("at the end of a connection: {refused}")),
        }
    }

    fn engine_name(&self) -> &str {
        LABEL
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
