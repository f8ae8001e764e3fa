//! A store in a stream of NATS JetStream: each object is the last message of a subject.
//!
//! # Invariants
//!
//! 1. A version is the sequence number of its message. The server numbers the messages of a stream, so two versions of
//!    an object never have the same one.
//! 2. The last message of the subject is the object: its publication has the condition. A long object has its bytes in
//!    messages of other subjects, which only it names, and which come before it.
//! 3. One call publishes at most one message with a condition, and repeats none. The protocol repeats requests, and it
//!    must know that a conditional write was tried before.
//! 4. A replicated stream is read only after a message went through its present leader: one that has lost its majority
//!    would answer with an older object.

use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use async_nats::header::{HeaderMap, NATS_EXPECTED_LAST_SUBJECT_SEQUENCE};
use async_nats::jetstream::context::{GetStreamErrorKind, PublishErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use async_nats::jetstream::{self, Context, ErrorCode};
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event};
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use tokio::sync::watch::{self, Receiver};

use super::location::StreamUrl;
use super::meter::{Kind, Meter, Requests};
use super::secrets::scrub;
use super::waiting::Waiting;
use super::{Answer, Fetched, Listed, Put, Read, Store, StoreError, Tag};
use crate::error::{Error, Result};
use crate::format::LONGEST;
use crate::random;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a message that are not the object's.
const OVERHEAD: usize = 4096;

/// Bytes of an object in one message at most: what a server allows by default, with room for the rest.
const MOST: usize = (1 << 20) - OVERHEAD;

/// The first byte of a message: its object follows, or the list of the messages that have it.
const WHOLE: u8 = 0;
const DIVIDED: u8 = 1;

/// A store in a stream.
pub(super) struct JetStreamStore {
    url: String,
    place: StreamUrl,
    meter: Meter,
    waiting: Waiting,
    /// The connection, once there was a request.
    open: Mutex<Option<Open>>,
}

/// A connection, and the stream.
#[derive(Clone)]
struct Open {
    client: Client,
    context: Context,
    stream: Stream,
    /// Copies of the stream.
    copies: usize,
    /// Changes when the connection is lost.
    lost: Receiver<()>,
}

impl std::fmt::Debug for JetStreamStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JetStreamStore").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A request that failed.
struct Trouble {
    is_transient: bool,
    text: String,
}

impl Trouble {
    fn passing(error: &dyn std::error::Error) -> Self {
        Trouble { is_transient: true, text: chain(error) }
    }

    fn lasting(text: impl Into<String>) -> Self {
        Trouble { is_transient: false, text: text.into() }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

type Done<T> = std::result::Result<T, Trouble>;

impl JetStreamStore {
    /// The store that a URL names. Makes no request.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub(super) fn open(url: &str, place: StreamUrl) -> Result<Self> {
        let failed = |source| Error::Io { operation: "start the thread of the store", path: url.into(), source };
        let waiting = Waiting::new().map_err(failed)?;
        Ok(JetStreamStore { url: url.to_owned(), place, meter: Meter::default(), waiting, open: Mutex::new(None) })
    }

    fn subject(&self, name: &str) -> String {
        let name: String = name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '%'
                } else {
                    c
                }
            })
            .collect();
        format!("{}.{name}", self.place.prefix)
    }

    /// The name of an object by its subject; `None` for a message that has a piece of one.
    fn name(&self, subject: &str) -> Option<String> {
        let name = subject.strip_prefix(&self.place.prefix)?.strip_prefix('.')?;
        let plain = |c| {
            if c == '.' {
                '/'
            } else if c == '%' {
                '.'
            } else {
                c
            }
        };
        (!name.starts_with('~')).then(|| name.chars().map(plain).collect())
    }

    /// Runs a request on the connection, which the first one makes.
    fn run<T: Send + 'static, F>(
        &self,
        operation: &'static str,
        name: &str,
        request: impl FnOnce(Open) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = Done<T>> + Send + 'static,
    {
        let failed = |Trouble { is_transient, text }| StoreError {
            operation,
            name: name.to_owned(),
            is_transient,
            cause: scrub(&text),
        };
        let ended = || failed(Trouble::lasting("the request was ended before an answer came"));
        let mut place = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let open = match &*place {
            Some(open) => open.clone(),
            None => {
                let open = self.waiting.run(connect(self.place.clone())).ok_or_else(ended)?.map_err(failed)?;
                place.insert(open).clone()
            }
        };
        drop(place);
        let lost = open.lost.clone();
        self.waiting.run(unless_lost(request(open), lost)).ok_or_else(ended)?.map_err(failed)
    }

    fn fetch(&self, name: &str) -> Answer<Option<Fetched>> {
        self.meter.begin(Kind::Get, 0);
        let (subject, prefix) = (self.subject(name), self.place.prefix.clone());
        let found = self.run("read", name, |open| async move { open.read(&subject, &prefix).await })?;
        self.meter.receive(found.as_ref().map_or(0, |found| found.bytes.len()));
        Ok(found)
    }

    fn publish(&self, operation: &'static str, name: &str, bytes: &[u8], expected: u64) -> Answer<Put> {
        self.meter.begin(Kind::Put, bytes.len());
        let (subject, prefix, bytes) = (self.subject(name), self.place.prefix.clone(), bytes.to_vec());
        let nonce = random::<16>().map_err(|error| StoreError {
            operation,
            name: name.to_owned(),
            is_transient: false,
            cause: error.to_string(),
        })?;
        self.run(operation, name, |open| async move {
            if bytes.len() <= MOST.min(open.room()) {
                let message = [&[WHOLE], &bytes[..]].concat();
                return open.publish(&subject, message, Some(expected)).await;
            }
            let pieces = Pieces { id: u128::from_be_bytes(nonce), count: bytes.chunks(open.piece()).count() as u32 };
            for (number, piece) in bytes.chunks(open.piece()).enumerate() {
                open.publish(&pieces.subject(&prefix, number as u32), piece.to_vec(), None).await?;
            }
            let put = open.publish(&subject, pieces.encode(), Some(expected)).await;
            if matches!(put, Ok(Put::Refused)) {
                // Nothing reads the pieces that a failed call left.
                let _ = open.purge(&pieces.all(&prefix)).await;
            }
            put
        })
    }
}

