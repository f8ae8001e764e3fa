//! The URL of a store.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// The kind of a store in the cloud, or of one that speaks the same language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cloud {
    S3,
    Azure,
    Gcs,
}

impl Cloud {
    /// The options that the query of its URL may have.
    fn options(self) -> &'static [&'static str] {
        match self {
            Cloud::S3 => &["endpoint", "region", "key"],
            Cloud::Azure => &["account", "endpoint", "key"],
            Cloud::Gcs => &["endpoint", "key"],
        }
    }

    fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" => Some(Cloud::S3),
            "az" => Some(Cloud::Azure),
            "gs" => Some(Cloud::Gcs),
            _ => None,
        }
    }
}

/// A bucket, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketUrl {
    pub(crate) cloud: Cloud,
    /// The bucket, which Azure calls a container.
    pub(crate) bucket: String,
    /// The prefix of all names, without slashes at its ends.
    pub(crate) prefix: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) account: Option<String>,
}

/// A stream of NATS JetStream, and the subjects in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamUrl {
    /// The server, with a port.
    pub(crate) host: String,
    pub(crate) stream: String,
    /// The subjects of the objects are below this one.
    pub(crate) prefix: String,
    /// The connection is encrypted.
    pub(crate) tls: bool,
}

/// The place that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Directory(PathBuf),
    Bucket(BucketUrl),
    Stream(StreamUrl),
}

/// A URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) location: Location,
    /// The file with the key of the objects.
    pub(crate) key: Option<PathBuf>,
}

const NO_KEY: &str = "has no path of a key file after key=, or a wrong %-escape";
const SHAPES: &str = "file:///DIRECTORY, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX or \
                      nats://HOST/STREAM/SUBJECT";

/// A URL as messages show it: without a part that could be a password.
pub(crate) fn shown(url: &str) -> String {
    let (place, query) = url.split_once('?').map_or((url, ""), |(place, _)| (place, "?…"));
    match (place.split_once("://"), place.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}{query}"),
        (None, Some((_, rest))) => format!("…@{rest}{query}"),
        _ => format!("{place}{query}"),
    }
}

fn is_plain(text: &str, also: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
}

/// Escapes what has a meaning in a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Takes percent-encoding back; `None` if it is wrong.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        (bytes, rest) = if *first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            let digits = str::from_utf8(digits).ok().filter(|digits| is_plain(digits, ""))?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            (bytes, after)
        } else {
            bytes.push(*first);
            (bytes, after)
        };
    }
    String::from_utf8(bytes).ok()
}

impl Parsed {
    /// # Errors
    /// [`Error::Invalid`]. The message has no part of the URL that could be a password.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let invalid = |what: &str| Error::Invalid { what: format!("{:?} {what}", shown(url)) };
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(invalid(&format!("is no URL of a replica; use {SHAPES}")));
        };
        if scheme == "file" {
            return directory(rest, &invalid);
        }
        if scheme == "nats" {
            return stream(rest, &invalid);
        }
        let cloud = Cloud::of(scheme).ok_or_else(|| invalid(&format!("has an unknown scheme; use {SHAPES}")))?;
        if rest.contains('@') {
            return Err(invalid("has a user or password; give credentials in environment variables"));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let prefix = prefix.trim_matches('/');
        if !is_plain(bucket, "-_.") {
            return Err(invalid(&format!("has no name of a bucket; use {scheme}://BUCKET/PREFIX")));
        }
        let is_part = |part: &str| is_plain(part, "-_.") && !part.starts_with('.');
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(invalid("has a prefix with other characters than letters, digits, '-', '_', '.' and '/'"));
        }
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        let mut key = None;
        let mut found = BucketUrl { cloud, bucket, prefix, endpoint: None, region: None, account: None };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let names = cloud.options();
            if !names.contains(&name) {
                return Err(invalid(&format!("has an unknown option; {scheme}:// knows {}", names.join(", "))));
            }
            let value = decoded(value).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| invalid(&format!("has no value for {name}, or a wrong %-escape")))?;
            let place = match name {
                "key" => &mut key,
                "endpoint" => &mut found.endpoint,
                "region" => &mut found.region,
                _ => &mut found.account,
            };
            if place.replace(value).is_some() {
                return Err(invalid(&format!("has {name} twice")));
            }
        }
        if let Some(endpoint) = &found.endpoint
            && !(endpoint.starts_with("https://") || endpoint.starts_with("http://"))
        {
            return Err(invalid("has an endpoint that begins with neither https:// nor http://"));
        }
        if found.endpoint.as_ref().is_some_and(|endpoint| endpoint.contains('@')) {
            return Err(invalid("has a user or password; give credentials in environment variables"));
        }
        Ok(Parsed { location: Location::Bucket(found), key: key.map(PathBuf::from) })
    }
}

