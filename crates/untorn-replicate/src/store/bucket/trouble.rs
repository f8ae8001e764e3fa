//! Failed requests in words that say what to do, without secrets.

use object_store::client::HttpErrorKind;

use super::http::{Failure, is_of_store};
use crate::store::location::Cloud;
use crate::store::secrets::scrub;

/// The store, as messages name it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) cloud: Cloud,
    pub(super) bucket: String,
    pub(super) host: String,
}

/// A cause, and whether the same request may succeed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) text: String,
    pub(super) is_transient: bool,
}

impl Failure {
    /// The code of the answer, such as `SlowDown`.
    pub(super) fn code(&self) -> &str {
        self.field("Code").unwrap_or_default()
    }

    pub(super) fn status(&self) -> u16 {
        self.answer.as_ref().map_or(0, |(status, _)| *status)
    }

    fn field(&self, name: &str) -> Option<&str> {
        let (_, text) = self.answer.as_ref()?;
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value.trim())
    }

    fn has(&self, words: &str) -> bool {
        self.answer.as_ref().is_some_and(|(_, text)| text.to_ascii_lowercase().contains(words))
    }

    /// The bucket itself is missing, and not only an object.
    pub(super) fn lacks_bucket(&self) -> bool {
        ["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"].contains(&self.code())
    }
}

/// The variables that have credentials.
fn variables(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::S3 => "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        Cloud::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        Cloud::Gcs => "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    }
}

fn permissions(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::S3 => "s3:GetObject, s3:PutObject, s3:DeleteObject, and s3:ListBucket",
        Cloud::Azure => "the role Storage Blob Data Contributor",
        Cloud::Gcs => "the role Storage Object User",
    }
}

/// Puts a failure into words. `fallback` describes one that no request noted.
pub(super) fn explain(place: &Place, failure: Option<&Failure>, fallback: &str) -> Cause {
    let cause = |is_transient, text: String| Cause { text: scrub(&text), is_transient };
    let set = variables(place.cloud);
    let Some(failure) = failure else {
        return cause(false, format!("the request could not be made: {fallback}; credentials come from {set}"));
    };
    if !is_of_store(&failure.host, &place.host) {
        let what = match (&failure.transport, failure.status()) {
            (Some((_, text)), _) => text.clone(),
            (None, status) => format!("status {status}"),
        };
        return cause(false, format!("no credentials came from {}: {what}; set {set}", failure.host));
    }
    if let Some((kind, text)) = &failure.transport {
        let what = match kind {
            Some(HttpErrorKind::Connect) => format!("cannot connect to {}", failure.host),
            _ => format!("the connection to {} failed", failure.host),
        };
        // An answer that is too long stays so.
        return cause(*kind != Some(HttpErrorKind::Decode), format!("{what}: {text}"));
    }
    let (status, code) = (failure.status(), failure.code());
    let named = if code.is_empty() { format!("status {status}") } else { code.to_owned() };
    let bucket = &place.bucket;
    match (code, status) {
        _ if failure.lacks_bucket() => cause(false, format!("there is no bucket {bucket} ({named}); create it first")),
        ("RequestTimeTooSkewed", _) => clock(&cause, &named),
        ("AuthenticationFailed", _) if failure.has("date header") => clock(&cause, &named),
        ("SlowDown" | "ServerBusy" | "RequestLimitExceeded" | "TooManyRequests", _) | (_, 429 | 503) => {
            cause(true, format!("the store asks for fewer requests ({named})"))
        }
        ("ConditionalRequestConflict" | "OperationAborted", _) | (_, 409) => {
            cause(true, format!("another request for the object was under way ({named})"))
        }
        ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken", _)
        | ("AuthenticationFailed" | "XAdminUserNotFound", _)
        | (_, 401) => cause(false, format!("the store refused the credentials ({named}); check {set}")),
        ("AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect", _) | (_, 300..=399) => {
            cause(false, format!("the bucket {bucket} is in another region ({named}); set AWS_REGION or ?region="))
        }
        (_, 403) => {
            let needs = permissions(place.cloud);
            cause(false, format!("the credentials do not permit it ({named}); they need {needs} for {bucket}"))
        }
        ("QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage" | "InsufficientCapacity", _) | (_, 507) => {
            cause(true, format!("the store is full ({named}); make room in it"))
        }
        _ => {
            let message = failure.field("Message").unwrap_or_default();
            cause(matches!(status, 408 | 500..=599), format!("the store failed ({named}): {message}"))
        }
    }
}

fn clock(cause: &dyn Fn(bool, String) -> Cause, named: &str) -> Cause {
    cause(false, format!("the store says that the clock of this machine is wrong ({named}); set the clock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place { cloud: Cloud::S3, bucket: "ledgers".to_owned(), host: "store".to_owned() }
    }

    fn answered(status: u16, code: &str) -> Cause {
        let body = format!("<Error><Code>{code}</Code><Message>of the\nstore</Message></Error>");
        let failure = Failure { host: "store".to_owned(), answer: Some((status, body)), transport: None };
        explain(&place(), Some(&failure), "")
    }

    #[test]
    fn each_failure_says_what_to_do() {
        for (status, code, is_transient, advice) in [
            (403, "InvalidAccessKeyId", false, "check AWS_ACCESS_KEY_ID"),
            (403, "SignatureDoesNotMatch", false, "check AWS_ACCESS_KEY_ID"),
            (400, "ExpiredToken", false, "AWS_SESSION_TOKEN"),
            (403, "AccessDenied", false, "s3:ListBucket"),
            (403, "RequestTimeTooSkewed", false, "set the clock"),
            (404, "NoSuchBucket", false, "there is no bucket ledgers"),
            (301, "PermanentRedirect", false, "AWS_REGION"),
            (503, "SlowDown", true, "fewer requests"),
            (429, "", true, "fewer requests (status 429)"),
            (409, "ConditionalRequestConflict", true, "another request"),
            (507, "XMinioStorageFull", true, "make room"),
            (500, "InternalError", true, "(InternalError): of the store"),
            (418, "Teapot", false, "(Teapot): of the store"),
        ] {
            let found = answered(status, code);
            assert!(found.text.contains(advice) && found.is_transient == is_transient, "{code}: {found:?}");
        }
    }

    #[test]
    fn a_failure_without_an_answer_names_the_host() {
        let transport = |kind, text: &str| {
            let failure =
                Failure { host: "store".to_owned(), answer: None, transport: Some((Some(kind), text.to_owned())) };
            explain(&place(), Some(&failure), "")
        };
        let refused = transport(HttpErrorKind::Connect, "Connection refused");
        assert_eq!(refused.text, "cannot connect to store: Connection refused");
        assert!(refused.is_transient && transport(HttpErrorKind::Timeout, "").is_transient);
        assert!(!transport(HttpErrorKind::Decode, "too long").is_transient);
        let transport = Some((Some(HttpErrorKind::Connect), "no route".to_owned()));
        let elsewhere = Failure { host: "169.254.169.254".to_owned(), answer: None, transport };
        let found = explain(&place(), Some(&elsewhere), "");
        assert!(found.text.starts_with("no credentials came from 169.254.169.254: no route; set AWS_"), "{found:?}");
        assert!(explain(&place(), None, "why").text.starts_with("the request could not be made: why; credentials"));
        assert!(is_of_store("bucket.store", "store") && !is_of_store("restore", "store"));
    }
}