/// Runs a request until the connection is lost. The client makes another one by itself, but no answer to this request
/// will come, and it would be waited for.
async fn unless_lost<T>(request: impl Future<Output = Done<T>>, mut lost: Receiver<()>) -> Done<T> {
    lost.mark_unchanged();
    match select(pin!(request), pin!(lost.changed())).await {
        Either::Left((done, _)) => done,
        Either::Right((Ok(()), _)) => {
            Err(Trouble { is_transient: true, text: "the connection to the server was lost".to_owned() })
        }
        // The client is gone, and tells of no loss any more.
        Either::Right((Err(_), request)) => request.await,
    }
}

/// Connects, and finds the stream, or makes it.
async fn connect(place: StreamUrl) -> Done<Open> {
    let (tell, lost) = watch::channel(());
    let mut options = ConnectOptions::new()
        .event_callback(move |event| {
            if matches!(event, Event::Disconnected) {
                tell.send_replace(());
            }
            ready(())
        })
        .name("untorn")
        .connection_timeout(PATIENCE)
        .request_timeout(Some(PATIENCE))
        .require_tls(place.tls);
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let (Some(user), Some(password)) = (variable("NATS_USER"), variable("NATS_PASSWORD")) {
        options = options.user_and_password(user, password);
    }
    if let Some(token) = variable("NATS_TOKEN") {
        options = options.token(token);
    }
    if let Some(file) = variable("NATS_CREDS") {
        let failed = |error: std::io::Error| Trouble::lasting(format!("cannot read the file of NATS_CREDS: {error}"));
        options = options.credentials_file(file).await.map_err(failed)?;
    }
    let client = options.connect(&place.host).await.map_err(|error| unconnected(&place.host, &error))?;
    let mut context = jetstream::new(client.clone());
    context.set_timeout(PATIENCE);
    let stream = match context.get_stream(&place.stream).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(found) if found.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                let made = context.create_stream(place.config()).await;
                made.map_err(|error| Trouble { is_transient: false, text: chain(&error) })?
            }
            GetStreamErrorKind::JetStream(_) => return Err(Trouble::lasting(chain(&error))),
            _ => return Err(Trouble::passing(&error)),
        },
    };
    let config = &stream.cached_info().config;
    if let Some(what) = unfit(config) {
        return Err(Trouble::lasting(format!("the stream {} {what}; use another stream", place.stream)));
    }
    let copies = config.num_replicas;
    Ok(Open { client, context, stream, copies, lost })
}

