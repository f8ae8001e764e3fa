//! How requests go out: one at a time, watched, and never repeated behind the back of the protocol.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::error::{Error, Result};
use crate::store::meter::{Kind, Meter};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long no byte may come in. A body that is sent gets more time, at the slowest rate in bytes a second.
pub(super) const STALL: Duration = Duration::from_secs(20);
const SLOWEST: u64 = 64 << 10;
/// Bytes of the longest answer that is taken.
const MOST: usize = 2 << 30;
/// Bytes of an error's body that are looked at.
const MOST_OF_ERROR: usize = 64 << 10;

/// The last failure of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Failure {
    /// The host that was asked.
    pub(super) host: String,
    /// The status and the body of the answer.
    pub(super) answer: Option<(u16, String)>,
    /// Why there was no answer.
    pub(super) transport: Option<(Option<HttpErrorKind>, String)>,
}

tokio::task_local! {
    /// The failure of the request that the running task makes.
    pub(super) static FAILURE: Arc<Mutex<Option<Failure>>>;
}

fn note(failure: Failure) {
    // Outside a request of ours nothing asks for it.
    let _ = FAILURE.try_with(|place| *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure));
}

/// Makes clients with rustls, ring and the authorities of this machine.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    client: reqwest::Client,
    meter: Arc<Meter>,
    /// The host of the store; others give credentials.
    host: String,
}

impl Connector {
    /// # Errors
    /// [`Error::Invalid`] if this machine has no certificates of authorities, and `needs_tls`.
    pub(super) fn new(meter: Arc<Meter>, host: String, needs_tls: bool) -> Result<Self> {
        let invalid = |what: String| Error::Invalid { what };
        let tls = || {
            ClientConfig::builder_with_provider(Arc::new(default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| invalid(format!("TLS cannot be used: {error}")))
        };
        let config = match tls()?.with_platform_verifier() {
            Ok(config) => config,
            Err(error) if needs_tls => {
                let advice = "install ca-certificates, or set SSL_CERT_FILE";
                return Err(invalid(format!("no authority is known that could vouch for a store: {error}; {advice}")));
            }
            Err(_) => tls()?.with_root_certificates(RootCertStore::empty()),
        };
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config.with_no_client_auth())
            .http1_only()
            .connect_timeout(CONNECT)
            // Stores close idle connections. A request on one that was just closed fails, and is made again.
            .pool_idle_timeout(Duration::from_secs(15))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .user_agent(concat!("untorn/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| invalid(format!("the HTTP client cannot be made: {error}")))?;
        Ok(Connector { client, meter, host })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

/// Whether a host is that of the store. Buckets may have hosts below it.
pub(super) fn is_of_store(host: &str, store: &str) -> bool {
    host.strip_suffix(store).is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

fn kind_of(request: &HttpRequest) -> Kind {
    let query = request.uri().query().unwrap_or_default();
    let lists = query.split('&').any(|part| part.starts_with("list-type=") || part == "comp=list");
    match request.method().as_str() {
        "GET" if lists => Kind::List,
        "GET" | "HEAD" => Kind::Get,
        "PUT" => Kind::Put,
        "DELETE" => Kind::Delete,
        _ => Kind::Other,
    }
}

/// The innermost cause, which says the most.
fn root_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let len = request.body().content_length();
        self.meter.begin(if is_of_store(&host, &self.host) { kind_of(&request) } else { Kind::Other }, len);
        let failed = |error: HttpError| {
            let transport = Some((Some(error.kind()), root_of(&error)));
            note(Failure { host: host.clone(), answer: None, transport });
            error
        };
        let stalled = |patience: Duration| {
            let text = format!("no answer within {} seconds", patience.as_secs());
            failed(HttpError::new(HttpErrorKind::Timeout, std::io::Error::other(text)))
        };
        let patience = STALL + Duration::from_secs(len as u64 / SLOWEST);
        let answer = tokio::time::timeout(patience, HttpService::call(&self.client, request)).await;
        let (parts, body) = answer.map_err(|_| stalled(patience))?.map_err(failed)?.into_parts();
        let is_error = !parts.status.is_success();
        let most = if is_error { MOST_OF_ERROR } else { MOST };
        let (mut bytes, mut stream) = (Vec::new(), body.bytes_stream());
        while let Some(piece) = tokio::time::timeout(STALL, stream.next()).await.map_err(|_| stalled(STALL))? {
            let piece = piece.map_err(failed)?;
            self.meter.receive(piece.len());
            if bytes.len() + piece.len() > most {
                if is_error {
                    break;
                }
                let text = std::io::Error::other("the answer is longer than any object of a replica");
                return Err(failed(HttpError::new(HttpErrorKind::Decode, text)));
            }
            bytes.extend_from_slice(&piece);
        }
        if is_error {
            let code = parts.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
            // Azure's code in the shape of the others; its answers to reads have no body.
            let mut text = code.map(|code| format!("<Code>{code}</Code>")).unwrap_or_default();
            text += &String::from_utf8_lossy(&bytes);
            note(Failure { host, answer: Some((parts.status.as_u16(), text)), transport: None });
        }
        Ok(HttpResponse::from_parts(parts, bytes.into()))
    }
}