/// The place behind `file://`.
fn directory(rest: &str, invalid: &dyn Fn(&str) -> Error) -> Result<Parsed> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let what = "has a wrong %-escape; write %25 for a % and %3F for a ? in the name of a directory";
    let path = decoded(path).ok_or_else(|| invalid(what))?;
    if !path.starts_with('/') {
        return Err(invalid("has no absolute path; use file:///DIRECTORY"));
    }
    let mut key = None;
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let Some(("key", value)) = option.split_once('=') else {
            return Err(invalid("has an unknown option; file:// knows key, and a ? in a directory's name is %3F"));
        };
        let value = decoded(value).filter(|value| !value.is_empty()).ok_or_else(|| invalid(NO_KEY))?;
        if key.replace(PathBuf::from(value)).is_some() {
            return Err(invalid("has key twice"));
        }
    }
    Ok(Parsed { location: Location::Directory(path.into()), key })
}

/// The place behind `nats://`.
fn stream(rest: &str, invalid: &dyn Fn(&str) -> Error) -> Result<Parsed> {
    if rest.contains('@') {
        return Err(invalid("has a user or password; give credentials in environment variables"));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let parts: Vec<&str> = place.split('/').collect();
    let [host, stream, prefix] = parts[..] else { return Err(invalid("is not nats://HOST:PORT/STREAM/SUBJECT")) };
    let is_subject = prefix.split('.').all(|token| is_plain(token, "-_"));
    if !is_plain(host, "-.:[]") || !is_plain(stream, "-_") || !is_subject {
        return Err(invalid("is not nats://HOST:PORT/STREAM/SUBJECT of letters, digits, '-' and '_'"));
    }
    let (mut key, mut tls) = (None, false);
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("tls", "true") => tls = true,
            ("key", value) => {
                let path = decoded(value).filter(|path| !path.is_empty()).ok_or_else(|| invalid(NO_KEY))?;
                key = Some(PathBuf::from(path));
            }
            _ => return Err(invalid("has an unknown option; nats:// knows tls=true and key")),
        }
    }
    let (host, stream, prefix) = (host.to_owned(), stream.to_owned(), prefix.to_owned());
    Ok(Parsed { location: Location::Stream(StreamUrl { host, stream, prefix, tls }), key })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(url: &str) -> BucketUrl {
        match Parsed::parse(url).map(|parsed| parsed.location) {
            Ok(Location::Bucket(found)) => found,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn the_parts_of_a_url_are_found() {
        let directory = |url| Parsed::parse(url).map(|found| (found.location, found.key)).unwrap();
        assert_eq!(directory("file:///a/b"), (Location::Directory("/a/b".into()), None));
        let key = Some("/k y&?".into());
        let url = format!("file:///a%3Fb%20c?key={}", encoded("/k y&?"));
        assert_eq!(directory(&url), (Location::Directory("/a?b c".into()), key.clone()));
        let url = format!("s3://b?key={}", encoded("/k y&?"));
        assert_eq!(directory(&url).1, key);
        let found = bucket("s3://ledgers/eu/one/?endpoint=http%3A//127.0.0.1:9000&region=eu-1");
        let endpoint = Some("http://127.0.0.1:9000".to_owned());
        assert_eq!((found.cloud, found.bucket.as_str(), found.prefix.as_str()), (Cloud::S3, "ledgers", "eu/one"));
        assert_eq!((found.endpoint, found.region.as_deref()), (endpoint.clone(), Some("eu-1")));
        assert_eq!(bucket("s3://b?endpoint=http://127.0.0.1:9000").endpoint, endpoint);
        let found = bucket("az://c/p?account=me");
        assert_eq!((found.cloud, found.account.as_deref()), (Cloud::Azure, Some("me")));
        assert_eq!(bucket("gs://b").prefix, "");
        let (found, key) = directory("nats://127.0.0.1:4222/LEDGERS/ledger.eu?tls=true&key=/k");
        let (host, stream, prefix) = ("127.0.0.1:4222".to_owned(), "LEDGERS".to_owned(), "ledger.eu".to_owned());
        assert_eq!(found, Location::Stream(StreamUrl { host, stream, prefix, tls: true }));
        assert_eq!(key, Some("/k".into()));
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "/a/b",
            "file://a",
            "file:///a?key=",
            "file:///a?kye=/k",
            "file:///a?b?key=/k",
            "file:///a?key=/k&key=/k",
            "file:///100%/a",
            "ftp://b/p",
            "s3://",
            "s3:///p",
            "s3://b/a//c",
            "s3://b/../c",
            "s3://b/a c",
            "s3://b/p?account=a",
            "s3://b/p?region=",
            "s3://b/p?region=a&region=b",
            "s3://b/p?region=%zz",
            "s3://b/p?endpoint=localhost:9000",
            "s3://key:hidden@b/p",
            "s3://b/p?endpoint=http://key:hidden@127.0.0.1",
            "s3://b/p?endpoint=http://key:hidden%40127.0.0.1",
            "s3://b/p?secret=hidden",
            "nats://host/STREAM",
            "nats://host/STREAM/a..b",
            "nats://host/STREAM/a.*",
            "nats://me:hidden@host/STREAM/a",
            "nats://host/STREAM/a?tls=maybe",
        ] {
            let error = Parsed::parse(url).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
    }
}