/// Why there is no connection, and what to do.
fn unconnected(host: &str, error: &ConnectError) -> Trouble {
    const VARIABLES: &str = "NATS_USER and NATS_PASSWORD, NATS_TOKEN or NATS_CREDS";
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            Trouble::lasting(format!("the server refused the credentials ({}); check {VARIABLES}", error.kind()))
        }
        ConnectErrorKind::Tls | ConnectErrorKind::ServerParse => {
            Trouble::lasting(format!("cannot connect to {host}: {}", chain(error)))
        }
        _ => Trouble { is_transient: true, text: format!("cannot connect to {host}: {}", chain(error)) },
    }
}

/// Why a stream is not fit for objects, if it is not.
fn unfit(config: &Config) -> Option<&'static str> {
    let limited = config.max_bytes > 0 || config.max_messages > 0;
    match config {
        Config { storage: StorageType::Memory, .. } => Some("is in memory"),
        Config { retention: RetentionPolicy::Interest | RetentionPolicy::WorkQueue, .. } => {
            Some("removes messages that were read")
        }
        Config { max_age, .. } if !max_age.is_zero() => Some("removes messages by age"),
        Config { discard: DiscardPolicy::Old, .. } if limited => Some("removes old messages when it is full"),
        Config { max_messages_per_subject, .. } if *max_messages_per_subject != 1 => {
            Some("keeps more than one message of a subject, so it would grow with each update")
        }
        Config { deny_purge: true, .. } => Some("denies that messages are purged"),
        Config { no_ack: true, .. } => Some("acknowledges nothing"),
        _ => None,
    }
}

impl StreamUrl {
    /// The stream that is made if there is none.
    fn config(&self) -> Config {
        Config {
            name: self.stream.clone(),
            subjects: vec![format!("{}.>", self.prefix)],
            // The stream has only the last version of an object.
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            description: Some("a replica of untorn".to_owned()),
            ..Config::default()
        }
    }
}

/// The messages that have the bytes of a long object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pieces {
    id: u128,
    count: u32,
}

impl Pieces {
    fn encode(self) -> Vec<u8> {
        [&[DIVIDED], &self.id.to_be_bytes()[..], &self.count.to_be_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, count) = bytes.split_first_chunk::<16>()?;
        Some(Pieces { id: u128::from_be_bytes(*id), count: u32::from_be_bytes(count.try_into().ok()?) })
    }

    fn subject(self, prefix: &str, number: u32) -> String {
        format!("{prefix}.~.{:032x}.{number}", self.id)
    }

    fn all(self, prefix: &str) -> String {
        format!("{prefix}.~.{:032x}.*", self.id)
    }
}

impl Open {
    /// Bytes of an object that the server takes in a message.
    fn room(&self) -> usize {
        self.client.max_payload().saturating_sub(OVERHEAD)
    }

    fn piece(&self) -> usize {
        MOST.min(self.room()).max(1)
    }

    /// Publishes a message, on condition that the last one of the subject has this number; 0 for none.
    async fn publish(&self, subject: &str, bytes: Vec<u8>, expected: Option<u64>) -> Done<Put> {
        let mut headers = HeaderMap::new();
        if let Some(expected) = expected {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string().as_str());
        }
        let sent = self.context.publish_with_headers(subject.to_owned(), headers, bytes.into()).await;
        let answer = match sent {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(answer) => Ok(Put::Stored(Tag(answer.sequence.to_string()))),
            Err(error) => match error.kind() {
                PublishErrorKind::WrongLastSequence => Ok(Put::Refused),
                PublishErrorKind::StreamNotFound => {
                    let text = format!("no stream has the subject {subject}; add it to the subjects of the stream");
                    Err(Trouble::lasting(text))
                }
                PublishErrorKind::MaxPayloadExceeded => Err(Trouble::lasting(chain(&error))),
                _ => Err(Trouble::passing(&error)),
            },
        }
    }

    /// The last message of a subject.
    async fn last(&self, subject: &str) -> Done<Option<StreamMessage>> {
        match self.stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message)),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::InvalidSubject => Err(Trouble::lasting(chain(&error))),
                _ => Err(Trouble::passing(&error)),
            },
        }
    }

    async fn read(&self, subject: &str, prefix: &str) -> Done<Option<Fetched>> {
        if self.copies > 1 {
            // Invariant 4.
            self.publish(&format!("{prefix}.~.leader"), Vec::new(), None).await?;
        }
        while let Some(message) = self.last(subject).await? {
            let tag = Tag(message.sequence.to_string());
            let damaged = || Trouble::lasting(format!("the message {} is not of a replica", message.sequence));
            let (kind, body) = message.payload.split_first().ok_or_else(damaged)?;
            match *kind {
                WHOLE => return Ok(Some(Fetched { bytes: body.to_vec(), tag })),
                DIVIDED => {}
                _ => return Err(damaged()),
            }
            let pieces = Pieces::decode(body).ok_or_else(damaged)?;
            let mut bytes = Vec::new();
            let mut number = 0;
            while number < pieces.count
                && let Some(piece) = self.last(&pieces.subject(prefix, number)).await?
            {
                extend(&mut bytes, &piece.payload, LONGEST)?;
                number += 1;
            }
            if number == pieces.count {
                return Ok(Some(Fetched { bytes, tag }));
            }
            // It was replaced or deleted meanwhile, or was lost.
            if self.last(subject).await?.is_some_and(|now| now.sequence == message.sequence) {
                return Err(Trouble::lasting("a part of the object is missing"));
            }
        }
        Ok(None)
    }

    async fn purge(&self, filter: &str) -> Done<()> {
        let purged = self.stream.purge().filter(filter).await;
        purged.map(drop).map_err(|error| Trouble::passing(&error))
    }

    /// The messages that have the bytes of a long object; `None` if it is in one message, or missing.
    async fn pieces_of(&self, subject: &str) -> Done<Option<Pieces>> {
        let message = self.last(subject).await?;
        Ok(message.and_then(|message| Pieces::decode(message.payload.strip_prefix(&[DIVIDED])?)))
    }
}

