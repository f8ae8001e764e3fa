//! A small store of the tests, which speaks enough of S3 and of Google's language, and fails on demand. Real servers
//! never fail when asked to.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::servers::Store;

/// A request as the store gets it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path and the query.
    pub(crate) target: String,
    if_match: Option<String>,
    if_none_match: Option<String>,
    /// Google's condition of a write: the generation of the object, and 0 for none.
    if_generation: Option<u64>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn is_put(&self) -> bool {
        self.method == "PUT"
    }
}

/// The way in which the store treats a request.
pub(crate) enum Act {
    Answer,
    /// It refuses with this status and code, and does nothing.
    Fail(u16, &'static str),
    /// It does it, and the answer gets lost.
    Lose,
    /// It does it without its condition.
    Ignore,
}

type Objects = BTreeMap<String, (u64, Vec<u8>)>;

/// Says what to do with a request, by its number.
type Acting = dyn Fn(usize, &Request) -> Act + Send + Sync;

struct Shared {
    objects: Mutex<(u64, Objects)>,
    /// The requests so far.
    log: Mutex<Vec<Request>>,
    act: Box<Acting>,
}

/// The running store.
pub(crate) struct Mini {
    pub(crate) store: Store,
    shared: Arc<Shared>,
}

impl Mini {
    /// One that is asked, for each request and its number, what to do.
    pub(crate) fn start(act: impl Fn(usize, &Request) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { objects: Mutex::default(), log: Mutex::default(), act: Box::new(act) });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&of_thread);
                std::thread::spawn(move || serve(&stream, &shared));
            }
        });
        Mini { store: Store::s3(port), shared }
    }

    /// The requests so far.
    pub(crate) fn log(&self) -> Vec<Request> {
        self.shared.log.lock().unwrap().clone()
    }
}

/// Serves a connection until it ends or an answer is lost.
fn serve(stream: &TcpStream, shared: &Shared) {
    let mut input = BufReader::new(stream);
    let mut output = stream;
    while let Some(request) = read(&mut input) {
        let number = {
            let mut log = shared.log.lock().unwrap();
            log.push(Request { body: Vec::new(), ..request.clone() });
            log.len()
        };
        let (status, tag, body) = match (shared.act)(number, &request) {
            Act::Fail(status, code) => (status, None, error(code)),
            Act::Ignore => {
                let request = Request { if_match: None, if_none_match: None, if_generation: None, ..request };
                answer(&request, &mut shared.objects.lock().unwrap())
            }
            Act::Answer => answer(&request, &mut shared.objects.lock().unwrap()),
            Act::Lose => {
                answer(&request, &mut shared.objects.lock().unwrap());
                return;
            }
        };
        let tag = tag.map(|tag| format!("ETag: \"{tag}\"\r\nx-goog-generation: {tag}\r\n")).unwrap_or_default();
        let date = "Last-Modified: Sun, 29 Nov 2026 06:07:08 GMT";
        let len = body.len();
        let head = format!("HTTP/1.1 {status} status\r\n{tag}{date}\r\nContent-Length: {len}\r\n\r\n");
        // 304 and 204 have no body, and nothing here gives them one.
        if output.write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

fn read(input: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ').map(str::to_owned);
    let mut request = Request { method: words.next()?, target: words.next()?, ..Request::default() };
    let mut len = 0;
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|read| *read > 2)?;
        let (name, value) = line.split_once(':')?;
        let value = value.trim().to_owned();
        match name.to_ascii_lowercase().as_str() {
            "if-match" => request.if_match = Some(value),
            "if-none-match" => request.if_none_match = Some(value),
            "x-goog-if-generation-match" => request.if_generation = Some(value.parse().ok()?),
            "content-length" => len = value.parse().ok()?,
            _ => {}
        }
        if input.fill_buf().ok()?.starts_with(b"\r\n") {
            input.consume(2);
            break;
        }
    }
    request.body = vec![0; len];
    input.read_exact(&mut request.body).ok()?;
    Some(request)
}

fn error(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>of the test</Message></Error>").into_bytes()
}

fn answer(request: &Request, (last, objects): &mut (u64, Objects)) -> (u16, Option<u64>, Vec<u8>) {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let found = objects.get(path).cloned();
    let is = |tag: &Option<String>| found.as_ref().is_some_and(|(now, _)| *tag == Some(format!("\"{now}\"")));
    match request.method.as_str() {
        "GET" if query.contains("list-type=2") => {
            let names = objects.iter().filter_map(|(path, (_, bytes))| {
                let key = path.splitn(3, '/').nth(2)?;
                let size = bytes.len();
                Some(format!(
                    "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>\"1\"</ETag>\
                     <LastModified>2026-11-29T06:07:08Z</LastModified></Contents>"
                ))
            });
            let names: String = names.collect();
            (200, None, format!("<ListBucketResult>{names}</ListBucketResult>").into_bytes())
        }
        "GET" if is(&request.if_none_match) => (304, None, Vec::new()),
        "GET" => match found {
            Some((tag, bytes)) => (200, Some(tag), bytes),
            None => (404, None, error("NoSuchKey")),
        },
        "PUT"
            if request.if_generation.is_some_and(|expected| expected != found.as_ref().map_or(0, |(tag, _)| *tag)) =>
        {
            (412, None, error("PreconditionFailed"))
        }
        "PUT" if request.if_none_match.is_some() && found.is_some() => (412, None, error("PreconditionFailed")),
        "PUT" if request.if_match.is_some() && !is(&request.if_match) => (412, None, error("PreconditionFailed")),
        "PUT" => {
            *last += 1;
            objects.insert(path.to_owned(), (*last, request.body.clone()));
            (200, Some(*last), Vec::new())
        }
        "DELETE" => {
            objects.remove(path);
            (204, None, Vec::new())
        }
        _ => (501, None, error("NotImplemented")),
    }
}