/// Adds a piece to an object that has at most so many bytes.
fn extend(bytes: &mut Vec<u8>, piece: &[u8], most: u64) -> Done<()> {
    if bytes.len() as u64 + piece.len() as u64 > most {
        return Err(Trouble::lasting(format!("it has more than {most} bytes, which no object has")));
    }
    bytes.extend_from_slice(piece);
    Ok(())
}

impl Store for JetStreamStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn close(&self) {
        self.waiting.close();
    }

    fn requests(&self) -> Requests {
        self.meter.read()
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        self.fetch(name)
    }

    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read> {
        Ok(match self.fetch(name)? {
            None => Read::Missing,
            Some(found) if found.tag == *tag => Read::Unchanged,
            Some(found) => Read::Changed(found),
        })
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Answer<Put> {
        self.publish("create", name, bytes, 0)
    }

    fn update_if_match(&self, name: &str, bytes: &[u8], tag: &Tag) -> Answer<Put> {
        // 0 would be the condition that there is none.
        match tag.0.parse() {
            Ok(expected) if expected > 0 => self.publish("update", name, bytes, expected),
            _ => Ok(Put::Refused),
        }
    }

    fn delete(&self, name: &str) -> Answer<()> {
        self.meter.begin(Kind::Delete, 0);
        let (subject, prefix) = (self.subject(name), self.place.prefix.clone());
        self.run("delete", name, |open| async move {
            let pieces = open.pieces_of(&subject).await?;
            open.purge(&subject).await?;
            match pieces {
                Some(pieces) => open.purge(&pieces.all(&prefix)).await,
                None => Ok(()),
            }
        })
    }

    fn list(&self, prefix: &str) -> Answer<Vec<Listed>> {
        self.meter.begin(Kind::List, 0);
        let filter = format!("{}.>", self.place.prefix);
        let subjects = self.run("list", prefix, |open| async move {
            let failed = |error: &dyn std::error::Error| Trouble::passing(error);
            let found = open.stream.info_with_subjects(filter).await.map_err(|error| failed(&error))?;
            found.map_ok(|(subject, _)| subject).try_collect::<Vec<_>>().await.map_err(|error| failed(&error))
        })?;
        let mut names: Vec<String> = subjects.iter().filter_map(|subject| self.name(subject)).collect();
        names.retain(|name| name.starts_with(prefix));
        names.sort();
        let mut listed = Vec::with_capacity(names.len());
        for name in names {
            if let Some(found) = self.fetch(&name)? {
                listed.push(Listed { name, len: found.bytes.len() as u64 });
            }
        }
        Ok(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_object_of_many_pieces_is_refused() {
        let mut bytes = vec![1; 6];
        assert!(extend(&mut bytes, &[2; 4], 10).is_ok());
        let refused = extend(&mut bytes, &[3], 10).unwrap_err();
        assert!(!refused.is_transient && refused.text.contains("more than 10 bytes"));
        assert_eq!(bytes, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    }
}
